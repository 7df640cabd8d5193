//! Layers that mix tokens through a state of fixed size, which stands for all tokens before.

use super::spec::{dimension, is_sound};
use super::spec_error::SpecError;

/// The gated delta rule (Yang et al. 2024, "Gated Delta Networks", equation 10), as in Qwen3-Next.
///
/// Queries, keys and values go through a causal convolution over the last few tokens, each channel
/// by itself, and SiLU; queries and keys are then normalised to length 1, and queries divided by
/// `sqrt(k_dim)`. Each value head has a state `S` of `[k_dim][v_dim]` and, at each token, a decay
/// `g` and a strength `b`:
///
/// ```text
/// g = exp(-exp(decay) softplus(a + decay_bias))      b = sigmoid(b)
/// S = g S + k (b (v - (g S)ᵀ k))ᵀ                    o = Sᵀ q
/// ```
///
/// What comes out is RMS-normalised by head and multiplied by `silu(z)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedDeltaSpec {
    /// Heads of queries and keys.
    pub k_heads: usize,
    /// Heads of values, a multiple of `k_heads`: neighbours share queries and keys.
    pub v_heads: usize,
    /// Channels of a query and of a key.
    pub k_dim: usize,
    /// Channels of a value.
    pub v_dim: usize,
    /// Tokens that the convolution sees, the own one included.
    pub taps: usize,
    /// Added to the mean square in the norm by head.
    pub norm_eps: f32,
    /// Strengths are doubled, up to 2, so that what a state held along a key may change its sign
    /// (OLMo Hybrid).
    pub doubled: bool,
}

impl GatedDeltaSpec {
    /// Channels of all queries, or of all keys.
    pub fn k_width(&self) -> usize {
        self.k_heads * self.k_dim
    }

    /// Channels of all values.
    pub fn v_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Channels that are convolved: queries, keys and values.
    pub fn conv_width(&self) -> usize {
        2 * self.k_width() + self.v_width()
    }

    /// Values of a token that the recurrence reads: `[queries | keys | values | z | b | a]`.
    pub fn in_width(&self) -> usize {
        self.conv_width() + self.v_width() + 2 * self.v_heads
    }
}

/// A gated short convolution, as in LFM2: `C ⊙ conv(B ⊙ x)`, where the convolution is causal, over
/// the last few tokens, each channel by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvSpec {
    /// Tokens that the convolution sees, the own one included.
    pub taps: usize,
    /// The projections and the convolution have a bias.
    pub bias: bool,
}

/// A recurrence of any kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RecurrentSpec {
    /// The gated delta rule.
    GatedDelta(GatedDeltaSpec),
    /// A gated short convolution of as many channels as the residual stream has.
    ShortConv(ShortConvSpec),
}

impl RecurrentSpec {
    /// Values of a token that the recurrence reads, which one product makes.
    pub fn in_width(&self, hidden: usize) -> usize {
        match self {
            Self::GatedDelta(delta) => delta.in_width(),
            Self::ShortConv(_) => 3 * hidden,
        }
    }

    /// Values of a token that it puts out, before the output projection.
    pub fn out_width(&self, hidden: usize) -> usize {
        match self {
            Self::GatedDelta(delta) => delta.v_width(),
            Self::ShortConv(_) => hidden,
        }
    }

    /// Channels that are convolved, and tokens that the convolution sees.
    pub fn conv(&self, hidden: usize) -> (usize, usize) {
        match self {
            Self::GatedDelta(delta) => (delta.conv_width(), delta.taps),
            Self::ShortConv(conv) => (hidden, conv.taps),
        }
    }

    /// Floats of a sequence's state: `[taps - 1][channels]` of what was convolved, oldest token
    /// first, then `[v_heads][k_dim][v_dim]` of the delta rule.
    pub fn state_floats(&self, hidden: usize) -> usize {
        let (channels, taps) = self.conv(hidden);
        let matrices = match self {
            Self::GatedDelta(delta) => delta.v_heads * delta.k_dim * delta.v_dim,
            Self::ShortConv(_) => 0,
        };
        (taps - 1) * channels + matrices
    }

    /// Whether its projections have biases.
    pub(super) fn has_bias(&self) -> bool {
        matches!(self, Self::ShortConv(ShortConvSpec { bias: true, .. }))
    }

    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let taps = match self {
            Self::GatedDelta(delta) => {
                dimension("key heads of the delta rule", delta.k_heads)?;
                dimension("value heads of the delta rule", delta.v_heads)?;
                dimension("key channels of the delta rule", delta.k_dim)?;
                dimension("value channels of the delta rule", delta.v_dim)?;
                if !is_sound(delta.norm_eps) {
                    return Err(SpecError::NotFinite("norm_eps of the delta rule"));
                }
                if !delta.v_heads.is_multiple_of(delta.k_heads) {
                    return Err(SpecError::DeltaHeads {
                        k_heads: delta.k_heads,
                        v_heads: delta.v_heads,
                    });
                }
                for (name, width) in [
                    ("all key channels of the delta rule", delta.k_width()),
                    ("all value channels of the delta rule", delta.v_width()),
                    ("a state of the delta rule", delta.k_dim * delta.v_dim),
                ] {
                    dimension(name, width)?;
                }
                delta.taps
            }
            Self::ShortConv(conv) => conv.taps,
        };
        match taps {
            2..=TAPS_MAX => Ok(()),
            _ => Err(SpecError::Taps(taps)),
        }
    }
}

/// Most tokens that a convolution sees.
pub(crate) const TAPS_MAX: usize = 8;
