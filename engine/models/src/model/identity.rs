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
    /// `random-…`. Weights that are quantised as they are loaded are others: `…+int4`.
    pub weights: String,
}

/// Two models that are not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `configuration and tensors`, `weights`, or `weights after --quantization`.
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
            what: match stored(expected) == stored(found) {
                true => "weights after --quantization",
                false => what,
            },
            expected: expected.clone(),
            found: found.clone(),
        })
    }
}

/// The hash of the files' weights, whatever they were quantised to.
fn stored(weights: &str) -> &str {
    weights.split('+').next().unwrap_or(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_what_differs() {
        let identity = |config: &str, weights: &str| Identity {
            name: "a model".to_owned(),
            config: config.to_owned(),
            weights: weights.to_owned(),
        };
        let made = identity("c", "xxh3-1");
        let what = |served: Identity| made.differs_from(&served).map(|differs| differs.what);
        assert_eq!(what(made.clone()), None);
        assert_eq!(
            what(identity("d", "xxh3-2")),
            Some("configuration and tensors")
        );
        assert_eq!(what(identity("c", "xxh3-2")), Some("weights"));
        assert_eq!(what(identity("c", "xxh3-2+int4")), Some("weights"));
        let quantised = Some("weights after --quantization");
        assert_eq!(what(identity("c", "xxh3-1+int4")), quantised);
    }
}
