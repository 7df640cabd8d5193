//! Frequencies of the rotary position embedding under each kind of scaling.

use std::f64::consts::PI;

use ebb_kernels::model::{LongRope, Rope};

use super::error::Refusal;

/// How a model's RoPE frequencies differ from `base^(−2i / head_dim)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scaling {
    /// Not at all.
    None,
    /// Positions divided by a factor (Chen et al. 2023, arXiv 2306.15595).
    Linear { factor: f64 },
    /// Llama 3.1: long wavelengths divided by a factor, short ones kept, between them blended.
    Llama3 {
        factor: f64,
        low_freq: f64,
        high_freq: f64,
        original_positions: f64,
    },
    /// YaRN (Peng et al. 2023, arXiv 2309.00071).
    Yarn(Yarn),
    /// Only the first pairs of channels rotate, a share of `rotated` of all, with the frequencies
    /// of the whole head divided by a factor; pairs stay those of the whole head (Gemma 4).
    Proportional { rotated: f64, factor: f64 },
    /// Each frequency divided by its own factor, as GGUF's `rope_freqs.weight` has them.
    Factors(Vec<f32>),
    /// LongRoPE (Ding et al. 2024, arXiv 2402.13753).
    Long(LongFactors),
    /// The base multiplied by this to the power of `head_dim / (head_dim - 2)`, so that the longest
    /// wavelength becomes so many times as long (NTK-aware scaling, HunYuan).
    Alpha(f64),
}

/// LongRoPE's parameters: each frequency is divided by its own factor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LongFactors {
    /// For contexts of up to `original_positions`.
    pub(super) short: Vec<f64>,
    /// For longer ones.
    pub(super) long: Vec<f64>,
    pub(super) original_positions: f64,
    /// Multiplier of cosine and sine.
    pub(super) attention_factor: f64,
}

impl LongFactors {
    /// The paper's multiplier for contexts `extension` times as long as the original ones.
    pub(super) fn attention_factor(extension: f64, original_positions: f64) -> f64 {
        if extension <= 1.0 {
            return 1.0;
        }
        (1.0 + extension.ln() / original_positions.ln()).sqrt()
    }

    /// Both divided frequencies.
    fn divide(&self, plain: &[f64]) -> Result<[Vec<f64>; 2], Refusal> {
        let divide = |name: &str, factors: &[f64]| {
            if factors.len() != plain.len() {
                let expected = format!("{} factors, one for each frequency", plain.len());
                return Err(Refusal::invalid(name, factors.len(), expected));
            }
            if let Some(wrong) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
                return Err(Refusal::invalid(name, wrong, "finite factors above 0"));
            }
            Ok(plain.iter().zip(factors).map(|(f, by)| f / by).collect())
        };
        Ok([
            divide("short_factor", &self.short)?,
            divide("long_factor", &self.long)?,
        ])
    }
}

/// YaRN's parameters; `new` gives the paper's defaults.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Yarn {
    pub(super) factor: f64,
    pub(super) original_positions: f64,
    /// Rotations over the original context above which a frequency is kept.
    pub(super) beta_fast: f64,
    /// Rotations below which a frequency is divided by the factor.
    pub(super) beta_slow: f64,
    /// Multiplier of cosine and sine.
    pub(super) attention_factor: f64,
    /// Whether the range between the two is widened to whole channels.
    pub(super) truncate: bool,
}

impl Yarn {
    pub(super) fn new(factor: f64, original_positions: f64) -> Self {
        Self {
            factor,
            original_positions,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: Self::attention(factor, 1.0),
            truncate: true,
        }
    }

    /// The multiplier of attention scores that goes with `factor`, weighted by `mscale`.
    pub(super) fn attention(factor: f64, mscale: f64) -> f64 {
        if factor > 1.0 {
            0.1 * mscale * factor.ln() + 1.0
        } else {
            1.0
        }
    }

    /// The longest context this scaling was made for.
    pub(super) fn positions(&self) -> f64 {
        self.factor * self.original_positions
    }
}

/// The largest head dimension accepted; models use 64 to 256.
const MAX_HEAD_DIM: usize = 1024;

/// Frequencies for the `head_dim` channels of a head that rotate, in half-split order, computed in
/// f64.
///
/// # Errors
/// [`Refusal::Invalid`] for a head dimension or base that cannot be.
pub(super) fn rope(base: f64, head_dim: usize, scaling: &Scaling) -> Result<Rope, Refusal> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        let expected = format!("an even number up to {MAX_HEAD_DIM}");
        return Err(Refusal::invalid("head_dim", head_dim, expected));
    }
    let base = match scaling {
        Scaling::Alpha(alpha) if head_dim > 2 => {
            base * alpha.powf(head_dim as f64 / (head_dim - 2) as f64)
        }
        _ => base,
    };
    if !(base.is_finite() && base > 1.0) {
        return Err(Refusal::invalid("the RoPE base", base, "a number above 1"));
    }
    let plain = (0..head_dim / 2).map(|i| base.powf(-2.0 * i as f64 / head_dim as f64));
    let mut long = None;
    let inv_freq: Vec<f64> = match scaling {
        Scaling::Long(factors) => {
            let [short, longer] = factors.divide(&plain.collect::<Vec<_>>())?;
            long = Some(LongRope {
                original_positions: factors.original_positions as usize,
                inv_freq: longer.into_iter().map(|freq| freq as f32).collect(),
            });
            short
        }
        Scaling::None | Scaling::Alpha(_) => plain.collect(),
        Scaling::Linear { factor } => plain.map(|freq| freq / factor).collect(),
        Scaling::Llama3 {
            factor,
            low_freq,
            high_freq,
            original_positions,
        } => plain
            .map(|freq| {
                // 1 where the wavelength is short, 0 where it is long.
                let rotations = original_positions * freq / (2.0 * PI);
                let kept = match high_freq > low_freq {
                    true => ((rotations - low_freq) / (high_freq - low_freq)).clamp(0.0, 1.0),
                    // A step (Llama 4 Scout).
                    false => f64::from(u8::from(rotations > *low_freq)),
                };
                blend(freq, *factor, kept)
            })
            .collect(),
        Scaling::Yarn(yarn) => {
            let (low, high) = yarn_range(yarn, base, head_dim);
            let kept = |i: usize| 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            plain
                .enumerate()
                .map(|(i, freq)| blend(freq, yarn.factor, kept(i)))
                .collect()
        }
        Scaling::Proportional { rotated, factor } => {
            let pairs = (rotated * head_dim as f64 / 2.0) as usize;
            let freq = |(i, freq)| if i < pairs { freq / factor } else { 0.0 };
            plain.enumerate().map(freq).collect()
        }
        Scaling::Factors(factors) => {
            assert_eq!(
                factors.len(),
                head_dim / 2,
                "the reader checks the tensor's shape"
            );
            plain
                .zip(factors)
                .map(|(freq, factor)| freq / f64::from(*factor))
                .collect()
        }
    };
    let scale = match scaling {
        Scaling::Yarn(yarn) => yarn.attention_factor,
        Scaling::Long(factors) => factors.attention_factor,
        _ => 1.0,
    };
    let rope = Rope::new(
        inv_freq.into_iter().map(|freq| freq as f32).collect(),
        scale as f32,
    );
    Ok(Rope { long, ..rope })
}

/// Between `freq` (`kept` = 1) and `freq / factor` (`kept` = 0).
fn blend(freq: f64, factor: f64, kept: f64) -> f64 {
    freq * kept + freq / factor * (1.0 - kept)
}

/// The channel pairs between which YaRN goes from keeping to dividing.
fn yarn_range(yarn: &Yarn, base: f64, head_dim: usize) -> (f64, f64) {
    let pair = |rotations: f64| {
        let wavelength = yarn.original_positions / (rotations * 2.0 * PI);
        head_dim as f64 * wavelength.ln() / (2.0 * base.ln())
    };
    let (mut low, mut high) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
    // The reference's way of not dividing by zero.
    (low, if high == low { high + 0.001 } else { high })
}
