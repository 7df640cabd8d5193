//! AVX2 with FMA.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the CPU has AVX2 and FMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        has.then_some(Self(()))
    }

    #[inline]
    pub(super) fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn inner<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
}

impl Avx2 {
    /// Eight words, of each four the lowest bytes, then the next ones, and so on.
    ///
    /// # Safety
    /// `words` must be readable for eight.
    #[inline(always)]
    unsafe fn by_byte(self, words: *const u32) -> __m256i {
        // SAFETY: `self` proves the feature; the caller vouches for `words`.
        unsafe {
            let order = _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
            let order = _mm256_broadcastsi128_si256(order);
            _mm256_shuffle_epi8(_mm256_loadu_si256(words.cast()), order)
        }
    }

    /// The low and the high halves of words, bf16, as floats.
    #[inline(always)]
    fn halves(self, pairs: __m256i) -> (__m256, __m256) {
        // SAFETY: `self` proves the feature.
        unsafe {
            let high = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
                _mm256_castsi256_ps(high),
            )
        }
    }
}

// Every block below is sound for the same reason: `self` proves that the CPU has the instructions,
// and the pointers are the caller's promise.
impl Simd for Avx2 {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    type F = __m256;

    #[inline(always)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        fn inner<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u32) -> (__m256, __m256) {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { self.halves(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn transpose_pairs(self, rows: *const u32, stride: usize, out: *mut f32) {
        // SAFETY: `self` proves the feature; the caller vouches for `rows` and `out`.
        unsafe {
            let mut r = [_mm256_setzero_si256(); 8];
            for (i, r) in r.iter_mut().enumerate() {
                *r = _mm256_loadu_si256(rows.wrapping_add(i * stride).cast());
            }
            // Within the 128-bit lanes: u[4g + j], lane l, is column 4l + j of rows 4g to 4g + 3.
            let mut u = [_mm256_setzero_si256(); 8];
            for g in (0..8).step_by(4) {
                let low = _mm256_unpacklo_epi32(r[g], r[g + 1]);
                let high = _mm256_unpackhi_epi32(r[g], r[g + 1]);
                let low2 = _mm256_unpacklo_epi32(r[g + 2], r[g + 3]);
                let high2 = _mm256_unpackhi_epi32(r[g + 2], r[g + 3]);
                u[g] = _mm256_unpacklo_epi64(low, low2);
                u[g + 1] = _mm256_unpackhi_epi64(low, low2);
                u[g + 2] = _mm256_unpacklo_epi64(high, high2);
                u[g + 3] = _mm256_unpackhi_epi64(high, high2);
            }
            // Among the lanes.
            for j in 0..4 {
                let columns = [
                    _mm256_permute2x128_si256::<0x20>(u[j], u[j + 4]),
                    _mm256_permute2x128_si256::<0x31>(u[j], u[j + 4]),
                ];
                for (lane, pairs) in columns.into_iter().enumerate() {
                    let (low, high) = self.halves(pairs);
                    let out = out.wrapping_add((4 * lane + j) * 2 * 32);
                    _mm256_storeu_ps(out, low);
                    _mm256_storeu_ps(out.wrapping_add(32), high);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_words(self, from: *const u32, out: *mut u32) {
        // SAFETY: `self` proves the feature; the caller vouches for `from` and `out`.
        unsafe {
            for pair in 0..2 {
                let row = |g: usize| {
                    let from = from.wrapping_add(16 * g + 8 * pair);
                    _mm256_loadu_si256(from.cast())
                };
                // Within the 128-bit lanes, two quarters: word w of rows 0 to 3, then 4 to 7.
                let mut u = [[_mm256_setzero_si256(); 4]; 2];
                for (half, u) in u.iter_mut().enumerate() {
                    let g = 4 * half;
                    let low = _mm256_unpacklo_epi32(row(g), row(g + 1));
                    let high = _mm256_unpackhi_epi32(row(g), row(g + 1));
                    let low2 = _mm256_unpacklo_epi32(row(g + 2), row(g + 3));
                    let high2 = _mm256_unpackhi_epi32(row(g + 2), row(g + 3));
                    *u = [
                        _mm256_unpacklo_epi64(low, low2),
                        _mm256_unpackhi_epi64(low, low2),
                        _mm256_unpacklo_epi64(high, high2),
                        _mm256_unpackhi_epi64(high, high2),
                    ];
                }
                let [first, last] = u;
                for (w, (first, last)) in first.into_iter().zip(last).enumerate() {
                    let quarters = [
                        _mm256_permute2x128_si256::<0x20>(first, last),
                        _mm256_permute2x128_si256::<0x31>(first, last),
                    ];
                    for (i, rows) in quarters.into_iter().enumerate() {
                        let out = out.wrapping_add(32 * w + 16 * pair + 8 * i);
                        _mm256_storeu_si256(out.cast(), rows);
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
        // SAFETY: `self` proves the feature; the caller vouches for `words` and `out`.
        unsafe {
            let mask = _mm256_set1_epi8((1 << BITS) - 1);
            let shift = _mm_cvtsi32_si128(shift as i32);
            // Of two bytes: low fields of either half of the words, then high ones.
            let order = _mm256_set_epi32(7, 3, 5, 1, 6, 2, 4, 0);
            for t in 0..4 {
                let bytes = self.by_byte(words.wrapping_add(8 * t));
                // What a shift brings in from the next byte is masked.
                let low = _mm256_srl_epi16(bytes, shift);
                let high = _mm256_srl_epi16(low, _mm_cvtsi32_si128(STEP as i32));
                let (low, high) = (_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
                let halves = [
                    _mm256_unpacklo_epi64(low, high),
                    _mm256_unpackhi_epi64(low, high),
                ];
                for (odd, codes) in halves.into_iter().enumerate() {
                    let codes = _mm256_permutevar8x32_epi32(codes, order);
                    let places = [
                        (_mm256_castsi256_si128(codes), out[0]),
                        (_mm256_extracti128_si256::<1>(codes), out[1]),
                    ];
                    for (mut codes, out) in places {
                        let out = out.wrapping_add(32 * (2 * t + odd)).cast();
                        if ADD {
                            let codes_4 = _mm_slli_epi16::<2>(codes);
                            codes = _mm_or_si128(codes_4, _mm_loadu_si128(out));
                        }
                        _mm_storeu_si128(out, codes);
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn bytes_of_words(self, words: *const u32, out: *mut u8) {
        // SAFETY: `self` proves the feature; the caller vouches for `words` and `out`.
        unsafe {
            // By byte: the four words of either half.
            let order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
            for t in 0..4 {
                let bytes = self.by_byte(words.wrapping_add(8 * t));
                let codes = _mm256_permutevar8x32_epi32(bytes, order);
                let out = out.wrapping_add(64 * t);
                _mm_storeu_si128(out.cast(), _mm256_castsi256_si128(codes));
                let next = _mm256_extracti128_si256::<1>(codes);
                _mm_storeu_si128(out.wrapping_add(32).cast(), next);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m256 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn scale_by_pow2(self, a: __m256, n: __m256) -> __m256 {
        // SAFETY: `self` proves the feature.
        unsafe {
            let shift = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift))
        }
    }
    #[inline(always)]
    fn first(self, v: __m256) -> f32 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm256_cvtss_f32(v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
