//! What is left to do with logits.

use super::for_rows;
use crate::cpu::math::{self, Map};
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};

/// Multiplies rows of `width` logits, then caps them.
pub(crate) fn finish_logits(
    (pool, isa): (&mut Pool, Isa),
    logits: &mut [f32],
    width: usize,
    multiplier: f32,
    cap: Option<f32>,
) -> Result<(), TaskPanic> {
    let rows = logits.len() / width;
    let logits = SharedSlice::new(logits);
    for_rows(pool, rows, width, |first, end| {
        isa.run(Rows {
            // SAFETY: ranges of rows are disjoint.
            logits: unsafe { logits.slice(first * width, (end - first) * width) },
            finish: Finish { multiplier, cap },
        });
    })
}

struct Rows<'a> {
    logits: &'a mut [f32],
    finish: Finish,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        math::map(s, &self.finish, self.logits);
    }
}

struct Finish {
    multiplier: f32,
    cap: Option<f32>,
}

impl Map for Finish {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F {
        let scaled = s.mul(x, s.splat(self.multiplier));
        match self.cap {
            Some(cap) => math::soft_cap(s, scaled, cap),
            None => scaled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_its_formula_on_every_path() {
        let (rows, width) = (3, 5003);
        let logits: Vec<f32> = (0..rows * width)
            .map(|i| ((i * 7919 + 13) % 1009) as f32 / 5.0 - 100.0)
            .collect();
        let mut pool = Pool::new(2).unwrap();
        for (multiplier, cap) in [(0.0625, None), (1.0, Some(30.0)), (0.5, Some(20.0))] {
            for isa in Isa::available() {
                let mut got = logits.clone();
                finish_logits((&mut pool, isa), &mut got, width, multiplier, cap).unwrap();
                for (got, logit) in got.iter().zip(&logits) {
                    let scaled = f64::from(*logit) * f64::from(multiplier);
                    let want = cap.map_or(scaled, |cap| {
                        f64::from(cap) * (scaled / f64::from(cap)).tanh()
                    });
                    assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
                }
            }
        }
    }
}
