//! GGUF v3 files: memory-mapped, with metadata, tensor table and quantised tensors.
//!
//! The layout is described at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//! `file` reads the table of contents, `metadata` and `tokenizer` give typed access to it.

pub(super) mod config;
mod dequant;
mod error;
pub(super) mod experts;
mod file;
mod generation;
mod ggml_type;
mod keys;
mod metadata;
mod packed;
mod reader;
mod rope_scaling;
mod split;
mod tokenizer;
mod value;
pub(super) mod weights;

pub use dequant::dequantize;
pub use error::GgufError;
pub use file::{GgufFile, GgufTensor};
pub use ggml_type::GgmlType;
pub use metadata::GgufMetadata;
pub use packed::{pack, packed_format};
pub use split::SplitName;
pub use tokenizer::{GgufTokenizer, TokenType};
pub use value::{GgufArray, GgufValue};
