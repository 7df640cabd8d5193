//! What can be wrong with sampling parameters and with logits.

use thiserror::Error;

/// A parameter outside its range. The sentence names the field, its value and the range.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field} is {value}; it must be {allowed}")]
pub struct ParamError {
    /// The field, with an index where it is a list: `stop[3]`.
    pub field: String,
    /// What it holds.
    pub value: String,
    /// What it may hold, as the rest of the sentence.
    pub allowed: String,
}

/// Logits that no token can be drawn from. The request fails; others are not affected.
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
