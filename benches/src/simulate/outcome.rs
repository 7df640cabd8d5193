//! What a replay came to.

use std::time::Duration;

use ebb_block_manager::SeqBits;
use ebb_scheduler::Scheduler;
use serde::Serialize;

use super::setup::{Setup, Targets};
use super::size::Size;
use super::trace::Trace;

/// Sums over the steps of a replay; `*_seconds` are weighted with the time that each took.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    pub(super) seconds: f64,
    pub(super) resident: f64,
    pub(super) resident_max: u32,
    pub(super) token_seconds: f64,
    pub(super) byte_seconds: f64,
    pub(super) frame_byte_seconds: f64,
    pub(super) pool_byte_seconds: f64,
    pub(super) bytes_read: f64,
    pub(super) tokens_read: u64,
    plans: u64,
    planning: Duration,
    planning_max: Duration,
}

impl Sums {
    pub(super) fn planned(&mut self, took: Duration) {
        self.plans += 1;
        self.planning += took;
        self.planning_max = self.planning_max.max(took);
    }
}

/// Requests that are over.
#[derive(Debug, Clone)]
pub(super) struct Served {
    targets: Targets,
    good: usize,
    rejected: usize,
    tokens: u64,
    ttft: Vec<f32>,
    tpot: Vec<f32>,
    /// Tokens computed, and the sum of their bits.
    computed: f64,
    bits: f64,
}

impl Served {
    pub(super) fn new(targets: Targets) -> Self {
        Self {
            targets,
            good: 0,
            rejected: 0,
            tokens: 0,
            ttft: Vec::new(),
            tpot: Vec::new(),
            computed: 0.0,
            bits: 0.0,
        }
    }

    pub(super) fn reject(&mut self) {
        self.rejected += 1;
    }

    /// `tpot`: mean time between tokens, of answers that have two.
    pub(super) fn finish(&mut self, ttft: f64, tpot: Option<f64>, tokens: u32, bits: SeqBits) {
        let met = ttft <= self.targets.ttft && tpot.is_none_or(|t| t <= self.targets.tpot);
        self.good += usize::from(met);
        self.tokens += u64::from(tokens);
        self.ttft.push(ttft as f32);
        self.tpot.extend(tpot.map(|t| t as f32));
        self.computed += bits.tokens as f64;
        self.bits += bits.tokens as f64 * f64::from(bits.mean_centibits) / 100.0;
    }

    /// Requests that missed a target or were rejected.
    pub(super) fn misses(&self) -> usize {
        self.rejected + self.ttft.len() - self.good
    }
}

/// The figures of one replay. Times are in the model's seconds unless a name says host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What gives way when memory is full.
    pub mode: &'static str,
    /// Memory of the KV cache.
    pub kv_gib: f64,
    /// Requests a second that arrive.
    pub rate: f64,
    /// Requests that arrive.
    pub requests: usize,
    /// Requests that finished.
    pub served: usize,
    /// Requests turned away.
    pub rejected: usize,
    /// Requests within both targets.
    pub good: usize,
    /// Requests within both targets, of all that arrive.
    pub attained: f64,
    /// Requests within both targets for each second in which requests arrive.
    pub goodput: f64,
    /// Seconds to the first token: half of the requests are below.
    pub ttft_p50: f64,
    /// ... 99 % are below.
    pub ttft_p99: f64,
    /// Seconds between two tokens, on an answer's average: half of the answers are below.
    pub tpot_p50: f64,
    /// ... 99 % are below.
    pub tpot_p99: f64,
    /// Tokens generated a second, until the last request is done.
    pub output_tokens_per_second: f64,
    /// Sequences with memory, averaged over the time in which steps run.
    pub resident_mean: f64,
    /// The most at once.
    pub resident_max: u32,
    /// Share of the pool's frames that sequences hold, averaged likewise.
    pub pool_used: f64,
    /// Times that a sequence lost its memory.
    pub preemptions: u64,
    /// Tokens that it had in the KV cache then; what the prefix cache still has of them is not
    /// computed again.
    pub preempted_tokens: u64,
    /// Times that a sequence could not go on in a step because memory was yet to come free by
    /// shrinking.
    pub stalls: u64,
    /// Blocks transcoded.
    pub shrinks: u64,
    /// Bits of a stored token's elements: bytes of codes and metadata held x 16, over the bytes
    /// that the same tokens take at 16 bit; both summed over the blocks and over time.
    pub bits_stored: f64,
    /// The same over the bytes read: every token stored counts each time a step reads it.
    pub bits_read: f64,
    /// Mean bits that the scheduler tells its clients, averaged over the tokens computed.
    pub bits_told: f64,
    /// Bytes of frames held beyond those of codes and metadata in them, over the latter.
    pub fragmentation: f64,
    /// Steps.
    pub steps: u64,
    /// Seconds that the device runs.
    pub busy_seconds: f64,
    /// Seconds to the end of the last request.
    pub seconds: f64,
    /// Microseconds of host time for planning a step, real ones: the mean ...
    pub host_plan_us_mean: f64,
    /// ... and the longest, which what else the machine does adds to.
    pub host_plan_us_max: f64,
}

impl Outcome {
    pub(super) fn new(
        setup: &Setup,
        trace: &Trace,
        mut served: Served,
        sums: &Sums,
        scheduler: &Scheduler,
        seconds: f64,
    ) -> Self {
        let stats = scheduler.stats();
        let token_bytes = setup.shape.geometry.token_bytes() as f64;
        let over = |sum: f64, of: f64| if of > 0.0 { sum / of } else { 0.0 };
        let bits = |bytes: f64, tokens: f64| match tokens > 0.0 {
            true => bytes * 16.0 / (tokens * token_bytes),
            false => 16.0,
        };
        Self {
            mode: setup.limits.mode.name(),
            kv_gib: Size(setup.kv_bytes).gib(),
            rate: trace.rate(),
            requests: trace.len(),
            served: served.ttft.len(),
            rejected: served.rejected,
            good: served.good,
            attained: served.good as f64 / trace.len() as f64,
            goodput: served.good as f64 / trace.seconds(),
            ttft_p50: quantile(&mut served.ttft, 0.5),
            ttft_p99: quantile(&mut served.ttft, 0.99),
            tpot_p50: quantile(&mut served.tpot, 0.5),
            tpot_p99: quantile(&mut served.tpot, 0.99),
            output_tokens_per_second: over(served.tokens as f64, seconds),
            resident_mean: over(sums.resident, sums.seconds),
            resident_max: sums.resident_max,
            pool_used: over(sums.frame_byte_seconds, sums.pool_byte_seconds),
            preemptions: stats.preemptions,
            preempted_tokens: stats.preempted_tokens,
            stalls: stats.stalls,
            shrinks: stats.shrinks,
            bits_stored: bits(sums.byte_seconds, sums.token_seconds),
            bits_read: bits(sums.bytes_read, sums.tokens_read as f64),
            bits_told: match served.computed > 0.0 {
                true => served.bits / served.computed,
                // Where nothing can shrink, nothing is noted.
                false => 16.0,
            },
            fragmentation: over(sums.frame_byte_seconds, sums.byte_seconds) - 1.0,
            steps: stats.steps,
            busy_seconds: sums.seconds,
            seconds,
            host_plan_us_mean: over(sums.planning.as_secs_f64() * 1e6, sums.plans as f64),
            host_plan_us_max: sums.planning_max.as_secs_f64() * 1e6,
        }
    }

    /// The figures without those of the host, which differ from run to run.
    #[must_use]
    pub fn without_host(self) -> Self {
        Self {
            host_plan_us_mean: 0.0,
            host_plan_us_max: 0.0,
            ..self
        }
    }
}

/// The smallest value that at least a share `q` does not exceed; 0 of none.
fn quantile(values: &mut [f32], q: f64) -> f64 {
    let rank = (values.len() as f64 * q).ceil() as usize;
    if values.is_empty() {
        return 0.0;
    }
    let at = rank.clamp(1, values.len()) - 1;
    f64::from(*values.select_nth_unstable_by(at, f32::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_values_that_occur() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&mut values, 0.5), 2.0);
        assert_eq!(quantile(&mut values, 0.99), 4.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }
}
