//! Codes of one bit more than a plane has, in two planes; static.
//!
//! Layout: `[zero][range][low plane: code % 2^LOW][high plane, 1 bit: code >> LOW]`.

use std::ops::Range;

use half::bf16;

use super::super::codec::PageFormat;
use super::super::order::walk::{Scratch, TILE_TOKENS};
use super::super::simd::vectorised;
use super::super::{CodePlane, Codes, FormatError, High, MAX_HEAD_DIM, RecordShape};
use super::{
    Grouping, Meta, Steps, code_plane, dequantise_tile, pack_plane, quantise, tiles, unpack_tile,
};
use crate::kv::Side;

/// Codes of `LOW` + 1 bits, quantised straight from 16 bits.
pub(crate) struct Split<const LOW: u32>;

/// The greatest code.
const fn levels(low: u32) -> u8 {
    (2 << low) - 1
}

const fn meta_bytes(shape: RecordShape) -> usize {
    Meta::bytes(Grouping::of_side(shape.side), shape)
}

impl<const LOW: u32> PageFormat for Split<LOW> {
    fn nominal_bits(&self) -> f32 {
        (LOW + 1) as f32
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K, Side::V]
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        meta_bytes(shape) + code_plane(shape, LOW).bytes() + code_plane(shape, 1).bytes()
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let (meta, planes) = out.split_at_mut(meta_bytes(shape));
        let (low, high) = planes.split_at_mut(code_plane(shape, LOW).bytes());
        let mut codes = vec![0; shape.elements()];
        let grouping = Grouping::of_side(shape.side);
        quantise(grouping, shape, rows, levels(LOW), meta, &mut codes)?;
        let low_bits: Vec<u8> = codes.iter().map(|code| code & ((1 << LOW) - 1)).collect();
        pack_plane::<LOW>(shape, &low_bits, low);
        codes.iter_mut().for_each(|code| *code >>= LOW);
        pack_plane::<1>(shape, &codes, high);
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        dequantise_record::<LOW>(shape, record, tokens, out);
    }

    fn codes<'a>(&self, shape: RecordShape, record: &'a [u8]) -> Option<Codes<'a>> {
        let plane = |bits, bytes| CodePlane {
            order: code_plane(shape, bits),
            bytes,
        };
        let planes = &record[meta_bytes(shape)..];
        let (low, high) = planes.split_at(code_plane(shape, LOW).bytes());
        // Readers know higher bits that are worth four.
        (LOW == 2).then(|| Codes {
            low: plane(LOW, low),
            high: High::All(plane(1, high)),
            record,
            levels: f32::from(levels(LOW)),
        })
    }
}

vectorised! {
    fn dequantise_record<const LOW: u32>(
        shape: RecordShape,
        record: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
    ) {
        let planes = &record[meta_bytes(shape)..];
        let (low, high) = planes.split_at(code_plane(shape, LOW).bytes());
        let grouping = Grouping::of_side(shape.side);
        let steps = Steps::new(grouping, shape, record, |_| f32::from(levels(LOW)));
        let tile_len = TILE_TOKENS * shape.head_dim;
        let mut scratch = Scratch::new();
        let mut codes = [0; TILE_TOKENS * MAX_HEAD_DIM];
        let mut high_bits = codes;
        let (codes, high_bits) = (&mut codes[..tile_len], &mut high_bits[..tile_len]);
        for (tile, out) in tiles(tokens).zip(out.chunks_exact_mut(tile_len)) {
            unpack_tile::<LOW>(shape, low, tile, &mut scratch, codes);
            unpack_tile::<1>(shape, high, tile, &mut scratch, high_bits);
            for (code, high) in codes.iter_mut().zip(&*high_bits) {
                *code |= high << LOW;
            }
            dequantise_tile(&steps, shape.head_dim, tile, codes, out);
        }
    }
}
