//! Why a specification means nothing.

use thiserror::Error;

use crate::kv_profile::ProfileError;

/// A part of a KV specification that cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum KvSpecError {
    /// Two commas in a row, or nothing at all.
    #[error(
        "the KV specification has an empty part; write it as f16 or as k=FORMAT,v=FORMAT with \
         parts like layer7.k=FORMAT"
    )]
    Empty,
    /// A key that is no page, no option.
    #[error(
        "'{part}' in the KV specification names no page; parts are k=FORMAT, v=FORMAT, \
         layer7.k=FORMAT, layer7.v=FORMAT, protect=int8|f16, sink=0|1, recent=BLOCKS, \
         recent.k=BLOCKS, recent.v=BLOCKS and rotate=k|v|kv"
    )]
    Key {
        /// The part.
        part: String,
    },
    /// A format that does not exist, or not for that side.
    #[error("'{part}' in the KV specification: {cause}")]
    Format {
        /// The part.
        part: String,
        /// Why.
        cause: String,
    },
    /// An option without that value.
    #[error("'{part}' in the KV specification: the choices are {choices}")]
    Choice {
        /// The part.
        part: String,
        /// What there is.
        choices: &'static str,
    },
    /// A layer beyond the model's.
    #[error(
        "the KV specification names layer {layer}; this model has layers 0 to {}",
        layers - 1
    )]
    Layer {
        /// The layer named.
        layer: usize,
        /// Layers there are.
        layers: usize,
    },
    /// A name that no preset has.
    #[error("'{name}' is no KV preset; the presets are {names}")]
    Preset {
        /// What was given.
        name: String,
        /// What there is.
        names: String,
    },
    /// A preset with a profile that it has no use for, or without the one it needs.
    #[error(
        "the KV preset {name} {}",
        if *wants {
            format!("needs a profile of `ebb calibrate`: write {name}:FILE")
        } else {
            "takes no profile: give its name alone".to_owned()
        }
    )]
    PresetProfile {
        /// The preset.
        name: &'static str,
        /// Whether it needs one.
        wants: bool,
    },
    /// A profile that cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A width that is no number of bits.
    #[error(
        "'{bits}' behind the profile's name is no width; write a number of bits from 1 to 16, as \
         in profile:FILE@2.5"
    )]
    Width {
        /// What was given.
        bits: String,
    },
}
