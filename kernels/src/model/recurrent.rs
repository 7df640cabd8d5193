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

/// Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", section 7), as in Granite 4 and Nemotron-H.
///
/// `x`, `B` and `C` go through a causal convolution over the last few tokens, each channel by
/// itself, and SiLU. Each head has a state `S` of `[state_dim][head_dim]` and, at each token, a
/// time step `t`; heads of a group share `B` and `C`:
///
/// ```text
/// t = clamp(softplus(dt + dt_bias))
/// S = exp(-exp(decay) t) S + B (t x)ᵀ                o = Sᵀ C + skip x
/// ```
///
/// What comes out is multiplied by `silu(z)` and then, if there is a norm, RMS-normalised over
/// equal parts of all its channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Spec {
    /// Heads of `x`, a multiple of `groups`.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads, neighbours, that share `B` and `C`.
    pub groups: usize,
    /// Channels of `B` and of `C`.
    pub state_dim: usize,
    /// Tokens that the convolution sees, the own one included.
    pub taps: usize,
    /// The convolution has a bias.
    pub conv_bias: bool,
    /// Parts of all heads' channels that are normalised, each by itself; none without a norm.
    pub norm_parts: Option<usize>,
    /// Added to the mean square in that norm.
    pub norm_eps: f32,
    /// Least and largest time step.
    pub time_steps: [f32; 2],
}

impl Mamba2Spec {
    /// Channels of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of all groups' `B`, or of their `C`.
    pub fn group_width(&self) -> usize {
        self.groups * self.state_dim
    }

    /// Channels that are convolved: `x`, `B` and `C`.
    pub fn conv_width(&self) -> usize {
        self.width() + 2 * self.group_width()
    }

    /// Values of a token that the recurrence reads: `[x | B | C | z | dt]`.
    pub fn in_width(&self) -> usize {
        self.conv_width() + self.width() + self.heads
    }

    fn validate(&self) -> Result<(), SpecError> {
        for (name, size) in [
            ("Mamba-2 heads", self.heads),
            ("channels of Mamba-2 heads", self.head_dim),
            ("Mamba-2 groups", self.groups),
            ("state channels of Mamba-2", self.state_dim),
        ] {
            dimension(name, size)?;
        }
        // None of these overflows: each is less than 2^24.
        for (name, size) in [
            ("all channels of Mamba-2 heads", self.width()),
            ("all state channels of Mamba-2", self.group_width()),
            ("a state of Mamba-2", self.state_dim * self.head_dim),
        ] {
            dimension(name, size)?;
        }
        if !self.heads.is_multiple_of(self.groups) {
            let (heads, groups) = (self.heads, self.groups);
            return Err(SpecError::Mamba2Groups { heads, groups });
        }
        if let Some(parts) = self.norm_parts
            && (parts == 0 || !self.width().is_multiple_of(parts))
        {
            let width = self.width();
            return Err(SpecError::Mamba2Norm { width, parts });
        }
        if !is_sound(self.norm_eps) {
            return Err(SpecError::NotFinite("norm_eps of Mamba-2"));
        }
        let [least, most] = self.time_steps;
        match is_sound(least) && least <= most {
            true => Ok(()),
            false => Err(SpecError::TimeSteps),
        }
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
    /// Mamba-2.
    Mamba2(Mamba2Spec),
    /// A gated short convolution of as many channels as the residual stream has.
    ShortConv(ShortConvSpec),
}

impl RecurrentSpec {
    /// Values of a token that the recurrence reads, which one product makes.
    pub fn in_width(&self, hidden: usize) -> usize {
        match self {
            Self::GatedDelta(delta) => delta.in_width(),
            Self::Mamba2(mamba) => mamba.in_width(),
            Self::ShortConv(_) => 3 * hidden,
        }
    }

    /// Values of a token that it puts out, before the output projection.
    pub fn out_width(&self, hidden: usize) -> usize {
        match self {
            Self::GatedDelta(delta) => delta.v_width(),
            Self::Mamba2(mamba) => mamba.width(),
            Self::ShortConv(_) => hidden,
        }
    }

    /// Channels that are convolved, and tokens that the convolution sees.
    pub fn conv(&self, hidden: usize) -> (usize, usize) {
        match self {
            Self::GatedDelta(delta) => (delta.conv_width(), delta.taps),
            Self::Mamba2(mamba) => (mamba.conv_width(), mamba.taps),
            Self::ShortConv(conv) => (hidden, conv.taps),
        }
    }

    /// Floats of a sequence's state: `[taps - 1][channels]` of what was convolved, oldest token
    /// first, then `[v_heads][k_dim][v_dim]` of the delta rule or `[heads][state_dim][head_dim]` of
    /// Mamba-2.
    pub fn state_floats(&self, hidden: usize) -> usize {
        let (channels, taps) = self.conv(hidden);
        let matrices = match self {
            Self::GatedDelta(delta) => delta.v_heads * delta.k_dim * delta.v_dim,
            Self::Mamba2(mamba) => mamba.heads * mamba.state_dim * mamba.head_dim,
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
            Self::Mamba2(mamba) => {
                mamba.validate()?;
                mamba.taps
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
