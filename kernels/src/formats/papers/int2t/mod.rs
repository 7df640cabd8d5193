//! 2-bit keys with a zero and a range per token, shifted from 4-bit ones.

use crate::formats::ladder::Dense;

pub(crate) const FORMAT: Dense<2, false, true> = Dense;
