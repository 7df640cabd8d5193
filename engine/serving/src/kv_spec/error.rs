//! Why a specification means nothing.

use ebb_kernels::formats::FormatId;
use ebb_kernels::model::ModelSpec;
use thiserror::Error;

use crate::kv_pages::other_pairs;
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
         layer7.k=FORMAT, layer7.v=FORMAT, protect=int8|f16, sink=0|1|32, recent=BLOCKS, \
         recent.k=BLOCKS, recent.v=BLOCKS, rotate=k|v|kv and shrink=by-length"
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
    /// A sink of tokens beside pages that have no form with one.
    #[error(
        "sink=32 keeps the first 32 tokens at 16 bit beside Kitty's formats alone, k=kitty25page, \
         kitty25top or kitty25 and v=int2, or beside f16; layer {layer}'s {side} is {format}. Give \
         sink=1, which keeps the first block"
    )]
    Sink {
        /// Layer.
        layer: usize,
        /// `k` or `v`.
        side: &'static str,
        /// The format of its sealed pages.
        format: FormatId,
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
    /// Keys in pairs that the model does not rotate.
    #[error(
        "layer {layer}'s keys cannot be {format}: RoPE rotates {rotary_dim} of a head's {head_dim} \
         channels (partial_rotary_factor), and {format} stores pairs of heads that rotate whole; \
         give them another format, such as k=int4"
    )]
    OtherPairs {
        /// The first such layer.
        layer: usize,
        /// The format of its keys.
        format: FormatId,
        /// Channels of a head that rotate.
        rotary_dim: usize,
        /// Channels of a head.
        head_dim: usize,
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

/// Refuses keys in pairs that the model does not rotate; `sealed`: the formats of all pages.
///
/// # Errors
/// [`KvSpecError::OtherPairs`].
pub(crate) fn check_pairs(model: &ModelSpec, sealed: &[FormatId]) -> Result<(), KvSpecError> {
    match other_pairs(model, sealed) {
        None => Ok(()),
        Some((layer, format, rotary_dim)) => Err(KvSpecError::OtherPairs {
            layer,
            format,
            rotary_dim,
            head_dim: model.attention(layer).head_dim,
        }),
    }
}
