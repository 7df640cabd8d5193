//! What can be wrong with a tokenizer file, a text or a chat template.

use std::panic::{self, AssertUnwindSafe};

use thiserror::Error;

/// A tokenizer or a chat template that cannot be built or used. Every sentence names the field
/// at fault and what would be accepted instead.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A field holds something this engine does not know.
    #[error("{field} is {value}, which is not supported (supported: {supported})")]
    Unsupported {
        /// The field, as its file spells it.
        field: &'static str,
        /// What the field holds.
        value: String,
        /// What it may hold.
        supported: &'static str,
    },
    /// A field contradicts another one, or itself.
    #[error("{field} {problem}")]
    Invalid {
        /// The field, as its file spells it.
        field: &'static str,
        /// What is wrong with it, as the rest of a sentence.
        problem: String,
    },
    /// A tokenizer.json or tokenizer_config.json that is not JSON of the expected shape.
    #[error("{file} cannot be read: {source}")]
    Json {
        /// The file's name.
        file: &'static str,
        /// What the JSON reader said.
        source: serde_json::Error,
    },
    /// The text could not be turned into tokens.
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
    /// Nobody wants the tokens any more.
    #[error("tokenising was called off")]
    CalledOff,
}

impl TokenizerError {
    /// Runs code of the `tokenizers` crate, which panics on some files that contradict themselves.
    pub(crate) fn catch<T>(
        run: impl FnOnce() -> Result<T, Self>,
        failed: impl FnOnce() -> Self,
    ) -> Result<T, Self> {
        // What the panic interrupted is dropped, or (encoding) only holds caches.
        panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(failed()))
    }

    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }
}
