//! Config, models, tokenizer, sampler, step loop, servers and the ebb command line

pub mod calibrate;
pub mod cli;
pub mod core;
pub mod device;
pub mod eval;
pub mod kv_plan;
pub mod kv_spec;
pub mod metrics;
pub mod model;
pub mod sampling;
pub mod server;
mod start;
pub mod tokenizer;
pub mod trajectory;

pub(crate) use start::CPU_KV_MEMORY_BYTES;
pub use start::{
    EngineConfig, GPU_MEMORY_UTILIZATION, Opened, StartError, backend, open, open_as, pool, start,
};
