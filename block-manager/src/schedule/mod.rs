//! How far a block's pages may shrink, and in which order: the shrink schedule and the positions in
//! it.
//!
//! A *schedule* is one list of steps, each lowering the format of one page, cheapest loss per byte
//! first. A block stands at a *position*: so many steps taken. A block that must not fall below
//! some width follows the *chain* of that bound: the schedule with every step left out that goes
//! below it. All chains start at position 0, where every page has 16 bit.

mod positions;
mod steps;

pub use positions::{Bound, Cost, PositionTable, Standing};
pub use steps::{Page, PageSide, Rung, Schedule, ScheduleError, Step};
