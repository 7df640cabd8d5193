//! What `kitty25` and `kitty12` share: 2-bit keys whose loudest channels keep 4 bits.
//!
//! Layout, n boosted channels of D: `[zero][range][low plane][index][slab 0][slab 1 ..]`.
//! - The low plane is dense: the 2-bit codes, of boosted channels the low two bits.
//! - The index has a byte a channel: its rank among the boosted, or n.
//! - Slab s holds the high two bits of the boosted channels of ranks `s D/8 .. (s + 1) D/8`, a
//!   plane `[128 tokens][D/8]` of its own, so that dropping to fewer boosted channels drops whole
//!   slabs.

mod boosted;
mod rank;

use std::ops::Range;

use super::affine::{
    Grouping, Meta, Steps, code_plane, dequantise_tile, pack_plane, tiles, unpack_plane,
    unpack_tile,
};
use super::codec::HeadDims;
use super::ladder::{LadderPage, Width};
use super::order::Plane;
use super::order::walk::{self, Scratch, TILE_TOKENS};
use super::simd::vectorised;
use super::{CodePlane, Codes, High, MAX_HEAD_DIM, RecordShape, Slabs};
use crate::BLOCK_TOKENS;

pub(crate) use boosted::Boosted;
pub(crate) use rank::{Ranking, index_of_loudest, index_of_loudest_rows};

/// Channels of a slab; the index counts in these.
pub(crate) const fn slab_channels(head_dim: usize) -> usize {
    head_dim / 8
}

/// Bits of code per element where `slabs` eighths of the channels have 4.
pub(crate) fn nominal_bits(slabs: usize) -> f32 {
    2.0 + slabs as f32 / 4.0
}

/// A slab is 8 or a multiple of 16 channels, as the tensor-core order needs.
pub(crate) const HEAD_DIMS: HeadDims = HeadDims {
    rule: "64, 128 or 256",
    has: |d| matches!(d, 64 | 128 | 256),
};

/// Records of a format with `SLABS` eighths of its channels boosted.
pub(crate) struct Kitty<const SLABS: usize> {
    shape: RecordShape,
}

impl<const SLABS: usize> Kitty<SLABS> {
    pub(crate) const fn new(shape: RecordShape) -> Self {
        Self { shape }
    }

    const fn boosted(&self) -> usize {
        SLABS * slab_channels(self.shape.head_dim)
    }

    const fn slab(&self) -> Plane {
        Plane {
            rows: BLOCK_TOKENS,
            cols: slab_channels(self.shape.head_dim),
            bits: 2,
        }
    }

    pub(crate) const fn record_bytes(&self) -> usize {
        Meta::bytes(Grouping::Channel, self.shape)
            + code_plane(self.shape, 2).bytes()
            + self.shape.head_dim
            + SLABS * self.slab().bytes()
    }

    pub(crate) fn dequantise(&self, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        dequantise_record::<SLABS>(self.shape, record, tokens, out);
    }

    /// The codes of a record.
    pub(crate) fn codes<'a>(&self, record: &'a [u8]) -> Codes<'a> {
        let parts = self.parts(record);
        Codes {
            low: CodePlane {
                order: code_plane(self.shape, 2),
                bytes: parts.low,
            },
            high: High::Boosted(Slabs {
                order: self.slab(),
                bytes: parts.slabs,
                index: parts.index,
                boosted: self.boosted(),
            }),
            record,
            levels: 3.0,
        }
    }

    pub(crate) fn unpack(&self, clipped: bool, record: &[u8]) -> LadderPage {
        let d = self.shape.head_dim;
        let parts = self.parts(record);
        let mut codes = vec![0; self.shape.elements()];
        unpack_plane::<2>(self.shape, parts.low, &mut codes);
        let mut channels = vec![0; self.boosted()];
        let channels = channels_by_rank(parts.index, &mut channels);
        let mut scratch = Scratch::new();
        for (tile, codes) in codes.chunks_exact_mut(TILE_TOKENS * d).enumerate() {
            self.add_high(parts.slabs, channels, tile, &mut scratch, codes);
        }
        let mut page = LadderPage::new(
            self.shape,
            Width::two(SLABS, clipped),
            parts.meta.to_vec(),
            codes,
        );
        page.index = parts.index.to_vec();
        page
    }

    pub(crate) fn pack(&self, page: &LadderPage, out: &mut [u8]) {
        let d = self.shape.head_dim;
        let (meta, rest) = out.split_at_mut(page.meta.len());
        let (low, rest) = rest.split_at_mut(code_plane(self.shape, 2).bytes());
        let (index, slabs) = rest.split_at_mut(d);
        meta.copy_from_slice(&page.meta);
        index.copy_from_slice(&page.index);
        let low_bits: Vec<u8> = page.codes.iter().map(|code| code & 3).collect();
        pack_plane::<2>(self.shape, &low_bits, low);

        let mut channels = vec![0; self.boosted()];
        let channels = channels_by_rank(index, &mut channels);
        let slab_bytes = self.slab().bytes();
        let channels = channels.chunks_exact(slab_channels(d));
        for (channels, slab) in channels.zip(slabs.chunks_exact_mut(slab_bytes)) {
            let rows = page.codes.chunks_exact(d);
            let high: Vec<u8> = rows
                .flat_map(|row| channels.iter().map(|c| row[*c as usize] >> 2))
                .collect();
            walk::pack_rows::<2>(self.slab(), &high, slab);
        }
    }

    /// Adds the high bits of the boosted channels to one tile's codes, `[16][D]`.
    #[inline(always)]
    fn add_high(
        &self,
        slabs: &[u8],
        channels: &[u8],
        tile: usize,
        scratch: &mut Scratch,
        codes: &mut [u8],
    ) {
        let (d, width) = (self.shape.head_dim, slab_channels(self.shape.head_dim));
        let mut high = [0; TILE_TOKENS * MAX_HEAD_DIM / 8];
        let high = &mut high[..TILE_TOKENS * width];
        let slabs = slabs.chunks_exact(self.slab().bytes());
        for (slab, channels) in slabs.zip(channels.chunks_exact(width)) {
            walk::unpack_rows::<2>(self.slab(), slab, tile, scratch, high);
            for (high, codes) in high.chunks_exact(width).zip(codes.chunks_exact_mut(d)) {
                for (high, channel) in high.iter().zip(channels) {
                    codes[*channel as usize] |= high << 2;
                }
            }
        }
    }

    fn parts<'a>(&self, record: &'a [u8]) -> Parts<'a> {
        let (meta, rest) = record.split_at(Meta::bytes(Grouping::Channel, self.shape));
        let (low, rest) = rest.split_at(code_plane(self.shape, 2).bytes());
        let (index, slabs) = rest.split_at(self.shape.head_dim);
        Parts {
            meta,
            low,
            index,
            slabs,
        }
    }
}

vectorised! {
    fn dequantise_record<const SLABS: usize>(
        shape: RecordShape,
        record: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
    ) {
        let kitty = Kitty::<SLABS>::new(shape);
        let parts = kitty.parts(record);
        let boosted = kitty.boosted();
        let levels = |c: usize| if (parts.index[c] as usize) < boosted { 15.0 } else { 3.0 };
        let steps = Steps::new(Grouping::Channel, shape, record, levels);
        let mut channels = [0; MAX_HEAD_DIM];
        let channels = channels_by_rank(parts.index, &mut channels[..boosted]);
        let tile_len = TILE_TOKENS * shape.head_dim;
        let mut scratch = Scratch::new();
        let mut codes = [0; TILE_TOKENS * MAX_HEAD_DIM];
        let codes = &mut codes[..tile_len];
        for (tile, out) in tiles(tokens).zip(out.chunks_exact_mut(tile_len)) {
            unpack_tile::<2>(shape, parts.low, tile, &mut scratch, codes);
            kitty.add_high(parts.slabs, channels, tile, &mut scratch, codes);
            dequantise_tile(&steps, shape.head_dim, tile, codes, out);
        }
    }
}

/// The parts of a record.
struct Parts<'a> {
    meta: &'a [u8],
    low: &'a [u8],
    index: &'a [u8],
    slabs: &'a [u8],
}

/// The boosted channels in rank order, from the index; a rank that none has stays channel 0.
#[inline(always)]
fn channels_by_rank<'a>(index: &[u8], channels: &'a mut [u8]) -> &'a [u8] {
    for (channel, rank) in index.iter().enumerate() {
        if let Some(slot) = channels.get_mut(*rank as usize) {
            *slot = channel as u8;
        }
    }
    channels
}
