//! Why a profile cannot be used.

use std::path::PathBuf;

use thiserror::Error;

/// A profile that cannot be used, and what to do about it.
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
    /// It is no profile, or does not agree with itself.
    #[error(
        "{path} is no KV profile, or a damaged one: {cause}; restore it, or run `ebb calibrate` \
         again"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// It has another version's format.
    #[error(
        "{path} has version {found} of the KV profile format; this ebb reads {expected}: {what}"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u64,
        /// The version read.
        expected: u32,
        /// What to do.
        what: &'static str,
    },
    /// It was made for another shape.
    #[error(
        "the KV profile is for {model}, {profile}, but the model served has {served}; calibrate \
         this model"
    )]
    Shape {
        /// Model of the profile.
        model: String,
        /// Its shape.
        profile: String,
        /// The shape served.
        served: String,
    },
    /// It was made for another model, or other weights of it.
    #[error(transparent)]
    Model(Box<OtherModel>),
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
    /// The shrink order does not go that far down.
    #[error(
        "the KV profile ends at {least:.3} bits, above the {asked} asked for; ask for at least that"
    )]
    Width {
        /// Bits asked for.
        asked: f64,
        /// Width at the end of the shrink order.
        least: f64,
    },
}

/// A profile of another model, or of other weights.
#[derive(Debug, Clone, PartialEq, Error)]
#[error(
    "the KV profile was made for {made_for}, and the {what} of {served} are not those (hash \
     {found} instead of {expected}); calibrate this model, or give its own profile"
)]
pub struct OtherModel {
    /// Model of the profile.
    pub made_for: String,
    /// The model served.
    pub served: String,
    /// `configuration and tensors`, `weights`, or `weights after --quantization`.
    pub what: &'static str,
    /// Hash of the model served.
    pub found: String,
    /// Hash in the profile.
    pub expected: String,
}
