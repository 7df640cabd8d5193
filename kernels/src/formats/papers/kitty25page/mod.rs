//! Kitty's page of two tensors, a quarter of the channels at 4 bits; static.

use super::kitty_page::KittyPage;

pub(crate) const FORMAT: KittyPage<2, 0> = KittyPage;
