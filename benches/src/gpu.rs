//! Timings of the CUDA backend; the commands of `ebb-gpu`.

pub mod attention;
pub mod products;
pub mod sample;
pub mod step;
