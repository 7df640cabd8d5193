//! Models on disk: which file `--model` means, what the file says, and its weights.
//!
//! A model is a Hugging Face directory or a GGUF file, in one piece or split; [`hub`] downloads
//! either. Either way [`gguf`] and `hf` end in the same three things: the shapes the compute
//! backends need, weights as bf16 in Hugging Face order, and what the tokenizer and the chat
//! template are built from. Files come from strangers: every size, offset and count in them is
//! checked before it is believed, and what is not understood is refused by name instead of being
//! guessed at.
//!
//! ```no_run
//! # fn main() -> Result<(), ebb_models::model::ModelError> {
//! use ebb_models::model::{LoadedModel, ModelRef, default_cache_dir};
//! let files = ModelRef::parse("SmolLM2-135M-Instruct")?.files(default_cache_dir().as_deref())?;
//! let model = LoadedModel::open(&files)?;
//! println!("{}: {} parameters", model.name, model.parameters());
//! # Ok(()) }
//! ```

mod bytes;
mod content_hash;
mod dummy;
mod error;
mod experts;
mod families;
pub mod fetch;
mod generation_defaults;
pub mod gguf;
mod hf;
pub mod hub;
mod identity;
mod key_scales;
mod known;
mod lfs;
mod loaded;
mod locate;
mod look;
mod model_weights;
mod rope;
mod tensors;
mod weights_hash;
mod window;

pub use bytes::FileBytes;
pub use error::{ModelError, Refusal};
pub use families::{FAMILIES, Family};
pub use fetch::{FetchError, default_cache_dir};
pub use generation_defaults::GenerationDefaults;
pub use hf::{ClassTokens, DeclaredToken, HfTokenizer, TokenAffixes};
pub use hub::{HubError, HubModel, HubSettings};
pub use identity::{Difference, Identity};
pub use key_scales::{KeyScales, SCALE_MAX, SCALE_MIN};
pub use known::{DEFAULT_MODEL, KNOWN_MODELS, KnownModel};
pub(crate) use lfs::{LFS_ADVICE, is_lfs_pointer};
pub use loaded::{LoadFormat, LoadedModel, TokenizerSource};
pub use locate::{ModelFiles, ModelRef};
pub use model_weights::ModelWeights;
