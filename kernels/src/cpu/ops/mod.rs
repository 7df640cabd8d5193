//! Row-wise operations between the matrix products.

mod activate;
mod append;
mod layer_inputs;
mod logits;
mod norm;
mod open;
mod rope;

pub(crate) use activate::{Activate, activate_rows};
pub(crate) use append::{HeadOps, RowPlace, rotate_back};
pub(crate) use layer_inputs::{LayerInputs, open_layer_input};
pub(crate) use logits::finish_logits;
pub(crate) use norm::{Norm, Normalise};
pub(crate) use open::open;
pub(crate) use rope::RopeTable;

use super::threads::{Pool, TaskPanic};

/// Elements below which a row-wise loop stays on the calling thread.
const SERIAL_ELEMENTS: usize = 8192;

/// Runs `f(first, end)` over ranges that cover `0..rows`; a row costs about `elements`.
pub(crate) fn for_rows(
    pool: &mut Pool,
    rows: usize,
    elements: usize,
    f: impl Fn(usize, usize) + Sync,
) -> Result<(), TaskPanic> {
    let most = (rows * elements).div_ceil(SERIAL_ELEMENTS);
    let tasks = most.min(rows).min(pool.threads() * 4);
    pool.run(tasks, |i, _| f(i * rows / tasks, (i + 1) * rows / tasks))
}
