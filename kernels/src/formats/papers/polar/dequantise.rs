//! Polar codes back to rows: a table of cosines and sines per pair, then a product per element.

use std::ops::Range;

use super::angle::cos_sin;
use super::{ANGLE_BITS, AngleGrid, Cells, Codec, circle};
use crate::formats::affine::{Meta, tiles};
use crate::formats::order::walk::{self, Scratch, TILE_TOKENS};
use crate::formats::{MAX_HEAD_DIM, RecordShape};

const MAX_PAIRS: usize = MAX_HEAD_DIM / 2;

/// Dequantises a token range into `out`, `[tokens][D]`.
pub(super) fn dequantise(polar: Codec, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
    let RecordShape { head_dim, .. } = polar.shape;
    let pairs = polar.pairs();
    let (meta, planes) = record.split_at(polar.meta_bytes());
    let (angle_plane, radius_plane) = planes.split_at(polar.plane(ANGLE_BITS).bytes());
    let radius_meta = &meta[meta.len() - 4 * pairs..];
    let unit = unit_vectors(polar, meta);
    let radii = cells(radius_meta, pairs, polar.radius_bits);

    let mut scratch = Scratch::new();
    let mut angle_codes = [0; TILE_TOKENS * MAX_PAIRS];
    let mut radius_codes = angle_codes;
    let angle_codes = &mut angle_codes[..TILE_TOKENS * pairs];
    let radius_codes = &mut radius_codes[..TILE_TOKENS * pairs];
    for (tile, out) in tiles(tokens).zip(out.chunks_exact_mut(TILE_TOKENS * head_dim)) {
        let plane = polar.plane(ANGLE_BITS);
        walk::unpack_rows::<ANGLE_BITS>(plane, angle_plane, tile, &mut scratch, angle_codes);
        let plane = polar.plane(polar.radius_bits);
        match polar.radius_bits {
            4 => walk::unpack_rows::<4>(plane, radius_plane, tile, &mut scratch, radius_codes),
            _ => walk::unpack_rows::<2>(plane, radius_plane, tile, &mut scratch, radius_codes),
        }
        let codes = angle_codes
            .chunks_exact(pairs)
            .zip(radius_codes.chunks_exact(pairs));
        for ((angles, lengths), out) in codes.zip(out.chunks_exact_mut(head_dim)) {
            let (xs, ys) = out.split_at_mut(pairs);
            for pair in 0..pairs {
                let radius = radii[pair].middle(lengths[pair]);
                let (cos, sin) = unit[pair][angles[pair] as usize % 16];
                xs[pair] = radius * cos;
                ys[pair] = radius * sin;
            }
        }
    }
}

/// `(cos, sin)` of the middle of every angle cell of every pair.
fn unit_vectors(polar: Codec, meta: &[u8]) -> Vec<[(f32, f32); 1 << ANGLE_BITS]> {
    let cells = match polar.grid {
        AngleGrid::PerPair => cells(meta, polar.pairs(), ANGLE_BITS),
        AngleGrid::Circle => vec![circle(); polar.pairs()],
    };
    let vectors = cells
        .iter()
        .map(|cells| std::array::from_fn(|code| cos_sin(cells.middle(code as u8))));
    vectors.collect()
}

fn cells(meta: &[u8], pairs: usize, bits: u32) -> Vec<Cells> {
    let meta = Meta::of(meta, pairs);
    let cells = (0..pairs).map(|pair| Cells {
        zero: meta.zero(pair).to_f32(),
        step: meta.range(pair).to_f32() / (1 << bits) as f32,
    });
    cells.collect()
}

impl Cells {
    fn middle(self, code: u8) -> f32 {
        (f32::from(code) + 0.5) * self.step + self.zero
    }
}
