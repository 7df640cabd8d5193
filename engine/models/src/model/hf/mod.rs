//! Hugging Face model directories: config.json, safetensors, tokenizer and generation files.

pub(super) mod config;
mod dummy;
mod experts;
mod generation;
mod json;
mod quantised;
mod rope_scaling;
mod shards;
mod tensor_prefix;
mod text_part;
mod tokenizer_files;
mod weights;

pub(super) use config::read_config;
pub(super) use dummy::packed_formats;
pub(super) use generation::{Generation, read_generation};
pub(super) use json::read_small;
pub(super) use quantised::read_modelopt_file;
pub(super) use shards::weight_files;
pub use tokenizer_files::{ClassTokens, DeclaredToken, HfTokenizer, TokenAffixes};
pub(super) use tokenizer_files::{TEMPLATES_MAX, read_tokenizer_files};
pub(super) use weights::HfWeights;
