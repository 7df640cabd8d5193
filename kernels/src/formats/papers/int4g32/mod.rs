//! 4-bit codes in groups of 32; static.

use super::grouped::Grouped;

pub(crate) const FORMAT: Grouped<4> = Grouped;
