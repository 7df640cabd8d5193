//! 8-bit keys with a zero and a range per token: the first of the levels that such keys have.

use crate::formats::ladder::Dense;

pub(crate) const FORMAT: Dense<8, false, true> = Dense;
