//! Which model something was made for.

use serde::{Deserialize, Serialize};

/// A model's name, for people, and its hashes, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// What the model is called.
    pub name: String,
    /// [`LoadedModel::content_hash`](super::LoadedModel): SHA-256 of the configuration and of every tensor's name, type,
    /// shape and place.
    pub config: String,
    /// XXH3-128 over every byte of the weight files, `xxh3-…`; of random weights their seed, `random-…`.
    pub weights: String,
}
