//! Page formats of the KV cache: one folder each, one registry.
//!
//! A *record* is one (layer, side, KV head) of a block: 128 tokens x `head_dim` channels. A format
//! says how a record's bytes come from its 16-bit rows and back. To add one, write its folder and
//! its line in registry.rs (README.md); the conformance tests iterate the registry.
//!
//! - [`FormatId`] is the whole interface: layout, encode, dequantise, [`FormatId::shrink`].
//! - `serving` has the formats that serve, `papers` those that reproduce papers.
//! - [`ladder`] lists the precision levels of a side, top first, [`precision_levels`] those of both
//!   branches below int4 and of keys per token as well. Other formats are *static*: a page can get
//!   them from 16 bit only, and keeps them.
//! - `coded` is what attention on a CPU reads of a record whose codes it computes with.
//! - `order` is the one permutation of codes inside a plane, `affine` what zero-and-range formats
//!   share, `kitty` what Kitty's share, `clip` the rule of clipped 2-bit codes.
//! - [`rotation`] folds V's Hadamard rotation into the weights; it is no format.
//!
//! A record's bytes depend on its 16-bit rows and its format alone, never on the formats it went
//! through, and are the same on every device.

mod affine;
mod clip;
mod codec;
mod coded;
mod entries;
mod error;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub(crate) mod gpu;
mod id;
mod kitty;
mod ladder;
pub mod order;
pub mod rotation;
mod shape;
mod simd;

pub(crate) use affine::MAX_GROUPS;
pub(crate) use coded::{CodePlane, Codes, High, Slabs};
pub use error::FormatError;
pub use ladder::{ladder, legal_shrink, precision_levels};
pub use shape::{MAX_HEAD_DIM, RecordShape};

use entries::formats;
include!("registry.rs");
