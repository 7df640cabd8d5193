//! The fast form of the permutation: packs and unpacks tiles of 16 tokens, eight codes at a time.
//!
//! Both directions work on codes in natural order, one byte each, `[16][channels]`. Planes whose
//! rows are tokens (keys) and planes whose columns are tokens (values) have a walk each; in both,
//! eight neighbouring channels of one token lie in the same bits of the same byte of eight 32-bit
//! words (or of the two halves of four). So a walk gathers words in channel order, splits them by
//! byte position, and is left with shifts and masks of eight codes in a `u64`.

mod cols;
mod rows;

pub(crate) use cols::{pack_cols, unpack_cols};
pub(crate) use rows::{pack_rows, unpack_rows};

use crate::formats::MAX_HEAD_DIM;

/// Tokens of one step of the walks.
pub(crate) const TILE_TOKENS: usize = 16;

/// Most bytes of a plane that hold codes of one tile: all of them at 8 bit; a word at 1 bit serves
/// four tiles of a value plane.
const MAX_TILE_BYTES: usize = TILE_TOKENS * MAX_HEAD_DIM;

/// Buffers of a walk, to be made once for many tiles.
pub(crate) struct Scratch {
    /// The tile's words in channel order, as 16-bit halves.
    halves: [u16; MAX_TILE_BYTES / 2],
    /// The low and the high byte of every half.
    bytes: [[u8; MAX_TILE_BYTES / 2]; 2],
}

impl Scratch {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            halves: [0; _],
            bytes: [[0; _]; 2],
        }
    }

    #[inline(always)]
    fn split(&mut self, halves: usize) {
        let [low, high] = &mut self.bytes;
        let bytes = low[..halves].iter_mut().zip(&mut high[..halves]);
        for (half, (low, high)) in self.halves[..halves].iter().zip(bytes) {
            *low = *half as u8;
            *high = (*half >> 8) as u8;
        }
    }

    #[inline(always)]
    fn join(&mut self, halves: usize) {
        let [low, high] = &self.bytes;
        let bytes = low[..halves].iter().zip(&high[..halves]);
        for (half, (low, high)) in self.halves[..halves].iter_mut().zip(bytes) {
            *half = u16::from_le_bytes([*low, *high]);
        }
    }
}

#[inline(always)]
fn eight<T: Copy>(from: &[T], group: usize) -> [T; 8] {
    let from = &from[8 * group..8 * group + 8];
    std::array::from_fn(|i| from[i])
}

#[inline(always)]
fn eight_mut<T>(from: &mut [T], group: usize) -> &mut [T; 8] {
    let from = &mut from[8 * group..8 * group + 8];
    from.try_into().expect("eight elements")
}

#[inline(always)]
fn load_word(bytes: &[u8], word: usize) -> u32 {
    let at = 4 * word;
    u32::from_le(bytemuck::pod_read_unaligned(&bytes[at..at + 4]))
}

#[inline(always)]
fn or_word(bytes: &mut [u8], word: usize, value: u32) {
    let at = 4 * word;
    let joined = load_word(bytes, word) | value;
    bytes[at..at + 4].copy_from_slice(&joined.to_le_bytes());
}

/// The mask of one code, in every byte.
const fn every_byte(bits: u32) -> u64 {
    0x0101_0101_0101_0101 * ((1u64 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::super::Plane;
    use super::super::tests::shapes;
    use super::*;

    fn codes(plane: Plane) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        (0..plane.rows * plane.cols)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                ((state >> 40) as u32 & ((1 << plane.bits) - 1)) as u8
            })
            .collect()
    }

    /// Packed by the definition: `code(row, col)`.
    fn packed(plane: Plane, code: impl Fn(usize, usize) -> u8) -> Vec<u8> {
        let mut words = vec![0u32; plane.bytes() / 4];
        for row in 0..plane.rows {
            for col in 0..plane.cols {
                let at = plane.place(row, col);
                words[at.word] |= (code(row, col) as u32) << at.shift;
            }
        }
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn check<const BITS: u32>(plane: Plane) {
        let codes = codes(plane);
        let mut bytes = vec![0xAA; plane.bytes()];
        let mut scratch = Scratch::new();

        let by_row = packed(plane, |row, col| codes[row * plane.cols + col]);
        pack_rows::<BITS>(plane, &codes, &mut bytes);
        assert_eq!(bytes, by_row, "{plane:?}");
        for (tile, want) in codes.chunks(16 * plane.cols).enumerate() {
            let mut got = vec![0xFF; 16 * plane.cols];
            unpack_rows::<BITS>(plane, &bytes, tile, &mut scratch, &mut got);
            assert_eq!(got, want, "{plane:?} row tile {tile}");
        }

        if plane.cols == 8 {
            return;
        }
        let by_col = packed(plane, |row, col| codes[col * plane.rows + row]);
        bytes.fill(0xAA);
        pack_cols::<BITS>(plane, &codes, &mut bytes);
        assert_eq!(bytes, by_col, "{plane:?}");
        for (tile, want) in codes.chunks(16 * plane.rows).enumerate() {
            let mut got = vec![0xFF; 16 * plane.rows];
            unpack_cols::<BITS>(plane, &bytes, tile, &mut scratch, &mut got);
            assert_eq!(got, want, "{plane:?} column tile {tile}");
        }
    }

    #[test]
    fn the_walks_follow_the_definition() {
        for plane in shapes() {
            match plane.bits {
                1 => check::<1>(plane),
                2 => check::<2>(plane),
                4 => check::<4>(plane),
                _ => check::<8>(plane),
            }
        }
    }
}
