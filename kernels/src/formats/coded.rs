//! Records as planes of codes, for readers that compute on codes.

use super::affine::Meta;
use super::order::Plane;

/// What a record says of an element: `code * step + zero`, step and zero those of its channel for
/// keys, of its token for values.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    /// The codes, or their lower two bits. Keys are `[token][channel]`, values `[channel][token]`.
    pub(crate) low: CodePlane<'a>,
    /// What is added to them, four times as much worth.
    pub(crate) high: High<'a>,
    /// Zeros and ranges are at its start.
    pub(crate) record: &'a [u8],
    /// Steps of a range where the higher bits are not of some channels only.
    pub(crate) levels: f32,
}

/// A plane and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct CodePlane<'a> {
    pub(crate) order: Plane,
    pub(crate) bytes: &'a [u8],
}

/// Higher bits of codes whose lower two are elsewhere.
#[derive(Clone, Copy)]
pub(crate) enum High<'a> {
    /// There are none.
    None,
    /// One bit of all codes.
    All(CodePlane<'a>),
    /// Two bits of some channels of keys.
    Boosted(Slabs<'a>),
}

/// Planes of the boosted channels in order of their ranks, one right behind the other.
#[derive(Clone, Copy)]
pub(crate) struct Slabs<'a> {
    pub(crate) order: Plane,
    pub(crate) bytes: &'a [u8],
    /// A channel's rank, or at least `boosted`.
    pub(crate) index: &'a [u8],
    pub(crate) boosted: usize,
}

impl Codes<'_> {
    /// Writes zero and step of every group; both slices have as many entries.
    #[inline(always)]
    pub(crate) fn steps(&self, zeros: &mut [f32], steps: &mut [f32]) {
        let groups = zeros.len();
        Meta::of(self.record, groups).widen(0, zeros, steps);
        match self.high {
            High::Boosted(Slabs { index, boosted, .. }) => {
                for (range, rank) in steps.iter_mut().zip(index) {
                    let boosted = (*rank as usize) < boosted;
                    *range /= if boosted { 15.0 } else { 3.0 };
                }
            }
            High::None | High::All(_) => steps.iter_mut().for_each(|range| *range /= self.levels),
        }
    }
}
