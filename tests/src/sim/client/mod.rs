//! The clients' side: what was asked for, what came, and whether that is right.

mod notices;

use std::collections::BTreeMap;

use ebb_scheduler::{FinishReason, Millis, Mode, Request};

use super::device::Expected;
use super::model::{Context, Sampled};
use super::settings::Settings;
use super::workload::Generated;

/// A choice, as its client sees it.
#[derive(Clone, Debug, Default)]
pub struct ChoiceRecord {
    /// Tokens sampled for it by steps that counted.
    pub tokens: Vec<u32>,
    contexts: Vec<Context>,
    /// Of those, tokens before its end.
    pub accepted: usize,
    /// How it ended.
    pub ended: Option<FinishReason>,
    failures: u32,
    /// Times that it was preempted.
    preemptions: u32,
    /// Lowest bits of anything that it was computed from. `None`: nothing was computed.
    lowest: Option<u8>,
}

/// A request, as its client sees it.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// What was asked for.
    pub request: Request,
    /// Seed of its sampler.
    pub sampling_seed: u64,
    /// Its choices.
    pub choices: Vec<ChoiceRecord>,
    /// Whether its choices have forked.
    pub forked: bool,
    rejected: bool,
    admitted: bool,
    prompt_contexts: Vec<Context>,
    arrival_step: u64,
    rows_done: u32,
    shared_failures: u32,
}

impl RequestRecord {
    fn is_over(&self) -> bool {
        self.rejected || self.choices.iter().all(|c| c.ended.is_some())
    }

    /// The tokens that a slice for `choice` works on.
    fn expected(&self, choice: u32, of: &Clients) -> Expected<'_> {
        let own = &self.choices[choice as usize];
        let (tokens, contexts) = (&own.tokens[..], &own.contexts[..]);
        Expected {
            min_kv_bits: self.request.min_kv_bits,
            // The choices of one request share blocks, and go on at different times.
            is_fixed: of.mode_is_fixed && self.request.n == 1,
            recent_permille: of.recent_permille,
            chunk: of.chunk,
            prompt: &self.request.prompt,
            prompt_contexts: &self.prompt_contexts,
            tokens,
            contexts,
        }
    }

    /// Context after all known tokens of a choice.
    pub fn context(&self, choice: u32) -> Context {
        let own = self.choices[choice as usize].contexts.last();
        own.or(self.prompt_contexts.last())
            .copied()
            .unwrap_or_default()
    }
}

/// A call that plans a step.
#[derive(Clone, Copy, Debug)]
pub struct Planning {
    /// The step's number, whether it was planned or not.
    pub step: u64,
    /// Running sequences before.
    pub running: usize,
}

/// The records of all requests.
#[derive(Debug)]
pub struct Clients {
    records: Vec<RequestRecord>,
    stop_one_in: u64,
    /// The mode fixes the level of every block that is read.
    mode_is_fixed: bool,
    /// Tokens of a prompt that read each other at 16 bit, if the mode has chunks of them.
    chunk: Option<usize>,
    /// Share of the recent context that stays at 16 bit, in thousandths.
    recent_permille: u32,
    /// A preemption would mean that a promise was not kept, or that blocks shrank too late.
    preemption_is_a_bug: bool,
    /// Some blocks cannot be encoded.
    shrinks_fail: bool,
    /// Ends that the next notices must bring.
    expected_ends: BTreeMap<(u64, u32), FinishReason>,
    last_admission: Option<Planning>,
}

impl Clients {
    /// No clients.
    pub fn new(settings: &Settings) -> Self {
        let config = &settings.scheduler;
        let all_shrink = settings.fail_shrink_one_in == 0;
        Self {
            records: Vec::new(),
            stop_one_in: settings.stop_one_in,
            mode_is_fixed: config.mode == Mode::Static && all_shrink,
            chunk: (config.mode == Mode::Static).then_some(config.static_chunk as usize),
            recent_permille: config.recent_permille,
            shrinks_fail: config.mode.shrinks() && !all_shrink,
            preemption_is_a_bug: config.mode.shrinks()
                && all_shrink
                && config.overcommit_percent <= 100
                && settings.fail_one_in == 0
                // A state that went on without its sample cannot go back.
                && (settings.pool.states.is_none() || settings.lose_one_in == 0),
            expected_ends: BTreeMap::new(),
            last_admission: None,
        }
    }

    /// Opens a record for a request.
    pub fn open(&mut self, generated: &Generated, arrival_step: u64) {
        let Generated {
            request,
            sampling_seed,
        } = generated.clone();
        let mut context = Context::default();
        let extend = |token: &u32| {
            context = context.then(*token);
            context
        };
        self.records.push(RequestRecord {
            prompt_contexts: request.prompt.iter().map(extend).collect(),
            choices: vec![ChoiceRecord::default(); request.n as usize],
            sampling_seed,
            forked: request.n == 1,
            rejected: false,
            admitted: false,
            arrival_step,
            rows_done: 0,
            shared_failures: 0,
            request,
        });
    }

    /// The tokens that a slice for a choice works on.
    pub fn expected(&self, request: u64, choice: u32) -> Expected<'_> {
        self.record(request).expected(choice, self)
    }

    /// Notes that a slice of a choice read nothing below `lowest` bits.
    pub fn read(&mut self, request: u64, choice: u32, lowest: u8) {
        let record = &mut self.records[request as usize];
        let shared = !record.forked;
        for (index, own) in record.choices.iter_mut().enumerate() {
            if shared || index == choice as usize {
                own.lowest = Some(own.lowest.map_or(lowest, |l| l.min(lowest)));
            }
        }
    }

    /// A request's record.
    pub fn record(&self, request: u64) -> &RequestRecord {
        &self.records[request as usize]
    }

    /// Whether a choice is active, as far as its client knows.
    pub fn is_live(&self, request: u64, choice: u32) -> bool {
        let record = self.record(request);
        !record.rejected && record.choices[choice as usize].ended.is_none()
    }

    /// The `nth` of the requests that have not ended, if any.
    pub fn live(&self, nth: u64) -> Option<u64> {
        let live = (0..self.records.len() as u64).filter(|r| !self.record(*r).is_over());
        let live: Vec<u64> = live.collect();
        live.get((nth % live.len().max(1) as u64) as usize).copied()
    }

    /// Choices that have not ended.
    pub fn choices(&self) -> usize {
        let live = self.records.iter().filter(|record| !record.rejected);
        live.map(|record| record.choices.iter().filter(|c| c.ended.is_none()).count())
            .sum()
    }

    /// Notes that a choice must now end.
    pub fn expect_end(&mut self, request: u64, choice: u32, reason: FinishReason) {
        if self.is_live(request, choice) {
            self.expected_ends.insert((request, choice), reason);
        }
    }

    /// Notes that every active choice of a request must now end.
    pub fn expect_all_end(&mut self, request: u64, reason: FinishReason) {
        for choice in 0..self.record(request).choices.len() as u32 {
            self.expect_end(request, choice, reason);
        }
    }

    /// Notes the ends by deadlines.
    pub fn expect_deadlines(&mut self, now: Millis) {
        for request in 0..self.records.len() as u64 {
            if self
                .record(request)
                .request
                .deadline
                .is_some_and(|deadline| deadline <= now)
            {
                self.expect_all_end(request, FinishReason::DeadlineExceeded);
            }
        }
    }

    /// Notes that a slice of a choice failed.
    pub fn slice_failed(&mut self, request: u64, choice: u32) {
        let record = &mut self.records[request as usize];
        let failures = if record.forked {
            &mut record.choices[choice as usize].failures
        } else {
            &mut record.shared_failures
        };
        *failures += 1;
        if *failures < ebb_scheduler::FAILURES_MAX {
            return;
        }
        if record.forked {
            self.expect_end(request, choice, FinishReason::Error);
        } else {
            self.expect_all_end(request, FinishReason::Error);
        }
    }

    /// Notes that a slice ran over positions `position..end`, with logits of all rows or not.
    pub fn slice_ran(
        &mut self,
        request: u64,
        choice: u32,
        (position, end): (u32, u32),
        all_rows: bool,
    ) -> Result<(), String> {
        let record = &mut self.records[request as usize];
        record.shared_failures = 0;
        record.choices[choice as usize].failures = 0;
        let prompt_len = record.request.prompt.len() as u32;
        if all_rows {
            if !record.request.prompt_logprobs || record.rows_done != position || end > prompt_len {
                let done = record.rows_done;
                return Err(format!(
                    "request {request}: rows {position}..{end} after {done}"
                ));
            }
            record.rows_done = end;
        } else if record.request.prompt_logprobs && position < prompt_len && end > record.rows_done
        {
            return Err(format!(
                "request {request}: rows {position}..{end} without logits"
            ));
        }
        if end == prompt_len && record.request.max_tokens == 0 {
            self.expect_all_end(request, FinishReason::Length);
        }
        Ok(())
    }

    /// Notes that a token was sampled for a choice.
    pub fn sampled(&mut self, request: u64, choice: u32, sampled: Sampled) {
        let record = &mut self.records[request as usize];
        let context = record.context(choice).then(sampled.token);
        let max_tokens = record.request.max_tokens as usize;
        let own = &mut record.choices[choice as usize];
        own.tokens.push(sampled.token);
        own.contexts.push(context);
        if own.ended.is_some() {
            return;
        }
        own.accepted += 1;
        if sampled.finish {
            self.expect_end(request, choice, FinishReason::Stop);
        } else if own.accepted == max_tokens {
            self.expect_end(request, choice, FinishReason::Length);
        }
    }

    /// Notes that the choices of a request fork.
    pub fn fork_choices(&mut self, request: u64) {
        self.records[request as usize].forked = true;
    }
}
