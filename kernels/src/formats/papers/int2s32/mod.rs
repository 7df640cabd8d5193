//! Values whose first 32 tokens are as they are, and whose others have int2's codes; static.
//!
//! Layout: `[bf16; 32 D][zero; 96][range; 96][codes; 96 tokens of D/4 bytes]`, four channels a
//! byte.

use std::ops::Range;

use half::bf16;

use super::kitty_page::{read_row, write_rows};
use crate::BLOCK_TOKENS;
use crate::formats::affine::Meta;
use crate::formats::codec::PageFormat;
use crate::formats::ladder::{LadderPage, Width};
use crate::formats::{FormatError, RecordShape};
use crate::kv::Side;

pub(crate) const FORMAT: Int2Sink = Int2Sink;

/// The codec.
pub(crate) struct Int2Sink;

/// Tokens that keep 16 bit, and the others.
const SINK: usize = 32;
const TOKENS: usize = BLOCK_TOKENS - SINK;

/// Where the parts of a record end: rows and metadata.
const fn ends(shape: RecordShape) -> [usize; 2] {
    let rows = 2 * SINK * shape.head_dim;
    [rows, rows + 4 * TOKENS]
}

impl PageFormat for Int2Sink {
    fn nominal_bits(&self) -> f32 {
        (SINK * 16 + TOKENS * 2) as f32 / BLOCK_TOKENS as f32
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::V]
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        ends(shape)[1] + TOKENS * shape.head_dim / 4
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let d = shape.head_dim;
        let [sink_end, meta_end] = ends(shape);
        write_rows(&rows[..SINK * d], &mut out[..sink_end]);
        // Tokens are quantised each by itself; what the sink holds is no matter.
        let mut rows = rows.to_vec();
        rows[..SINK * d].fill(bf16::ZERO);
        let mut page = LadderPage::quantise(shape, &rows)?;
        page.lower(Width::two(0, false));
        let meta = Meta::of(&page.meta, BLOCK_TOKENS);
        for token in 0..TOKENS {
            let (zero, range) = (meta.zero(SINK + token), meta.range(SINK + token));
            Meta::store(&mut out[sink_end..meta_end], TOKENS, token, zero, range);
        }
        let codes = page.codes[SINK * d..].chunks_exact(4);
        for (codes, byte) in codes.zip(&mut out[meta_end..]) {
            *byte = codes.iter().rev().fold(0, |byte, code| byte << 2 | code);
        }
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let d = shape.head_dim;
        let [sink_end, meta_end] = ends(shape);
        let (mut zeros, mut ranges) = ([0.0; TOKENS], [0.0; TOKENS]);
        Meta::of(&record[sink_end..], TOKENS).widen(0, &mut zeros, &mut ranges);
        for (token, out) in tokens.zip(out.chunks_exact_mut(d)) {
            let Some(token) = token.checked_sub(SINK) else {
                read_row(&record[2 * token * d..][..2 * d], out);
                continue;
            };
            let (zero, step) = (zeros[token], ranges[token] / 3.0);
            let codes = &record[meta_end + token * d / 4..][..d / 4];
            for (channel, out) in out.iter_mut().enumerate() {
                let code = codes[channel / 4] >> (2 * (channel % 4)) & 3;
                *out = f32::from(code) * step + zero;
            }
        }
    }
}
