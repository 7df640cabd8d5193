//! One vocabulary of vector operations, so that each kernel is written once.
//!
//! A kernel is a [`Kernel`] whose `run` is generic over [`Simd`] and `#[inline(always)]`;
//! [`Isa::run`] instantiates it inside a function that has the instruction set enabled. All that it
//! calls with vectors must be `#[inline(always)]` too, down to the operations: a function out of
//! line, or a closure that the compiler leaves there, has lost the instruction set and turns every
//! operation into a call. (So no vectors in closures.)
//!
//! Every operation is exact or correctly rounded by IEEE 754, and reductions are spelled out over
//! 16 virtual lanes. So all instruction sets give the same bits, and tests require it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dots;
mod portable;

pub(crate) use dots::{DotKernel, DotSet, Dots};

/// Virtual lanes of every reduction: two AVX2 vectors, one AVX-512 vector.
pub(crate) const WIDE: usize = 16;

/// Vector operations of one instruction set. A value of an implementing type proves that the CPU
/// has that set.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// f32 lanes of a vector: 16 or 8.
    const LANES: usize;
    /// Rows of the widest GEMM tile: `2 * TILE_ROWS + 4` vectors must fit the register file.
    const TILE_ROWS: usize;
    /// A vector of [`Self::LANES`] f32.
    type F: Copy;

    /// Runs a kernel out of line, so that nothing around its loops takes their registers.
    fn outline<K: Kernel>(self, kernel: K) -> K::Output;
    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Reads `LANES` floats.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Writes `LANES` floats.
    ///
    /// # Safety
    /// `p` must be writable for that many.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    /// Reads `LANES` bf16 as floats.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Reads `LANES` words and returns their low and their high halves, bf16, as floats.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load_pairs(self, p: *const u32) -> (Self::F, Self::F);
    /// Transposes a square of `LANES` rows of `LANES` words, `stride` words apart, each word two
    /// bf16: element `i` of row `j`'s halves becomes element `j` of rows `2i` and `2i + 1` of
    /// `out`, which are 32 floats apart.
    ///
    /// # Safety
    /// The rows must be readable, and `out` writable for `2 * LANES` rows of `LANES`.
    unsafe fn transpose_pairs(self, rows: *const u32, stride: usize, out: *mut f32);
    /// Transposes 8 rows of words, `[8][4][4]`, so that they lie side by side: word `w` of quarter
    /// `t` of row `g` becomes `out[w][t][g]`.
    ///
    /// # Safety
    /// `from` must be readable and `out` writable for 128 words.
    unsafe fn transpose_words(self, from: *const u32, out: *mut u32);
    /// Takes a field out of each byte of 32 words, `[4][8]`, and the one `STEP` bits above: of
    /// quarter `t` and byte `b`, the eight words' fields at bit `shift`, then those above, go to
    /// `out[b % 2] + 32 * (2 * t + b / 2)`. Fields have `BITS` bits, 4 at most. With `ADD`, four
    /// times a field is added to what is there, 3 at most, instead.
    ///
    /// # Safety
    /// `words` must be readable for 32, and 16 bytes writable at each of the 8 places of both
    /// `out`, and readable with `ADD`.
    unsafe fn byte_fields<const BITS: u32, const STEP: u32, const ADD: bool>(
        self,
        words: *const u32,
        shift: u32,
        out: [*mut u8; 2],
    );
    /// Takes 32 words apart, `[4][8]`: of quarter `t`, the eight words' bytes `2 * e`, then those
    /// above, go to `out + 32 * (2 * t + e)`.
    ///
    /// # Safety
    /// `words` must be readable for 32, and 16 bytes writable at each of the 8 places.
    unsafe fn bytes_of_words(self, words: *const u32, out: *mut u8);
    /// Reads `LANES` bytes as floats.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load_u8(self, p: *const u8) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a` where `a > b`, else `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a < b`, else `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Adds `bits(n) << 23` to the bits of `a`: multiplies by 2^n if the low bits of the pattern
    /// `n` hold an integer and the result is a normal number.
    fn scale_by_pow2(self, a: Self::F, n: Self::F) -> Self::F;
    /// Lane 0.
    fn first(self, v: Self::F) -> f32;
    /// Asks for the cache line of `p`, which need not be valid, in the L2 cache. (Fetching to L1
    /// was measured to be slower: there are few places to wait in, and what finds none is dropped.)
    fn prefetch(self, p: *const u8);
}

/// A computation written once for all instruction sets.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// Runs it; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set this CPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    Portable(portable::Portable),
}

impl Isa {
    /// The best instruction set of this CPU.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// Every instruction set of this CPU, best first; the last is portable code (which compilers
    /// turn into NEON where that is the baseline).
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(avx512::Avx512::detect().map(|s| Self(Set::Avx512(s))));
            sets.extend(avx2::Avx2::detect().map(|s| Self(Set::Avx2(s))));
        }
        sets.push(Self(Set::Portable(portable::Portable)));
        sets
    }

    /// Its name, for logs and reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            Set::Portable(_) => "portable",
        }
    }

    /// Runs a kernel with this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(simd) => simd.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(simd) => simd.vectorize(kernel),
            Set::Portable(simd) => kernel.run(simd),
        }
    }
}
