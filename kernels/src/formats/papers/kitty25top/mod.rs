//! A quarter of the key channels at 4 bits: the loudest of the 16-bit page; static.

use super::reranked::Reranked;
use crate::formats::kitty::Ranking;

pub(crate) const FORMAT: Reranked<2> = Reranked(Ranking::SixteenBit);
