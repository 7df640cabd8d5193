//! Asymmetric 2-bit codes, clipped from 4-bit ones.

use crate::formats::ladder::Dense;

pub(crate) const FORMAT: Dense<2, true> = Dense;
