//! The model families this engine computes.

use std::fmt;

/// A family of decoder-only transformers; they differ in what surrounds the same layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3.x, and everything published as one (SmolLM2, TinyLlama …). Mistral models in
    /// GGUF files count as Llama, because the files do not tell them apart.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen2 and Qwen2.5: biases on Q, K and V.
    Qwen2,
    /// Qwen3: RMSNorm on every Q and K head.
    Qwen3,
}

impl Family {
    /// Q, K and V always have a bias.
    pub(super) fn qkv_bias(self) -> bool {
        self == Self::Qwen2
    }

    /// Q and K heads are normalised.
    pub(super) fn qk_norm(self) -> bool {
        self == Self::Qwen3
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        })
    }
}
