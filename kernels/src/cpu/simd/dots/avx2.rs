//! AVX2, with and without AVX-VNNI.

use std::arch::x86_64::*;

use super::{DotKernel, Dots};
use crate::cpu::simd::avx2::Avx2;

/// Proof that the CPU has AVX2, FMA and F16C, and with `VNNI` AVX-VNNI too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2Dots<const VNNI: bool>(Avx2);

impl Avx2Dots<false> {
    pub(super) fn detect(avx2: Avx2) -> Option<Self> {
        is_x86_feature_detected!("f16c").then_some(Self(avx2))
    }

    #[inline]
    pub(super) fn vectorize<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: DotKernel>(dots: Avx2Dots<false>, kernel: K) {
            kernel.run(dots);
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
}

impl Avx2Dots<true> {
    pub(super) fn detect(avx2: Avx2) -> Option<Self> {
        let has = is_x86_feature_detected!("f16c") && is_x86_feature_detected!("avxvnni");
        has.then_some(Self(avx2))
    }

    #[inline]
    pub(super) fn vectorize<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn inner<K: DotKernel>(dots: Avx2Dots<true>, kernel: K) {
            kernel.run(dots);
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
}

impl<const VNNI: bool> Avx2Dots<VNNI> {
    /// Pairs of products as 16-bit sums, then pairs of those as 32-bit sums. A pair must stay
    /// within 16 bits: weights up to 127, or 0 and 128 only.
    #[inline(always)]
    fn add_products(self, sum: __m256i, weights: __m256i, four: __m256i) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe {
            let pairs = _mm256_maddubs_epi16(weights, four);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

// Every block below is sound for the same reason: `self` proves that the CPU has the instructions,
// and the pointers are the caller's promise.
impl<const VNNI: bool> Dots for Avx2Dots<VNNI> {
    type Floats = Avx2;
    type Ints = __m256i;
    type Bytes = __m256i;
    const ROWS: usize = 4;

    #[inline(always)]
    fn floats(self) -> Avx2 {
        self.0
    }
    #[inline(always)]
    fn splat(self, x: i32) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_set1_epi8(x as i8) }
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, sum: __m256i, weights: __m256i, four: i32) -> __m256i {
        let four = self.splat(four);
        if VNNI {
            // SAFETY: `self` proves the feature.
            return unsafe { _mm256_dpbusd_avx_epi32(sum, weights, four) };
        }
        if !WIDE {
            return self.add_products(sum, weights, four);
        }
        // The high bit apart: 2 * 127 * 127 and 2 * 128 * 127 are below 2^15.
        let low = self.and(weights, self.splat_byte(127));
        let high = self.and(weights, self.splat_byte(128));
        self.add_products(self.add_products(sum, low, four), high, four)
    }
    #[inline(always)]
    fn to_float(self, x: __m256i) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> __m256i {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut u8, x: __m256i) {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm256_storeu_si256(p.cast(), x) }
    }
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    fn shl(self, a: __m256i, bits: u32) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_sll_epi16(a, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    fn shr(self, a: __m256i, bits: u32) -> __m256i {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_srl_epi16(a, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], a: __m256i) -> __m256i {
        // SAFETY: `self` proves the feature; the table has 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, a)
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> __m256 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe {
            let codes = _mm_cvtepu8_epi16(_mm_loadl_epi64(p.cast()));
            // Exponent and mantissa one bit below f16's; the sign on top.
            let sign = _mm_and_si128(_mm_slli_epi16::<8>(codes), _mm_set1_epi16(i16::MIN));
            let rest = _mm_and_si128(_mm_slli_epi16::<7>(codes), _mm_set1_epi16(0x3f80));
            _mm256_cvtph_ps(_mm_or_si128(sign, rest))
        }
    }
}
