//! What chat and completions say of a choice's end, and of the whole call.

use serde::Serialize;

use crate::core::{End, FinishReason, KvBits};
use crate::front_end::{Engine, new_name};
use crate::http::now;

/// What all objects of one call begin with.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    /// In seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) system_fingerprint: &'static str,
}

impl Head {
    pub(super) fn new<E: Engine>(
        engine: &E,
        prefix: &str,
        object: &'static str,
        model: Option<String>,
    ) -> Self {
        Self {
            id: new_name(prefix),
            object,
            created: now(),
            model: model.unwrap_or_else(|| engine.model().name.clone()),
            system_fingerprint: concat!("ebb-", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// What ended a choice beside its length, as vLLM tells it: the stop string, or the stop token id
/// that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    Text(String),
    Token(u32),
}

/// Bits of the keys and values that a choice was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct EbbBits {
    lowest_kv_bits: u8,
    mean_kv_bits: f32,
}

impl From<KvBits> for EbbBits {
    fn from(bits: KvBits) -> Self {
        Self {
            lowest_kv_bits: bits.lowest,
            mean_kv_bits: bits.mean,
        }
    }
}

/// The fields of a choice's end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Ending {
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    /// Absent until the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    ebb: Option<EbbBits>,
}

impl Ending {
    /// `stop_token_ids` are those that the request asked for.
    pub(super) fn new(end: End, stop_token_ids: &[u32]) -> Self {
        let asked = |id: &u32| stop_token_ids.contains(id);
        let token = end.stop_token.filter(asked).map(StopReason::Token);
        Self {
            finish_reason: Some(match end.reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            }),
            stop_reason: end.stop_string.map(StopReason::Text).or(token),
            ebb: Some(end.kv_bits.into()),
        }
    }
}
