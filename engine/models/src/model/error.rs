//! Why a model could not be opened.

use std::io;
use std::path::{Path, PathBuf};

use ebb_kernels::model::SpecError;

use super::fetch::FetchError;
use super::gguf::GgufError;
use super::hub::HubError;
use super::lfs::LFS_ADVICE;

/// A model that cannot be used. The sentence names the file, and what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// `--model` names nothing that exists.
    #[error(
        "there is no model `{given}`: {problem}. Give a known name ({known}), a directory with \
         config.json and safetensors, a .gguf file, or ORG/NAME of a model that was downloaded \
         from Hugging Face"
    )]
    NotFound {
        /// What was asked for.
        given: String,
        /// What is there instead.
        problem: String,
        /// The names that can be fetched.
        known: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file that was read and is not what it has to be.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Refusal,
    },
    /// The model could not be downloaded.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A model of the hub could not be had.
    #[error(transparent)]
    Hub(#[from] Box<HubError>),
}

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A malformed GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A malformed JSON file.
    #[error("not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A malformed safetensors file.
    #[error("not a valid safetensors file: {0}")]
    Safetensors(String),
    /// A large file that has not been fetched into a clone.
    #[error("{LFS_ADVICE}")]
    LfsPointer,
    /// A file larger than any real one of its kind.
    #[error("the file has {bytes} bytes; the most accepted here is {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most accepted.
        limit: u64,
    },
    /// A field whose value asks for something this engine does not do.
    #[error("`{field}` is {found}, which is not supported; supported: {supported}")]
    Unsupported {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        supported: String,
    },
    /// A field that has to be there.
    #[error("`{0}` is missing")]
    Missing(String),
    /// A field whose value makes no sense.
    #[error("`{field}` is {found}; expected {expected}")]
    Invalid {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What belongs there.
        expected: String,
    },
    /// A file that has to be there beside this one.
    #[error("{0}")]
    MissingFile(String),
    /// A tensor that the configuration calls for.
    #[error("tensor `{0}` is missing; the file is incomplete or its configuration wrong")]
    MissingTensor(String),
    /// A tensor that no supported model has: ignoring it would compute something else.
    #[error("tensor `{0}` is not part of a supported model (Llama, Mistral, Qwen2, Qwen3)")]
    UnexpectedTensor(String),
    /// A tensor of the wrong shape.
    #[error("tensor `{tensor}` has shape {found:?}; the configuration calls for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the configuration calls for.
        expected: Vec<usize>,
    },
    /// A tensor that the settings of its quantisation contradict.
    #[error("tensor `{tensor}` {problem}")]
    Contradiction {
        /// The tensor.
        tensor: String,
        /// What it is, and what the settings say.
        problem: String,
    },
    /// A tensor with NaN or infinity in it.
    #[error("tensor `{0}` holds a value that is not finite in bf16; the file is corrupt")]
    NotFinite(String),
    /// Dimensions that contradict each other.
    #[error("the configuration is impossible: {0}")]
    Spec(#[from] SpecError),
}

impl Refusal {
    /// Names the file this is about.
    pub(super) fn at(self, path: &Path) -> ModelError {
        ModelError::Refused {
            path: path.to_owned(),
            reason: self,
        }
    }

    /// Whether the file could not be read at all, rather than holds a value that makes no sense.
    pub(super) fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::Json(_) | Self::LfsPointer | Self::TooLarge { .. }
        )
    }

    pub(super) fn unsupported(
        field: impl Into<String>,
        found: impl ToString,
        supported: &str,
    ) -> Self {
        let (found, supported) = (found.to_string(), supported.to_owned());
        Self::Unsupported {
            field: field.into(),
            found,
            supported,
        }
    }

    pub(super) fn invalid(
        field: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            field: field.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

impl From<HubError> for ModelError {
    fn from(error: HubError) -> Self {
        Self::Hub(Box::new(error))
    }
}

impl ModelError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
