//! What can be wrong with sampling parameters and with logits.

use std::fmt;

use thiserror::Error;

/// A field of [`SamplingOptions`](super::SamplingOptions), or an entry of one that is a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// `temperature`.
    Temperature,
    /// `top_p`.
    TopP,
    /// `min_p`.
    MinP,
    /// `repetition_penalty`.
    RepetitionPenalty,
    /// `presence_penalty`.
    PresencePenalty,
    /// `frequency_penalty`.
    FrequencyPenalty,
    /// `logit_bias` as a whole.
    LogitBias,
    /// The bias of one token id.
    LogitBiasOf(u32),
    /// `max_tokens`.
    MaxTokens,
    /// `min_tokens`.
    MinTokens,
    /// `stop` as a whole.
    Stop,
    /// One stop string, by its index.
    StopString(usize),
    /// `stop_token_ids` as a whole.
    StopTokenIds,
    /// One stop token id, by its index.
    StopTokenId(usize),
    /// `logprobs`.
    Logprobs,
    /// `prompt_logprobs`.
    PromptLogprobs,
    /// `n`.
    N,
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::LogitBias => "logit_bias",
            Self::LogitBiasOf(id) => return write!(f, "logit_bias[{id}]"),
            Self::MaxTokens => "max_tokens",
            Self::MinTokens => "min_tokens",
            Self::Stop => "stop",
            Self::StopString(i) => return write!(f, "stop[{i}]"),
            Self::StopTokenIds => "stop_token_ids",
            Self::StopTokenId(i) => return write!(f, "stop_token_ids[{i}]"),
            Self::Logprobs => "logprobs",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::N => "n",
        })
    }
}

/// A parameter outside its range. The sentence names the field, its value and the range.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field} is {value}; it must be {allowed}")]
pub struct ParamError {
    /// The field.
    pub field: Param,
    /// What it holds.
    pub value: String,
    /// What it may hold, as the rest of the sentence.
    pub allowed: String,
}

/// Logits that no token can be sampled from. The request fails; others are not affected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SampleError {
    /// A logit is NaN or +∞: the model computed nonsense.
    #[error("the model's logits are not finite, so no token can be chosen")]
    NotFinite,
    /// Every logit is -∞, or there are none.
    #[error("every token is ruled out, so no token can be chosen")]
    NoCandidate,
    /// The token whose log-probability was asked for is outside the vocabulary.
    #[error("token {token} is outside the model's {vocab} logits")]
    OutsideVocabulary {
        /// The token.
        token: u32,
        /// Number of logits.
        vocab: usize,
    },
}
