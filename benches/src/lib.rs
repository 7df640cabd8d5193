//! Load harness, kernel benchmarks and the trace simulator.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod report;
pub mod simulate;
