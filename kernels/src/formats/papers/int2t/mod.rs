//! 2-bit keys with a zero and a range per token; static.

use super::by_token::ByToken;

pub(crate) const FORMAT: ByToken<2> = ByToken;
