//! Rotary position embedding.

use super::spec::is_sound;
use super::spec_error::SpecError;

/// Rotary position embedding, with every kind of scaling already applied to the frequencies.
///
/// The form is half-split (NeoX, Hugging Face): of the `r = 2 * inv_freq.len()` channels that
/// rotate, the first of a head, channel `i` pairs with channel `i + r / 2`. The others stay.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rope {
    /// Angle per position of each channel pair, below 0 where pairs turn the other way (nanochat);
    /// at most `head_dim / 2` entries.
    pub inv_freq: Vec<f32>,
    /// Multiplier of both cosine and sine (YaRN's attention factor; 1 without).
    pub scale: f32,
    /// Other frequencies for long contexts.
    pub long: Option<LongRope>,
}

/// Frequencies of a model that is served with contexts longer than it was first trained with
/// (LongRoPE, arXiv 2402.13753). They hold for every position, short ones included, so that keys
/// in the cache stay comparable.
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    /// The longest context that the other frequencies are for.
    pub original_positions: usize,
    /// As many as the others.
    pub inv_freq: Vec<f32>,
}

impl Rope {
    /// One table of frequencies for all contexts.
    pub fn new(inv_freq: Vec<f32>, scale: f32) -> Self {
        Self {
            inv_freq,
            scale,
            long: None,
        }
    }

    /// The frequencies of a model that is served with contexts of up to `max_positions` tokens.
    pub fn frequencies(&self, max_positions: usize) -> &[f32] {
        match &self.long {
            Some(long) if max_positions > long.original_positions => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }

    /// Channels of a head that rotate.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    pub(super) fn validate(&self, head_dim: usize) -> Result<(), SpecError> {
        let (expected, actual) = (head_dim / 2, self.inv_freq.len());
        let long = self.long.as_ref().map(|long| &long.inv_freq);
        let lengths_agree = long.is_none_or(|long| long.len() == actual);
        if actual == 0 || actual > expected || !lengths_agree {
            return Err(SpecError::Rope { expected, actual });
        }
        let mut all = self.inv_freq.iter().chain(long.into_iter().flatten());
        if !all.all(|f| f.is_finite()) {
            return Err(SpecError::RopeFrequency);
        }
        match is_sound(self.scale) {
            true => Ok(()),
            false => Err(SpecError::NotFinite("the RoPE scale")),
        }
    }
}
