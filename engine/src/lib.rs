//! Config, models, tokenizer, sampler, step loop, servers and the ebb command line

pub mod calibrate;
pub mod cli;
pub mod core;
pub mod eval;
pub mod kv_plan;
pub mod kv_spec;
pub mod metrics;
pub mod model;
pub mod sampling;
pub mod server;
mod start;
pub mod tokenizer;

pub use start::{EngineConfig, Opened, StartError, backend, backend_with, open, pool, start};
