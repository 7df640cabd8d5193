//! What the zero-and-range formats share: grouping, metadata, quantisation and its inverse.
//!
//! A group keeps its zero `z` (its minimum, rounded down to fp16) and its range `R` (maximum - z,
//! rounded up), in value units and once: the step at b bits is `R / (2^b - 1)`, so narrower codes
//! need no new metadata. All arithmetic is f32, one rounding per operation, never fused:
//!
//! ```text
//! code  = min(floor((x - z) * ((2^b - 1) / R) + 0.5), 2^b - 1)        0 where R = 0
//! value = z + code * (R / (2^b - 1))
//! ```

mod dequant;
pub(crate) mod fp16;
mod meta;
mod quantise;
mod range;
mod split;
mod uniform;

pub(crate) use dequant::{Steps, dequantise_tile};
pub(crate) use meta::{Grouping, MAX_GROUPS, Meta};
pub(crate) use quantise::{quantise, quantise_high};
pub(crate) use range::{check_values, group_ranges, zero_and_range};
pub(crate) use split::Split;
pub(crate) use uniform::{
    Uniform, code_plane, dequantise_plane, pack_plane, tiles, unpack_plane, unpack_tile,
};
