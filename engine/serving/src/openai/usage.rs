//! How many tokens a call took.

use serde::Serialize;

use crate::http::answers::Answer;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct PromptTokens {
    /// Of the prompts, tokens whose KV was in the prefix cache.
    cached_tokens: usize,
}

impl Usage {
    pub(super) fn of(answers: &[Answer]) -> Self {
        let mut usage = Self::default();
        for answer in answers {
            usage.prompt(answer.prompt_tokens, answer.cached_tokens);
            usage.completion(answer.completion_tokens());
        }
        usage
    }

    /// A prompt is in the KV cache.
    pub(super) fn prompt(&mut self, tokens: usize, cached: usize) {
        self.prompt_tokens += tokens;
        self.total_tokens += tokens;
        self.prompt_tokens_details.cached_tokens += cached;
    }

    /// Tokens were generated.
    pub(super) fn completion(&mut self, tokens: usize) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }
}
