//! What every front end needs, whatever it speaks: the engine as it sees it, accounts of what calls
//! hold, their keys, calls that fail alone, and names for requests.

mod contained;
mod engine;
#[cfg(test)]
pub(crate) mod fake;
mod keys;
mod memory;
mod names;

pub use engine::Engine;

pub(crate) use contained::contained;
pub(crate) use engine::gauges;
pub(crate) use keys::admit;
pub(crate) use memory::CallMemory;
pub(crate) use names::new_name;
