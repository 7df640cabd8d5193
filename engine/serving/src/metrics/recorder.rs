//! The recorder: one per engine, shared by the engine thread, the gRPC server and the scrape.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};

use ebb_kernels::formats::FormatId;

use super::clients::ClientGauges;
use super::register::{self, EngineHandles, Register, RequestHandles};
use super::request::RequestMeter;
#[cfg(test)]
use crate::kv_state::FormatUse;
use crate::kv_state::KvState;

/// Steps after which samples are sorted on the engine thread, when nobody else does it.
const UPKEEP_STEPS: u32 = 1000;

/// Counts and times what the engine does. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Recorder(Option<Arc<Inner>>);

pub(super) struct Inner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    pub(super) requests: RequestHandles,
    engine: EngineHandles,
    steps_since_upkeep: AtomicU32,
}

/// What one step did.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepStats {
    /// Rows of the batch that were prompt tokens.
    pub prompt_tokens: usize,
    /// Tokens sampled.
    pub generation_tokens: usize,
    /// Time the scheduler took to plan it.
    pub plan: Duration,
    /// Time from submitting it to the backend, or from the end of the step before if that is later,
    /// to its tokens or logits.
    pub forward: Duration,
    /// Time to sample, detokenise and hand out what it produced.
    pub sample: Duration,
    /// What shrinking blocks took of `forward`, if it did.
    pub shrink: Option<Duration>,
}

/// The engine's state at the time of a scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineGauges {
    /// Sequences in the batch.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Bytes of the KV pool.
    pub kv_bytes_total: u64,
    /// Bytes held by live sequences.
    pub kv_bytes_live: u64,
    /// Bytes held by the prefix cache alone.
    pub kv_bytes_cached: u64,
    /// Steps since the start.
    pub steps: u64,
    /// Time since the last step while requests wait for one.
    pub step_age: Duration,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache since the start.
    pub prefix_queries: u64,
    /// Prompt tokens found there since the start.
    pub prefix_hits: u64,
    /// Tokens computed since the start.
    pub tokens_computed: u64,
    /// Of those, tokens whose KV preemptions threw away.
    pub tokens_thrown_away: u64,
    /// Texts that wait to be tokenised.
    pub texts_waiting: usize,
    /// How wide the KV cache is.
    pub kv: KvState,
    /// What clients hold.
    pub clients: ClientGauges,
}

/// Settings of the KV cache, exposed once as the labels of `vllm:cache_config_info`.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_tokens: usize,
    /// 16-bit blocks that the pool has room for.
    pub blocks: u64,
    /// Whether prompts share cached prefixes.
    pub prefix_cache: bool,
}

impl Recorder {
    /// A recorder for one model; `max_context` (tokens) sets the buckets of token counts.
    pub fn new(model_name: &str, max_context: usize) -> Self {
        let recorder = register::build(model_name, max_context);
        let register = Register(&recorder);
        Self(Some(Arc::new(Inner {
            requests: RequestHandles::new(&register),
            engine: EngineHandles::new(&register),
            handle: recorder.handle(),
            recorder,
            steps_since_upkeep: AtomicU32::new(0),
        })))
    }

    /// A recorder that records nothing, for programs that nobody scrapes.
    pub fn disabled() -> Self {
        Self(None)
    }

    /// A request arrived: counts it and starts its clock.
    pub fn request(&self, arrived: Instant, n: u32, max_tokens: u32) -> RequestMeter {
        RequestMeter::new(self.0.clone(), arrived, n, max_tokens)
    }

    /// A step is done.
    pub fn step(&self, stats: &StepStats) {
        let Some(inner) = &self.0 else { return };
        let e = &inner.engine;
        e.iteration_tokens
            .record((stats.prompt_tokens + stats.generation_tokens) as f64);
        e.plan.record(stats.plan);
        e.forward.record(stats.forward);
        e.sample.record(stats.sample);
        if let Some(time) = stats.shrink {
            e.shrink.record(time);
        }
        if inner.steps_since_upkeep.fetch_add(1, Ordering::Relaxed) >= UPKEEP_STEPS {
            self.upkeep();
        }
    }

    /// A gRPC call ended with this status. Looks the counter up: once per call, not per token.
    pub fn rpc(&self, method: &'static str, code: &'static str) {
        let Some(inner) = &self.0 else { return };
        Register(&inner.recorder)
            .counter(
                "ebb:rpcs",
                "gRPC calls by method and status.",
                &[("method", method), ("code", code)],
            )
            .increment(1);
    }

    /// A call over HTTP was answered with this status. Looks the counter up: once per call.
    pub fn http(&self, route: &str, status: u16) {
        let Some(inner) = &self.0 else { return };
        Register(&inner.recorder)
            .counter(
                "ebb:http_requests",
                "Calls of the HTTP API by route and status.",
                &[("route", route), ("status", &status.to_string())],
            )
            .increment(1);
    }

    /// A trajectory went to its log, or was lost. Looks the counter up: once per choice.
    pub fn trajectory(&self, is_written: bool) {
        let Some(inner) = &self.0 else { return };
        let outcome = if is_written { "logged" } else { "lost" };
        Register(&inner.recorder)
            .counter(
                "ebb:trajectories",
                "Trajectories by whether they could be written to the log.",
                &[("outcome", outcome)],
            )
            .increment(1);
    }

    /// Exposes the KV cache's settings.
    pub fn cache_config(&self, config: &CacheConfig) {
        let Some(inner) = &self.0 else { return };
        let labels = [
            ("block_size", config.block_tokens.to_string()),
            ("num_gpu_blocks", config.blocks.to_string()),
            ("enable_prefix_caching", config.prefix_cache.to_string()),
            ("cache_dtype", "bfloat16".to_owned()),
        ];
        let labels = labels.each_ref().map(|(k, v)| (*k, v.as_str()));
        Register(&inner.recorder)
            .gauge(
                "vllm:cache_config_info",
                "Always 1; the KV cache's settings are labels.",
                &labels,
            )
            .set(1.0);
    }

    /// Exposes the bytes of weights by format.
    pub fn weights(&self, bytes: &[(String, u64)]) {
        let Some(inner) = &self.0 else { return };
        for (format, bytes) in bytes {
            Register(&inner.recorder)
                .gauge(
                    "ebb:weights_bytes",
                    "Size of the model's weights, by the format that they are held in.",
                    &[("format", format.as_str())],
                )
                .set(*bytes as f64);
        }
    }

    /// Exposes how many sequences may run and how many requests may wait.
    pub fn limits(&self, running: usize, waiting: usize) {
        let Some(inner) = &self.0 else { return };
        for (state, limit) in [("running", running), ("waiting", waiting)] {
            Register(&inner.recorder)
                .gauge(
                    "ebb:max_requests",
                    "Sequences that may run, and requests that may wait.",
                    &[("state", state)],
                )
                .set(limit as f64);
        }
    }

    /// Sorts buffered samples into buckets, so that they do not pile up between scrapes. A server
    /// calls it about every second, off the engine thread, which does it itself otherwise.
    pub fn upkeep(&self) {
        if let Some(inner) = &self.0 {
            inner.steps_since_upkeep.store(0, Ordering::Relaxed);
            inner.handle.run_upkeep();
        }
    }

    /// Everything in Prometheus' text format; empty when disabled.
    pub fn render(&self, now: &EngineGauges) -> String {
        let Some(inner) = &self.0 else {
            return String::new();
        };
        inner.engine.set(now);
        let register = Register(&inner.recorder);
        for format in FormatId::ALL {
            let used = now.kv.formats.iter().find(|f| f.format == format.name());
            let labels = [("format", format.name())];
            register
                .gauge(
                    "ebb:kv_format_bytes",
                    "Bytes of the KV pool by page format.",
                    &labels,
                )
                .set(used.map_or(0.0, |f| f.bytes as f64));
            register
                .gauge(
                    "ebb:kv_format_pages",
                    "Pages (a block's part for a layer and side) by format.",
                    &labels,
                )
                .set(used.map_or(0.0, |f| f.pages as f64));
            register
                .gauge(
                    "ebb:kv_cached_format_bytes",
                    "Bytes of the KV pool that only the prefix cache keeps, by page format.",
                    &labels,
                )
                .set(used.map_or(0.0, |f| f.cached_bytes as f64));
        }
        register
            .gauge(
                "ebb:texts_waiting",
                "Texts that wait to be tokenised, templates included.",
                &[],
            )
            .set(now.texts_waiting as f64);
        now.clients.set(&register);
        inner.handle.render()
    }
}

impl EngineHandles {
    fn set(&self, now: &EngineGauges) {
        self.running.set(now.running as f64);
        self.waiting.set(now.waiting as f64);
        self.waiting_capacity.set(now.waiting as f64);
        let share = now.kv_bytes_live as f64 / now.kv_bytes_total.max(1) as f64;
        self.kv_usage.set(share);
        self.kv_pool.set(now.kv_bytes_total as f64);
        self.kv_live.set(now.kv_bytes_live as f64);
        self.kv_cached.set(now.kv_bytes_cached as f64);
        let free = now
            .kv_bytes_total
            .saturating_sub(now.kv_bytes_live + now.kv_bytes_cached);
        self.kv_free.set(free as f64);
        self.preemptions.absolute(now.preemptions);
        self.prefix_queries.absolute(now.prefix_queries);
        self.prefix_hits.absolute(now.prefix_hits);
        self.steps.absolute(now.steps);
        self.step_age.set(now.step_age.as_secs_f64());
        self.tokens_computed.absolute(now.tokens_computed);
        self.tokens_thrown_away.absolute(now.tokens_thrown_away);
        let kv = &now.kv;
        self.bits_stored.set(kv.stored_bits);
        self.bits_floor.set(kv.floor_bits);
        self.request_bits_mean.set(kv.running_bits);
        self.request_bits_lowest
            .set(f64::from(kv.running_bits_lowest));
        self.changes_mean.set(kv.level_changes_mean);
        self.changes_max.set(f64::from(kv.level_changes_max));
        self.changes_all.set(f64::from(kv.level_changes));
        self.shrinks_live.absolute(kv.shrinks_live);
        self.shrinks_cached.absolute(kv.shrinks_cached);
        self.shrink_failures.absolute(kv.shrink_failures);
        self.shrunk_bytes.absolute(kv.shrunk_bytes);
        self.preemptions_avoided
            .absolute(kv.preemptions_avoided as u64);
        self.stalls.absolute(kv.stalls);
        self.promised.set(kv.promised_bytes as f64);
        self.waste.set(kv.waste_bytes as f64);
        self.shrinkable.set(kv.shrinkable_bytes as f64);
        let (low, high) = kv.watermarks_bytes;
        self.watermark_low.set(low as f64);
        self.watermark_high.set(high as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of the one sample line that starts with `prefix`.
    fn value(text: &str, prefix: &str) -> f64 {
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with(prefix)).collect();
        let [line] = lines[..] else {
            panic!("{prefix}: {lines:?}")
        };
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn gauges_and_engine_counters_show_the_state_at_the_scrape() {
        let recorder = Recorder::new("m", 4096);
        let now = EngineGauges {
            running: 3,
            waiting: 2,
            kv_bytes_total: 1000,
            kv_bytes_live: 250,
            kv_bytes_cached: 100,
            steps: 7,
            step_age: Duration::from_millis(1500),
            preemptions: 1,
            prefix_queries: 40,
            prefix_hits: 30,
            tokens_computed: 500,
            tokens_thrown_away: 20,
            kv: KvState {
                formats: vec![FormatUse {
                    format: "int4",
                    pages: 60,
                    bytes: 4000,
                    cached_bytes: 1500,
                }],
                shrinks_live: 5,
                waste_bytes: 77,
                shrinkable_bytes: 33,
                watermarks_bytes: (20, 50),
                preemptions_avoided: 2.75,
                ..KvState::default()
            },
            ..EngineGauges::default()
        };
        let text = recorder.render(&now);
        assert!(text.contains("vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 3"));
        assert_eq!(value(&text, "vllm:num_requests_waiting{"), 2.0);
        assert_eq!(value(&text, "vllm:kv_cache_usage_perc{"), 0.25);
        assert_eq!(value(&text, "vllm:prefix_cache_hits_total{"), 30.0);
        assert_eq!(value(&text, "vllm:num_preemptions_total{"), 1.0);
        assert_eq!(value(&text, "ebb:steps_total{"), 7.0);
        assert_eq!(value(&text, "ebb:step_age_seconds{"), 1.5);
        assert_eq!(value(&text, "ebb:tokens_thrown_away_total{"), 20.0);
        assert!(text.contains("state=\"free\"} 650"), "{text}");
        assert!(text.contains("format=\"int4\"} 4000"), "{text}");
        assert!(text.contains("format=\"int4\"} 1500"), "{text}");
        assert_eq!(value(&text, "ebb:kv_waste_bytes{"), 77.0);
        assert_eq!(value(&text, "ebb:kv_shrinkable_bytes{"), 33.0);
        assert!(text.contains("mark=\"low\"} 20"), "{text}");
        assert!(text.contains("mark=\"high\"} 50"), "{text}");
        assert!(text.contains("holder=\"requests\"} 5"), "{text}");
        assert_eq!(value(&text, "ebb:preemptions_avoided_total{"), 2.0);
        // A format that goes out of use falls to zero.
        let later = recorder.render(&EngineGauges::default());
        assert!(later.contains("format=\"int4\"} 0"), "{later}");
    }

    #[test]
    fn lost_trajectories_are_counted_apart() {
        let recorder = Recorder::new("m", 4096);
        for is_written in [true, false, true] {
            recorder.trajectory(is_written);
        }
        let text = recorder.render(&EngineGauges::default());
        assert!(text.contains("outcome=\"logged\"} 2"), "{text}");
        assert!(text.contains("outcome=\"lost\"} 1"), "{text}");
    }

    #[test]
    fn a_step_counts_prompt_and_generated_tokens_together() {
        let recorder = Recorder::new("m", 4096);
        recorder.step(&StepStats {
            prompt_tokens: 100,
            generation_tokens: 28,
            ..Default::default()
        });
        let text = recorder.render(&EngineGauges::default());
        assert_eq!(value(&text, "vllm:iteration_tokens_total_sum"), 128.0);
        // `le` bounds include their value.
        let below = "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"64\"}";
        let at = "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"128\"}";
        assert_eq!((value(&text, below), value(&text, at)), (0.0, 1.0));
    }

    #[test]
    fn no_sample_is_lost_when_the_engine_thread_sorts_them() {
        let recorder = Recorder::new("m", 4096);
        for _ in 0..2 * UPKEEP_STEPS + 5 {
            recorder.step(&StepStats::default());
        }
        let text = recorder.render(&EngineGauges::default());
        let count = value(&text, "vllm:iteration_tokens_total_count");
        assert_eq!(count, f64::from(2 * UPKEEP_STEPS + 5));
    }

    #[test]
    fn calls_and_cache_settings_become_labels() {
        let recorder = Recorder::new("m", 4096);
        recorder.rpc("Generate", "OK");
        recorder.rpc("Generate", "OK");
        recorder.cache_config(&CacheConfig {
            block_tokens: 128,
            blocks: 9,
            prefix_cache: true,
        });
        recorder.limits(8, 64);
        let weights = [("int4".to_owned(), 3 << 30), ("bf16".to_owned(), 500)];
        recorder.weights(&weights);
        let text = recorder.render(&EngineGauges::default());
        let calls = text
            .lines()
            .find(|l| l.starts_with("ebb:rpcs_total{") && l.contains("code=\"OK\""));
        assert!(calls.is_some_and(|l| l.ends_with(" 2")), "{text}");
        assert!(text.contains("num_gpu_blocks=\"9\""));
        assert!(text.contains("state=\"running\"} 8"), "{text}");
        assert!(text.contains("state=\"waiting\"} 64"), "{text}");
        let of_weights = text.lines().filter(|l| l.starts_with("ebb:weights_bytes{"));
        assert_eq!(of_weights.count(), 2);
        assert!(text.contains("format=\"int4\"} 3221225472"), "{text}");
        assert!(text.contains("format=\"bf16\"} 500"), "{text}");
    }

    #[test]
    fn a_disabled_recorder_says_nothing() {
        let recorder = Recorder::disabled();
        recorder.step(&StepStats::default());
        drop(recorder.request(Instant::now(), 1, 1));
        assert_eq!(recorder.render(&EngineGauges::default()), "");
    }
}
