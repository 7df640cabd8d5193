//! How large a request's parameters may be. Each bounds memory or work that one request can ask
//! of everyone's engine thread.

/// Most choices of one prompt.
pub const N_MAX: u32 = 128;
/// Most stop strings.
pub const STOP_STRINGS_MAX: usize = 16;
/// Most bytes of one stop string.
pub const STOP_BYTES_MAX: usize = 256;
/// Most stop token ids.
pub const STOP_IDS_MAX: usize = 256;
/// Most tokens with a logit bias.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Most alternatives reported for a token.
pub const LOGPROBS_MAX: u32 = ebb_kernels::backend::TOP_MAX;
