//! Registers every metric once, with its help text, and keeps the handles.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use super::buckets;

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// A recorder of its own (nothing global), with the labels that every metric carries.
pub(super) fn build(model_name: &str, max_context: usize) -> PrometheusRecorder {
    let bounds = buckets::request_tokens(max_context);
    let tokens = buckets::TOKEN_COUNTS
        .iter()
        .map(|name| (*name, bounds.as_slice()));
    let mut builder = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .add_global_label("model_name", model_name)
        .add_global_label("engine", "0");
    for (name, bounds) in buckets::FIXED.iter().copied().chain(tokens) {
        builder = builder
            .set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
            .expect("no bucket family is empty");
    }
    builder.build_recorder()
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels = labels.iter().map(|(k, v)| Label::new(*k, (*v).to_owned()));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

/// Registers metrics by name, help text and further labels.
pub(super) struct Register<'a>(pub(super) &'a PrometheusRecorder);

impl Register<'_> {
    pub(super) fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        self.0
            .describe_counter(KeyName::from(name), None, help.into());
        self.0.register_counter(&key(name, labels), &METADATA)
    }

    pub(super) fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Gauge {
        self.0
            .describe_gauge(KeyName::from(name), None, help.into());
        self.0.register_gauge(&key(name, labels), &METADATA)
    }

    pub(super) fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        self.0
            .describe_histogram(KeyName::from(name), None, help.into());
        self.0.register_histogram(&key(name, labels), &METADATA)
    }
}

/// Handles that requests write to.
pub(super) struct RequestHandles {
    pub(super) received: Counter,
    /// In the order of [`super::Outcome`].
    pub(super) ended: [Counter; super::Outcome::ALL.len()],
    /// In the order of [`super::Finish`].
    pub(super) success: [Counter; super::Finish::ALL.len()],
    pub(super) rejected_queue_full: Counter,
    pub(super) rejected_shutting_down: Counter,
    pub(super) prompt_tokens: Counter,
    pub(super) prompt_tokens_computed: Counter,
    pub(super) prompt_tokens_hit: Counter,
    pub(super) prompt_tokens_cached: Counter,
    pub(super) generation_tokens: Counter,
    pub(super) request_prompt_tokens: Histogram,
    pub(super) request_generation_tokens: Histogram,
    pub(super) request_max_generation_tokens: Histogram,
    pub(super) request_n: Histogram,
    pub(super) request_max_tokens: Histogram,
    pub(super) request_computed_tokens: Histogram,
    pub(super) request_preemptions: Histogram,
    pub(super) time_to_first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) time_per_output_token: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queue: Histogram,
    pub(super) inference: Histogram,
    pub(super) prefill: Histogram,
    pub(super) decode: Histogram,
    pub(super) request_kv_bits: Histogram,
}

impl RequestHandles {
    pub(super) fn new(r: &Register<'_>) -> Self {
        let rejected = |reason| {
            r.counter(
                "vllm:admission_rejections",
                "Requests refused at arrival.",
                &[("reason", reason)],
            )
        };
        let by_source = |source| {
            r.counter(
                "vllm:prompt_tokens_by_source",
                "Prompt tokens by where their KV came from.",
                &[("source", source)],
            )
        };
        Self {
            received: r.counter(
                "ebb:requests_received",
                "Requests that arrived, refused ones included.",
                &[],
            ),
            ended: super::Outcome::ALL.map(|o| {
                r.counter(
                    "ebb:requests_ended",
                    "Requests by how they ended.",
                    &[("outcome", o.as_str())],
                )
            }),
            success: super::Finish::ALL.map(|f| {
                r.counter(
                    "vllm:request_success",
                    "Choices by why they ended.",
                    &[("finished_reason", f.as_str())],
                )
            }),
            rejected_queue_full: rejected("queue_full"),
            rejected_shutting_down: rejected("shutting_down"),
            prompt_tokens: r.counter("vllm:prompt_tokens", "Prompt tokens processed.", &[]),
            prompt_tokens_computed: by_source("local_compute"),
            prompt_tokens_hit: by_source("local_cache_hit"),
            prompt_tokens_cached: r.counter(
                "vllm:prompt_tokens_cached",
                "Prompt tokens that came from a cache.",
                &[],
            ),
            generation_tokens: r.counter("vllm:generation_tokens", "Tokens generated.", &[]),
            request_prompt_tokens: r.histogram(
                "vllm:request_prompt_tokens",
                "Prompt tokens per request.",
                &[],
            ),
            request_generation_tokens: r.histogram(
                "vllm:request_generation_tokens",
                "Generated tokens per choice.",
                &[],
            ),
            request_max_generation_tokens: r.histogram(
                "vllm:request_max_num_generation_tokens",
                "Generated tokens of a request's longest choice.",
                &[],
            ),
            request_n: r.histogram("vllm:request_params_n", "The request parameter n.", &[]),
            request_max_tokens: r.histogram(
                "vllm:request_params_max_tokens",
                "The request parameter max_tokens.",
                &[],
            ),
            request_computed_tokens: r.histogram(
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens computed (not cached) per request.",
                &[],
            ),
            request_preemptions: r.histogram(
                "vllm:request_num_preemptions",
                "Times that a request was preempted.",
                &[],
            ),
            time_to_first_token: r.histogram(
                "vllm:time_to_first_token_seconds",
                "From arrival to the first token.",
                &[],
            ),
            inter_token: r.histogram(
                "vllm:inter_token_latency_seconds",
                "Between two deliveries of tokens of one choice.",
                &[],
            ),
            time_per_output_token: r.histogram(
                "vllm:request_time_per_output_token_seconds",
                "Decode time over tokens after the first, per request.",
                &[],
            ),
            e2e: r.histogram(
                "vllm:e2e_request_latency_seconds",
                "From arrival to the end.",
                &[],
            ),
            queue: r.histogram(
                "vllm:request_queue_time_seconds",
                "From arrival to the first step.",
                &[],
            ),
            inference: r.histogram(
                "vllm:request_inference_time_seconds",
                "From the first step to the last token.",
                &[],
            ),
            prefill: r.histogram(
                "vllm:request_prefill_time_seconds",
                "From the first step to the first token.",
                &[],
            ),
            decode: r.histogram(
                "vllm:request_decode_time_seconds",
                "From the first token to the last.",
                &[],
            ),
            request_kv_bits: r.histogram(
                "ebb:request_mean_kv_bits",
                "Mean bits of the keys and values that a choice's tokens read.",
                &[],
            ),
        }
    }
}

/// Handles that steps and scrapes write to.
pub(super) struct EngineHandles {
    pub(super) running: Gauge,
    pub(super) waiting: Gauge,
    pub(super) waiting_capacity: Gauge,
    pub(super) kv_usage: Gauge,
    pub(super) kv_pool: Gauge,
    pub(super) kv_live: Gauge,
    pub(super) kv_cached: Gauge,
    pub(super) kv_free: Gauge,
    pub(super) preemptions: Counter,
    pub(super) prefix_queries: Counter,
    pub(super) prefix_hits: Counter,
    pub(super) steps: Counter,
    pub(super) step_age: Gauge,
    pub(super) iteration_tokens: Histogram,
    pub(super) plan: Histogram,
    pub(super) forward: Histogram,
    pub(super) sample: Histogram,
    pub(super) shrink: Histogram,
    pub(super) tokens_computed: Counter,
    pub(super) tokens_thrown_away: Counter,
    pub(super) bits_stored: Gauge,
    pub(super) bits_floor: Gauge,
    pub(super) request_bits_mean: Gauge,
    pub(super) request_bits_lowest: Gauge,
    pub(super) changes_mean: Gauge,
    pub(super) changes_max: Gauge,
    pub(super) changes_all: Gauge,
    pub(super) shrinks_live: Counter,
    pub(super) shrinks_cached: Counter,
    pub(super) shrink_failures: Counter,
    pub(super) shrunk_bytes: Counter,
    pub(super) preemptions_avoided: Counter,
    pub(super) stalls: Counter,
    pub(super) promised: Gauge,
    pub(super) waste: Gauge,
    pub(super) shrinkable: Gauge,
    pub(super) watermark_low: Gauge,
    pub(super) watermark_high: Gauge,
}

impl EngineHandles {
    pub(super) fn new(r: &Register<'_>) -> Self {
        let kv = |state| {
            r.gauge(
                "ebb:kv_bytes",
                "Bytes of the KV pool by state.",
                &[("state", state)],
            )
        };
        let phase = |phase| {
            r.histogram(
                "ebb:step_time_seconds",
                "Time per model step by phase.",
                &[("phase", phase)],
            )
        };
        let bits = |of| {
            r.gauge(
                "ebb:kv_bits",
                "Mean bits of a stored key or value: of all there is, and of \
                                    sealed unprotected ones at the floor.",
                &[("of", of)],
            )
        };
        let request_bits = |stat| {
            r.gauge(
                "ebb:request_kv_bits",
                "Bits that running sequences have read: the mean of \
                                            their means, and the lowest \
                                            nominal width.",
                &[("stat", stat)],
            )
        };
        let changes = |stat| {
            r.gauge(
                "ebb:kv_schedule_steps",
                "Precision level changes that blocks have \
                                              taken: mean, most, and all \
                                              there are.",
                &[("stat", stat)],
            )
        };
        let watermark = |mark| {
            r.gauge(
                "ebb:kv_watermark_bytes",
                "Free KV memory below which blocks begin to shrink \
                                               (low) and at which they stop \
                                               (high).",
                &[("mark", mark)],
            )
        };
        let shrinks = |holder| {
            r.counter(
                "ebb:kv_shrinks",
                "Blocks shrunk, by who held them.",
                &[("holder", holder)],
            )
        };
        r.gauge(
            "ebb:build_info",
            "Always 1; the version is a label.",
            &[("version", env!("CARGO_PKG_VERSION"))],
        )
        .set(1.0);
        Self {
            running: r.gauge("vllm:num_requests_running", "Sequences in the batch.", &[]),
            waiting: r.gauge("vllm:num_requests_waiting", "Requests in the queue.", &[]),
            waiting_capacity: r.gauge(
                "vllm:num_requests_waiting_by_reason",
                "Requests in the queue by what they wait for.",
                &[("reason", "capacity")],
            ),
            kv_usage: r.gauge(
                "vllm:kv_cache_usage_perc",
                "Share of the KV pool held by requests; 1 is all of it.",
                &[],
            ),
            kv_pool: r.gauge("ebb:kv_pool_bytes", "Size of the KV pool.", &[]),
            kv_live: kv("live"),
            kv_cached: kv("cached"),
            kv_free: kv("free"),
            preemptions: r.counter(
                "vllm:num_preemptions",
                "Sequences thrown out to be recomputed.",
                &[],
            ),
            prefix_queries: r.counter(
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                &[],
            ),
            prefix_hits: r.counter(
                "vllm:prefix_cache_hits",
                "Prompt tokens found in the prefix cache.",
                &[],
            ),
            steps: r.counter("ebb:steps", "Model steps.", &[]),
            step_age: r.gauge(
                "ebb:step_age_seconds",
                "Time since the last step while requests wait for one; 0 while none does.",
                &[],
            ),
            iteration_tokens: r.histogram(
                "vllm:iteration_tokens_total",
                "Prompt and generated tokens per step.",
                &[],
            ),
            plan: phase("plan"),
            forward: phase("forward"),
            sample: phase("sample"),
            shrink: phase("shrink"),
            tokens_computed: r.counter(
                "ebb:tokens_computed",
                "Tokens that steps computed, prompts and answers, twice if need be.",
                &[],
            ),
            tokens_thrown_away: r.counter(
                "ebb:tokens_thrown_away",
                "Of the tokens computed, those whose KV preemptions threw away.",
                &[],
            ),
            bits_stored: bits("stored"),
            bits_floor: bits("floor"),
            request_bits_mean: request_bits("mean"),
            request_bits_lowest: request_bits("lowest"),
            changes_mean: changes("mean"),
            changes_max: changes("max"),
            changes_all: changes("all"),
            shrinks_live: shrinks("requests"),
            shrinks_cached: shrinks("cache"),
            shrink_failures: r.counter(
                "ebb:kv_shrink_failures",
                "Blocks that could not be shrunk.",
                &[],
            ),
            shrunk_bytes: r.counter(
                "ebb:kv_shrunk_bytes",
                "Bytes of blocks rewritten, as they were before.",
                &[],
            ),
            preemptions_avoided: r.counter(
                "ebb:preemptions_avoided",
                "Preemptions that shrinking stood in for: memory that it freed, in mean sequences.",
                &[],
            ),
            stalls: r.counter(
                "ebb:kv_stalls",
                "Times that a sequence waited a step for memory that shrinking was to free.",
                &[],
            ),
            promised: r.gauge(
                "ebb:kv_promised_bytes",
                "KV memory promised to running requests: each at its longest, at its floor.",
                &[],
            ),
            waste: r.gauge(
                "ebb:kv_waste_bytes",
                "KV memory held and not used: unfilled places of open blocks, ends of last frames.",
                &[],
            ),
            shrinkable: r.gauge(
                "ebb:kv_shrinkable_bytes",
                "KV memory of running requests' blocks that can shrink further.",
                &[],
            ),
            watermark_low: watermark("low"),
            watermark_high: watermark("high"),
        }
    }
}
