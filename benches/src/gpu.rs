//! Timings of the CUDA backend; the commands of `ebb-gpu`.

pub mod attention;
pub mod prefill;
pub mod products;
pub mod step;
