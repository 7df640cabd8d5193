//! Profiles: the order in which a model's pages come down, as calibration found it.
//!
//! A profile is JSON:
//!
//! ```json
//! {
//!   "ebb_profile": 1,
//!   "model": "SmolLM2-135M-Instruct",
//!   "layers": 30, "kv_heads": 3, "head_dim": 64,
//!   "protect": "int8",
//!   "rotate_v": false,
//!   "schedule": [
//!     {"page": "layer0.v", "to": "int8", "loss": 1.2e-7},
//!     {"page": "layer0.v", "to": "int4", "loss": 3.1e-5}
//!   ]
//! }
//! ```
//!
//! Steps are taken in order; a page's last one is its floor. `loss` tells what a step costs the model, for people.

use std::path::{Path, PathBuf};

use ebb_block_manager::schedule::Step;
use ebb_kernels::formats::{FormatId, legal_shrink};
use ebb_kernels::kv::{KvGeometry, KvLayout};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::steps::step;
use crate::kv_spec::{PageFormats, Protect, page, protected_formats};

/// A file as read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of this format: 1.
    ebb_profile: u32,
    /// The model it was made for, for people.
    pub model: String,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    #[serde(default)]
    protect: ProtectName,
    #[serde(default)]
    rotate_v: bool,
    schedule: Vec<ProfileStep>,
}

/// One step of the schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileStep {
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

/// Why a profile cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the KV profile {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: String,
    },
    /// It is no profile.
    #[error("{path} is not a KV profile that this version reads: {cause}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// It was made for another shape.
    #[error(
        "the KV profile is for {model}, {profile}, but the model served has {served}; calibrate this model"
    )]
    Shape {
        /// Model of the profile.
        model: String,
        /// Its shape.
        profile: String,
        /// The shape served.
        served: String,
    },
    /// A step that means nothing.
    #[error("step {step} of the KV profile ({page} to {to}): {cause}")]
    Step {
        /// Index of the step.
        step: usize,
        /// Its page.
        page: String,
        /// Its format.
        to: String,
        /// Why.
        cause: String,
    },
    /// The schedule does not go that far down.
    #[error(
        "the KV profile ends at {least:.3} bits, above the {asked} asked for; ask for at least that"
    )]
    Width {
        /// Bits asked for.
        asked: f64,
        /// Width at the end of the schedule.
        least: f64,
    },
}

impl Profile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is no profile.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|e| ProfileError::File {
            path: path.to_owned(),
            cause: e.to_string(),
        })?;
        let wrong = |cause: String| ProfileError::Json {
            path: path.to_owned(),
            cause,
        };
        let profile: Self = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if profile.ebb_profile != 1 {
            return Err(wrong(format!(
                "ebb_profile is {}; this version reads 1",
                profile.ebb_profile
            )));
        }
        Ok(profile)
    }

    /// A profile of a model, to be written.
    pub fn new(
        model: &str,
        geometry: KvGeometry,
        rotate_v: bool,
        schedule: Vec<ProfileStep>,
    ) -> Self {
        Self {
            ebb_profile: 1,
            model: model.to_owned(),
            layers: geometry.layers,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            protect: ProtectName::default(),
            rotate_v,
            schedule,
        }
    }

    /// The steps as written.
    pub fn schedule(&self) -> &[ProfileStep] {
        &self.schedule
    }

    /// Width of protected blocks.
    pub fn protect(&self) -> Protect {
        match self.protect {
            ProtectName::Int8 => Protect::Int8,
            ProtectName::F16 => Protect::F16,
        }
    }

    /// Whether V's rotation is folded into the weights.
    pub fn rotate_v(&self) -> bool {
        self.rotate_v
    }

    /// The steps in order, as few as come to `bits` (`mean_bits_sealed`) if that is given.
    ///
    /// # Errors
    /// When the profile does not fit the model, or does not go that far.
    pub fn steps(
        &self,
        geometry: KvGeometry,
        bits: Option<f64>,
    ) -> Result<Vec<Step>, ProfileError> {
        Ok(self.walk(geometry, bits)?.0)
    }

    /// Formats of sealed pages at a width, and of protected ones.
    ///
    /// # Errors
    /// When the profile does not fit the model, or does not go that far.
    pub fn formats(
        &self,
        geometry: KvGeometry,
        bits: Option<f64>,
        protect: Protect,
    ) -> Result<PageFormats, ProfileError> {
        let sealed = self.walk(geometry, bits)?.1;
        Ok(PageFormats {
            protected: protected_formats(&sealed, protect),
            sealed,
        })
    }

    fn walk(
        &self,
        geometry: KvGeometry,
        bits: Option<f64>,
    ) -> Result<(Vec<Step>, Vec<FormatId>), ProfileError> {
        let shape = |layers, kv_heads, head_dim| {
            format!("{layers} layers of {kv_heads} KV heads of {head_dim}")
        };
        let own = shape(self.layers, self.kv_heads, self.head_dim);
        let served = shape(geometry.layers, geometry.kv_heads, geometry.head_dim);
        if own != served {
            return Err(ProfileError::Shape {
                model: self.model.clone(),
                profile: own,
                served,
            });
        }
        let elements = geometry.block_bytes() as f64 / 2.0;
        let width = |formats: &[FormatId]| -> Result<f64, String> {
            let cost = KvLayout::cost(geometry, geometry.frame_layout(), formats);
            let (_, bytes) = cost.map_err(|e| e.to_string())?;
            Ok(bytes as f64 * 8.0 / elements)
        };
        let mut formats = vec![FormatId::F16; geometry.layers * 2];
        let (mut steps, mut now) = (Vec::new(), 16.0);
        for (index, given) in self.schedule.iter().enumerate() {
            if bits.is_some_and(|bits| now <= bits) {
                break;
            }
            let wrong = |cause: String| ProfileError::Step {
                step: index,
                page: given.page.clone(),
                to: given.to.clone(),
                cause,
            };
            let found = page(&given.page).and_then(|(layer, side)| Some((layer?, side)));
            let (layer, side) =
                found.ok_or_else(|| wrong("pages are layer0.k, layer0.v".into()))?;
            if layer >= geometry.layers {
                return Err(wrong(format!("the model has {} layers", geometry.layers)));
            }
            let to: FormatId = given.to.parse().map_err(|e| wrong(format!("{e}")))?;
            let at = &mut formats[layer * 2 + side as usize];
            if !legal_shrink(*at, to, side) {
                return Err(wrong(format!("a page cannot go there from {at}")));
            }
            *at = to;
            steps.push(step(layer, side, to));
            now = width(&formats).map_err(wrong)?;
        }
        match bits {
            Some(asked) if now > asked => Err(ProfileError::Width { asked, least: now }),
            _ => Ok((steps, formats)),
        }
    }
}
