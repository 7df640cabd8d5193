//! Serving: sampling, the step loop, the servers, and how the KV cache shrinks meanwhile.
//!
//! Every module imports those above it in this list alone: `client_memory`, `small_file`, `access`,
//! `sampling`, `kv_pages`, `kv_profile`, `kv_spec`, `kv_plan`, `kv_state`, `kv_pool`, `metrics`,
//! `trajectory`, `device`, `core`, `start`, `front_end`, `http`, `openai`, `anthropic`, `page`,
//! `server`.

pub mod access;
mod anthropic;
pub mod client_memory;
pub mod core;
pub mod device;
mod front_end;
mod http;
pub mod kv_pages;
pub mod kv_plan;
pub mod kv_pool;
pub mod kv_profile;
pub mod kv_spec;
pub mod kv_state;
pub mod metrics;
mod openai;
mod page;
pub mod sampling;
pub mod server;
mod small_file;
mod start;
pub mod trajectory;

pub use start::{
    CPU_KV_MEMORY_BYTES, EngineConfig, GPU_MEMORY_UTILIZATION, StartError, backend, pool, start,
    start_on,
};
