//! Polar codes back to rows: a table of cosines and sines per pair, then a product per element.

use std::ops::Range;

use super::angle::cos_sin;
use super::{ANGLE_BITS, AngleGrid, Cells, Codec, circle};
use crate::formats::affine::Meta;

/// Dequantises a token range into `out`, `[tokens][D]`.
pub(super) fn dequantise(polar: Codec, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
    let pairs = polar.pairs();
    let (meta, planes) = record.split_at(polar.meta_bytes());
    let radius_meta = &meta[meta.len() - 4 * pairs..];
    let unit = unit_vectors(polar, meta);
    let radii = cells(radius_meta, pairs, polar.radius_bits);
    let value = |_: usize, pair: usize, angle: u8, radius: u8| {
        let radius = radii[pair].middle(radius);
        let (cos, sin) = unit[pair][usize::from(angle) % 16];
        (radius * cos, radius * sin)
    };
    polar.planes().dequantise(planes, tokens, out, value);
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
