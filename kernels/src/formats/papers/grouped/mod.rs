//! What the formats with groups of 32 share (KIVI, KVmix): `int2g32`, `kvmix11`,
//! `int4g32`. Static.
//!
//! Groups of 32 neighbours along the quantised direction: tokens of a channel for keys, channels of
//! a token for values. Layout, with G = 4 D groups of w words: `[zero; G][range; G][first word; G]
//! .. [word w; G]`. Group (q, c) of keys, tokens `32 q ..` of channel c, is number `q D + c`; group
//! (t, q) of values, channels `32 q ..` of token t, is number `t D/32 + q`.
//!
//! A 32-bit word holds 16 codes of 2 bits, 8 of 4, or eleven of 3, the eleventh of which has 2
//! bits.

use std::ops::Range;

use half::{bf16, f16};

use crate::BLOCK_TOKENS;
use crate::formats::affine::{Meta, check_values, zero_and_range};
use crate::formats::codec::{HeadDims, PageFormat};
use crate::formats::simd::vectorised;
use crate::formats::{FormatError, MAX_HEAD_DIM, RecordShape};
use crate::kv::Side;

/// Codec of groups of 32 elements with `BITS`-wide codes: 2, 3 or 4.
pub(crate) struct Grouped<const BITS: u32>;

/// Elements of a group.
const GROUP: usize = 32;
/// Most words of a group's codes.
const MAX_WORDS: usize = 4;

/// Codes of a word: a width that does not divide 32 leaves a narrower code at the end.
const fn slots(bits: u32) -> usize {
    32_u32.div_ceil(bits) as usize
}

/// Words of a group's codes.
const fn words(bits: u32) -> usize {
    GROUP.div_ceil(slots(bits))
}

/// Word, shift and levels of element `i` of a group.
const fn place(bits: u32, i: usize) -> (usize, u32, u8) {
    let shift = bits * (i % slots(bits)) as u32;
    let width = if 32 - shift < bits { 32 - shift } else { bits };
    (i / slots(bits), shift, (1 << width) - 1)
}

const fn groups(shape: RecordShape) -> usize {
    shape.elements() / GROUP
}

/// Groups that lie side by side in the rows: 32 tokens of all channels, or one token.
struct Chunks {
    count: usize,
    /// Elements of a chunk.
    len: usize,
    /// Groups of a chunk, and the distance from one's element to the next's.
    lanes: usize,
    lane_stride: usize,
    /// From one element of a group to the next.
    stride: usize,
}

impl Chunks {
    const fn of(shape: RecordShape) -> Self {
        let d = shape.head_dim;
        match shape.side {
            Side::K => Self {
                count: BLOCK_TOKENS / GROUP,
                len: GROUP * d,
                lanes: d,
                lane_stride: 1,
                stride: d,
            },
            Side::V => Self {
                count: BLOCK_TOKENS,
                len: d,
                lanes: d / GROUP,
                lane_stride: GROUP,
                stride: 1,
            },
        }
    }
}

impl<const BITS: u32> PageFormat for Grouped<BITS> {
    fn nominal_bits(&self) -> f32 {
        BITS as f32
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K, Side::V]
    }

    fn head_dims(&self) -> HeadDims {
        HeadDims::THIRTY_TWOS
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        groups(shape) * (4 + 4 * words(BITS))
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        check_values(shape.head_dim, rows)?;
        let chunks = Chunks::of(shape);
        let (meta, planes) = out.split_at_mut(4 * groups(shape));
        let mut packed = vec![[0u32; MAX_WORDS]; groups(shape)];
        let by_chunk = packed.chunks_exact_mut(chunks.lanes);
        for (chunk, (rows, packed)) in rows.chunks_exact(chunks.len).zip(by_chunk).enumerate() {
            for (lane, packed) in packed.iter_mut().enumerate() {
                let first = lane * chunks.lane_stride;
                let values = std::array::from_fn(|i| rows[first + i * chunks.stride].to_f32());
                let group = chunk * chunks.lanes + lane;
                let (zero, range) = bounds(&values, group)?;
                Meta::store(meta, groups(shape), group, zero, range);
                *packed = pack(BITS, &values, zero.to_f32(), range.to_f32());
            }
        }
        let in_order = (0..words(BITS)).flat_map(|w| packed.iter().map(move |words| words[w]));
        for (bytes, word) in planes.chunks_exact_mut(4).zip(in_order) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        dequantise_record::<BITS>(shape, record, tokens, out);
    }
}

/// Zero and range of one group.
fn bounds(values: &[f32; GROUP], group: usize) -> Result<(f16, f16), FormatError> {
    // Plain comparisons: the values are finite, and `f32::min` would look for NaNs.
    let lesser = |a: f32, b: f32| if b < a { b } else { a };
    let min = values.iter().copied().fold(f32::INFINITY, lesser);
    let max = -values.iter().map(|x| -x).fold(f32::INFINITY, lesser);
    zero_and_range(min, max).ok_or(FormatError::RangeBeyondFp16 {
        group: "group of 32",
        index: group,
        min,
        max,
    })
}

fn pack(bits: u32, values: &[f32; GROUP], zero: f32, range: f32) -> [u32; MAX_WORDS] {
    let mut words = [0; MAX_WORDS];
    for (i, value) in values.iter().enumerate() {
        let (word, shift, levels) = place(bits, i);
        let per_unit = if range > 0.0 {
            f32::from(levels) / range
        } else {
            0.0
        };
        let code = (((value - zero) * per_unit + 0.5) as u8).min(levels);
        words[word] |= u32::from(code) << shift;
    }
    words
}

vectorised! {
    fn dequantise_record<const BITS: u32>(
        shape: RecordShape,
        record: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
    ) {
        let (d, groups, chunks) = (shape.head_dim, groups(shape), Chunks::of(shape));
        let meta = Meta::of(record, groups);
        let words = &record[4 * groups..];
        let (mut zero, mut range) = ([0.0; MAX_HEAD_DIM], [0.0; MAX_HEAD_DIM]);
        let (zero, range) = (&mut zero[..chunks.lanes], &mut range[..chunks.lanes]);
        for chunk in 0..chunks.count {
            meta.widen(chunk * chunks.lanes, zero, range);
            for i in 0..GROUP {
                let first = chunk * chunks.len + i * chunks.stride;
                if !tokens.contains(&(first / d)) {
                    continue;
                }
                let (word, shift, levels) = place(BITS, i);
                let first_word = word * groups + chunk * chunks.lanes;
                let words = &words[4 * first_word..][..4 * chunks.lanes];
                let out = &mut out[first - tokens.start * d..];
                for (lane, word) in words.chunks_exact(4).enumerate() {
                    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    let code = (word >> shift & levels as u32) as i32 as f32;
                    let step = range[lane] / levels as f32;
                    out[lane * chunks.lane_stride] = code * step + zero[lane];
                }
            }
        }
    }
}
