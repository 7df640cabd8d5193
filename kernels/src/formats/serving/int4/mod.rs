//! Asymmetric 4-bit codes, shifted from 8-bit ones.

use crate::formats::ladder::Dense;

pub(crate) const FORMAT: Dense<4, false> = Dense;
