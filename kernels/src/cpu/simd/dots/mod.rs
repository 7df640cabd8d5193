//! Dot products of small integers: what products on packed weights are made of.
//!
//! Weights are unsigned bytes and activations signed ones. All sums are exact integers, so that
//! instruction sets agree to the bit; floats are left to [`Simd`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::{Isa, Set, Simd};

/// Integer operations beside the float operations of [`Dots::Floats`].
pub(crate) trait Dots: Copy + Send + Sync + 'static {
    /// The float operations of the same width.
    type Floats: Simd;
    /// As many 32-bit integers as a vector of floats has lanes.
    type Ints: Copy;
    /// Four bytes of each lane.
    type Bytes: Copy;
    /// Rows of the largest tile: `3 * ROWS + 4` vectors must fit the register file.
    const ROWS: usize;

    /// The float operations.
    fn floats(self) -> Self::Floats;
    /// All lanes `x`.
    fn splat(self, x: i32) -> Self::Ints;
    /// All bytes `x`.
    fn splat_byte(self, x: u8) -> Self::Bytes;
    /// Lane by lane: `sum` and the dot product of four weights with four activations, the bytes of
    /// `four` from the lowest on, which are -127 to 127. Weights are at most 127 unless `WIDE`.
    fn dot<const WIDE: bool>(self, sum: Self::Ints, weights: Self::Bytes, four: i32) -> Self::Ints;
    /// As floats, which is exact below 2^24.
    fn to_float(self, x: Self::Ints) -> <Self::Floats as Simd>::F;
    /// Reads `4 * LANES` bytes.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load(self, p: *const u8) -> Self::Bytes;
    /// Writes `4 * LANES` bytes.
    ///
    /// # Safety
    /// `p` must be writable for that many.
    unsafe fn store(self, p: *mut u8, x: Self::Bytes);
    /// Bits of both.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Bits of either.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts words of 16 bits to the left; bits of a byte may end up in its neighbour.
    fn shl(self, a: Self::Bytes, bits: u32) -> Self::Bytes;
    /// Shifts words of 16 bits to the right; bits of a byte may end up in its neighbour.
    fn shr(self, a: Self::Bytes, bits: u32) -> Self::Bytes;
    /// The table's entry for each byte; bytes are below 16.
    fn look_up(self, table: &[u8; 16], a: Self::Bytes) -> Self::Bytes;
    /// Reads `LANES` f16 as floats.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load_f16(self, p: *const u16) -> <Self::Floats as Simd>::F;
    /// Reads `LANES` E4M3 numbers as floats, divided by 256; NaN reads as 1.875.
    ///
    /// # Safety
    /// `p` must be readable for that many.
    unsafe fn load_e4m3(self, p: *const u8) -> <Self::Floats as Simd>::F;
}

/// A computation written once for all sets of integer operations; see [`super::Kernel`].
pub(crate) trait DotKernel {
    /// Runs it; implementations are `#[inline(always)]`.
    fn run<D: Dots>(self, dots: D);
}

/// Integer operations that this CPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DotSet(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx512::Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::Avx2Dots<true>),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2Dots<false>),
    Portable(portable::PortableDots),
}

impl DotSet {
    /// Every one that this CPU has, best first.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = super::avx512::Avx512::detect();
            sets.extend(
                avx512
                    .and_then(avx512::Avx512Vnni::detect)
                    .map(Kind::Avx512Vnni),
            );
            let avx2 = super::avx2::Avx2::detect();
            sets.extend(
                avx2.and_then(avx2::Avx2Dots::<true>::detect)
                    .map(Kind::AvxVnni),
            );
            sets.extend(
                avx2.and_then(avx2::Avx2Dots::<false>::detect)
                    .map(Kind::Avx2),
            );
        }
        sets.push(Kind::Portable(portable::PortableDots));
        sets.into_iter().map(Self).collect()
    }

    /// The best that belongs to an instruction set.
    pub(crate) fn of(isa: Isa) -> Self {
        let portable = Kind::Portable(portable::PortableDots);
        #[cfg(target_arch = "x86_64")]
        let of_avx2 = |avx2| match avx2::Avx2Dots::<true>::detect(avx2) {
            Some(dots) => Kind::AvxVnni(dots),
            None => avx2::Avx2Dots::<false>::detect(avx2).map_or(portable, Kind::Avx2),
        };
        Self(match isa.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(avx512) => match avx512::Avx512Vnni::detect(avx512) {
                Some(dots) => Kind::Avx512Vnni(dots),
                None => super::avx2::Avx2::detect().map_or(portable, of_avx2),
            },
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(avx2) => of_avx2(avx2),
            Set::Portable(_) => portable,
        })
    }

    /// Its name, for messages.
    #[cfg(test)]
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            Kind::Portable(_) => "portable",
        }
    }

    /// Runs a kernel with these operations.
    #[inline]
    pub(crate) fn run<K: DotKernel>(self, kernel: K) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni(dots) => dots.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni(dots) => dots.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(dots) => dots.vectorize(kernel),
            Kind::Portable(dots) => kernel.run(dots),
        }
    }
}

#[cfg(test)]
mod tests;
