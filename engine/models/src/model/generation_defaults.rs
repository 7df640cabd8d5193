//! Sampling parameters that a model's author recommends.

/// What applies when a request does not say; absent where the author does not say either.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0 is greedy decoding.
    pub temperature: Option<f32>,
    /// Tokens to sample from; 0 means all.
    pub top_k: Option<u32>,
    /// Probability mass to sample from, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Least probability relative to the likeliest token, 0 to 1.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens seen before; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
}
