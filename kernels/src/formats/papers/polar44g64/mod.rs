//! RoPE pairs of keys as PolarQuant publishes them: 4 bits of angle, 4 of radius, a greatest radius
//! for each pair and 64 tokens; static.

use super::polar::Published;

pub(crate) const FORMAT: Published = Published {
    radius_bits: 4,
    group: 64,
};
