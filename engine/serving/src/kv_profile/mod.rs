//! Profiles: floors for a model's pages and the order in which they come down to them, as
//! calibration found it.
//!
//! A profile is JSON, version 2 of its format:
//!
//! ```json
//! {
//!   "ebb_profile": 2,
//!   "model": {"name": "SmolLM2-135M-Instruct", "config": "5a…", "weights": "xxh3-9c…"},
//!   "layers": 30, "kv_heads": 3, "head_dim": 64,
//!   "method": {"name": "pmkvq", "samples": 8, "ctx": 512, "position_stride": 4,
//!              "text": "xxh3-03…"},
//!   "protect": "int8",
//!   "rotate_k": false, "rotate_v": false,
//!   "budget_bits": 3.0,
//!   "floors": {"k": ["int4", "int2", "…"], "v": ["int2", "int2", "…"]},
//!   "sensitivities": {"k": {"int8": [1e-6, "…"], "int4": ["…"]}, "v": {"int8": ["…"]}},
//!   "recent": {"ratios": {"k": [0.1, "…"], "v": [0.2, "…"]}},
//!   "key_scales": {"format": "int2t", "alpha": [0.55, "…"], "heads": 3,
//!                  "scales": [[0.9, "…"], "…"]},
//!   "schedule": [
//!     {"page": "layer0.v", "to": "int8", "loss": 1.2e-7},
//!     {"page": "layer0.v", "to": "int4", "loss": 3.1e-5}
//!   ]
//! }
//! ```
//!
//! - `model` binds it to one model ([`Identity`]): `config` hashes the configuration and every
//!   tensor's name, type, shape and place, `weights` every byte of the weight files. A profile of
//!   another model is refused; `name` is for people.
//! - `method` tells how it was made; `text` hashes the token ids of the samples.
//! - `protect` is the width that the first and the last sealed block keep, `rotate_v` whether
//!   values are rotated, `rotate_k` (without it false) whether keys are, behind RoPE.
//! - `floors` are the lowest formats of each layer's keys and values; `budget_bits` the mean width
//!   they were chosen for, if one was given.
//! - `sensitivities` are the losses behind it, by side, format and layer: nats a token (`measured`,
//!   `pmkvq`), or no unit (`kvmix`).
//! - `recent` are KVmix's shares of recent context at full precision ([`RecentContext`]). In a KV
//!   specification `recent=profile` keeps the blocks that lie wholly within that.
//! - `key_scales` are PM-KVQ's λ, folded into the weights at load, or computed in every step where
//!   those are packed ([`ebb_models::model::KeyScales`]): they help per-token keys and change no
//!   others.
//! - `schedule` is taken in order and ends at the floors. `loss` tells what a step costs the model,
//!   for people.
//!
//! Version 1 bound a profile to a shape alone and is refused.

mod check;
mod error;
mod recent;
mod walk;

use std::collections::BTreeMap;
use std::ops::Not;
use std::path::Path;

use ebb_kernels::formats::FormatId;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::kv::{KvGeometry, Side};
use ebb_models::model::{Identity, KeyScales};
use serde::{Deserialize, Serialize};

use crate::kv_pages::Protect;

pub use error::{OtherModel, ProfileError};
pub use recent::{RecentContext, RecentShares, permille};
pub use walk::width;

/// Version of the format.
const VERSION: u32 = 2;

/// A file as read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    ebb_profile: u32,
    /// The model it was made for.
    pub model: Identity,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    /// How it was made.
    pub method: Method,
    #[serde(default)]
    protect: ProtectName,
    #[serde(default, skip_serializing_if = "Not::not")]
    rotate_k: bool,
    #[serde(default)]
    rotate_v: bool,
    /// The mean width (`mean_bits_sealed`) that the floors were chosen for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_bits: Option<f64>,
    floors: Sides<Vec<String>>,
    /// Losses by format, one a layer.
    #[serde(default)]
    pub sensitivities: Sides<BTreeMap<String, Vec<f64>>>,
    /// KVmix's recent context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<RecentContext>,
    /// PM-KVQ's λ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_scales: Option<KeyScales>,
    #[serde(rename = "schedule")]
    shrink_order: Vec<ProfileChange>,
}

/// How a profile was made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// `measured`, `kvmix` or `pmkvq`.
    pub name: String,
    /// Windows of text.
    pub samples: usize,
    /// Tokens of each.
    pub ctx: usize,
    /// Distance of two neighbouring tokens' positions, where it is not 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position_stride: Option<usize>,
    /// Hash of the samples' token ids.
    pub text: String,
}

/// Something for keys and for values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sides<T> {
    /// Of keys.
    pub k: T,
    /// Of values.
    pub v: T,
}

impl<T> Sides<T> {
    /// One side's.
    pub fn of(&self, side: Side) -> &T {
        match side {
            Side::K => &self.k,
            Side::V => &self.v,
        }
    }
}

/// One change of the shrink order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileChange {
    /// `layer7.k` or `layer7.v`.
    pub page: String,
    /// Name of a format.
    pub to: String,
    /// Loss of taking it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProtectName {
    #[default]
    Int8,
    F16,
}

/// Of any version.
#[derive(Deserialize)]
struct Versioned {
    ebb_profile: u64,
}

impl Profile {
    /// Reads a file and checks that its parts agree.
    ///
    /// # Errors
    /// When it cannot be read, is no profile of this version, or is damaged.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|e| ProfileError::File {
            path: path.to_owned(),
            cause: e.to_string(),
        })?;
        let damaged = |cause: String| ProfileError::Damaged {
            path: path.to_owned(),
            cause,
        };
        let version = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        let Versioned { ebb_profile } = version;
        if ebb_profile != u64::from(VERSION) {
            return Err(ProfileError::Version {
                path: path.to_owned(),
                found: ebb_profile,
                expected: VERSION,
                what: match ebb_profile < u64::from(VERSION) {
                    true => "it does not say which weights it is for; run `ebb calibrate` again",
                    false => "use the ebb that wrote it, or run `ebb calibrate` again",
                },
            });
        }
        let profile: Self = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        profile.check().map_err(damaged)?;
        Ok(profile)
    }

    /// A profile of a model, to be written; `shrink_order` ends at `floors`, `[layer * 2 + side]`.
    pub fn new(
        model: Identity,
        geometry: KvGeometry,
        method: Method,
        rotation: Rotation,
        floors: &[FormatId],
        shrink_order: Vec<ProfileChange>,
    ) -> Self {
        let names = |side: Side| {
            let own = floors.iter().skip(side as usize).step_by(2);
            own.map(|f| f.name().to_owned()).collect()
        };
        Self {
            ebb_profile: VERSION,
            model,
            layers: geometry.layers,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            method,
            protect: ProtectName::default(),
            rotate_k: rotation.k,
            rotate_v: rotation.v,
            budget_bits: None,
            floors: Sides {
                k: names(Side::K),
                v: names(Side::V),
            },
            sensitivities: Sides::default(),
            recent: None,
            key_scales: None,
            shrink_order,
        }
    }

    /// The changes as written.
    pub fn shrink_order(&self) -> &[ProfileChange] {
        &self.shrink_order
    }

    /// Width of protected blocks.
    pub fn protect(&self) -> Protect {
        match self.protect {
            ProtectName::Int8 => Protect::Int8,
            ProtectName::F16 => Protect::F16,
        }
    }

    /// What is rotated.
    pub fn rotation(&self) -> Rotation {
        Rotation {
            k: self.rotate_k,
            v: self.rotate_v,
        }
    }
}
