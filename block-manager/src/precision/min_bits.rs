//! How far a block may shrink.

/// The lowest nominal code bits that any page of a block may shrink to. 16 forbids shrinking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MinBits(pub u8);

impl MinBits {
    /// No page may shrink.
    pub const SIXTEEN: Self = Self(16);
    /// Pages may shrink as far as the shrink order goes.
    pub const ANY: Self = Self(0);

    /// The bits that are told apart, highest first. What lies between two counts as the higher one.
    pub(crate) const CLASSES: [Self; 4] = [Self(16), Self(8), Self(4), Self(2)];

    /// Index in [`CLASSES`](Self::CLASSES).
    pub(crate) fn class(self) -> usize {
        match self.0 {
            9.. => 0,
            5..=8 => 1,
            3..=4 => 2,
            _ => 3,
        }
    }
}
