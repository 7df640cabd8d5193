//! The clock and counts of one request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::recorder::Inner;

/// How a request ended; each request has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every choice is complete.
    Completed,
    /// The client went away or called Abort.
    Aborted,
    /// Its deadline passed.
    DeadlineExceeded,
    /// Its reader let too much output pile up.
    SlowReader,
    /// Refused: the queue was full.
    QueueFull,
    /// Refused: clients hold as much memory as they may.
    ClientMemory,
    /// Refused or ended: the server was shutting down.
    ShuttingDown,
    /// Refused: it can never be served (for instance, the prompt is too long).
    Invalid,
    /// The engine failed.
    Error,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Completed,
        Self::Aborted,
        Self::DeadlineExceeded,
        Self::SlowReader,
        Self::QueueFull,
        Self::ClientMemory,
        Self::ShuttingDown,
        Self::Invalid,
        Self::Error,
    ];

    /// The value of the label `outcome`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Aborted => "aborted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::SlowReader => "slow_reader",
            Self::QueueFull => "queue_full",
            Self::ClientMemory => "client_memory",
            Self::ShuttingDown => "shutting_down",
            Self::Invalid => "invalid",
            Self::Error => "error",
        }
    }
}

/// Why a choice ended, as vLLM's label `finished_reason` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop string, a stop id or the end token.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The request was ended from outside.
    Abort,
    /// The engine failed.
    Error,
}

impl Finish {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// One choice's part.
#[derive(Debug, Clone, Copy, Default)]
struct Choice {
    last_token: Option<Instant>,
    tokens: u32,
    finished: bool,
}

/// Times one request and counts its tokens. Dropped before [`RequestMeter::end`], it counts as
/// aborted.
pub struct RequestMeter {
    /// None when nothing is recorded, or once the end is.
    inner: Option<Arc<Inner>>,
    arrived: Instant,
    scheduled: Option<Instant>,
    first_token: Option<Instant>,
    n: u32,
    max_tokens: u32,
    prompt_tokens: usize,
    cached_tokens: usize,
    preemptions: u32,
    choices: Vec<Choice>,
}

impl RequestMeter {
    pub(super) fn new(
        inner: Option<Arc<Inner>>,
        arrived: Instant,
        n: u32,
        max_tokens: u32,
    ) -> Self {
        if let Some(inner) = &inner {
            inner.requests.received.increment(1);
        }
        Self {
            inner,
            arrived,
            scheduled: None,
            first_token: None,
            n,
            max_tokens,
            prompt_tokens: 0,
            cached_tokens: 0,
            preemptions: 0,
            choices: Vec::new(),
        }
    }

    /// Its first slice is in a step, with this many tokens of the prompt found in the prefix cache.
    /// Later calls (after a preemption) change nothing.
    pub fn scheduled(&mut self, now: Instant, prompt_tokens: usize, cached_tokens: usize) {
        if self.scheduled.is_none() {
            self.scheduled = Some(now);
            self.prompt_tokens = prompt_tokens;
            self.cached_tokens = cached_tokens;
        }
    }

    /// One of its sequences lost its pages.
    pub fn preempted(&mut self) {
        self.preemptions += 1;
    }

    /// `count` more tokens of a choice exist.
    pub fn tokens(&mut self, now: Instant, choice: u32, count: u32) {
        let Some(inner) = &self.inner else { return };
        let r = &inner.requests;
        r.generation_tokens.increment(u64::from(count));
        if self.first_token.is_none() {
            self.first_token = Some(now);
            r.time_to_first_token.record(now - self.arrived);
            let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
            r.prompt_tokens.increment(self.prompt_tokens as u64);
            r.prompt_tokens_computed.increment(computed as u64);
            r.prompt_tokens_hit.increment(self.cached_tokens as u64);
            r.prompt_tokens_cached.increment(self.cached_tokens as u64);
        }
        let choice = choice_mut(&mut self.choices, choice);
        if let Some(last) = choice.last_token.replace(now) {
            r.inter_token.record(now - last);
        }
        choice.tokens += count;
    }

    /// A choice is complete, computed from keys and values of `kv_bits` on average.
    pub fn choice_finished(&mut self, choice: u32, reason: Finish, kv_bits: f32) {
        let Some(inner) = &self.inner else { return };
        inner.requests.request_kv_bits.record(f64::from(kv_bits));
        inner.requests.success[reason as usize].increment(1);
        choice_mut(&mut self.choices, choice).finished = true;
    }

    /// The request is over.
    pub fn end(mut self, now: Instant, outcome: Outcome) {
        self.record_end(now, outcome);
    }

    fn record_end(&mut self, now: Instant, outcome: Outcome) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        let r = &inner.requests;
        r.ended[outcome as usize].increment(1);
        let unfinished = match outcome {
            Outcome::Completed => return self.record_request(&inner, now),
            Outcome::QueueFull => return r.rejected_queue_full.increment(1),
            Outcome::Invalid => return,
            // Refused before it ran.
            Outcome::ClientMemory if self.scheduled.is_none() => return,
            // Refused at the gate, or ended at the end of the grace period.
            Outcome::ShuttingDown if self.scheduled.is_none() => {
                return r.rejected_shutting_down.increment(1);
            }
            Outcome::Error => Finish::Error,
            Outcome::Aborted
            | Outcome::DeadlineExceeded
            | Outcome::SlowReader
            | Outcome::ClientMemory
            | Outcome::ShuttingDown => Finish::Abort,
        };
        let finished = self.choices.iter().filter(|c| c.finished).count() as u64;
        let open = u64::from(self.n).saturating_sub(finished);
        r.success[unfinished as usize].increment(open);
        if self.scheduled.is_some() {
            self.record_request(&inner, now);
        }
    }

    /// What the histograms of requests hold, of one that is complete or has been in a step.
    fn record_request(&self, inner: &Inner, now: Instant) {
        let r = &inner.requests;
        r.request_n.record(f64::from(self.n));
        r.request_max_tokens.record(f64::from(self.max_tokens));
        r.request_prompt_tokens.record(self.prompt_tokens as f64);
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        r.request_computed_tokens.record(computed as f64);
        r.request_preemptions.record(f64::from(self.preemptions));
        for choice in &self.choices {
            r.request_generation_tokens.record(f64::from(choice.tokens));
        }
        let longest = self.choices.iter().map(|c| c.tokens).max().unwrap_or(0);
        r.request_max_generation_tokens.record(f64::from(longest));

        r.e2e.record(now - self.arrived);
        let Some(scheduled) = self.scheduled else {
            return;
        };
        r.queue.record(scheduled - self.arrived);
        let last = self.choices.iter().filter_map(|c| c.last_token).max();
        let (Some(first), Some(last)) = (self.first_token, last) else {
            return;
        };
        r.prefill.record(first - scheduled);
        r.decode.record(last - first);
        r.inference.record(last - scheduled);
        if longest > 1 {
            let per_token: Duration = (last - first) / (longest - 1);
            r.time_per_output_token.record(per_token);
        }
    }
}

/// The entry of a choice, made when it is first heard of.
fn choice_mut(choices: &mut Vec<Choice>, index: u32) -> &mut Choice {
    let index = index as usize;
    if choices.len() <= index {
        choices.resize(index + 1, Choice::default());
    }
    &mut choices[index]
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        self.record_end(Instant::now(), Outcome::Aborted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EngineGauges, Recorder};
    use super::*;

    fn lines(recorder: &Recorder) -> Vec<String> {
        let text = recorder.render(&EngineGauges::default());
        text.lines().map(str::to_owned).collect()
    }

    fn value(lines: &[String], name: &str, label: &str) -> f64 {
        let line = lines
            .iter()
            .find(|l| l.starts_with(name) && l.contains(label))
            .unwrap_or_else(|| panic!("{name} {label} is missing"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_completed_request_is_timed_from_end_to_end() {
        let recorder = Recorder::new("m", 8192);
        let t0 = Instant::now();
        let at = |ms| t0 + Duration::from_millis(ms);
        let mut meter = recorder.request(t0, 2, 16);
        meter.scheduled(at(100), 200, 128);
        meter.preempted();
        meter.scheduled(at(150), 999, 999); // ignored: not the first
        meter.tokens(at(300), 0, 1);
        meter.tokens(at(300), 1, 1);
        meter.tokens(at(400), 0, 1);
        meter.tokens(at(600), 0, 1);
        meter.choice_finished(1, Finish::Stop, 16.0);
        meter.choice_finished(0, Finish::Length, 16.0);
        meter.end(at(700), Outcome::Completed);

        let l = lines(&recorder);
        for (name, want) in [
            ("vllm:request_queue_time_seconds_sum", 0.1),
            ("vllm:time_to_first_token_seconds_sum", 0.3),
            ("vllm:request_prefill_time_seconds_sum", 0.2),
            ("vllm:request_decode_time_seconds_sum", 0.3),
            ("vllm:request_inference_time_seconds_sum", 0.5),
            ("vllm:e2e_request_latency_seconds_sum", 0.7),
            ("vllm:request_time_per_output_token_seconds_sum", 0.15),
            ("vllm:inter_token_latency_seconds_sum", 0.3),
            ("vllm:inter_token_latency_seconds_count", 2.0),
            ("vllm:request_params_n_sum", 2.0),
            ("vllm:request_params_max_tokens_sum", 16.0),
            ("vllm:request_num_preemptions_sum", 1.0),
            ("vllm:request_prompt_tokens_sum", 200.0),
            ("vllm:request_prefill_kv_computed_tokens_sum", 72.0),
            ("vllm:request_generation_tokens_count", 2.0),
            ("vllm:request_max_num_generation_tokens_sum", 3.0),
            ("vllm:generation_tokens_total", 4.0),
            ("vllm:prompt_tokens_total", 200.0),
            ("vllm:prompt_tokens_cached_total", 128.0),
        ] {
            assert!((value(&l, name, "") - want).abs() < 1e-9, "{name}");
        }
        let success = "vllm:request_success_total";
        assert_eq!(value(&l, success, "\"stop\""), 1.0);
        assert_eq!(value(&l, success, "\"length\""), 1.0);
    }

    #[test]
    fn every_request_has_one_outcome() {
        let recorder = Recorder::new("m", 8192);
        for outcome in Outcome::ALL {
            recorder
                .request(Instant::now(), 1, 1)
                .end(Instant::now(), outcome);
        }
        drop(recorder.request(Instant::now(), 1, 1)); // one more aborted
        let l = lines(&recorder);
        assert_eq!(value(&l, "ebb:requests_received_total", ""), 10.0);
        for outcome in Outcome::ALL {
            let want = if outcome == Outcome::Aborted {
                2.0
            } else {
                1.0
            };
            let label = format!("outcome=\"{}\"", outcome.as_str());
            assert_eq!(value(&l, "ebb:requests_ended_total", &label), want);
        }
        let rejected = "vllm:admission_rejections_total";
        assert_eq!(value(&l, rejected, "queue_full"), 1.0);
        assert_eq!(value(&l, rejected, "shutting_down"), 1.0);
        assert_eq!(value(&l, "vllm:e2e_request_latency_seconds_count", ""), 1.0);
    }

    #[test]
    fn an_aborted_request_that_ran_is_in_the_histograms() {
        let recorder = Recorder::new("m", 8192);
        for outcome in [Outcome::Aborted, Outcome::ClientMemory] {
            let mut meter = recorder.request(Instant::now(), 1, 8);
            meter.scheduled(Instant::now(), 1, 0);
            meter.end(Instant::now(), outcome);
            recorder
                .request(Instant::now(), 1, 8)
                .end(Instant::now(), outcome);
        }
        let l = lines(&recorder);
        assert_eq!(value(&l, "vllm:e2e_request_latency_seconds_count", ""), 2.0);
    }

    #[test]
    fn choices_left_open_by_an_abort_are_counted_once_each() {
        let recorder = Recorder::new("m", 8192);
        let mut meter = recorder.request(Instant::now(), 4, 8);
        meter.scheduled(Instant::now(), 1, 0);
        meter.tokens(Instant::now(), 0, 1);
        meter.choice_finished(0, Finish::Stop, 16.0);
        drop(meter);
        let l = lines(&recorder);
        let success = "vllm:request_success_total";
        assert_eq!(value(&l, success, "\"abort\""), 3.0);
        assert_eq!(value(&l, success, "\"stop\""), 1.0);
    }
}
