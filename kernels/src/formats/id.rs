//! The interface of the formats: checked calls on [`FormatId`].

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use half::bf16;

use super::order::walk::TILE_TOKENS;
use super::{Codes, FormatError, FormatId, RecordShape, ladder};
use crate::BLOCK_TOKENS;
use crate::kv::Side;

impl FormatId {
    /// Bits of code per element, without metadata and index: what `min_kv_bits` compares with.
    pub fn nominal_bits(self) -> f32 {
        self.codec().nominal_bits()
    }

    /// Whether pages of this side can have the format.
    pub fn is_legal(self, side: Side) -> bool {
        self.codec().sides().contains(&side)
    }

    /// Whether its codes are of RoPE's pairs of channels, (i, i + head_dim / 2), which a model has
    /// only if RoPE rotates whole heads.
    pub fn is_of_rope_pairs(self) -> bool {
        self.codec().is_of_rope_pairs()
    }

    /// Bytes of a record, a multiple of 16; an error if no record of this shape exists.
    pub fn record_bytes(self, shape: RecordShape) -> Result<usize, FormatError> {
        let codec = self.codec();
        if !self.is_legal(shape.side) {
            return Err(FormatError::Side {
                format: self,
                side: shape.side,
            });
        }
        let head_dims = codec.head_dims();
        if !(head_dims.has)(shape.head_dim) {
            return Err(FormatError::HeadDim {
                format: self,
                head_dim: shape.head_dim,
                rule: head_dims.rule,
            });
        }
        Ok(codec.record_bytes(shape))
    }

    /// Stored bits per element: codes, metadata and index.
    pub fn stored_bits(self, shape: RecordShape) -> Result<f64, FormatError> {
        Ok(self.record_bytes(shape)? as f64 * 8.0 / shape.elements() as f64)
    }

    /// Encodes `rows`, `[128][head_dim]`, into `out`, a record of exactly
    /// [`Self::record_bytes`]. On an error the record's content is not a page.
    pub fn encode(
        self,
        shape: RecordShape,
        rows: &[bf16],
        out: &mut [u8],
    ) -> Result<(), FormatError> {
        self.check_len("record (bytes)", self.record_bytes(shape)?, out.len())?;
        self.check_len("rows (elements)", shape.elements(), rows.len())?;
        self.codec().encode(shape, rows, out)
    }

    /// Dequantises a whole record into `out`, `[128][head_dim]`.
    pub fn dequantise(
        self,
        shape: RecordShape,
        record: &[u8],
        out: &mut [f32],
    ) -> Result<(), FormatError> {
        self.dequantise_tokens(shape, record, 0..BLOCK_TOKENS, out)
    }

    /// Dequantises the tokens of a range of whole 16-token tiles into `out`, `[tokens][head_dim]`.
    ///
    /// Per-channel metadata is read once a call, so fewer calls of more tiles are cheaper.
    pub fn dequantise_tokens(
        self,
        shape: RecordShape,
        record: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), FormatError> {
        self.check_len("record (bytes)", self.record_bytes(shape)?, record.len())?;
        let whole = |t: usize| t <= BLOCK_TOKENS && t.is_multiple_of(TILE_TOKENS);
        if !whole(tokens.start) || !whole(tokens.end) || tokens.start > tokens.end {
            return Err(FormatError::TokenRange {
                start: tokens.start,
                end: tokens.end,
            });
        }
        let elements = tokens.len() * shape.head_dim;
        self.check_len("dequantised tokens (elements)", elements, out.len())?;
        self.codec().dequantise(shape, record, tokens, out);
        Ok(())
    }

    /// The codes of a record of the right size, if readers can compute on them.
    pub(crate) fn codes(self, shape: RecordShape, record: &[u8]) -> Option<Codes<'_>> {
        debug_assert_eq!(self.record_bytes(shape), Ok(record.len()));
        self.codec().codes(shape, record)
    }

    /// Transcodes a record of this format into one of `to`, a format that
    /// [`legal_shrink`](super::legal_shrink) allows. The bytes are those of every other legal path,
    /// of encoding the 16-bit rows as `to` among them.
    pub fn shrink(
        self,
        to: FormatId,
        shape: RecordShape,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), FormatError> {
        if !ladder::legal_shrink(self, to, shape.side) {
            return Err(FormatError::IllegalShrink {
                from: self,
                to,
                side: shape.side,
            });
        }
        self.check_len(
            "source record (bytes)",
            self.record_bytes(shape)?,
            src.len(),
        )?;
        to.check_len("record (bytes)", to.record_bytes(shape)?, dst.len())?;
        ladder::shrink(self.codec(), to.codec(), shape, src, dst)
    }

    fn check_len(self, what: &'static str, expected: usize, got: usize) -> Result<(), FormatError> {
        if expected == got {
            return Ok(());
        }
        Err(FormatError::Length {
            format: self,
            what,
            expected,
            got,
        })
    }

    pub(crate) fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|f| f.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for FormatId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FormatId {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|f| f.name() == name);
        found.copied().ok_or_else(|| FormatError::UnknownName {
            name: name.to_owned(),
        })
    }
}
