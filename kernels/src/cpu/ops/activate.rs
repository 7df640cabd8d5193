//! What is between the products of an MLP without gates.

use super::for_rows;
use crate::cpu::math::{self, Map};
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::model::Activation;

/// Replaces each element of `rows` rows of `width` by its image.
pub(crate) fn activate_rows<M: Map + Sync>(
    (pool, isa): (&mut Pool, Isa),
    x: &mut [f32],
    (rows, width): (usize, usize),
    activation: &M,
) -> Result<(), TaskPanic> {
    assert_eq!(x.len(), rows * width);
    let x = SharedSlice::new(x);
    for_rows(pool, rows, width, |first, end| {
        isa.run(Rows {
            // SAFETY: ranges of rows are disjoint.
            x: unsafe { x.slice(first * width, (end - first) * width) },
            activation,
        });
    })
}

struct Rows<'a, M> {
    x: &'a mut [f32],
    activation: &'a M,
}

impl<M: Map> Kernel for Rows<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        math::map(s, self.activation, self.x);
    }
}

/// An activation, element by element.
pub(crate) struct Activate(pub(crate) Activation);

impl Map for Activate {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F {
        math::activate(s, self.0, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::math::Xielu;

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
                let activation = &Activate(activation);
                activate_rows((&mut pool, isa), &mut got, (rows, width), activation).unwrap();
                for (got, x) in got.iter().zip(&x) {
                    let want = formula(f64::from(*x));
                    assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn xielu_is_its_formula_on_every_path() {
        let small = [0.0, -0.0, 1e-30, -1e-30, 1e-7, -1e-7, -1e-6, 1e-3, -1e-3];
        let x: Vec<f32> = small
            .into_iter()
            .chain((0..1009).map(|i| i as f32 / 25.0 - 20.0))
            .collect();
        let mut pool = Pool::new(2).unwrap();
        for eps in [-1e-6, -0.25] {
            let xielu = Xielu {
                positive: 0.8,
                negative: 1.3,
                beta: 0.5,
                eps,
            };
            let formula = |x: f64| match x > 0.0 {
                true => f64::from(xielu.positive) * x * x + 0.5 * x,
                false => {
                    let curved = x.min(f64::from(eps)).exp_m1() - x;
                    f64::from(xielu.negative) * curved + 0.5 * x
                }
            };
            for isa in Isa::available() {
                let mut got = x.clone();
                activate_rows((&mut pool, isa), &mut got, (1, x.len()), &xielu).unwrap();
                for (got, x) in got.iter().zip(&x) {
                    let want = formula(f64::from(*x));
                    let error = (f64::from(*got) - want).abs();
                    assert!(error < 1e-6 + 1e-6 * want.abs(), "{x}: {got} {want}");
                }
            }
        }
    }
}
