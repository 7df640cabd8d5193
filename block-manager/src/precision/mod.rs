//! Precision levels, and the order in which a block's pages shrink.
//!
//! A *page* is a block's part of one layer and side. A *shrink order* is a list of *level changes*.
//! Each change lowers the format of one page; the changes that lose least per byte come first. A
//! block's *precision level* says how many changes of which *path* it has taken, and so fixes the
//! format of each of its pages. Level 0 is 16 bit everywhere.
//!
//! A block that must not fall below some bits follows the path of those bits: the shrink order
//! without the changes that go below them. A block does not stop at every level: a shrink goes on
//! until at least a third of the frames has come free.

mod level_table;
mod min_bits;
mod shrink_order;
#[cfg(test)]
mod tests;

pub use level_table::{BlockSize, LevelTable, PrecisionLevel};
pub use min_bits::MinBits;
pub use shrink_order::{LevelChange, Page, PageLevel, PageSide, ShrinkOrder, ShrinkOrderError};
