//! Vector functions that every kernel shares: exponential, SiLU, reductions, rounding to bf16.

use super::simd::{Simd, WIDE};
use crate::model::Activation;

/// Below this the exponential is clamped, so that the result stays a normal number.
const EXP_MIN: f32 = -87.0;
/// Above this the exponential is clamped, so that the result stays finite.
const EXP_MAX: f32 = 88.0;

/// `e^x` within 2 units in the last place, for `x` clamped to `[-87, 88]`; NaN stays NaN.
///
/// `x = n ln 2 + r` with integer `n`; `e^r` by the polynomial of Cephes' `expf`; then `n` is added
/// to the exponent. Adding 1.5 * 2^23 leaves `n` in the low bits of the sum.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const MAGIC: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLY: [f32; 6] = [
        1.987_569_1e-4,
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ];
    // The constants come first: `max` and `min` return their second argument for NaN.
    let x = s.min(s.splat(EXP_MAX), s.max(s.splat(EXP_MIN), x));
    let biased = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(MAGIC));
    let n = s.sub(biased, s.splat(MAGIC));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(POLY[0]);
    for c in &POLY[1..] {
        p = s.fma(p, r, s.splat(*c));
    }
    let p = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    s.scale_by_pow2(p, biased)
}

/// `cap tanh(x / cap)`, as `cap (1 - 2 / (1 + e^(2 x / cap)))`: within 2e-7 of `cap`.
#[inline(always)]
pub(crate) fn soft_cap<S: Simd>(s: S, x: S::F, cap: f32) -> S::F {
    let one = s.splat(1.0);
    let e = exp(s, s.mul(x, s.splat(2.0 / cap)));
    let rest = s.div(s.splat(2.0), s.add(one, e));
    s.mul(s.splat(cap), s.sub(one, rest))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// A function of one number. (A trait, not a closure, as [`Reduction`].)
pub(crate) trait Map {
    /// Its value in each lane.
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F;
}

/// [`silu`].
pub(crate) struct Silu;

impl Map for Silu {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F {
        silu(s, x)
    }
}

/// [`sigmoid`].
pub(crate) struct Sigmoid;

impl Map for Sigmoid {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F {
        sigmoid(s, x)
    }
}

/// Replaces each element by its image.
#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, map: &impl Map, x: &mut [f32]) {
    let mut parts = x.chunks_exact_mut(WIDE);
    for part in &mut parts {
        map_wide(s, map, part);
    }
    let rest = parts.into_remainder();
    let mut padded = [0.0; WIDE];
    padded[..rest.len()].copy_from_slice(rest);
    map_wide(s, map, &mut padded);
    rest.copy_from_slice(&padded[..rest.len()]);
}

#[inline(always)]
fn map_wide<S: Simd>(s: S, map: &impl Map, x: &mut [f32]) {
    assert_eq!(x.len(), WIDE);
    for lane in (0..WIDE).step_by(S::LANES) {
        // SAFETY: there are as many floats, and `LANES` divides them.
        unsafe {
            let at = x.as_mut_ptr().add(lane);
            s.store(at, map.of(s, s.load(at)));
        }
    }
}

/// The approximation of GELU by a tangent: `x / 2 (1 + tanh(u))` with `u = sqrt(2 / π) (x +
/// 0.044715 x³)`, as `x / (1 + e^(-2 u))`.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // -2 sqrt(2 / π), and that times 0.044715.
    const LINEAR: f32 = -1.595_769_2;
    const CUBIC: f32 = -0.071_354_81;
    let u = s.mul(x, s.fma(s.mul(x, x), s.splat(CUBIC), s.splat(LINEAR)));
    s.div(x, s.add(s.splat(1.0), exp(s, u)))
}

/// The square of what is above 0.
#[inline(always)]
fn relu2<S: Simd>(s: S, x: S::F) -> S::F {
    let above = s.max(x, s.splat(0.0));
    s.mul(above, above)
}

/// What opens the gates of an MLP, or what its first product goes through.
#[inline(always)]
pub(crate) fn activate<S: Simd>(s: S, activation: Activation, x: S::F) -> S::F {
    match activation {
        Activation::Silu => silu(s, x),
        Activation::GeluTanh => gelu_tanh(s, x),
        Activation::Relu2 => relu2(s, x),
        Activation::Xielu => unreachable!("has numbers of each layer"),
    }
}

/// `ln(1 + e^x)`; `x` itself above 20, as in PyTorch.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// xIELU with the numbers of a layer: [`Activation::Xielu`] has the formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Xielu {
    /// What multiplies `x²` above 0: a softplus was taken of it.
    pub(crate) positive: f32,
    /// What multiplies `expm1(min(x, eps)) - x` elsewhere: a softplus was taken of it, and `beta`
    /// added.
    pub(crate) negative: f32,
    pub(crate) beta: f32,
    pub(crate) eps: f32,
}

impl Map for Xielu {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::F) -> S::F {
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        let above = s.max(x, zero);
        // 1 above 0, 0 elsewhere.
        let is_above = s.min(s.mul(above, s.splat(f32::MAX)), one);
        let curved = exp(s, s.min(x, s.splat(self.eps)));
        let curved = s.sub(s.sub(curved, one), s.min(x, zero));
        let below = s.mul(s.sub(one, is_above), curved);
        let linear = s.mul(x, s.splat(self.beta));
        let sum = s.fma(s.mul(above, above), s.splat(self.positive), linear);
        s.fma(below, s.splat(self.negative), sum)
    }
}

/// What a reduction does. (A trait, not closures: those are not always inlined, and out of line
/// they lose the instruction set.)
trait Reduction {
    /// The result of nothing.
    const START: f32;
    /// Takes in one element per lane.
    fn step<S: Simd>(s: S, acc: S::F, x: S::F) -> S::F;
    /// Joins two lanes.
    fn join(a: f32, b: f32) -> f32;
}

struct Sum;
impl Reduction for Sum {
    const START: f32 = 0.0;
    #[inline(always)]
    fn step<S: Simd>(s: S, acc: S::F, x: S::F) -> S::F {
        s.add(acc, x)
    }
    #[inline(always)]
    fn join(a: f32, b: f32) -> f32 {
        a + b
    }
}

struct SumOfSquares;
impl Reduction for SumOfSquares {
    const START: f32 = 0.0;
    #[inline(always)]
    fn step<S: Simd>(s: S, acc: S::F, x: S::F) -> S::F {
        s.fma(x, x, acc)
    }
    #[inline(always)]
    fn join(a: f32, b: f32) -> f32 {
        a + b
    }
}

struct Max;
impl Reduction for Max {
    const START: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn step<S: Simd>(s: S, acc: S::F, x: S::F) -> S::F {
        s.max(acc, x)
    }
    #[inline(always)]
    fn join(a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
}

/// Reduces `x` in 16 virtual lanes (element `i` goes to lane `i % 16`), then the lanes pairwise:
/// `i` with `i + 8`, then `i + 4`, 2, 1.
#[inline(always)]
fn reduce<S: Simd, R: Reduction>(s: S, x: &[f32]) -> f32 {
    let mut acc = [s.splat(R::START); 2];
    let mut chunks = x.chunks_exact(WIDE);
    for chunk in &mut chunks {
        for (i, a) in acc.iter_mut().enumerate().take(WIDE / S::LANES) {
            // SAFETY: the chunk has 16 elements.
            *a = R::step(s, *a, unsafe { s.load(chunk.as_ptr().add(i * S::LANES)) });
        }
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let mut tail = [R::START; WIDE];
        tail[..rest.len()].copy_from_slice(rest);
        for (i, a) in acc.iter_mut().enumerate().take(WIDE / S::LANES) {
            // SAFETY: as above.
            *a = R::step(s, *a, unsafe { s.load(tail.as_ptr().add(i * S::LANES)) });
        }
    }
    let mut lanes = [0.0f32; WIDE];
    for (i, a) in acc.into_iter().enumerate().take(WIDE / S::LANES) {
        // SAFETY: the array holds 16 floats.
        unsafe { s.store(lanes.as_mut_ptr().add(i * S::LANES), a) };
    }
    let mut width = WIDE / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = R::join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of `x`, in one fixed order; appending zeros does not change it.
#[inline(always)]
pub(crate) fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    reduce::<S, Sum>(s, x)
}

/// Sum of the squares of `x`, in one fixed order.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    reduce::<S, SumOfSquares>(s, x)
}

/// Largest element of `x`, -inf of none.
#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, x: &[f32]) -> f32 {
    reduce::<S, Max>(s, x)
}

/// Nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn to_bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if x.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, Kernel};
    use super::*;

    /// Applies a vector function to a slice whose length is a multiple of 16.
    struct Map<'a>(&'a [f32], Option<Activation>);
    impl Kernel for Map<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; self.0.len()];
            for i in (0..self.0.len()).step_by(S::LANES) {
                // SAFETY: lengths are multiples of 16, hence of LANES.
                unsafe {
                    let x = s.load(self.0.as_ptr().add(i));
                    let y = match self.1 {
                        Some(activation) => activate(s, activation, x),
                        None => exp(s, x),
                    };
                    s.store(out.as_mut_ptr().add(i), y);
                }
            }
            out
        }
    }

    fn sweep() -> Vec<f32> {
        (0..64 * 4096)
            .map(|i| -90.0 + 180.0 * i as f32 / (64.0 * 4096.0))
            .collect()
    }

    #[test]
    fn exp_is_accurate_to_two_ulp() {
        let x = sweep();
        let y = Isa::detect().run(Map(&x, None));
        let mut worst = 0.0f64;
        for (x, y) in x.iter().zip(&y) {
            let exact = f64::from(x.clamp(EXP_MIN, EXP_MAX)).exp();
            let ulp = f64::from((exact as f32).next_up() - exact as f32);
            worst = worst.max((f64::from(*y) - exact).abs() / ulp);
        }
        assert!(worst < 2.0, "worst error {worst} ulp");
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        let special: Vec<f32> = special.into_iter().cycle().take(16).collect();
        let y = Isa::detect().run(Map(&special, None));
        assert!(y[0].is_nan());
        assert!(y[1].is_finite() && y[1] > 1e38);
        assert!(y[2] > 0.0 && y[2] < 2e-38);
        assert_eq!(y[3], 1.0);
    }

    #[test]
    fn silu_matches_its_formula() {
        let x = sweep();
        for (x, y) in x
            .iter()
            .zip(Isa::detect().run(Map(&x, Some(Activation::Silu))))
        {
            let exact = f64::from(*x) / (1.0 + (-f64::from(*x)).exp());
            assert!(
                (f64::from(y) - exact).abs() <= 1e-6 * exact.abs() + 1e-30,
                "{x} {y}"
            );
        }
    }

    #[test]
    fn gelu_matches_its_formula() {
        let x = sweep();
        let y = Isa::detect().run(Map(&x, Some(Activation::GeluTanh)));
        for (x, y) in x.iter().zip(y) {
            let exact = f64::from(*x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (exact + 0.044715 * exact.powi(3));
            // `1 + tanh(u)` has no digits left where it is small.
            let exact = exact / (1.0 + (-2.0 * inner).exp());
            // Three roundings of the exponent, as large as it is.
            let relative = 1e-6 + 3.6e-7 * inner.abs().min(45.0);
            let error = (f64::from(y) - exact).abs();
            assert!(error <= relative * exact.abs() + 1e-30, "{x} {y} {exact}");
        }
    }

    #[test]
    fn instruction_sets_agree_bit_for_bit() {
        let x = sweep();
        let activations = [Activation::Silu, Activation::GeluTanh, Activation::Relu2];
        for function in activations.map(Some).into_iter().chain([None]) {
            let want = Isa::detect().run(Map(&x, function));
            for isa in Isa::available() {
                let got = isa.run(Map(&x, function));
                let same = got
                    .iter()
                    .zip(&want)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{}", isa.name());
            }
        }
    }

    struct Reductions<'a>(&'a [f32]);
    impl Kernel for Reductions<'_> {
        type Output = [u32; 3];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [u32; 3] {
            [
                sum(s, self.0).to_bits(),
                sum_of_squares(s, self.0).to_bits(),
                max(s, self.0).to_bits(),
            ]
        }
    }

    #[test]
    fn reductions_agree_and_ignore_appended_zeros() {
        for n in [0usize, 1, 7, 16, 17, 100, 576] {
            let mut x: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 7.0).collect();
            let want = Isa::detect().run(Reductions(&x));
            let exact: f64 = x.iter().map(|v| f64::from(*v)).sum();
            assert!((f64::from(f32::from_bits(want[0])) - exact).abs() <= 1e-5 * exact);
            let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(f32::from_bits(want[2]), top);
            for isa in Isa::available() {
                assert_eq!(isa.run(Reductions(&x)), want, "{} {n}", isa.name());
            }
            x.resize(n + 40, 0.0);
            assert_eq!(Isa::detect().run(Reductions(&x))[..2], want[..2]);
        }
    }

    #[test]
    fn bf16_rounding_is_the_reference_one() {
        let mut bits = 1u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            let want = half::bf16::from_f32(x);
            assert_eq!(
                half::bf16::from_bits(to_bf16_bits(x)).is_nan(),
                want.is_nan()
            );
            if !want.is_nan() {
                assert_eq!(to_bf16_bits(x), want.to_bits(), "{x}");
            }
        }
    }
}
