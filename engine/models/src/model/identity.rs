//! Which model something was made for.

use serde::{Deserialize, Serialize};

/// A model's name, for people, and its hashes, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// What the model is called.
    pub name: String,
    /// [`LoadedModel::content_hash`](super::LoadedModel): SHA-256 of the configuration and of every
    /// tensor's name, type, shape and place.
    pub config: String,
    /// XXH3-128 over every byte of the weight files, `xxh3-…`; of random weights their seed,
    /// `random-…`.
    pub weights: String,
}

/// Two models that are not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `configuration and tensors`, or `weights`.
    pub what: &'static str,
    /// Hash of that of the model that something was made for.
    pub expected: String,
    /// Hash of that of the model at hand.
    pub found: String,
}

impl Identity {
    /// What differs between the model that something was made for, this one, and the one at hand;
    /// names do not count.
    pub fn differs_from(&self, served: &Self) -> Option<Difference> {
        let parts = [
            ("configuration and tensors", &self.config, &served.config),
            ("weights", &self.weights, &served.weights),
        ];
        let mut differing = parts.into_iter().filter(|(_, made, found)| made != found);
        differing.next().map(|(what, expected, found)| Difference {
            what,
            expected: expected.clone(),
            found: found.clone(),
        })
    }
}
