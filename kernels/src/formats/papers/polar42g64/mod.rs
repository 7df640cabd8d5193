//! RoPE pairs of keys as PolarQuant publishes them: 4 bits of angle, 2 of radius, a greatest radius
//! for each pair and 64 tokens; static.

use super::polar::Published;

pub(crate) const FORMAT: Published = Published {
    radius_bits: 2,
    group: 64,
};
