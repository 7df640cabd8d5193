//! The engine thread and the async side's handle to it.
//!
//! One thread owns the scheduler and the backend; async tasks reach it through a bounded channel
//! and hear back through one byte-bounded stream per request.

mod accept;
mod active_request;
mod admission_gate;
mod answer;
mod engine;
mod error;
mod field;
mod handle;
mod in_flight_steps;
mod pool_watch;
mod pulse;
mod recording;
mod rendering;
mod request;
mod run;
mod shared;
mod step;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod text_queue;
mod work_bytes;

pub use answer::{End, FinishReason, KvBits, StreamEvent, TokenLogprobs};
pub use error::RequestError;
pub use field::Field;
pub use handle::{EngineHandle, EngineState, ModelInfo};
pub use pool_watch::PoolLook;
pub(crate) use pulse::real_clock;
pub use request::{Chat, Prompt, Request};
pub(crate) use shared::Served;
pub use step::table_delta;
pub use stream::{GenerateStream, STREAM_LIMIT_BYTES};
/// For scripted engines in tests.
#[cfg(test)]
pub(crate) use stream::{SendError, StreamSender, stream};
