//! Records of one plane whose codes all have the same width: int8, int4, int2 and the per-token
//! keys.
//!
//! Layout: `[zero][range][plane]`.

use std::ops::Range;

use super::super::order::Plane;
use super::super::order::walk::{self, Scratch, TILE_TOKENS};
use super::super::simd::vectorised;
use super::super::{CodePlane, Codes, High, MAX_HEAD_DIM, RecordShape};
use super::{Grouping, Meta, Steps, dequantise_tile};
use crate::BLOCK_TOKENS;
use crate::kv::Side;

/// Codec of a one-plane format of `BITS`-wide codes.
pub(crate) struct Uniform<const BITS: u32> {
    pub(crate) grouping: Grouping,
    pub(crate) shape: RecordShape,
}

/// The plane of a record's codes: keys are `[token][channel]`, values `[channel][token]`.
pub(crate) const fn code_plane(shape: RecordShape, bits: u32) -> Plane {
    let (rows, cols) = match shape.side {
        Side::K => (BLOCK_TOKENS, shape.head_dim),
        Side::V => (shape.head_dim, BLOCK_TOKENS),
    };
    Plane { rows, cols, bits }
}

impl<const BITS: u32> Uniform<BITS> {
    const fn plane(&self) -> Plane {
        code_plane(self.shape, BITS)
    }

    const fn meta_bytes(&self) -> usize {
        Meta::bytes(self.grouping, self.shape)
    }

    pub(crate) const fn record_bytes(&self) -> usize {
        self.meta_bytes() + self.plane().bytes()
    }

    pub(crate) fn dequantise(&self, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let levels = ((1 << BITS) - 1) as f32;
        dequantise_plane::<BITS>(self.grouping, levels, 0.0, self.shape, record, tokens, out);
    }

    /// The codes of a record, unless it has keys per token.
    pub(crate) fn codes<'a>(&self, record: &'a [u8]) -> Option<Codes<'a>> {
        (self.grouping == Grouping::of_side(self.shape.side)).then(|| Codes {
            low: CodePlane {
                order: self.plane(),
                bytes: &record[self.meta_bytes()..],
            },
            high: High::None,
            record,
            levels: ((1 << BITS) - 1) as f32,
        })
    }

    /// Metadata and codes in natural order.
    pub(crate) fn unpack(&self, record: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (meta, plane) = record.split_at(self.meta_bytes());
        let mut codes = vec![0; self.shape.elements()];
        unpack_plane::<BITS>(self.shape, plane, &mut codes);
        (meta.to_vec(), codes)
    }

    /// The inverse of [`Self::unpack`].
    pub(crate) fn pack(&self, meta: &[u8], codes: &[u8], out: &mut [u8]) {
        let (head, plane) = out.split_at_mut(self.meta_bytes());
        head.copy_from_slice(meta);
        pack_plane::<BITS>(self.shape, codes, plane);
    }
}

/// The tiles of a token range.
pub(crate) fn tiles(tokens: Range<usize>) -> Range<usize> {
    tokens.start / TILE_TOKENS..tokens.end / TILE_TOKENS
}

/// Unpacks one tile of a record's plane into `codes`, `[16][head_dim]`.
#[inline(always)]
pub(crate) fn unpack_tile<const BITS: u32>(
    shape: RecordShape,
    plane: &[u8],
    tile: usize,
    scratch: &mut Scratch,
    codes: &mut [u8],
) {
    let order = code_plane(shape, BITS);
    match shape.side {
        Side::K => walk::unpack_rows::<BITS>(order, plane, tile, scratch, codes),
        Side::V => walk::unpack_cols::<BITS>(order, plane, tile, scratch, codes),
    }
}

vectorised! {
    /// Dequantises a record of one plane whose groups' ranges are `levels` steps, and whose zeros
    /// lie `lift` steps above the groups'.
    pub(crate) fn dequantise_plane<const BITS: u32>(
        grouping: Grouping,
        levels: f32,
        lift: f32,
        shape: RecordShape,
        record: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
    ) {
        let plane = &record[Meta::bytes(grouping, shape)..];
        let tile_len = TILE_TOKENS * shape.head_dim;
        let mut steps = Steps::new(grouping, shape, record, |_| levels);
        steps.lift(lift);
        let mut scratch = Scratch::new();
        let mut codes = [0; TILE_TOKENS * MAX_HEAD_DIM];
        let codes = &mut codes[..tile_len];
        for (tile, out) in tiles(tokens).zip(out.chunks_exact_mut(tile_len)) {
            unpack_tile::<BITS>(shape, plane, tile, &mut scratch, codes);
            dequantise_tile(&steps, shape.head_dim, tile, codes, out);
        }
    }
}

vectorised! {
    /// Unpacks a whole plane into `codes`, `[128][head_dim]`.
    pub(crate) fn unpack_plane<const BITS: u32>(
        shape: RecordShape,
        plane: &[u8],
        codes: &mut [u8],
    ) {
        let mut scratch = Scratch::new();
        let tiles = codes.chunks_exact_mut(TILE_TOKENS * shape.head_dim);
        for (tile, codes) in tiles.enumerate() {
            unpack_tile::<BITS>(shape, plane, tile, &mut scratch, codes);
        }
    }
}

vectorised! {
    /// Packs `codes`, `[128][head_dim]`, into a record's plane.
    pub(crate) fn pack_plane<const BITS: u32>(
        shape: RecordShape,
        codes: &[u8],
        plane: &mut [u8],
    ) {
        let order = code_plane(shape, BITS);
        match shape.side {
            Side::K => walk::pack_rows::<BITS>(order, codes, plane),
            Side::V => walk::pack_cols::<BITS>(order, codes, plane),
        }
    }
}
