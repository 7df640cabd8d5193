//! 3-bit codes in groups of 32, eleven to a word; static.

use super::grouped::Grouped;

pub(crate) const FORMAT: Grouped<3> = Grouped;
