//! RMSNorm and LayerNorm.

use super::for_rows;
use crate::cpu::math;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::model::NormKind;

/// A norm of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) kind: NormKind,
    /// As long as a row.
    pub(crate) weight: &'a [f32],
    /// As long as a row.
    pub(crate) bias: Option<&'a [f32]>,
    /// Added to the mean square, or the variance.
    pub(crate) eps: f32,
}

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

/// [`rms_norm_in_place`] without weights.
#[inline(always)]
pub(super) fn rms_normalise<S: Simd>(s: S, x: &mut [f32], eps: f32) {
    let scale = scale(s, x, eps);
    x.iter_mut().for_each(|x| *x *= scale);
}

#[inline(always)]
fn scale<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (math::sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

impl Norm<'_> {
    /// Of each row of `x` into `y`.
    pub(crate) fn run(
        self,
        pool: &mut Pool,
        isa: Isa,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), TaskPanic> {
        let width = self.weight.len();
        let out = SharedSlice::new(y);
        for_rows(pool, x.len() / width, width, |first, end| {
            isa.run(Rows {
                norm: self,
                x: &x[first * width..end * width],
                // SAFETY: ranges of rows are disjoint.
                y: unsafe { out.slice(first * width, (end - first) * width) },
            });
        })
    }

    /// Of each row of `x` onto itself.
    pub(crate) fn run_in_place(
        self,
        pool: &mut Pool,
        isa: Isa,
        x: &mut [f32],
    ) -> Result<(), TaskPanic> {
        let width = self.weight.len();
        let rows = x.len() / width;
        let x = SharedSlice::new(x);
        for_rows(pool, rows, width, |first, end| {
            isa.run(RowsInPlace {
                norm: self,
                // SAFETY: ranges of rows are disjoint.
                x: unsafe { x.slice(first * width, (end - first) * width) },
            });
        })
    }

    #[inline(always)]
    fn row<S: Simd>(self, s: S, x: &[f32], y: &mut [f32]) {
        match self.kind {
            NormKind::Rms => rms_norm(s, x, self.weight, self.eps, y),
            NormKind::Layer => {
                y.copy_from_slice(x);
                self.layer_norm(s, y);
            }
        }
        self.add_bias(y);
    }

    #[inline(always)]
    fn row_in_place<S: Simd>(self, s: S, x: &mut [f32]) {
        match self.kind {
            NormKind::Rms => rms_norm_in_place(s, x, self.weight, self.eps),
            NormKind::Layer => self.layer_norm(s, x),
        }
        self.add_bias(x);
    }

    /// The variance is of values whose mean is 0 already: squares of others would cancel.
    #[inline(always)]
    fn layer_norm<S: Simd>(self, s: S, x: &mut [f32]) {
        let mean = math::sum(s, x) / x.len() as f32;
        x.iter_mut().for_each(|x| *x -= mean);
        rms_norm_in_place(s, x, self.weight, self.eps);
    }

    #[inline(always)]
    fn add_bias(self, x: &mut [f32]) {
        if let Some(bias) = self.bias {
            x.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
    }
}

/// `x / sqrt(mean(x²) + eps)`, of one row.
pub(crate) struct Normalise<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) eps: f32,
}

impl Kernel for Normalise<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        rms_normalise(s, self.x, self.eps);
    }
}

struct RowsInPlace<'a> {
    norm: Norm<'a>,
    x: &'a mut [f32],
}

impl Kernel for RowsInPlace<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_exact_mut(self.norm.weight.len()) {
            self.norm.row_in_place(s, x);
        }
    }
}

struct Rows<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.norm.weight.len();
        for (x, y) in self
            .x
            .chunks_exact(width)
            .zip(self.y.chunks_exact_mut(width))
        {
            self.norm.row(s, x, y);
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
        let bias: Vec<f32> = (0..width).map(|i| i as f32 / 100.0 - 3.0).collect();
        let mut pool = Pool::new(3).unwrap();
        let kinds = [NormKind::Rms, NormKind::Layer].into_iter();
        for (kind, bias) in kinds.flat_map(|kind| [(kind, None), (kind, Some(&bias[..]))]) {
            let norm = Norm {
                kind,
                weight: &weight,
                bias,
                eps: 1e-5,
            };
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::available() {
                let mut y = vec![0.0; x.len()];
                norm.run(&mut pool, isa, &x, &mut y).unwrap();
                for r in 0..rows {
                    let row: Vec<f64> = x[r * width..][..width]
                        .iter()
                        .map(|x| (*x).into())
                        .collect();
                    let mean = match kind {
                        NormKind::Rms => 0.0,
                        NormKind::Layer => row.iter().sum::<f64>() / width as f64,
                    };
                    let squares = row.iter().map(|v| (v - mean).powi(2));
                    let variance = squares.sum::<f64>() / width as f64;
                    for c in 0..width {
                        let want = (row[c] - mean) / (variance + 1e-5).sqrt()
                            * f64::from(weight[c])
                            + bias.map_or(0.0, |bias| bias[c].into());
                        assert!((f64::from(y[r * width + c]) - want).abs() < 2e-5);
                    }
                }
                assert_eq!(*first.get_or_insert_with(|| y.clone()), y, "{}", isa.name());
                let mut in_place = x.clone();
                norm.run_in_place(&mut pool, isa, &mut in_place).unwrap();
                assert_eq!(in_place, y, "{}", isa.name());
            }
        }
    }
}
