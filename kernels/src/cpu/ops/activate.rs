//! What is between the products of an MLP without gates.

use super::for_rows;
use crate::cpu::math::{self, Map};
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::model::Activation;

/// Replaces each element of `rows` rows of `width` by its activation.
pub(crate) fn activate_rows(
    (pool, isa): (&mut Pool, Isa),
    x: &mut [f32],
    (rows, width): (usize, usize),
    activation: Activation,
) -> Result<(), TaskPanic> {
    assert_eq!(x.len(), rows * width);
    let x = SharedSlice::new(x);
    for_rows(pool, rows, width, |first, end| {
        isa.run(Rows {
            // SAFETY: ranges of rows are disjoint.
            x: unsafe { x.slice(first * width, (end - first) * width) },
            activate: Activate(activation),
        });
    })
}

struct Rows<'a> {
    x: &'a mut [f32],
    activate: Activate,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        math::map(s, &self.activate, self.x);
    }
}

/// An activation, element by element.
pub(super) struct Activate(pub(super) Activation);

impl Map for Activate {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F {
        math::activate(s, self.0, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_its_formula_on_every_path() {
        let (rows, width) = (3, 5003);
        let x: Vec<f32> = (0..rows * width)
            .map(|i| ((i * 7919 + 13) % 1009) as f32 / 50.0 - 10.0)
            .collect();
        let mut pool = Pool::new(2).unwrap();
        type Formula = fn(f64) -> f64;
        let formulas: [(Activation, Formula); 2] = [
            (Activation::Relu2, |x| x.max(0.0).powi(2)),
            (Activation::Silu, |x| x / (1.0 + (-x).exp())),
        ];
        for (activation, formula) in formulas {
            for isa in Isa::available() {
                let mut got = x.clone();
                activate_rows((&mut pool, isa), &mut got, (rows, width), activation).unwrap();
                for (got, x) in got.iter().zip(&x) {
                    let want = formula(f64::from(*x));
                    assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
                }
            }
        }
    }
}
