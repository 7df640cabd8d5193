//! Page formats of the KV cache: one folder each, one registry.
//!
//! A *record* is one (layer, side, KV head) of a block: 128 tokens x `head_dim` channels. A format
//! says how a record's bytes come from its 16-bit rows and back. To add one, write its folder and
//! add its `mod` and its line to the registry below; the conformance tests iterate the registry.
//!
//! - [`FormatId`] is the whole interface: layout, encode, decode, [`FormatId::shrink`].
//! - [`ladder`] lists the rungs of a side, top first, [`rungs`] those of both branches below int4.
//!   Other formats are *static*: a page can get them from 16 bit only, and keeps them.
//! - `order` is the one permutation of codes inside a plane, `affine` what zero-and-range formats
//!   share, `kitty`, `polar`, `grouped` and `shifted` what those families share, `clip` the rule of
//!   clipped 2-bit codes.
//! - [`rotation`] folds V's Hadamard rotation into the weights; it is no format.
//!
//! A record's bytes depend on its 16-bit rows and its format alone, never on the formats it went
//! through, and are the same on every device.

mod affine;
mod clip;
mod codec;
mod error;
mod id;
mod ladder;
pub mod order;
mod registry;
pub mod rotation;
mod shape;
mod simd;

mod f16;
mod grouped;
mod int2;
mod int2t;
mod int3;
mod int4;
mod int4t;
mod int8;
mod kitty;
mod kitty12;
mod kitty25;
mod polar;
mod polar42;
mod polar44;
mod polar44grid;
mod shifted;

pub use error::FormatError;
pub use ladder::{ladder, legal_shrink, rungs};
pub use shape::{MAX_HEAD_DIM, RecordShape};

registry::registry! {
    // The ladders, top rung first.
    F16     "f16"     f16::F16,
    Int8    "int8"    int8::Int8,
    Int4    "int4"    int4::Int4,
    Kitty25c "kitty25c" kitty25::Kitty25::<true>,
    Kitty12c "kitty12c" kitty12::Kitty12::<true>,
    Int2c   "int2c"   int2::Int2::<true>,
    // The same without clipping, the papers' own: a ladder of their own below int4.
    Kitty25 "kitty25" kitty25::Kitty25::<false>,
    Kitty12 "kitty12" kitty12::Kitty12::<false>,
    Int2    "int2"    int2::Int2::<false>,
    // Static formats.
    Int3    "int3"    int3::Int3,
    Int2g32 "int2g32" grouped::Grouped::<2>,
    Kvmix11 "kvmix11" grouped::Grouped::<3>,
    Int4g32 "int4g32" grouped::Grouped::<4>,
    Polar44 "polar44" polar44::Polar44,
    Polar42 "polar42" polar42::Polar42,
    Polar44Grid "polar44grid" polar44grid::Polar44Grid,
    Int4t   "int4t"   int4t::Int4t,
    Int2t   "int2t"   int2t::Int2t,
    // Ablations of the papers.
    Kitty25Variance "kitty25var" kitty::ByVariance::<2>,
    Kitty12Variance "kitty12var" kitty::ByVariance::<1>,
    Kitty25Random "kitty25rnd" kitty::Random::<2>,
    Kitty12Random "kitty12rnd" kitty::Random::<1>,
    Int4Shift "int4shr" shifted::Shifted::<4, false>,
    Int2Shift "int2shr" shifted::Shifted::<2, false>,
    Int4RoundingShift "int4rsh" shifted::Shifted::<4, true>,
    Int2RoundingShift "int2rsh" shifted::Shifted::<2, true>,
}
