//! 4-bit codes, brought down from 8 bits by rounding right shifts; static.

use super::shifted::Shifted;

pub(crate) const FORMAT: Shifted<4, true> = Shifted;
