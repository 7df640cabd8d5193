//! AVX-512 (F, BW, DQ, VL).

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the CPU has AVX-512.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma");
        has.then_some(Self(()))
    }

    #[inline]
    pub(super) fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        fn inner<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
}

impl Avx512 {
    /// 16 words, of each four the lowest bytes, then the next ones, and so on.
    ///
    /// # Safety
    /// `words` must be readable for 16.
    #[inline(always)]
    unsafe fn by_byte(self, words: *const u32) -> __m512i {
        // SAFETY: `self` proves the feature; the caller vouches for `words`.
        unsafe {
            let order = _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
            let order = _mm512_broadcast_i32x4(order);
            _mm512_shuffle_epi8(_mm512_loadu_si512(words.cast()), order)
        }
    }

    /// The low and the high halves of words, bf16, as floats.
    #[inline(always)]
    fn halves(self, pairs: __m512i) -> (__m512, __m512) {
        // SAFETY: `self` proves the feature.
        unsafe {
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(high),
            )
        }
    }
}

// Every block below is sound for the same reason: `self` proves that the CPU has the instructions,
// and the pointers are the caller's promise.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const TILE_ROWS: usize = 12;
    type F = __m512;

    #[inline(always)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        fn inner<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves the features.
        unsafe { inner(self, kernel) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u32) -> (__m512, __m512) {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { self.halves(_mm512_loadu_si512(p.cast())) }
    }
    #[inline(always)]
    unsafe fn transpose_pairs(self, rows: *const u32, stride: usize, out: *mut f32) {
        // SAFETY: `self` proves the feature; the caller vouches for `rows` and `out`.
        unsafe {
            let mut r = [_mm512_setzero_si512(); 16];
            for (i, r) in r.iter_mut().enumerate() {
                *r = _mm512_loadu_si512(rows.wrapping_add(i * stride).cast());
            }
            // Within the 128-bit lanes: u[4g + j], lane l, is column 4l + j of rows 4g to 4g + 3.
            let mut u = [_mm512_setzero_si512(); 16];
            for g in (0..16).step_by(4) {
                let low = _mm512_unpacklo_epi32(r[g], r[g + 1]);
                let high = _mm512_unpackhi_epi32(r[g], r[g + 1]);
                let low2 = _mm512_unpacklo_epi32(r[g + 2], r[g + 3]);
                let high2 = _mm512_unpackhi_epi32(r[g + 2], r[g + 3]);
                u[g] = _mm512_unpacklo_epi64(low, low2);
                u[g + 1] = _mm512_unpackhi_epi64(low, low2);
                u[g + 2] = _mm512_unpacklo_epi64(high, high2);
                u[g + 3] = _mm512_unpackhi_epi64(high, high2);
            }
            // Among the lanes.
            for j in 0..4 {
                let even = _mm512_shuffle_i32x4::<0x88>(u[j], u[j + 4]);
                let even2 = _mm512_shuffle_i32x4::<0x88>(u[j + 8], u[j + 12]);
                let odd = _mm512_shuffle_i32x4::<0xdd>(u[j], u[j + 4]);
                let odd2 = _mm512_shuffle_i32x4::<0xdd>(u[j + 8], u[j + 12]);
                let columns = [
                    _mm512_shuffle_i32x4::<0x88>(even, even2),
                    _mm512_shuffle_i32x4::<0x88>(odd, odd2),
                    _mm512_shuffle_i32x4::<0xdd>(even, even2),
                    _mm512_shuffle_i32x4::<0xdd>(odd, odd2),
                ];
                for (lane, pairs) in columns.into_iter().enumerate() {
                    let (low, high) = self.halves(pairs);
                    let out = out.wrapping_add((4 * lane + j) * 2 * 32);
                    _mm512_storeu_ps(out, low);
                    _mm512_storeu_ps(out.wrapping_add(32), high);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_words(self, from: *const u32, out: *mut u32) {
        // SAFETY: `self` proves the feature; the caller vouches for `from` and `out`.
        unsafe {
            let row = |g: usize| _mm512_loadu_si512(from.wrapping_add(16 * g).cast());
            // Within the 128-bit lanes, which are quarters: word w of rows 0 to 3, then 4 to 7.
            let mut u = [[_mm512_setzero_si512(); 4]; 2];
            for (half, u) in u.iter_mut().enumerate() {
                let g = 4 * half;
                let low = _mm512_unpacklo_epi32(row(g), row(g + 1));
                let high = _mm512_unpackhi_epi32(row(g), row(g + 1));
                let low2 = _mm512_unpacklo_epi32(row(g + 2), row(g + 3));
                let high2 = _mm512_unpackhi_epi32(row(g + 2), row(g + 3));
                *u = [
                    _mm512_unpacklo_epi64(low, low2),
                    _mm512_unpackhi_epi64(low, low2),
                    _mm512_unpacklo_epi64(high, high2),
                    _mm512_unpackhi_epi64(high, high2),
                ];
            }
            let quarters = [
                _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4),
            ];
            let [first, last] = u;
            for (w, (first, last)) in first.into_iter().zip(last).enumerate() {
                for (i, quarters) in quarters.into_iter().enumerate() {
                    let rows = _mm512_permutex2var_epi64(first, quarters, last);
                    _mm512_storeu_si512(out.wrapping_add(32 * w + 16 * i).cast(), rows);
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
            let mask = _mm512_set1_epi8((1 << BITS) - 1);
            let shift = _mm_cvtsi32_si128(shift as i32);
            for pair in 0..2 {
                let bytes = self.by_byte(words.wrapping_add(16 * pair));
                // What a shift brings in from the next byte is masked.
                let low = _mm512_srl_epi16(bytes, shift);
                let high = _mm512_srl_epi16(low, _mm_cvtsi32_si128(STEP as i32));
                let (low, high) = (_mm512_and_si512(low, mask), _mm512_and_si512(high, mask));
                for t in 0..2 {
                    // By byte: the four words of either half, low fields and high fields.
                    let first =
                        _mm512_set_epi32(23, 19, 7, 3, 22, 18, 6, 2, 21, 17, 5, 1, 20, 16, 4, 0);
                    let order = _mm512_add_epi32(first, _mm512_set1_epi32(8 * t));
                    let codes = _mm512_permutex2var_epi32(low, order, high);
                    let at = 64 * (2 * pair + t as usize);
                    let places = [
                        (_mm512_extracti32x4_epi32::<0>(codes), out[0], at),
                        (_mm512_extracti32x4_epi32::<1>(codes), out[1], at),
                        (_mm512_extracti32x4_epi32::<2>(codes), out[0], at + 32),
                        (_mm512_extracti32x4_epi32::<3>(codes), out[1], at + 32),
                    ];
                    for (mut codes, out, at) in places {
                        let out = out.wrapping_add(at).cast();
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
            // By quarter and byte: the four words of either half.
            let order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
            for pair in 0..2 {
                let bytes = self.by_byte(words.wrapping_add(16 * pair));
                let codes = _mm512_permutexvar_epi32(order, bytes);
                let out = |i: usize| out.wrapping_add(32 * (4 * pair + i)).cast();
                _mm_storeu_si128(out(0), _mm512_extracti32x4_epi32::<0>(codes));
                _mm_storeu_si128(out(1), _mm512_extracti32x4_epi32::<1>(codes));
                _mm_storeu_si128(out(2), _mm512_extracti32x4_epi32::<2>(codes));
                _mm_storeu_si128(out(3), _mm512_extracti32x4_epi32::<3>(codes));
            }
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512 {
        // SAFETY: `self` proves the feature; the caller vouches for `p`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn scale_by_pow2(self, a: __m512, n: __m512) -> __m512 {
        // SAFETY: `self` proves the feature.
        unsafe {
            let shift = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), shift))
        }
    }
    #[inline(always)]
    fn first(self, v: __m512) -> f32 {
        // SAFETY: `self` proves the feature.
        unsafe { _mm512_cvtss_f32(v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
