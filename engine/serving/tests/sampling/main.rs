//! Sampling against naive definitions, exact probabilities and recorded vectors.

mod closed;
mod distribution;
mod logprobs;
mod naive;
mod oracle;
mod params;
mod penalties;
mod reproducible;
mod speed;
mod stop;
mod stop_tokens;
