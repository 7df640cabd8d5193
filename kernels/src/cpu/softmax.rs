//! Distributions over the vocabulary compared: log-probabilities and KL divergence of rows of
//! logits, for evaluation.
//!
//! Exponentials are f32 within two units in the last place and summed in f32 over runs of 256;
//! everything else is f64. A divergence is then right to about 1e-7 nats.

use super::math;
use super::simd::{Isa, Kernel, Simd, WIDE};

/// Elements summed in f32.
const RUN: usize = 256;

/// The distribution that a row of logits stands for.
#[derive(Debug)]
pub struct Softmax<'a> {
    isa: Isa,
    logits: &'a [f32],
    max: f32,
    /// e^(logit - max) of each.
    weights: &'a [f32],
    /// Their sum.
    sum: f64,
}

/// What another distribution q is beside the distribution p of a [`Softmax`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Against {
    /// KL(p ‖ q) = Σ p (ln p − ln q), nats; NaN if a logit is.
    pub divergence: f64,
    /// Whether p's most likely token is also one of q's most likely.
    pub same_top: bool,
    /// ln of q's Σ e^logit.
    pub log_sum: f64,
}

impl<'a> Softmax<'a> {
    /// Of a row of logits, at least one; `scratch` is overwritten.
    pub fn new(isa: Isa, logits: &'a [f32], scratch: &'a mut Vec<f32>) -> Self {
        scratch.resize(logits.len(), 0.0);
        let weights = &mut scratch[..];
        let (max, sum) = isa.run(Weigh { logits, weights });
        Self {
            isa,
            logits,
            max,
            weights,
            sum,
        }
    }

    /// ln Σ e^logit.
    pub fn log_sum(&self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }

    /// Compares with the distribution of other logits over the same tokens.
    ///
    /// # Panics
    /// If they are not as many.
    pub fn against(&self, other: &[f32]) -> Against {
        assert_eq!(other.len(), self.logits.len(), "logits of one vocabulary");
        let (max, sum, cross) = self.isa.run(Cross { p: self, q: other });
        let divergence = cross / self.sum - self.sum.ln() + sum.ln();
        let top = self.logits.iter().position(|x| *x == self.max);
        Against {
            // Rounding may take it below 0; `max` would make NaN a 0.
            divergence: if divergence < 0.0 { 0.0 } else { divergence },
            same_top: top.is_some_and(|top| other[top] == max),
            log_sum: f64::from(max) + sum.ln(),
        }
    }
}

/// Largest logit; the weights, and their sum.
struct Weigh<'a> {
    logits: &'a [f32],
    weights: &'a mut [f32],
}

impl Kernel for Weigh<'_> {
    type Output = (f32, f64);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f64) {
        let max = math::max(s, self.logits);
        let (mut sum, mut e, mut room) = (0.0, [0.0; RUN], [0.0; RUN]);
        for (weights, logits) in self.weights.chunks_mut(RUN).zip(self.logits.chunks(RUN)) {
            weigh(s, padded(logits, &mut room), max, &mut e);
            weights.copy_from_slice(&e[..weights.len()]);
            sum += f64::from(math::sum(s, weights));
        }
        (max, sum)
    }
}

/// e^(x - max).
#[inline(always)]
fn weigh<S: Simd>(s: S, x: &[f32; RUN], max: f32, out: &mut [f32; RUN]) {
    for i in (0..RUN).step_by(S::LANES) {
        // SAFETY: RUN is a multiple of LANES.
        unsafe {
            let x = s.sub(s.load(x.as_ptr().add(i)), s.splat(max));
            s.store(out.as_mut_ptr().add(i), math::exp(s, x));
        }
    }
}

/// A run that whole vectors can read: itself, or if it is the last and short, a copy of it before
/// what means nothing.
#[inline(always)]
fn padded<'a>(x: &'a [f32], room: &'a mut [f32; RUN]) -> &'a [f32; RUN] {
    const { assert!(RUN.is_multiple_of(WIDE)) };
    match x.try_into() {
        Ok(whole) => whole,
        Err(_) => {
            room[..x.len()].copy_from_slice(x);
            room
        }
    }
}

/// Largest of q, its Σ e^(q - max), and Σ w ((p - max p) - (q - max q)).
struct Cross<'a> {
    p: &'a Softmax<'a>,
    q: &'a [f32],
}

impl Kernel for Cross<'_> {
    type Output = (f32, f64, f64);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f64, f64) {
        let (max_p, max_q) = (self.p.max, math::max(s, self.q));
        let (mut sum, mut cross) = (0.0, 0.0);
        let mut rooms = [[0.0; RUN]; 3];
        let [room_p, room_q, room_w] = &mut rooms;
        let (mut e, mut terms) = ([0.0; RUN], [0.0; RUN]);
        let of_p = self.p.logits.chunks(RUN).zip(self.p.weights.chunks(RUN));
        for (q, (p, w)) in self.q.chunks(RUN).zip(of_p) {
            let len = q.len();
            let (p, q, w) = (padded(p, room_p), padded(q, room_q), padded(w, room_w));
            weigh(s, q, max_q, &mut e);
            sum += f64::from(math::sum(s, &e[..len]));
            for i in (0..RUN).step_by(S::LANES) {
                // SAFETY: RUN is a multiple of LANES.
                unsafe {
                    let p = s.sub(s.load(p.as_ptr().add(i)), s.splat(max_p));
                    let q = s.sub(s.load(q.as_ptr().add(i)), s.splat(max_q));
                    let term = s.mul(s.load(w.as_ptr().add(i)), s.sub(p, q));
                    s.store(terms.as_mut_ptr().add(i), term);
                }
            }
            cross += f64::from(math::sum(s, &terms[..len]));
        }
        (max_q, sum, cross)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a trained model's kind: most far below a few.
    fn row(len: usize, seed: u32) -> Vec<f32> {
        let mut bits = seed;
        let mut next = || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (bits >> 8) as f32 / (1 << 24) as f32
        };
        (0..len).map(|_| 25.0 * next().powi(4) - 12.0).collect()
    }

    fn log_sum(x: &[f32]) -> f64 {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = x.iter().map(|x| (f64::from(*x) - f64::from(max)).exp());
        f64::from(max) + exp.sum::<f64>().ln()
    }

    fn divergence(p: &[f32], q: &[f32]) -> f64 {
        let (z_p, z_q) = (log_sum(p), log_sum(q));
        let terms = p.iter().zip(q).map(|(p, q)| {
            let (p, q) = (f64::from(*p) - z_p, f64::from(*q) - z_q);
            p.exp() * (p - q)
        });
        terms.sum()
    }

    #[test]
    fn figures_are_their_definitions() {
        for len in [1, 15, 256, 300, 49_152, 151_936] {
            let p = row(len, 1);
            for noise in [0.001f32, 0.1, 3.0] {
                let other = row(len, 2);
                let q: Vec<f32> = p.iter().zip(&other).map(|(p, o)| p + noise * o).collect();
                let mut scratch = vec![7.0; 3];
                let softmax = Softmax::new(Isa::detect(), &p, &mut scratch);
                let got = softmax.against(&q);
                let want = divergence(&p, &q);
                let limit = 2e-7 + 1e-6 * want;
                assert!(
                    (got.divergence - want).abs() < limit,
                    "{got:?} {want} {len}"
                );
                assert!((softmax.log_sum() - log_sum(&p)).abs() < 2e-7, "{len}");
                assert!((got.log_sum - log_sum(&q)).abs() < 2e-7, "{len}");
                let top = |x: &[f32]| (0..len).max_by(|a, b| x[*a].total_cmp(&x[*b]));
                assert_eq!(got.same_top, top(&p) == top(&q), "{len} {noise}");
            }
        }
    }

    #[test]
    fn equal_distributions_do_not_diverge() {
        let p = row(1000, 3);
        let shifted: Vec<f32> = p.iter().map(|x| x + 4.0).collect();
        let mut scratch = Vec::new();
        let softmax = Softmax::new(Isa::detect(), &p, &mut scratch);
        assert_eq!(softmax.against(&p).divergence, 0.0);
        assert!(softmax.against(&p).same_top);
        assert!(softmax.against(&shifted).divergence < 2e-7);
        let mut broken = p.clone();
        broken[700] = f32::NAN;
        assert!(softmax.against(&broken).divergence.is_nan());
    }

    #[test]
    fn instruction_sets_agree_bit_for_bit() {
        let (p, q) = (row(1003, 4), row(1003, 5));
        let on = |isa| {
            let mut scratch = Vec::new();
            let softmax = Softmax::new(isa, &p, &mut scratch);
            (softmax.log_sum(), softmax.against(&q))
        };
        let want = on(Isa::detect());
        for isa in Isa::available() {
            assert_eq!(on(isa), want, "{}", isa.name());
        }
    }
}
