//! What the polar formats share: RoPE pairs (i, i + D/2) of keys as angle and radius.
//!
//! Layout, with P = D/2 pairs: `[angle zero][angle range][radius zero][radius range]`, P fp16 each,
//! then the angle plane and the radius plane, `[128 tokens][P]` codes. A grid that is the same for
//! all angles stores no angle metadata.
//!
//! Codes are floors of equal cells and stand for the middle of the cell:
//!
//! ```text
//! code  = min(floor((v - z) * (2^b / R)), 2^b - 1)
//! value = z + (code + 0.5) * (R / 2^b)
//! ```
//!
//! Those of the published rule are in `published`.

mod angle;
mod dequantise;
mod planes;
mod published;

use std::ops::Range;

use half::bf16;

use crate::BLOCK_TOKENS;
use crate::formats::affine::fp16::FP16_MAX;
use crate::formats::affine::{check_values, zero_and_range};
use crate::formats::codec::{HeadDims, PageFormat};
use crate::formats::simd::vectorised;
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;
use planes::Planes;

pub(crate) use published::Published;

/// Bits of an angle's code.
const ANGLE_BITS: u32 = 4;

/// Which cells angles fall into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AngleGrid {
    /// Cells over the angles that a pair has in this block.
    PerPair,
    /// Cells over the full circle.
    Circle,
}

/// A polar format.
#[derive(Clone, Copy)]
pub(crate) struct Polar {
    /// Bits of a radius's code: 4 or 2.
    pub(crate) radius_bits: u32,
    pub(crate) grid: AngleGrid,
}

/// Its codec for one shape.
#[derive(Clone, Copy)]
struct Codec {
    radius_bits: u32,
    grid: AngleGrid,
    shape: RecordShape,
}

impl Polar {
    const fn codec(self, shape: RecordShape) -> Codec {
        Codec {
            radius_bits: self.radius_bits,
            grid: self.grid,
            shape,
        }
    }
}

/// A rule of polar codes: all that its formats do not share with those of the other.
trait PolarRule: Sync {
    /// Bits of a radius's code.
    fn radius_bits(&self) -> u32;

    /// Bytes in front of the planes.
    fn meta_bytes(&self, shape: RecordShape) -> usize;

    /// [`PageFormat::encode`].
    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError>;

    /// [`PageFormat::dequantise`].
    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]);

    fn planes(&self, shape: RecordShape) -> Planes {
        Planes {
            radius_bits: self.radius_bits(),
            head_dim: shape.head_dim,
        }
    }
}

impl<R: PolarRule> PageFormat for R {
    /// A pair shares the bits of its angle and its radius.
    fn nominal_bits(&self) -> f32 {
        (ANGLE_BITS + self.radius_bits()) as f32 / 2.0
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K]
    }

    fn is_of_rope_pairs(&self) -> bool {
        true
    }

    fn head_dims(&self) -> HeadDims {
        HeadDims::THIRTY_TWOS
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        self.meta_bytes(shape) + self.planes(shape).bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        PolarRule::encode(self, shape, rows, out)
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        PolarRule::dequantise(self, shape, record, tokens, out);
    }
}

impl PolarRule for Polar {
    fn radius_bits(&self) -> u32 {
        self.radius_bits
    }

    fn meta_bytes(&self, shape: RecordShape) -> usize {
        self.codec(shape).meta_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        self.codec(shape).encode(rows, out)
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        dequantise::dequantise(self.codec(shape), record, tokens, out);
    }
}

/// The cells of one quantity of one pair.
#[derive(Clone, Copy, Default)]
struct Cells {
    zero: f32,
    /// Width of a cell; 0 if all values are equal.
    step: f32,
}

impl Codec {
    const fn planes(self) -> Planes {
        Planes {
            radius_bits: self.radius_bits,
            head_dim: self.shape.head_dim,
        }
    }

    const fn pairs(self) -> usize {
        self.planes().pairs()
    }

    /// Zeros and ranges that a pair stores: of the radius, and of the angle unless it is fixed.
    const fn meta_bytes(self) -> usize {
        let quantities = match self.grid {
            AngleGrid::PerPair => 2,
            AngleGrid::Circle => 1,
        };
        quantities * 4 * self.pairs()
    }

    fn encode(self, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        check_values(self.shape.head_dim, rows)?;
        let mut angles = vec![0.0; BLOCK_TOKENS * self.pairs()];
        let mut radii = angles.clone();
        to_polar(self.shape.head_dim, rows, &mut angles, &mut radii);

        let (meta, planes) = out.split_at_mut(self.meta_bytes());
        let (angle_meta, radius_meta) = meta.split_at_mut(meta.len() - 4 * self.pairs());
        let angle_cells = match self.grid {
            AngleGrid::PerPair => self.fit(&angles, angle_meta, ANGLE_BITS)?,
            AngleGrid::Circle => vec![circle(); self.pairs()],
        };
        let cells = self.fit(&radii, radius_meta, self.radius_bits)?;
        let angles = quantise(&angles, &angle_cells, ANGLE_BITS);
        let radii = quantise(&radii, &cells, self.radius_bits);
        self.planes().pack(&angles, &radii, planes);
        Ok(())
    }

    /// Writes zero and range of every pair's `values`, `[128][P]`, into `meta`; returns the cells.
    fn fit(self, values: &[f32], meta: &mut [u8], bits: u32) -> Result<Vec<Cells>, FormatError> {
        let pairs = self.pairs();
        let mut low = vec![f32::INFINITY; pairs];
        let mut high = vec![f32::NEG_INFINITY; pairs];
        for row in values.chunks_exact(pairs) {
            for (pair, value) in row.iter().enumerate() {
                low[pair] = low[pair].min(*value);
                high[pair] = high[pair].max(*value);
            }
        }
        let fit = |pair: usize| {
            let (min, max) = (low[pair], high[pair]);
            let fits = max <= FP16_MAX;
            let bounds = fits.then(|| zero_and_range(min, max)).flatten();
            // Angles are within fp16, and no range of what is not negative is beyond.
            let (zero, range) =
                bounds.ok_or(FormatError::RadiusBeyondFp16 { pair, radius: max })?;
            meta[2 * pair..2 * pair + 2].copy_from_slice(&zero.to_le_bytes());
            meta[2 * (pairs + pair)..2 * (pairs + pair) + 2].copy_from_slice(&range.to_le_bytes());
            Ok(Cells {
                zero: zero.to_f32(),
                step: range.to_f32() / (1 << bits) as f32,
            })
        };
        (0..pairs).map(fit).collect()
    }
}

/// The cells of a circle cut into equal parts.
fn circle() -> Cells {
    Cells {
        zero: 0.0,
        step: std::f32::consts::TAU / (1 << ANGLE_BITS) as f32,
    }
}

vectorised! {
    /// Angles and radii, `[128][P]`, of `rows`, `[128][D]`.
    fn to_polar(head_dim: usize, rows: &[bf16], angles: &mut [f32], radii: &mut [f32]) {
        let pairs = head_dim / 2;
        let out = angles.chunks_exact_mut(pairs).zip(radii.chunks_exact_mut(pairs));
        for (row, (angles, radii)) in rows.chunks_exact(head_dim).zip(out) {
            let (xs, ys) = row.split_at(pairs);
            for (i, (x, y)) in xs.iter().zip(ys).enumerate() {
                let x = f32::from_bits((x.to_bits() as u32) << 16);
                let y = f32::from_bits((y.to_bits() as u32) << 16);
                angles[i] = angle::angle(x, y);
                radii[i] = angle::radius(x, y);
            }
        }
    }
}

/// Codes of `values`, `[128][P]`.
fn quantise(values: &[f32], cells: &[Cells], bits: u32) -> Vec<u8> {
    let last = (1 << bits) - 1;
    let mut codes = vec![0; values.len()];
    let rows = values
        .chunks_exact(cells.len())
        .zip(codes.chunks_exact_mut(cells.len()));
    for (values, codes) in rows {
        for ((value, cells), code) in values.iter().zip(cells).zip(codes) {
            let per_unit = if cells.step > 0.0 {
                1.0 / cells.step
            } else {
                0.0
            };
            *code = (((value - cells.zero) * per_unit) as u8).min(last);
        }
    }
    codes
}
