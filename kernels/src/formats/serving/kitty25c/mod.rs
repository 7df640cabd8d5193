//! A quarter of the key channels at 4 bits, the rest at 2, clipped.

use crate::formats::kitty::Boosted;

pub(crate) const FORMAT: Boosted<2, true> = Boosted;
