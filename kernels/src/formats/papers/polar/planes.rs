//! The two planes of a polar record: angles, then radii.

use std::ops::Range;

use super::ANGLE_BITS;
use crate::BLOCK_TOKENS;
use crate::formats::MAX_HEAD_DIM;
use crate::formats::affine::tiles;
use crate::formats::order::Plane;
use crate::formats::order::walk::{self, Scratch, TILE_TOKENS};

const MAX_PAIRS: usize = MAX_HEAD_DIM / 2;

/// Planes of one shape.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) radius_bits: u32,
    pub(super) head_dim: usize,
}

impl Planes {
    pub(super) const fn pairs(self) -> usize {
        self.head_dim / 2
    }

    const fn plane(self, bits: u32) -> Plane {
        Plane {
            rows: BLOCK_TOKENS,
            cols: self.pairs(),
            bits,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        self.plane(ANGLE_BITS).bytes() + self.plane(self.radius_bits).bytes()
    }

    /// Writes codes, `[128][P]` each.
    pub(super) fn pack(self, angles: &[u8], radii: &[u8], planes: &mut [u8]) {
        let plane = self.plane(ANGLE_BITS);
        let (angle_plane, radius_plane) = planes.split_at_mut(plane.bytes());
        walk::pack_rows::<ANGLE_BITS>(plane, angles, angle_plane);
        let plane = self.plane(self.radius_bits);
        match self.radius_bits {
            4 => walk::pack_rows::<4>(plane, radii, radius_plane),
            _ => walk::pack_rows::<2>(plane, radii, radius_plane),
        }
    }

    /// Writes what `value(tile, pair, angle code, radius code)` makes of the codes of a token range
    /// into `out`, `[tokens][D]`: x and y of a pair. A tile is 16 tokens.
    pub(super) fn dequantise(
        self,
        planes: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
        value: impl Fn(usize, usize, u8, u8) -> (f32, f32),
    ) {
        let pairs = self.pairs();
        let (angle_plane, radius_plane) = planes.split_at(self.plane(ANGLE_BITS).bytes());
        let mut scratch = Scratch::new();
        let mut angle_codes = [0; TILE_TOKENS * MAX_PAIRS];
        let mut radius_codes = angle_codes;
        let angle_codes = &mut angle_codes[..TILE_TOKENS * pairs];
        let radius_codes = &mut radius_codes[..TILE_TOKENS * pairs];
        for (tile, out) in tiles(tokens).zip(out.chunks_exact_mut(TILE_TOKENS * self.head_dim)) {
            let plane = self.plane(ANGLE_BITS);
            walk::unpack_rows::<ANGLE_BITS>(plane, angle_plane, tile, &mut scratch, angle_codes);
            let plane = self.plane(self.radius_bits);
            match self.radius_bits {
                4 => walk::unpack_rows::<4>(plane, radius_plane, tile, &mut scratch, radius_codes),
                _ => walk::unpack_rows::<2>(plane, radius_plane, tile, &mut scratch, radius_codes),
            }
            let codes = angle_codes
                .chunks_exact(pairs)
                .zip(radius_codes.chunks_exact(pairs));
            for ((angles, radii), out) in codes.zip(out.chunks_exact_mut(self.head_dim)) {
                let (xs, ys) = out.split_at_mut(pairs);
                for pair in 0..pairs {
                    (xs[pair], ys[pair]) = value(tile, pair, angles[pair], radii[pair]);
                }
            }
        }
    }
}
