//! An eighth of the key channels at 4 bits: any; static.

use super::reranked::Reranked;
use crate::formats::kitty::Ranking;

pub(crate) const FORMAT: Reranked<1> = Reranked(Ranking::Random);
