//! The engine thread and the async side's handle to it.
//!
//! One thread owns the scheduler and the backend; async tasks reach it through a bounded channel
//! and hear back through one byte-bounded stream per request.

mod door;
mod engine;
mod error;
mod flight;
mod handle;
mod live;
mod recording;
mod request;
mod run;
mod step;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use engine::Served;
pub use error::RequestError;
pub use handle::{EngineHandle, EngineState, ModelInfo};
pub use request::{FinishReason, GenerateRequest, KvBits, Prompt, StreamEvent, TokenLogprobs};
pub use step::table_delta;
pub use stream::{GenerateStream, STREAM_LIMIT_BYTES};
/// For scripted engines in tests.
#[cfg(test)]
pub(crate) use stream::{SendError, StreamSender, stream};
