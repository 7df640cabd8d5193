//! RMSNorm.

use super::for_rows;
use crate::cpu::math;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};

/// `y = x / sqrt(mean(x²) + eps) * weight`.
#[inline(always)]
pub(super) fn rms_norm<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let scale = scale(s, x, eps);
    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * w;
    }
}

/// [`rms_norm`] onto itself.
#[inline(always)]
pub(super) fn rms_norm_in_place<S: Simd>(s: S, x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = scale(s, x, eps);
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

#[inline(always)]
fn scale<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (math::sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

/// RMSNorm of each row of `x[rows][weight.len()]` into `y`.
pub(crate) fn rms_norm_rows(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    y: &mut [f32],
) -> Result<(), TaskPanic> {
    let width = weight.len();
    let out = SharedSlice::new(y);
    for_rows(pool, x.len() / width, width, |first, end| {
        isa.run(Rows {
            x: &x[first * width..end * width],
            weight,
            eps,
            // SAFETY: ranges of rows are disjoint.
            y: unsafe { out.slice(first * width, (end - first) * width) },
        });
    })
}

/// RMSNorm of each row of `x[rows][weight.len()]` onto itself.
pub(crate) fn rms_norm_rows_in_place(
    pool: &mut Pool,
    isa: Isa,
    x: &mut [f32],
    weight: &[f32],
    eps: f32,
) -> Result<(), TaskPanic> {
    let width = weight.len();
    let rows = x.len() / width;
    let x = SharedSlice::new(x);
    for_rows(pool, rows, width, |first, end| {
        isa.run(RowsInPlace {
            // SAFETY: ranges of rows are disjoint.
            x: unsafe { x.slice(first * width, (end - first) * width) },
            weight,
            eps,
        });
    })
}

struct RowsInPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RowsInPlace<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_exact_mut(self.weight.len()) {
            rms_norm_in_place(s, x, self.weight, self.eps);
        }
    }
}

struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (x, y) in self
            .x
            .chunks_exact(width)
            .zip(self.y.chunks_exact_mut(width))
        {
            rms_norm(s, x, self.weight, self.eps, y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_its_formula_on_every_path() {
        let (rows, width) = (40, 577);
        let x: Vec<f32> = (0..rows * width)
            .map(|i| ((i * 7919 + 13) % 1009) as f32 / 100.0 - 5.0)
            .collect();
        let weight: Vec<f32> = (0..width).map(|i| 0.5 + i as f32 / 577.0).collect();
        let mut pool = Pool::new(3).unwrap();
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let mut y = vec![0.0; x.len()];
            rms_norm_rows(&mut pool, isa, &x, &weight, 1e-5, &mut y).unwrap();
            for r in 0..rows {
                let row = &x[r * width..][..width];
                let mean: f64 =
                    row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
                for c in 0..width {
                    let want = f64::from(row[c]) / (mean + 1e-5).sqrt() * f64::from(weight[c]);
                    assert!((f64::from(y[r * width + c]) - want).abs() < 1e-5);
                }
            }
            assert_eq!(*first.get_or_insert_with(|| y.clone()), y, "{}", isa.name());
            let mut in_place = x.clone();
            rms_norm_rows_in_place(&mut pool, isa, &mut in_place, &weight, 1e-5).unwrap();
            assert_eq!(in_place, y, "{}", isa.name());
        }
    }
}
