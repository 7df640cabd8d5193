//! RoPE pairs of keys with the angle in 4 bits, the radius in 2; static.

use super::polar::{AngleGrid, Polar};

pub(crate) const FORMAT: Polar = Polar {
    radius_bits: 2,
    grid: AngleGrid::PerPair,
};
