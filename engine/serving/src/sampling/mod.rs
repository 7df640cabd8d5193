//! From logits to the next token: validated parameters, penalties, filters, reproducible sampling,
//! log-probabilities, and stop strings.
//!
//! Everything that decides a token is arithmetic in a fixed order on that row's logits alone, and
//! the random numbers are a function of (seed, choice, position): the same seed gives the same
//! answer whatever shares the batch, and another backend can reproduce it bit for bit.

mod candidates;
mod edits;
mod error;
mod filter;
mod limits;
mod logprobs;
mod params;
mod philox;
#[cfg(test)]
pub(crate) mod reference;
mod sample_request;
mod sampler;
mod scan;
mod state;
mod stop;
mod weight;

pub use error::{Param, ParamError, SampleError};
pub use limits::{
    LOGIT_BIAS_MAX, LOGPROBS_MAX, N_MAX, STOP_BYTES_MAX, STOP_IDS_MAX, STOP_STRINGS_MAX,
};
pub use logprobs::TokenLogprobs;
pub use params::{SamplingOptions, SamplingParams};
pub use philox::{philox4x32_10, random_seed};
pub use sampler::{Sampled, Sampler};
pub use state::SamplerState;
pub use stop::{StopChecker, StopMatch};
