//! What a request consists of, by name.

use std::fmt;

use crate::sampling::Param;

/// A part of a request that can be wrong. Every front end spells it in its own way; what
/// [`Display`](fmt::Display) writes is for logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The client's name for the request.
    RequestId,
    /// The prompt, however it is given.
    Prompt,
    /// A prompt of plain text.
    Text,
    /// A prompt of token ids.
    TokenIds,
    /// One of these, by its index.
    TokenId(usize),
    /// A prompt of chat messages, as the model's template renders them.
    Chat,
    /// The list of these.
    ChatMessages,
    /// The role of one of them, by its index.
    ChatRole(usize),
    /// How long the client waits.
    Timeout,
    /// Lowest bits of the KV cache.
    MinKvBits,
    /// A sampling parameter.
    Sampling(Param),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RequestId => "request id",
            Self::Prompt => "prompt",
            Self::Text => "text",
            Self::TokenIds => "token ids",
            Self::TokenId(i) => return write!(f, "token id {i}"),
            Self::Chat => "chat",
            Self::ChatMessages => "chat messages",
            Self::ChatRole(i) => return write!(f, "role of chat message {i}"),
            Self::Timeout => "timeout",
            Self::MinKvBits => "min_kv_bits",
            Self::Sampling(param) => return param.fmt(f),
        })
    }
}
