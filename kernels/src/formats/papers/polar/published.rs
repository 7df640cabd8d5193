//! PolarQuant's own rule (arXiv 2502.00527, 3.2 and 3.3; README.md has the formulas): angles to the
//! nearest of 16 directions that are the same for all pairs, radii to the nearest multiple of a
//! step, without a zero.
//!
//! Layout, with P = D/2 pairs: `[greatest radius; 128 / group][P]`, fp16 rounded up, then the
//! planes of `planes`. All arithmetic is f32, one rounding per operation, never fused:
//!
//! ```text
//! angle code  = (floor(theta * (16 / 2 pi) + 0.5) + 8) mod 16      theta = atan2(y, x) in 0..2 pi
//! radius code = min(floor(r * ((2^n - 1) / R) + 0.5), 2^n - 1)       0 where R = 0
//! x, y        = cos, sin((angle code + 8) mod 16 * (2 pi / 16)) * (radius code * (R / (2^n - 1)))
//! ```

use std::f32::consts::TAU;
use std::ops::Range;

use half::{bf16, f16};

use super::angle::cos_sin;
use super::{ANGLE_BITS, PolarRule, to_polar};
use crate::BLOCK_TOKENS;
use crate::formats::affine::check_values;
use crate::formats::affine::fp16::{FP16_MAX, round_up};
use crate::formats::order::walk::TILE_TOKENS;
use crate::formats::{FormatError, RecordShape};

/// Directions of the grid.
const ANGLES: usize = 1 << ANGLE_BITS;

/// What the paper's angles lie ahead of atan2's: pi.
const HALF_TURN: u8 = 1 << (ANGLE_BITS - 1);

/// A format of the published rule.
#[derive(Clone, Copy)]
pub(crate) struct Published {
    /// Bits of a radius's code: 4 or 2.
    pub(crate) radius_bits: u32,
    /// Tokens that share a pair's greatest radius: a divisor of 128 and a multiple of 16.
    pub(crate) group: usize,
}

impl Published {
    /// The greatest code of a radius.
    const fn last(self) -> u8 {
        (1 << self.radius_bits) - 1
    }

    /// The greatest radius of every pair of every group of `radii`, `[128][P]`: `[group][P]`.
    fn greatest(self, pairs: usize, radii: &[f32]) -> Result<Vec<f16>, FormatError> {
        let mut greatest = vec![0.0f32; BLOCK_TOKENS / self.group * pairs];
        let groups = radii.chunks_exact(self.group * pairs);
        for (rows, greatest) in groups.zip(greatest.chunks_exact_mut(pairs)) {
            for row in rows.chunks_exact(pairs) {
                for (greatest, radius) in greatest.iter_mut().zip(row) {
                    *greatest = greatest.max(*radius);
                }
            }
        }
        let stored = greatest.into_iter().enumerate().map(|(index, radius)| {
            let pair = index % pairs;
            let beyond = FormatError::RadiusBeyondFp16 { pair, radius };
            (radius <= FP16_MAX).then(|| round_up(radius)).ok_or(beyond)
        });
        stored.collect()
    }
}

impl PolarRule for Published {
    fn radius_bits(&self) -> u32 {
        self.radius_bits
    }

    fn meta_bytes(&self, shape: RecordShape) -> usize {
        2 * (BLOCK_TOKENS / self.group) * self.planes(shape).pairs()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        check_values(shape.head_dim, rows)?;
        let planes = self.planes(shape);
        let pairs = planes.pairs();
        let mut angles = vec![0.0; BLOCK_TOKENS * pairs];
        let mut radii = angles.clone();
        to_polar(shape.head_dim, rows, &mut angles, &mut radii);

        let greatest = self.greatest(pairs, &radii)?;
        let (meta, codes) = out.split_at_mut(self.meta_bytes(shape));
        for (bytes, radius) in meta.chunks_exact_mut(2).zip(&greatest) {
            bytes.copy_from_slice(&radius.to_le_bytes());
        }
        let last = f32::from(self.last());
        let per_unit = greatest.iter().map(|radius| match radius.to_f32() {
            0.0 => 0.0,
            radius => last / radius,
        });
        let per_unit: Vec<f32> = per_unit.collect();
        let angles: Vec<u8> = angles.into_iter().map(angle_code).collect();
        let radii = radii.into_iter().enumerate().map(|(i, radius)| {
            let (token, pair) = (i / pairs, i % pairs);
            let per_unit = per_unit[token / self.group * pairs + pair];
            ((radius * per_unit + 0.5) as u8).min(self.last())
        });
        planes.pack(&angles, &radii.collect::<Vec<u8>>(), codes);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let planes = self.planes(shape);
        let pairs = planes.pairs();
        let (meta, codes) = record.split_at(self.meta_bytes(shape));
        let step = |bytes: &[u8]| {
            f16::from_le_bytes([bytes[0], bytes[1]]).to_f32() / f32::from(self.last())
        };
        let steps: Vec<f32> = meta.chunks_exact(2).map(step).collect();
        let unit: [(f32, f32); ANGLES] = std::array::from_fn(|code| {
            let turned = (code + usize::from(HALF_TURN)) % ANGLES;
            cos_sin(turned as f32 * (TAU / ANGLES as f32))
        });
        planes.dequantise(codes, tokens, out, |tile, pair, angle, radius| {
            let group = tile * TILE_TOKENS / self.group;
            let radius = f32::from(radius) * steps[group * pairs + pair];
            let (cos, sin) = unit[usize::from(angle) % ANGLES];
            (radius * cos, radius * sin)
        });
    }
}

/// The nearest direction of an angle in `0..=2 pi`, as the paper counts them: from the negative x.
fn angle_code(angle: f32) -> u8 {
    let nearest = (angle * (ANGLES as f32 / TAU) + 0.5) as u8;
    (nearest + HALF_TURN) % ANGLES as u8
}
