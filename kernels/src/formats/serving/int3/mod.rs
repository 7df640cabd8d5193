//! 3-bit codes as a 2-bit plane and a 1-bit plane; static.

use crate::formats::affine::Split;

pub(crate) const FORMAT: Split<2> = Split;
