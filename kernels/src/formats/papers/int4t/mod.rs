//! 4-bit keys with a zero and a range per token, shifted from 8-bit ones.

use crate::formats::ladder::Dense;

pub(crate) const FORMAT: Dense<4, false, true> = Dense;
