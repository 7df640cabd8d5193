//! RoPE pairs of keys with angle and radius in 4 bits each, angles on one grid over the circle;
//! static. Layout: see `polar`.

use std::ops::Range;

use half::bf16;

use super::codec::PageFormat;
use super::polar::{self, AngleGrid, Polar};
use super::{FormatError, RecordShape};
use crate::kv::Side;

/// Codec of `polar44grid`.
pub(crate) struct Polar44Grid;

const fn codec(shape: RecordShape) -> Polar {
    Polar {
        radius_bits: 4,
        grid: AngleGrid::Circle,
        shape,
    }
}

impl PageFormat for Polar44Grid {
    fn nominal_bits(&self) -> f32 {
        4.0
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K]
    }

    fn head_dim_rule(&self) -> &'static str {
        polar::HEAD_DIM_RULE
    }

    fn supports(&self, shape: RecordShape) -> bool {
        polar::supports(shape.head_dim)
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        codec(shape).record_bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        codec(shape).encode(rows, out)
    }

    fn decode(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        codec(shape).decode(record, tokens, out);
    }
}
