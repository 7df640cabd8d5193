//! Plain Rust.

use half::f16;

use super::Dots;
use crate::cpu::simd::portable::Portable;

/// Needs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortableDots;

const N: usize = 8;

/// Words of 16 bits of which each is changed by `f`.
#[inline(always)]
fn words(mut bytes: [u8; 4 * N], f: impl Fn(u16) -> u16) -> [u8; 4 * N] {
    for word in bytes.as_chunks_mut::<2>().0 {
        *word = f(u16::from_le_bytes(*word)).to_le_bytes();
    }
    bytes
}

#[inline(always)]
fn zip(mut a: [u8; 4 * N], b: [u8; 4 * N], f: impl Fn(u8, u8) -> u8) -> [u8; 4 * N] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = f(*a, b);
    }
    a
}

impl Dots for PortableDots {
    type Floats = Portable;
    type Ints = [i32; N];
    type Bytes = [u8; 4 * N];
    const ROWS: usize = 4;

    #[inline(always)]
    fn floats(self) -> Portable {
        Portable
    }
    #[inline(always)]
    fn splat(self, x: i32) -> Self::Ints {
        [x; N]
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> Self::Bytes {
        [x; 4 * N]
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(
        self,
        mut sum: Self::Ints,
        weights: Self::Bytes,
        four: i32,
    ) -> Self::Ints {
        let four = four.to_le_bytes().map(|byte| i32::from(byte as i8));
        for (sum, weights) in sum.iter_mut().zip(weights.as_chunks::<4>().0) {
            for (weight, x) in weights.iter().zip(four) {
                *sum += i32::from(*weight) * x;
            }
        }
        sum
    }
    #[inline(always)]
    fn to_float(self, x: Self::Ints) -> [f32; N] {
        x.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Self::Bytes {
        // SAFETY: the caller vouches for `p`.
        unsafe { p.cast::<Self::Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut u8, x: Self::Bytes) {
        // SAFETY: the caller vouches for `p`.
        unsafe { p.cast::<Self::Bytes>().write_unaligned(x) }
    }
    #[inline(always)]
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl(self, a: Self::Bytes, bits: u32) -> Self::Bytes {
        words(a, |word| word << bits)
    }
    #[inline(always)]
    fn shr(self, a: Self::Bytes, bits: u32) -> Self::Bytes {
        words(a, |word| word >> bits)
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes {
        a.map(|code| table[usize::from(code & 15)])
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> [f32; N] {
        // SAFETY: the caller vouches for `p`.
        let halves = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        halves.map(|half| f16::from_bits(half).to_f32())
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> [f32; N] {
        // SAFETY: the caller vouches for `p`.
        let codes = unsafe { p.cast::<[u8; N]>().read_unaligned() }.map(u16::from);
        // Exponent and mantissa one bit below f16's; the sign on top.
        let halves = codes.map(|code| (code & 0x7f) << 7 | (code & 0x80) << 8);
        halves.map(|half| f16::from_bits(half).to_f32())
    }
}
