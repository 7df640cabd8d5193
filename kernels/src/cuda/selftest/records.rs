//! Records of the tests: hostile pages, and where their bytes lie in a pool.

use std::ops::Range;

use half::bf16;

use super::Rng;
use crate::formats::{FormatId as F, RecordShape};
use crate::kv::{KvLayout, Side};
use crate::{BLOCK_TOKENS, SUB_BLOCKS};

/// Kinds of pages.
pub(super) const KINDS: usize = 9;

/// A page `[128][head_dim]` of one of the kinds.
pub(super) fn page(kind: usize, head_dim: usize, rng: &mut Rng) -> Vec<bf16> {
    let offsets: Vec<f32> = (0..head_dim).map(|_| 8.0 * rng.uniform()).collect();
    let loud: Vec<f32> = (0..head_dim)
        .map(|_| 16f32.powf(rng.uniform() + 0.5))
        .collect();
    let elements = 0..BLOCK_TOKENS * head_dim;
    let value = |i: usize| {
        let (token, channel) = (i / head_dim, i % head_dim);
        match kind % KINDS {
            0 => rng.uniform(),
            // As keys are: channels with offsets and of unlike loudness.
            1 => offsets[channel] + rng.uniform() * loud[channel],
            // Constant channels and tokens, zeros of both signs.
            2 if channel % 3 == 0 => offsets[channel],
            2 if token % 5 == 0 => -1.5,
            2 => [0.0, -0.0][rng.below(2)],
            // The largest that have codes.
            3 => [32512.0, -32512.0, 1.0][rng.below(2 + usize::from(channel % 7 == 0))],
            // Below fp16's normal numbers, below its least, and bf16 denormals.
            4 => rng.uniform() * [1e-4, 1e-7, 1e-9, 1e-39][rng.below(4)],
            // Ties: halves of steps of 1, and a range of 255.
            5 if token == 7 || channel == 3 => [0.0, 255.0][(token + channel) % 2],
            5 => rng.below(255) as f32 / 2.0,
            // Few values: equally loud channels.
            6 => [1.0, -1.0, 3.0][(token + channel % 2) % 3],
            // Outliers.
            7 if rng.below(200) == 0 => 1000.0 * rng.uniform(),
            7 => -3.0 + 0.1 * rng.uniform(),
            // Any finite bits of small magnitude.
            _ => {
                let bits = rng.bits() as u16;
                bf16::from_bits((bits & 0x8000) | ((bits & 0x7fff) % 0x4600)).to_f32()
            }
        }
    };
    elements.map(value).map(bf16::from_f32).collect()
}

/// Where the bytes of a record lie in the pool.
pub(super) fn ranges(
    layout: &KvLayout,
    position: u16,
    record: usize,
    frames: &[u32],
) -> Vec<Range<usize>> {
    let (geometry, frame) = (layout.geometry(), layout.frame());
    let of = |frame_index: usize, offset: usize, bytes: usize| {
        let start = frames[frame_index] as usize * frame.frame_bytes + offset;
        start..start + bytes
    };
    if position == 0 {
        let place = geometry.sub_record_place(frame, record);
        let part = |i| {
            let slot = i * frame.frames_per_sub_block + place.frame;
            of(slot, place.offset, geometry.sub_record_bytes())
        };
        return (0..SUB_BLOCKS).map(part).collect();
    }
    let place = layout.place(position, record);
    let page = record / geometry.kv_heads;
    let bytes = layout.record_bytes(position, page / 2, Side::of_page(page));
    let first = place.first_part as usize;
    let mut parts = vec![of(place.frame as usize, place.offset as usize, first)];
    if first < bytes {
        parts.push(of(place.frame as usize + 1, 0, bytes - first));
    }
    parts
}

/// Lays a record there.
pub(super) fn put(pool: &mut [u8], ranges: &[Range<usize>], mut record: &[u8]) {
    for range in ranges {
        let (part, rest) = record.split_at(range.len());
        pool[range.clone()].copy_from_slice(part);
        record = rest;
    }
}

/// The bytes at `ranges` of a pool, in one piece.
pub(super) fn take(pool: &[u8], ranges: &[Range<usize>]) -> Vec<u8> {
    let parts = ranges.iter().flat_map(|r| &pool[r.clone()]);
    parts.copied().collect()
}

/// The formats of the records of a page, encoded from 16-bit rows; `rows` must have codes.
pub(super) fn encoded(format: F, shape: RecordShape, rows: &[bf16]) -> Vec<u8> {
    let bytes = format.record_bytes(shape).unwrap_or(0);
    let mut record = vec![0; bytes];
    let done = format.encode(shape, rows, &mut record);
    assert!(done.is_ok(), "{format} of a page of the test: {done:?}");
    record
}
