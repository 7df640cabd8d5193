//! Load tests of a serving engine over the wire, as its clients see it.
//!
//! Latencies count from the time at which a request was *to be* sent. A client that waits for a
//! slow answer and sends its next request late would otherwise leave out the very requests that the
//! slowness hurts (coordinated omission; Tene, *How NOT to Measure Latency*, 2013).

pub mod arrivals;
mod cli;
pub mod compare;
pub mod drive;
pub mod error;
pub mod instant;
pub mod progress;
pub mod protocol;
pub mod record;
pub mod report;
pub mod summary;
pub mod trace;
pub mod workload;

pub use cli::main;
