//! AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::{DotKernel, Dots};
use crate::cpu::simd::avx512::Avx512;

/// Proof that the CPU has AVX-512 (F, BW, DQ, VL) with VNNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    pub(super) fn detect(avx512: Avx512) -> Option<Self> {
        is_x86_feature_detected!("avx512vnni").then_some(Self(avx512))
    }

    #[inline]
    pub(super) fn vectorize<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
        fn inner<K: DotKernel>(dots: Avx512Vnni, kernel: K) {
            kernel.run(dots);
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
}

// Every block below is sound for the same reason: `self` proves that the CPU has the instructions,
// and the pointers are the caller's promise.
impl Dots for Avx512Vnni {
    type Floats = Avx512;
    type Ints = __m512i;
    type Bytes = __m512i;
    const ROWS: usize = 8;

    #[inline(always)]
    fn floats(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_set1_epi8(x as i8) }
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, sum: __m512i, weights: __m512i, four: i32) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(four)) }
    }
    #[inline(always)]
    fn to_float(self, x: __m512i) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> __m512i {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut u8, x: __m512i) {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn shl(self, a: __m512i, bits: u32) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    fn shr(self, a: __m512i, bits: u32) -> __m512i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], a: __m512i) -> __m512i {
        // SAFETY: `self` proves the feature; the table has 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, a)
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> __m512 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe {
            let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
            // Exponent and mantissa one bit below f16's; the sign on top.
            let sign = _mm256_slli_epi16::<8>(codes);
            let rest = _mm256_slli_epi16::<7>(codes);
            let sign = _mm256_and_si256(sign, _mm256_set1_epi16(i16::MIN));
            let rest = _mm256_and_si256(rest, _mm256_set1_epi16(0x3f80));
            _mm512_cvtph_ps(_mm256_or_si256(sign, rest))
        }
    }
}
