//! The model's own 16 bit: bf16 rows `[token][channel]`, byte for byte.

use std::ops::Range;

use half::bf16;

use crate::formats::codec::{HeadDims, Level, PageFormat};
use crate::formats::simd::vectorised;
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;

pub(crate) const FORMAT: F16 = F16;

/// Codec of `f16`.
pub(crate) struct F16;

impl PageFormat for F16 {
    fn nominal_bits(&self) -> f32 {
        16.0
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K, Side::V]
    }

    fn head_dims(&self) -> HeadDims {
        HeadDims {
            rule: "a multiple of 8",
            has: |d| d != 0 && d.is_multiple_of(8),
        }
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        2 * shape.elements()
    }

    fn encode(&self, _: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        for (x, bytes) in rows.iter().zip(out.chunks_exact_mut(2)) {
            bytes.copy_from_slice(&x.to_le_bytes());
        }
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let row = 2 * shape.head_dim;
        let bytes = &record[row * tokens.start..row * tokens.end];
        widen(bytes, out);
    }

    fn level(&self) -> Option<Level<'_>> {
        Some(Level::Top)
    }
}

vectorised! {
    fn widen(bytes: &[u8], out: &mut [f32]) {
        for (x, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
            *x = f32::from_bits((bits as u32) << 16);
        }
    }
}
