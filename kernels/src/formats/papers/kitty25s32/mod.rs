//! Kitty's page of 96 tokens behind a sink of 32, a quarter of the channels at 4 bits; static.

use super::kitty_page::KittyPage;

pub(crate) const FORMAT: KittyPage<2, 32> = KittyPage;
