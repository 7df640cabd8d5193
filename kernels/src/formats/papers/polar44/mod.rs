//! RoPE pairs of keys with angle and radius in 4 bits each; static.

use super::polar::{AngleGrid, Polar};

pub(crate) const FORMAT: Polar = Polar {
    radius_bits: 4,
    grid: AngleGrid::PerPair,
};
