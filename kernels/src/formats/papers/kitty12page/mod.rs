//! Kitty's page of two tensors, an eighth of the channels at 4 bits; static.

use super::kitty_page::KittyPage;

pub(crate) const FORMAT: KittyPage<1, 0> = KittyPage;
