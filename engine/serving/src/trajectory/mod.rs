//! Trajectories: which block of an answer's KV cache stood at which widths when, kept so that the
//! answer can be computed again.
//!
//! What a request reads while the KV cache shrinks depends on who else was there. Given that, its
//! answer depends on nothing else (ARCHITECTURE.md, invariant 3), so a log of it makes any answer
//! of a progressive server reproducible to the bit: on the CPU, and on a GPU in the batch-invariant
//! mode.
//!
//! A log is JSON, one object a line: a [`Header`], then a [`Trajectory`] for every choice that
//! ended, in the order of their ends. A line may be unusable: half of one is left where a disk was
//! full, and an answer that lost its memory and never got it back has no trajectory. Readers skip
//! it. [`follow`] watches choices while they run, [`log`] writes,
//! [`read`] reads and checks; the lab computes again.

mod follow;
mod log;
mod read;

use std::ops::Not;

use ebb_kernels::formats::FormatId;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::kv::KvGeometry;
use ebb_models::model::{Identity, KeyScales};
use serde::{Deserialize, Serialize};

use crate::kv_plan::KvPlan;
use crate::sampling::SamplingOptions;

pub(crate) use follow::Follower;
pub(crate) use log::TrajectoryLog;
pub use read::{TrajectoryError, read};

/// Version of the format.
const VERSION: u32 = 1;

/// What all answers of a log have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    ebb_trajectories: u32,
    /// The model that answered.
    pub model: Identity,
    /// What computed, for people.
    pub device: String,
    /// Whether that computed every row the same to the bit whoever shared its step.
    pub exact: bool,
    /// Whether packed weights were expanded (`--weights exact`).
    #[serde(default, skip_serializing_if = "Not::not")]
    pub expand_weights: bool,
    /// Whether keys were rotated behind RoPE.
    #[serde(default, skip_serializing_if = "Not::not")]
    rotate_k: bool,
    /// Whether V was rotated.
    rotate_v: bool,
    /// PM-KVQ's λ, if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_scales: Option<KeyScales>,
    /// Formats of all pages, `[layer * 2 + side]`, at every precision level from 1
    /// on.
    #[serde(rename = "positions")]
    levels: Vec<Vec<String>>,
}

impl Header {
    /// Of a server that shrinks by `plan`.
    pub fn new(model: Identity, device: String, exact: bool, plan: &KvPlan) -> Self {
        let names = |level: u16| {
            let formats = plan.layout.formats(level).iter();
            formats.map(|f| f.name().to_owned()).collect()
        };
        Self {
            ebb_trajectories: VERSION,
            model,
            device,
            exact,
            expand_weights: false,
            rotate_k: plan.rotation.k,
            rotate_v: plan.rotation.v,
            key_scales: plan.key_scales.as_deref().cloned(),
            levels: (1..plan.layout.levels() as u16).map(names).collect(),
        }
    }

    /// What was rotated.
    pub fn rotation(&self) -> Rotation {
        Rotation {
            k: self.rotate_k,
            v: self.rotate_v,
        }
    }

    /// The levels' formats.
    ///
    /// # Errors
    /// A clause that tells what is wrong with them.
    pub fn formats(&self, geometry: KvGeometry) -> Result<Vec<Vec<FormatId>>, String> {
        let pages = geometry.layers * 2;
        let of_level = |names: &Vec<String>| {
            if names.len() != pages {
                let given = names.len();
                return Err(format!(
                    "a precision level has {given} page formats, the model {pages} pages"
                ));
            }
            let parsed = names.iter().map(|n| n.parse().map_err(|e| format!("{e}")));
            parsed.collect()
        };
        self.levels.iter().map(of_level).collect()
    }
}

/// One choice of a request, from its prompt to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trajectory {
    /// The request's name.
    pub request: String,
    /// Which of its choices.
    pub choice: u32,
    /// How it ended: `stop`, `length`, `cancelled`, `deadline` or `error`.
    pub end: String,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// How the answer was sampled; `seed` is the one that was used.
    pub sampling: SamplingOptions,
    /// Token ids of the answer.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, if the request asked for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<f64>,
    /// Tokens of the prompt that the prefix cache had.
    pub cached: u32,
    /// Lowest bits that those had been computed from.
    pub cached_bits: u8,
    /// Tokens of the answer from before the choice lost its memory, of which this is not the
    /// trajectory.
    #[serde(default)]
    pub earlier: u32,
    /// Whether a block was ever wider than before: exchanged for another, which this format cannot
    /// tell.
    #[serde(default)]
    pub exchanged: bool,
    /// Tokens computed together behind the cached ones, as `[tokens, times in a row]`.
    pub steps: Vec<(u32, u32)>,
    /// `[first token that reads it there, block, precision level]`, in order.
    pub moves: Vec<(u32, u32, u16)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a model that is nowhere, without a level below 16 bit.
    pub(super) fn header() -> Header {
        Header {
            ebb_trajectories: VERSION,
            model: Identity {
                name: "none".to_owned(),
                config: String::new(),
                weights: String::new(),
            },
            device: "a test".to_owned(),
            exact: true,
            expand_weights: false,
            rotate_k: false,
            rotate_v: false,
            key_scales: None,
            levels: Vec::new(),
        }
    }
}
