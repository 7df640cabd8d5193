//! Upper bounds of histogram buckets: vLLM's families, and which histogram has which.

/// Whole-request times, seconds.
const REQUEST_LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Seconds.
const TIME_TO_FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds.
const INTER_TOKEN_LATENCY: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Tokens in one step.
const ITERATION_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
/// Choices.
const REQUEST_PARAMS_N: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
/// Times.
const REQUEST_PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
/// Bits of a key or value, with its share of scales; ours.
const KV_BITS: &[f64] = &[
    2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 15.5, 16.0,
];
/// Seconds of one phase of a step; ours.
const STEP_TIME: &[f64] = &[
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0, 10.0,
];

/// vLLM's `request_tokens` family: 1, 2, 5, 10, 20, 50, … up to the longest context.
pub(super) fn request_tokens(max_context: usize) -> Vec<f64> {
    let mut bounds = Vec::new();
    for exponent in 0.. {
        let decade = 10f64.powi(exponent);
        for digit in [1.0, 2.0, 5.0] {
            if digit * decade > max_context as f64 {
                // A model with no room at all still needs one bucket.
                return if bounds.is_empty() { vec![1.0] } else { bounds };
            }
            bounds.push(digit * decade);
        }
    }
    unreachable!("the loop ends at max_context")
}

/// Histograms with fixed buckets.
pub(super) const FIXED: &[(&str, &[f64])] = &[
    ("ebb:request_mean_kv_bits", KV_BITS),
    ("vllm:iteration_tokens_total", ITERATION_TOKENS),
    ("vllm:request_params_n", REQUEST_PARAMS_N),
    ("vllm:time_to_first_token_seconds", TIME_TO_FIRST_TOKEN),
    ("vllm:inter_token_latency_seconds", INTER_TOKEN_LATENCY),
    (
        "vllm:request_time_per_output_token_seconds",
        INTER_TOKEN_LATENCY,
    ),
    ("vllm:e2e_request_latency_seconds", REQUEST_LATENCY),
    ("vllm:request_queue_time_seconds", REQUEST_LATENCY),
    ("vllm:request_inference_time_seconds", REQUEST_LATENCY),
    ("vllm:request_prefill_time_seconds", REQUEST_LATENCY),
    ("vllm:request_decode_time_seconds", REQUEST_LATENCY),
    ("vllm:request_num_preemptions", REQUEST_PREEMPTIONS),
    ("ebb:step_time_seconds", STEP_TIME),
];

/// Histograms of token counts, whose buckets follow the context length.
pub(super) const TOKEN_COUNTS: &[&str] = &[
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:request_prefill_kv_computed_tokens",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_buckets_follow_the_context() {
        assert_eq!(
            request_tokens(2048),
            [1., 2., 5., 10., 20., 50., 100., 200., 500., 1000., 2000.]
        );
        assert_eq!(request_tokens(1), [1.0]);
        assert_eq!(request_tokens(0), [1.0]);
    }

    #[test]
    fn bounds_ascend() {
        for (name, bounds) in FIXED {
            assert!(bounds.windows(2).all(|w| w[0] < w[1]), "{name}");
        }
    }
}
