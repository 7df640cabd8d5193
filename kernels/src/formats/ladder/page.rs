//! A page on its way down the ladder: codes in natural order, one byte each.

use half::bf16;

use super::super::affine::{Grouping, Meta, quantise};
use super::super::clip::clip;
use super::super::kitty::{index_of_loudest, slab_channels};
use super::super::simd::vectorised;
use super::super::{FormatError, RecordShape};
use super::shift::{shift_4_to_2, shift_8_to_4};
use crate::kv::Side;

/// Width of the codes of a precision level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width {
    /// Bits of an ordinary channel's codes: 8, 4 or 2.
    bits: u32,
    /// Eighths of the channels that stay at 4 bits beside 2-bit ones.
    slabs: usize,
    /// Whether groups of 2-bit codes are clipped.
    clipped: bool,
    /// Whether keys have a group a token.
    by_token: bool,
}

impl Width {
    /// `bits` for all channels.
    pub(crate) const fn uniform(bits: u32, clipped: bool) -> Self {
        Self {
            bits,
            slabs: 0,
            clipped,
            by_token: false,
        }
    }

    /// 2 bits, clipped or not, with `slabs` eighths of the channels at 4.
    pub(crate) const fn two(slabs: usize, clipped: bool) -> Self {
        Self {
            bits: 2,
            slabs,
            clipped,
            by_token: false,
        }
    }

    /// The same where keys have a group a token.
    pub(crate) const fn by_token(self) -> Self {
        Self {
            by_token: true,
            ..self
        }
    }

    /// Which elements of a page share a zero and a range.
    pub(crate) const fn grouping(self, side: Side) -> Grouping {
        if self.by_token {
            Grouping::Token
        } else {
            Grouping::of_side(side)
        }
    }

    /// Whether pages come to this width unless told otherwise.
    pub(crate) fn is_usual(self) -> bool {
        !self.by_token && (self.bits > 2 || self.clipped)
    }

    /// Whether a page of this width may become one of `lower`: that has fewer bits and the same
    /// groups, and a clipped page stays so, as an unclipped one does.
    pub(crate) fn reaches(self, lower: Width) -> bool {
        let falls = (lower.bits, lower.slabs) < (self.bits, self.slabs);
        let keeps = self.bits > 2 || self.clipped == lower.clipped;
        falls && keeps && self.by_token == lower.by_token
    }
}

/// Codes and metadata of one record, between two layouts.
pub(crate) struct LadderPage {
    pub(crate) shape: RecordShape,
    pub(crate) width: Width,
    /// Zeros and ranges as they lie in the record. Only clipping changes them, those of 2-bit
    /// groups.
    pub(crate) meta: Vec<u8>,
    /// `[128][head_dim]`, in natural order.
    pub(crate) codes: Vec<u8>,
    /// `[head_dim]`: a channel's rank among the boosted, or their number. Empty at uniform widths.
    pub(crate) index: Vec<u8>,
}

impl LadderPage {
    /// A page read from a record.
    pub(crate) fn new(shape: RecordShape, width: Width, meta: Vec<u8>, codes: Vec<u8>) -> Self {
        Self {
            shape,
            width,
            meta,
            codes,
            index: vec![],
        }
    }

    /// 16-bit rows at the first level below, 8 bit.
    pub(crate) fn quantise(shape: RecordShape, rows: &[bf16]) -> Result<Self, FormatError> {
        Self::quantise_to(Width::uniform(8, false), shape, rows)
    }

    /// The same at a given width of 8 bits.
    pub(crate) fn quantise_to(
        width: Width,
        shape: RecordShape,
        rows: &[bf16],
    ) -> Result<Self, FormatError> {
        let grouping = width.grouping(shape.side);
        let mut meta = vec![0; Meta::bytes(grouping, shape)];
        let mut codes = vec![0; shape.elements()];
        quantise(grouping, shape, rows, 255, &mut meta, &mut codes)?;
        Ok(Self::new(shape, width, meta, codes))
    }

    /// Brings the page down to `target`, which is not above it. The result depends on the codes of
    /// 8 bit and on `target` only, not on where the page is now: the ranking is that of
    /// the 4-bit page, and the index carries it further down.
    pub(crate) fn lower(&mut self, target: Width) {
        self.lower_by(index_of_loudest, target);
    }

    /// The same with the boosted channels of another ranking, for static formats: from 8 or 4 bits.
    /// `rank` makes the index of the 4-bit page, given how many channels are boosted.
    pub(crate) fn lower_by(&mut self, rank: impl FnOnce(&Self, usize) -> Vec<u8>, target: Width) {
        let reached = self.width == target || self.width.reaches(target);
        assert!(reached, "a page never gains bits back");
        if self.width.bits == 8 && target.bits < 8 {
            shift_all_to_4(&mut self.codes);
            self.width.bits = 4;
        }
        if self.width != target && target.bits == 2 {
            self.lower_to_two(rank, target);
        }
    }

    /// From 4 bits, or 2 with more boosted channels.
    fn lower_to_two(&mut self, rank: impl FnOnce(&Self, usize) -> Vec<u8>, target: Width) {
        let d = self.shape.head_dim;
        let boosted = target.slabs * slab_channels(d);
        let index = if self.width.bits == 4 && boosted > 0 {
            rank(self, boosted)
        } else {
            let ranks = self.index.iter();
            ranks.map(|rank| (*rank).min(boosted as u8)).collect()
        };
        // A channel is shifted if it has 4 bits now and is not to keep them.
        let was = self.width.slabs * slab_channels(d);
        let shifted: Vec<bool> = (0..d)
            .map(|c| {
                let wide = self.width.bits == 4 || (self.index[c] as usize) < was;
                let keeps = boosted > 0 && (index[c] as usize) < boosted;
                wide && !keeps
            })
            .collect();
        if target.clipped {
            let is_group = |group: usize| self.shape.side == Side::V || shifted[group];
            clip(self.shape, is_group, &mut self.meta, &mut self.codes);
        } else {
            shift_channels_to_2(&mut self.codes, &shifted);
        }
        self.index = if boosted > 0 { index } else { vec![] };
        self.width = target;
    }
}

vectorised! {
    fn shift_all_to_4(codes: &mut [u8]) {
        codes.iter_mut().for_each(|code| *code = shift_8_to_4(*code));
    }
}

vectorised! {
    /// `codes` are `[tokens][channels]`, `shifted` says which channels to shift.
    fn shift_channels_to_2(codes: &mut [u8], shifted: &[bool]) {
        for row in codes.chunks_exact_mut(shifted.len()) {
            for (code, shifted) in row.iter_mut().zip(shifted) {
                *code = if *shifted { shift_4_to_2(*code) } else { *code };
            }
        }
    }
}
