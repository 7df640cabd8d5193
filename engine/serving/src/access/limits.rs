//! What a key may do.

/// Limits of a key; none where it has no such limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Calls at once, running and waiting.
    pub max_concurrency: Option<u32>,
    /// Calls a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, of prompts and answers.
    pub tokens_per_minute: Option<u32>,
}

impl KeyLimits {
    /// Of these, what `self` does not say.
    pub(super) fn or(self, defaults: Self) -> Self {
        Self {
            max_concurrency: self.max_concurrency.or(defaults.max_concurrency),
            requests_per_minute: self.requests_per_minute.or(defaults.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.or(defaults.tokens_per_minute),
        }
    }
}
