//! Plain Rust over 8-lane arrays; vectorises on any target whose baseline has a fused
//! multiply-add (64-bit Arm). Elsewhere `mul_add` is a library call: slow, and still the same bits.

use super::{Kernel, Simd};

/// Needs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Portable;

const N: usize = 8;

#[inline(always)]
fn zip(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    let mut out = [0.0; N];
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Simd for Portable {
    const LANES: usize = N;
    const TILE_ROWS: usize = 6;
    type F = [f32; N];

    #[inline(never)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller vouches for `p`.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: the caller vouches for `p`.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller vouches for `p`.
        let halves = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        halves.map(|h| f32::from_bits(u32::from(h) << 16))
    }
    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u32) -> (Self::F, Self::F) {
        // SAFETY: the caller vouches for `p`.
        let pairs = unsafe { p.cast::<[u32; N]>().read_unaligned() };
        (
            pairs.map(|w| f32::from_bits(w << 16)),
            pairs.map(|w| f32::from_bits(w & 0xffff_0000)),
        )
    }
    #[inline(always)]
    unsafe fn transpose_pairs(self, rows: *const u32, stride: usize, out: *mut f32) {
        for j in 0..N {
            // SAFETY: the caller vouches for `rows` and `out`.
            unsafe {
                let (low, high) = self.load_pairs(rows.wrapping_add(j * stride));
                for i in 0..N {
                    *out.wrapping_add(2 * i * 32 + j) = low[i];
                    *out.wrapping_add((2 * i + 1) * 32 + j) = high[i];
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_words(self, from: *const u32, out: *mut u32) {
        for g in 0..8 {
            for t in 0..4 {
                for w in 0..4 {
                    // SAFETY: the caller vouches for `from` and `out`.
                    unsafe {
                        let word = from.wrapping_add(16 * g + 4 * t + w).read_unaligned();
                        *out.wrapping_add(32 * w + 8 * t + g) = u32::from_le(word);
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn byte_fields<const BITS: u32, const STEP: u32, const ADD: bool>(
        self,
        words: *const u32,
        shift: u32,
        out: [*mut u8; 2],
    ) {
        for t in 0..4 {
            for byte in 0..4 {
                let out = out[byte % 2].wrapping_add(32 * (2 * t + byte / 2));
                for g in 0..8 {
                    // SAFETY: the caller vouches for `words` and `out`.
                    unsafe {
                        let word = *words.wrapping_add(8 * t + g) >> (8 * byte as u32 + shift);
                        for (i, word) in [word, word >> STEP].into_iter().enumerate() {
                            let code = word as u8 & ((1 << BITS) - 1);
                            let out = out.wrapping_add(8 * i + g);
                            *out = if ADD { *out + 4 * code } else { code };
                        }
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn bytes_of_words(self, words: *const u32, out: *mut u8) {
        for t in 0..4 {
            for g in 0..8 {
                // SAFETY: the caller vouches for `words` and `out`.
                unsafe {
                    let word = *words.wrapping_add(8 * t + g);
                    for (byte, code) in word.to_le_bytes().into_iter().enumerate() {
                        let column = out.wrapping_add(32 * (2 * t + byte / 2));
                        *column.wrapping_add(8 * (byte % 2) + g) = code;
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::F {
        // SAFETY: the caller vouches for `p`.
        unsafe { p.cast::<[u8; N]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        for i in 0..N {
            out[i] = a[i].mul_add(b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn scale_by_pow2(self, a: Self::F, n: Self::F) -> Self::F {
        zip(a, n, |a, n| {
            f32::from_bits(a.to_bits().wrapping_add(n.to_bits() << 23))
        })
    }
    #[inline(always)]
    fn first(self, v: Self::F) -> f32 {
        v[0]
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
