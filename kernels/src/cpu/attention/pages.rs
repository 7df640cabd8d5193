//! Reads the pages of a block into f32 panels: the seam where page formats plug in.
//!
//! Attention takes keys and values in pieces of 32 tokens and as panels of 32 columns: for keys the
//! columns are tokens and the rows channels, for values the columns are channels and the rows
//! tokens. Whatever a page is encoded as, reading it means filling those.

use crate::SUB_BLOCK_TOKENS;
use crate::backend::BlockTables;
use crate::cpu::gemm::PANEL;
use crate::cpu::simd::Simd;
use crate::formats::{Codes, FormatId, RecordShape};
use crate::kv::{KvArena, KvGeometry, KvLayout, RecordPlace, Side};

/// Tokens of a piece.
pub(super) const PIECE: usize = PANEL;

/// The pages of a step.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    pub(crate) arena: &'a KvArena,
    pub(crate) geometry: KvGeometry,
    pub(crate) layout: &'a KvLayout,
    /// Checked by [`crate::backend::StepLimits`].
    pub(crate) tables: &'a BlockTables,
}

/// A record of one side of one layer of the KV cache in one block: a head's, or a part's of it.
#[derive(Clone, Copy)]
pub(super) struct HeadPage {
    /// Its number in the block tables.
    pub(super) block: u32,
    pub(super) layer: usize,
    pub(super) record: usize,
}

/// What is read at once: a piece of one side.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) side: Side,
    pub(super) piece: usize,
    /// Tokens of the piece that anybody sees.
    pub(super) tokens: usize,
}

impl Item {
    /// Piece `piece` of the first `tokens` tokens of a block.
    pub(super) fn new(side: Side, piece: usize, tokens: usize) -> Self {
        Self {
            side,
            piece,
            tokens: PIECE.min(tokens - piece * PIECE),
        }
    }
}

/// Floats of a piece of keys: one panel of `head_dim` rows.
pub(super) fn key_floats(head_dim: usize) -> usize {
    head_dim * PANEL
}

/// Floats of a piece of values: panels of 32 rows.
pub(super) fn value_floats(head_dim: usize) -> usize {
    head_dim.next_multiple_of(PANEL) * PIECE
}

impl Pages<'_> {
    /// Address of the 16 rows of a record in one sub-block of a 16-bit block.
    pub(crate) fn sub_record(&self, block: u32, sub_block: usize, record: usize) -> *mut u8 {
        let frame = self.layout.frame();
        let place = self.geometry.sub_record_place(frame, record);
        let slot = sub_block * frame.frames_per_sub_block + place.frame;
        let frame = self.tables.block_and_room(block).1[slot];
        self.arena.frame_ptr(frame).wrapping_add(place.offset)
    }

    /// Fills `out` with an item of keys, `[head_dim][32 tokens]`, of which columns beyond its
    /// tokens hold anything; or of values, `[panel of channels][32 tokens][32 channels]`, of which
    /// rows beyond its tokens hold anything and columns beyond the channels what they held.
    /// `dequantised` is scratch of 32 tokens.
    #[inline(always)]
    pub(super) fn read<S: Simd>(
        &self,
        s: S,
        page: HeadPage,
        item: Item,
        dequantised: &mut [f32],
        out: &mut [f32],
    ) {
        let dim = self.geometry.head_dim;
        match item.side {
            Side::K => assert_eq!(out.len(), key_floats(dim)),
            Side::V => assert_eq!(out.len(), value_floats(dim)),
        }
        if self.tables.block_and_room(page.block).0 > 0 {
            return self.dequantise(page, item, dequantised, out);
        }
        for (rows, first, count) in self.sub_records(page, item) {
            // SAFETY: a sub-record holds 16 rows of `dim` bf16 inside a frame of the arena, and
            // appends are over; `out` has room for 32 tokens.
            unsafe {
                match item.side {
                    Side::K => transpose(s, rows.cast(), dim, &mut out[first..]),
                    Side::V => widen(s, rows.cast(), dim, first, count, out),
                }
            }
        }
    }

    /// Dequantises an item of a shrunk block: the whole piece, whatever is seen of it.
    #[inline(never)]
    fn dequantise(&self, page: HeadPage, item: Item, rows: &mut [f32], out: &mut [f32]) {
        let mut joined = Vec::new();
        let (format, shape, record) = self.record(page, item.side, &mut joined);
        let rows = &mut rows[..PIECE * shape.head_dim];
        let tokens = item.piece * PIECE..(item.piece + 1) * PIECE;
        if let Err(error) = format.dequantise_tokens(shape, record, tokens, rows) {
            unreachable!("the layout admits only records of the right size: {error}");
        }
        match item.side {
            Side::K => keys_from_rows(rows, shape.head_dim, out),
            Side::V => values_from_rows(rows, shape.head_dim, out),
        }
    }

    /// The codes of a page that is to be computed on, see [`super::codes`]. `joined` is scratch.
    pub(super) fn codes<'a>(
        &'a self,
        page: HeadPage,
        side: Side,
        joined: &'a mut Vec<u8>,
    ) -> Option<Codes<'a>> {
        if self.tables.block_and_room(page.block).0 == 0 {
            return None;
        }
        let (format, shape, record) = self.record(page, side, joined);
        format.codes(shape, record)
    }

    /// A record of a shrunk block and its format; `joined` is scratch.
    fn record<'a>(
        &'a self,
        page: HeadPage,
        side: Side,
        joined: &'a mut Vec<u8>,
    ) -> (FormatId, RecordShape, &'a [u8]) {
        let (level, frames) = self.tables.block_and_room(page.block);
        let bytes = self.layout.record_bytes(level, page.layer, side);
        let place = self.record_place(page, level, side);
        let shape = RecordShape {
            side,
            head_dim: self.geometry.head_dim,
        };
        // SAFETY: shrinks and appends are over.
        let record = unsafe { self.arena.record(frames, place, bytes, joined) };
        (self.layout.format(level, page.layer, side), shape, record)
    }

    /// Where a record lies in the frames of a shrunk block.
    fn record_place(&self, page: HeadPage, level: u16, side: Side) -> RecordPlace {
        let record = self.geometry.record(page.layer, side, page.record);
        self.layout.place(level, record)
    }

    /// Where an item lies: the starts of its two sub-records (the same twice if it has only one);
    /// of a shrunk block, of its record. For prefetching: sub-records are too short and too far
    /// apart for the hardware to see a stream in them.
    #[inline(always)]
    pub(super) fn runs(&self, page: HeadPage, item: Item) -> [*const u8; 2] {
        let (level, frames) = self.tables.block_and_room(page.block);
        if level > 0 {
            let place = self.record_place(page, level, item.side);
            let start = self.arena.frame_ptr(frames[place.frame as usize]);
            return [start.wrapping_add(place.offset as usize).cast_const(); 2];
        }
        let mut runs = [std::ptr::null(); 2];
        for (rows, first, _) in self.sub_records(page, item) {
            runs[first / SUB_BLOCK_TOKENS..].fill(rows);
        }
        runs
    }

    /// The sub-records of an item: rows, first token within the item, tokens.
    #[inline(always)]
    fn sub_records(
        &self,
        page: HeadPage,
        item: Item,
    ) -> impl Iterator<Item = (*const u8, usize, usize)> {
        debug_assert_eq!(self.tables.block_and_room(page.block).0, 0);
        debug_assert!(item.tokens <= PIECE);
        let record = self.geometry.record(page.layer, item.side, page.record);
        (0..item.tokens)
            .step_by(SUB_BLOCK_TOKENS)
            .map(move |first| {
                let sub_block = (item.piece * PIECE + first) / SUB_BLOCK_TOKENS;
                let rows = self.sub_record(page.block, sub_block, record);
                let count = SUB_BLOCK_TOKENS.min(item.tokens - first);
                (rows.cast_const(), first, count)
            })
    }
}

/// Transposes dequantised rows `[32][dim]` to `[dim][32]`.
fn keys_from_rows(rows: &[f32], dim: usize, out: &mut [f32]) {
    for (token, row) in rows.chunks_exact(dim).enumerate() {
        for (to, x) in out.chunks_exact_mut(PANEL).zip(row) {
            to[token] = *x;
        }
    }
}

/// Copies dequantised rows `[32][dim]` into panels of channel columns.
fn values_from_rows(rows: &[f32], dim: usize, out: &mut [f32]) {
    for (i, panel) in out.chunks_exact_mut(PIECE * PANEL).enumerate() {
        let channels = PANEL.min(dim - i * PANEL);
        for (to, row) in panel.chunks_exact_mut(PANEL).zip(rows.chunks_exact(dim)) {
            to[..channels].copy_from_slice(&row[i * PANEL..][..channels]);
        }
    }
}

/// Transposes 16 rows of `dim` bf16 into the first 16 columns of rows that are 32 floats apart.
///
/// # Safety
/// `rows` must be readable, and `out` hold `dim` rows, the last of 16 columns.
#[inline(always)]
unsafe fn transpose<S: Simd>(s: S, rows: *const u32, dim: usize, out: &mut [f32]) {
    let words = dim / 2;
    let out = out.as_mut_ptr();
    let whole = words / S::LANES * S::LANES;
    for word in (0..whole).step_by(S::LANES) {
        for token in (0..SUB_BLOCK_TOKENS).step_by(S::LANES) {
            let rows = rows.wrapping_add(token * words + word);
            // SAFETY: `LANES` words of `LANES` of the 16 rows, to two rows of `out` per word.
            unsafe { s.transpose_pairs(rows, words, out.wrapping_add(2 * word * PANEL + token)) };
        }
    }
    for word in whole..words {
        for token in 0..SUB_BLOCK_TOKENS {
            let to = out.wrapping_add(2 * word * PANEL + token);
            // SAFETY: within the 16 rows; rows `2 * word` and the next of `out`.
            unsafe {
                let pair = *rows.wrapping_add(token * words + word);
                *to = f32::from_bits(pair << 16);
                *to.wrapping_add(PANEL) = f32::from_bits(pair & 0xffff_0000);
            }
        }
    }
}

/// Converts `count` rows of `dim` bf16 to rows `first` and on of the panels.
///
/// # Safety
/// `rows` must be readable; `out` holds [`value_floats`]; `first + count` is at most 32.
#[inline(always)]
unsafe fn widen<S: Simd>(
    s: S,
    rows: *const u16,
    dim: usize,
    first: usize,
    count: usize,
    out: &mut [f32],
) {
    for token in 0..count {
        let row = rows.wrapping_add(token * dim);
        for (i, panel) in out.chunks_exact_mut(PIECE * PANEL).enumerate() {
            let row = row.wrapping_add(i * PANEL);
            let to = panel.as_mut_ptr().wrapping_add((first + token) * PANEL);
            let channels = PANEL.min(dim - i * PANEL);
            if channels == PANEL {
                for c in (0..PANEL).step_by(S::LANES) {
                    // SAFETY: 32 channels of the row, and of a row of the panel.
                    unsafe { s.store(to.wrapping_add(c), s.load_bf16(row.wrapping_add(c))) };
                }
            } else {
                for c in 0..channels {
                    // SAFETY: `c < channels`.
                    unsafe {
                        let bits = u32::from(*row.wrapping_add(c)) << 16;
                        *to.wrapping_add(c) = f32::from_bits(bits);
                    }
                }
            }
        }
    }
}
