//! The order of codes inside a low-bit plane: the one permutation every format shares.
//!
//! A plane is a matrix of `bits`-wide codes that a tensor core reads as the A operand of
//! `mma.m16n8k16`: its rows are the M side, its columns the K side. Keys are `[token][channel]`
//! (`S^T = K Q^T`), values are `[channel][token]` (`O^T = V^T P^T`). The figure is in this folder's
//! README. [`Plane::place`] is the definition; the loops of `walk` are its fast form and a test
//! holds them to it. To change the order, change this folder and nothing else.

pub(crate) mod walk;

/// A matrix of codes in A-fragment order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Rows (M side): a multiple of 16, or of 32 if there are only 8 columns.
    pub rows: usize,
    /// Columns (K side): 8 or a multiple of 16.
    pub cols: usize,
    /// Width of a code: 1, 2, 4 or 8.
    pub bits: u32,
}

/// Where one code lies: a little-endian 32-bit word of the plane and the code's lowest bit in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the 32-bit word.
    pub word: usize,
    /// Lowest bit.
    pub shift: u32,
}

impl Plane {
    /// Whether the order is defined for this shape.
    pub const fn is_valid(&self) -> bool {
        let tiled = if self.cols == 8 {
            self.rows.is_multiple_of(32)
        } else {
            self.cols != 0 && self.cols.is_multiple_of(16) && self.rows.is_multiple_of(16)
        };
        tiled && matches!(self.bits, 1 | 2 | 4 | 8) && self.words_per_lane().is_multiple_of(2)
    }

    /// Bytes of the plane.
    pub const fn bytes(&self) -> usize {
        self.rows * self.cols * self.bits as usize / 8
    }

    /// Fragments: groups of 8 codes that one lane holds in four 16-bit pair registers.
    pub(crate) const fn fragments(&self) -> usize {
        self.rows * self.cols / 256
    }

    const fn words_per_lane(&self) -> usize {
        self.fragments() * self.bits as usize / 4
    }

    /// Words that a lane loads at once: 4 (16 bytes) if its share divides evenly, else 2.
    pub(crate) const fn vector_words(&self) -> usize {
        if self.words_per_lane().is_multiple_of(4) {
            4
        } else {
            2
        }
    }

    /// Index of lane 0's word number `lane_word`; lane `l`'s lies `l * vector_words` further.
    #[inline(always)]
    pub(crate) const fn lane_base(&self, lane_word: usize) -> usize {
        let v = self.vector_words();
        lane_word / v * 32 * v + lane_word % v
    }

    /// Where the code of (`row`, `col`) lies. Panics if it is outside the plane.
    pub fn place(&self, row: usize, col: usize) -> Place {
        assert!(
            row < self.rows && col < self.cols,
            "({row}, {col}) is outside {self:?}"
        );
        // Row half and column half of the fragment, and the 8x8 quarter's own coordinates.
        let row_half = row / 8 % 2;
        let (group, pair, odd) = (row % 8, col % 8 / 2, col % 2);
        let (fragment, col_half) = if self.cols == 8 {
            (row / 32, row / 16 % 2)
        } else {
            (row / 16 * (self.cols / 16) + col / 16, col / 8 % 2)
        };
        let lane = 4 * group + pair;
        let field = field(self.bits, fragment, col_half);
        Place {
            word: self.lane_base(field.lane_word) + lane * self.vector_words(),
            shift: 16 * odd as u32 + field.shift + row_half as u32 * row_half_shift(self.bits),
        }
    }
}

/// One 8x8 quarter of a fragment, upper row half: the lane's word and the bit in each 16-bit half.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) lane_word: usize,
    pub(crate) shift: u32,
}

/// The place of column half `col_half` (0 or 1) of fragment `fragment`, in a lane's own words.
#[inline(always)]
pub(crate) const fn field(bits: u32, fragment: usize, col_half: usize) -> Field {
    let (f, h) = (fragment, col_half as u32);
    let odd = (f % 2) as u32;
    let (lane_word, shift) = match bits {
        8 => (2 * f + col_half, 0),
        4 => (f, 8 * h),
        2 => (f / 2, 8 * h + 4 * odd),
        // As 2 bits, so that a 1-bit plane lies over the low bits of two words of a 2-bit plane.
        _ => (f / 4, 8 * h + 4 * odd + (f / 2 % 2) as u32),
    };
    Field { lane_word, shift }
}

/// Distance in bits from a code of rows 0..8 of a fragment to the one eight rows below.
#[inline(always)]
pub(crate) const fn row_half_shift(bits: u32) -> u32 {
    if bits == 1 { 2 } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn shapes() -> Vec<Plane> {
        let mut shapes = vec![];
        for bits in [1, 2, 4, 8] {
            for (rows, cols) in [
                (128, 128),
                (128, 64),
                (64, 128),
                (128, 16),
                (16, 128),
                (128, 80),
                (80, 128),
                (128, 8),
                (128, 256),
            ] {
                let plane = Plane { rows, cols, bits };
                if plane.is_valid() {
                    shapes.push(plane);
                }
            }
        }
        shapes
    }

    #[test]
    fn every_bit_of_a_plane_belongs_to_one_code() {
        let shapes = shapes();
        assert_eq!(shapes.len(), 4 * 9 - 1, "128 x 8 at 1 bit is too small");
        for plane in shapes {
            let mut owned = vec![0u32; plane.bytes() / 4];
            for row in 0..plane.rows {
                for col in 0..plane.cols {
                    let at = plane.place(row, col);
                    let mask = (((1u64 << plane.bits) - 1) as u32) << at.shift;
                    assert_eq!(owned[at.word] & mask, 0, "{plane:?} ({row}, {col})");
                    owned[at.word] |= mask;
                }
            }
            assert!(owned.iter().all(|w| *w == u32::MAX), "{plane:?}");
        }
    }

    /// The property the GPU kernels rest on: one 16-byte load per lane is a 16 x 128 tile at 2
    /// bits.
    #[test]
    fn a_two_bit_tile_is_one_vector_per_lane() {
        let plane = Plane {
            rows: 128,
            cols: 128,
            bits: 2,
        };
        for row in 0..128 {
            for col in 0..128 {
                let word = plane.place(row, col).word;
                let lane = 4 * (row % 8) + col % 8 / 2;
                assert_eq!(word / 4, row / 16 * 32 + lane);
            }
        }
    }
}
