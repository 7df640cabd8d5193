//! Asymmetric 8-bit codes, practically lossless.

use crate::formats::ladder::Dense;

pub(crate) const FORMAT: Dense<8, false> = Dense;
