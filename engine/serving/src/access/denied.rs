//! Why a call is not let in.

use std::time::Duration;

use thiserror::Error;

/// Why a call is not let in. The sentences are for clients and repeat nothing that they sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Denied {
    /// It has no key.
    #[error(
        "this server asks for an API key; send it as the header \"Authorization: Bearer KEY\" or \
         \"x-api-key: KEY\""
    )]
    NoKey,
    /// It has one that the server does not know.
    #[error("the API key is not one of this server's; check it, or ask its operator for one")]
    WrongKey,
    /// The key has as many calls under way as it may.
    #[error(
        "this API key has {limit} calls under way, which is as many as it may; wait for one to end"
    )]
    Concurrency {
        /// Calls at once.
        limit: u32,
    },
    /// The key has made as many calls as it may.
    #[error("this API key may make {limit} requests a minute; try again in {} s", seconds(*after))]
    Requests {
        /// Calls a minute.
        limit: u32,
        /// When there is room again.
        after: Duration,
    },
    /// The key has used as many tokens as it may.
    #[error("this API key may use {limit} tokens a minute; try again in {} s", seconds(*after))]
    Tokens {
        /// Tokens a minute.
        limit: u32,
        /// When there is room again.
        after: Duration,
    },
}

impl Denied {
    /// Seconds after which the call may succeed; none where waiting does not help.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        match *self {
            Self::NoKey | Self::WrongKey => None,
            Self::Concurrency { .. } => Some(1),
            Self::Requests { after, .. } | Self::Tokens { after, .. } => Some(seconds(after)),
        }
    }
}

/// Whole seconds, never too few.
fn seconds(after: Duration) -> u32 {
    u32::try_from(after.as_nanos().div_ceil(1_000_000_000))
        .map_or(u32::MAX, |seconds| seconds.max(1))
}
