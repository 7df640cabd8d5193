//! The planes of a block's codes, in registers; see [`super::layout`].

use super::PANEL;
use crate::cpu::simd::Dots;
use crate::memory::LINE;

const _: () = assert!(LINE == 4 * PANEL, "a line has four inputs of 16 outputs");

/// A vector's part of each line of a block of codes of `BITS` bits, 2 to 8.
pub(super) struct Planes<D: Dots, const BITS: usize> {
    /// The plane of 4 bits, or half of the bytes.
    low: [D::Bytes; 4],
    /// The other half of the bytes.
    high: [D::Bytes; 4],
    two_bits: [D::Bytes; 2],
    one_bit: D::Bytes,
}

impl<D: Dots, const BITS: usize> Planes<D, BITS> {
    /// Reads a vector of each line.
    ///
    /// # Safety
    /// `from` must be within the first of `BITS` readable lines.
    #[inline(always)]
    pub(super) unsafe fn load(d: D, from: *const u8) -> Self {
        let zero = d.splat_byte(0);
        let mut planes = Self {
            low: [zero; 4],
            high: [zero; 4],
            two_bits: [zero; 2],
            one_bit: zero,
        };
        let mut line = from;
        // SAFETY: the planes have `BITS` lines together.
        unsafe {
            if BITS & 12 > 0 {
                for (i, to) in planes.low.iter_mut().enumerate() {
                    *to = d.load(line.wrapping_add(i * LINE));
                }
                line = line.wrapping_add(4 * LINE);
            }
            if BITS == 8 {
                for (i, to) in planes.high.iter_mut().enumerate() {
                    *to = d.load(line.wrapping_add(i * LINE));
                }
            }
            if BITS & 2 > 0 {
                for (i, to) in planes.two_bits.iter_mut().enumerate() {
                    *to = d.load(line.wrapping_add(i * LINE));
                }
                line = line.wrapping_add(2 * LINE);
            }
            if BITS & 1 > 0 {
                planes.one_bit = d.load(line);
            }
        }
        planes
    }

    /// The codes of inputs `4 * quad` to `4 * quad + 3`, a byte each.
    #[inline(always)]
    pub(super) fn codes(&self, d: D, quad: usize) -> D::Bytes {
        if BITS == 8 {
            return match quad < 4 {
                true => self.low[quad],
                false => self.high[quad - 4],
            };
        }
        // Where the bits of a plane belong.
        let (two, one) = (BITS as u32 & 4, BITS as u32 & 6);
        let mut codes = d.splat_byte(0);
        if BITS & 4 > 0 {
            let plane = self.low[quad % 4];
            let plane = if quad < 4 { plane } else { d.shr(plane, 4) };
            codes = d.and(plane, d.splat_byte(15));
        }
        if BITS & 2 > 0 {
            let moved = shift(d, self.two_bits[quad / 4], quad as u32 % 4 * 2, two);
            codes = d.or(codes, d.and(moved, d.splat_byte(3 << two)));
        }
        if BITS & 1 > 0 {
            let moved = shift(d, self.one_bit, quad as u32, one);
            codes = d.or(codes, d.and(moved, d.splat_byte(1 << one)));
        }
        codes
    }
}

/// Moves bit `from` of every byte to bit `to`; others become anything.
#[inline(always)]
fn shift<D: Dots>(d: D, bytes: D::Bytes, from: u32, to: u32) -> D::Bytes {
    match from > to {
        true => d.shr(bytes, from - to),
        false => d.shl(bytes, to - from),
    }
}
