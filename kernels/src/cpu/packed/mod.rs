//! Matrix products on packed weights.
//!
//! Weights stay in memory as codes of a few bits with their scales ([`QuantisedMatrix`]).
//! Activations are quantised per block of 32 to two signed bytes each with a scale
//! ([`Activations`]), and a block's product is made of dot products of integers,
//!
//! `Σ x w ≈ Σ_blocks a · (s · Σ q (code - zero) + o · Σ q)`
//!
//! with `q = 254 · coarse + fine` of the two bytes, of which each has its own dot product, `a`
//! their scale, and `s` and `o` the scale and the offset of the weights.
//! The integers are exact and blocks are added in order, so that neither the batch, the threads nor
//! the instruction set changes a bit. Floats of eight bits are no integers: they are multiplied as
//! f32 with the activations as they are.

mod activations;
mod ahead;
mod fill;
mod floats;
mod layout;
mod one_row;
mod parts;
mod planes;
mod product;
mod stretch;
mod tile;

pub use activations::Activations;
pub use layout::QuantisedMatrix;
pub use parts::{Part, Weights};
pub use product::Product;

pub(crate) use parts::{needs_quantised, start_of_share};

/// Inputs of a block of activations.
const BLOCK: usize = 32;

/// Outputs of a panel.
const PANEL: usize = 16;

/// How far ahead weights are fetched, in bytes. Measured on a Zen 5 core with one row of 576 to
/// 8960 inputs: weights of 4 bits come at 14 to 25 GB/s without, and at 32 to 40 with it.
const AHEAD: usize = 6 << 10;

#[cfg(test)]
mod tests;
