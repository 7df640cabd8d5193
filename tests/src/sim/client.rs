//! The clients' side: what was asked for, what came, and whether that is what should have come.

use std::collections::BTreeMap;

use ebb_block_manager::schedule::Bound;
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig};
use ebb_scheduler::{Config, FinishReason, Millis, Mode, Notice, RejectReason, Request};

use super::device::Expected;
use super::model::{Context, Sampled, naive_answer};
use super::settings::Settings;
use super::workload::Generated;

/// A choice as its client sees it.
#[derive(Clone, Debug, Default)]
pub struct ChoiceBook {
    /// Tokens sampled for it by steps that counted.
    pub tokens: Vec<u32>,
    contexts: Vec<Context>,
    /// Of those, tokens that came before its end.
    pub accepted: usize,
    /// How it ended.
    pub ended: Option<FinishReason>,
    failures: u32,
    /// Lowest width that anything of it was computed from; 0: nothing was computed.
    lowest: Option<u8>,
}

/// A request as its client sees it.
#[derive(Clone, Debug)]
pub struct Book {
    /// What was asked for.
    pub request: Request,
    /// Seed of its sampler.
    pub sampling_seed: u64,
    /// Its choices.
    pub choices: Vec<ChoiceBook>,
    /// Whether its choices have gone separate ways.
    pub parted: bool,
    rejected: bool,
    admitted: bool,
    prompt_contexts: Vec<Context>,
    arrival_step: u64,
    rows_done: u32,
    shared_failures: u32,
}

impl Book {
    fn is_over(&self) -> bool {
        self.rejected || self.choices.iter().all(|c| c.ended.is_some())
    }

    /// The tokens that a slice for `choice` works on.
    fn expected(&self, choice: u32, mode_is_fixed: bool, chunk: Option<usize>) -> Expected<'_> {
        let own = &self.choices[choice as usize];
        let (tokens, contexts) = (&own.tokens[..], &own.contexts[..]);
        Expected {
            min_kv_bits: self.request.min_kv_bits,
            // The choices of one request share blocks, and go on at different times.
            is_fixed: mode_is_fixed && self.request.n == 1,
            chunk,
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

/// The planning of a step.
#[derive(Clone, Copy, Debug)]
pub struct Planning {
    /// The step, or the one it would have been.
    pub step: u64,
    /// Sequences that ran before.
    pub running: usize,
}

/// Everybody's books.
#[derive(Debug)]
pub struct Clients {
    books: Vec<Book>,
    stop_one_in: u64,
    /// Every block that is read is at the place that its mode gives it.
    mode_is_fixed: bool,
    /// Tokens of a prompt that read each other at 16 bit, if the mode has chunks of them.
    chunk: Option<usize>,
    /// Nothing but shrinking too late could make a sequence lose its memory.
    no_excuse: bool,
    /// Some blocks cannot be transcoded.
    shrinks_fail: bool,
    /// Ends that the next notices must tell.
    due: BTreeMap<(u64, u32), FinishReason>,
    last_admission: Option<Planning>,
}

impl Clients {
    /// No clients.
    pub fn new(settings: &Settings) -> Self {
        let config = &settings.scheduler;
        let all_shrink = settings.fail_shrink_one_in == 0;
        Self {
            books: Vec::new(),
            stop_one_in: settings.stop_one_in,
            mode_is_fixed: config.mode == Mode::Static && all_shrink,
            chunk: (config.mode == Mode::Static).then_some(config.static_chunk as usize),
            shrinks_fail: config.mode.shrinks() && !all_shrink,
            no_excuse: config.mode.shrinks()
                && all_shrink
                && config.overcommit_percent <= 100
                && settings.fail_one_in == 0,
            due: BTreeMap::new(),
            last_admission: None,
        }
    }

    /// Opens a book for a request.
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
        self.books.push(Book {
            prompt_contexts: request.prompt.iter().map(extend).collect(),
            choices: vec![ChoiceBook::default(); request.n as usize],
            sampling_seed,
            parted: request.n == 1,
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
        self.book(request)
            .expected(choice, self.mode_is_fixed, self.chunk)
    }

    /// A slice of a sequence read nothing below `lowest`. `choice` is the slice's.
    pub fn read(&mut self, request: u64, choice: u32, lowest: u8) {
        let book = &mut self.books[request as usize];
        let shared = !book.parted;
        for (index, own) in book.choices.iter_mut().enumerate() {
            if shared || index == choice as usize {
                own.lowest = Some(own.lowest.map_or(lowest, |l| l.min(lowest)));
            }
        }
    }

    /// A request's book.
    pub fn book(&self, request: u64) -> &Book {
        &self.books[request as usize]
    }

    /// Whether a choice is live, as far as its client knows.
    pub fn is_live(&self, request: u64, choice: u32) -> bool {
        let book = self.book(request);
        !book.rejected && book.choices[choice as usize].ended.is_none()
    }

    /// A request that has not ended, if any: the `nth` of them.
    pub fn live(&self, nth: u64) -> Option<u64> {
        let live = (0..self.books.len() as u64).filter(|r| !self.book(*r).is_over());
        let live: Vec<u64> = live.collect();
        live.get((nth % live.len().max(1) as u64) as usize).copied()
    }

    /// Choices that have not ended.
    pub fn choices(&self) -> usize {
        let live = self.books.iter().filter(|book| !book.rejected);
        live.map(|book| book.choices.iter().filter(|c| c.ended.is_none()).count())
            .sum()
    }

    /// Notes that a choice must now end.
    pub fn expect_end(&mut self, request: u64, choice: u32, reason: FinishReason) {
        if self.is_live(request, choice) {
            self.due.insert((request, choice), reason);
        }
    }

    /// Notes that every live choice of a request must now end.
    pub fn expect_all_end(&mut self, request: u64, reason: FinishReason) {
        for choice in 0..self.book(request).choices.len() as u32 {
            self.expect_end(request, choice, reason);
        }
    }

    /// Notes the ends that time brings.
    pub fn expect_deadlines(&mut self, now: Millis) {
        for request in 0..self.books.len() as u64 {
            if self
                .book(request)
                .request
                .deadline
                .is_some_and(|deadline| deadline <= now)
            {
                self.expect_all_end(request, FinishReason::DeadlineExceeded);
            }
        }
    }

    /// A slice of a sequence failed. `choice` is the slice's.
    pub fn slice_failed(&mut self, request: u64, choice: u32) {
        let book = &mut self.books[request as usize];
        let failures = if book.parted {
            &mut book.choices[choice as usize].failures
        } else {
            &mut book.shared_failures
        };
        *failures += 1;
        if *failures < ebb_scheduler::FAILURES_MAX {
            return;
        }
        if book.parted {
            self.expect_end(request, choice, FinishReason::Error);
        } else {
            self.expect_all_end(request, FinishReason::Error);
        }
    }

    /// A slice ran over positions `position..end`, all of its rows' logits wanted or not.
    pub fn slice_ran(
        &mut self,
        request: u64,
        choice: u32,
        (position, end): (u32, u32),
        all_rows: bool,
    ) -> Result<(), String> {
        let book = &mut self.books[request as usize];
        book.shared_failures = 0;
        book.choices[choice as usize].failures = 0;
        let prompt_len = book.request.prompt.len() as u32;
        if all_rows {
            if !book.request.prompt_logprobs || book.rows_done != position || end > prompt_len {
                let done = book.rows_done;
                return Err(format!(
                    "request {request}: rows {position}..{end} after {done}"
                ));
            }
            book.rows_done = end;
        } else if book.request.prompt_logprobs && position < prompt_len && end > book.rows_done {
            return Err(format!(
                "request {request}: rows {position}..{end} without logits"
            ));
        }
        if end == prompt_len && book.request.max_tokens == 0 {
            self.expect_all_end(request, FinishReason::Length);
        }
        Ok(())
    }

    /// A token was sampled for a choice by a step that counts.
    pub fn sampled(&mut self, request: u64, choice: u32, sampled: Sampled) {
        let book = &mut self.books[request as usize];
        let context = book.context(choice).then(sampled.token);
        let max_tokens = book.request.max_tokens as usize;
        let own = &mut book.choices[choice as usize];
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

    /// The choices of a request go separate ways.
    pub fn part(&mut self, request: u64) {
        self.books[request as usize].parted = true;
    }

    /// Reads a notice; `planning` if it was given by planning a step.
    pub fn notice(
        &mut self,
        notice: &Notice,
        planning: Option<Planning>,
        config: &Config,
    ) -> Result<(), String> {
        match *notice {
            Notice::Rejected { request, .. } => {
                let book = &mut self.books[request.0 as usize];
                if book.rejected || book.admitted || book.choices.iter().any(|c| c.ended.is_some())
                {
                    return Err(format!("{request} is rejected too late"));
                }
                book.rejected = true;
                // One whose deadline has passed ends by it only if it is taken.
                self.due.retain(|(due, _), _| *due != request.0);
            }
            Notice::Admitted {
                request,
                cached_tokens,
            } => {
                let book = &self.books[request.0 as usize];
                let most = if book.request.prompt_logprobs {
                    1
                } else {
                    book.request.prompt.len()
                };
                if book.is_over() || book.admitted || cached_tokens as usize >= most {
                    return Err(format!("{request} is admitted with {cached_tokens} cached"));
                }
                self.check_overtaking(request.0, config)?;
                self.books[request.0 as usize].admitted = true;
                self.last_admission = planning;
            }
            Notice::Preempted { request, choice } => {
                if !self.is_live(request.0, choice) || !self.book(request.0).admitted {
                    return Err(format!("{request} {choice} is preempted out of nothing"));
                }
                if self.no_excuse && self.book(request.0).request.n == 1 {
                    return Err(format!("{request} is preempted where others could shrink"));
                }
                if let (Some(now), Some(then)) = (planning, self.last_admission)
                    && !config.mode.shrinks()
                    && then.running > 0
                    && now.step - then.step <= u64::from(config.headroom_tokens)
                {
                    let step = then.step;
                    return Err(format!("{request} pays for the admission at step {step}"));
                }
            }
            Notice::Finished {
                request,
                choice,
                reason,
                bits,
            } => {
                let own = &self.book(request.0).choices[choice as usize];
                let asked = self.book(request.0).request.min_kv_bits;
                let seen = own.lowest.unwrap_or(16);
                if bits.lowest < asked || bits.lowest > seen || bits.mean_centibits > 1600 {
                    return Err(format!(
                        "{request} {choice} read {seen} bits, asked for {asked} and is told \
                         {bits:?}"
                    ));
                }
                let due = self.due.remove(&(request.0, choice));
                // Alone, and its blocks cannot be transcoded: it does not fit.
                let is_stuck = self.shrinks_fail && planning.is_some() && due.is_none();
                if due != Some(reason) && !(is_stuck && reason == FinishReason::Error) {
                    return Err(format!(
                        "{request} {choice} ends with {reason:?}, not {due:?}"
                    ));
                }
                self.books[request.0 as usize].choices[choice as usize].ended = Some(reason);
            }
        }
        Ok(())
    }

    /// All ends that were due must have been told.
    pub fn settle(&self) -> Result<(), String> {
        match self.due.first_key_value() {
            None => Ok(()),
            Some(((request, choice), reason)) => Err(format!(
                "request {request} choice {choice} should have ended: {reason:?}"
            )),
        }
    }

    /// Whoever waits longer may only be overtaken within the bound that the scheduler states.
    fn check_overtaking(&self, admitted: u64, config: &Config) -> Result<(), String> {
        let winner = self.book(admitted);
        let waiting = self.books[..admitted as usize].iter();
        for loser in waiting.filter(|b| !b.admitted && !b.is_over()) {
            let levels = i64::from(loser.request.priority) - i64::from(winner.request.priority);
            let window = levels * i64::from(config.aging_steps);
            let later = winner.arrival_step - loser.arrival_step;
            if later as i64 >= window {
                let (a, b) = (winner.request.id, loser.request.id);
                return Err(format!(
                    "{a} overtakes {b} after {later} steps, beyond {window}"
                ));
            }
        }
        Ok(())
    }

    /// At the end: everybody was served once, and got what serving one at a time gives.
    pub fn check_answers(&self) -> Result<(), String> {
        self.settle()?;
        for book in &self.books {
            let request = &book.request;
            let id = request.id;
            if !book.is_over() {
                return Err(format!("{id} was lost"));
            }
            for (choice, own) in book.choices.iter().enumerate() {
                if book.rejected {
                    if !own.tokens.is_empty() || own.ended.is_some() {
                        return Err(format!("{id} was rejected and served"));
                    }
                    continue;
                }
                let naive = naive_answer(
                    &request.prompt,
                    request.max_tokens,
                    book.sampling_seed,
                    choice as u32,
                    self.stop_one_in,
                );
                let answer = &own.tokens[..own.accepted];
                let whole = matches!(own.ended, Some(FinishReason::Stop | FinishReason::Length));
                if !naive.starts_with(answer) || (whole && naive.len() != answer.len()) {
                    return Err(format!(
                        "{id} choice {choice}: {answer:?} instead of {naive:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// How many there are when a request arrives.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Entries of the waiting queue.
    pub waiting: usize,
    /// Choices that run or wait, as far as clients know.
    pub choices: usize,
}

/// What a rejection must say, by arithmetic of our own. `None`: the request is taken, unless the
/// queue is full and memory keeps places empty, which the next plan must show.
pub fn refusal(
    request: &Request,
    crowd: Crowd,
    config: &Config,
    pool: &PoolConfig,
) -> Option<&'static str> {
    let tokens = request.prompt.len() as u64 + u64::from(request.max_tokens);
    let computed = if request.max_tokens == 0 {
        tokens
    } else {
        tokens - 1
    };
    // In static mode the chunk of a prompt has room of its own, for all of its blocks but one.
    let kept = match config.mode {
        Mode::Static => (config.static_chunk / BLOCK_TOKENS as u32 - 1) * pool.block_frames(),
        Mode::PreemptOnly | Mode::Progressive => 0,
    };
    let room = u64::from((pool.frames - pool.held_back()).saturating_sub(kept));
    if request.prompt.is_empty() {
        Some("EmptyPrompt")
    } else if request.n == 0 || request.n as usize > config.max_running {
        Some("Choices")
    } else if tokens > u64::from(pool.max_blocks_per_seq) * BLOCK_TOKENS as u64 {
        Some("TooLong")
    } else if least_frames(computed, request, config, pool) > room {
        Some("NeverFits")
    } else if crowd.waiting >= config.max_waiting
        && crowd.choices >= config.max_running + config.max_waiting
    {
        Some("QueueFull")
    } else {
        None
    }
}

/// The most frames that a sequence of up to `tokens` tokens takes at any time, once all has shrunk
/// that may.
fn least_frames(tokens: u64, request: &Request, config: &Config, pool: &PoolConfig) -> u64 {
    let sub_block = u64::from(pool.frames_per_sub_block);
    if !config.mode.shrinks() {
        return tokens.div_ceil(16) * sub_block;
    }
    let at = |bits: u8| {
        let position = pool.positions.floor(Bound(bits));
        u64::from(pool.positions.standing(position).cost.frames)
    };
    let own = request.min_kv_bits;
    let [first, last] = [pool.sink, pool.protected].map(|bound| at(own.max(bound.0)));
    let sealed = |blocks: u64| match blocks {
        0 => 0,
        1 => first,
        _ => first + last + (blocks - 2) * at(own),
    };
    let open = |tokens: u64| {
        // Just before the last block of a multiple of 128 is sealed, it is all at 16 bit.
        let full = (tokens - 1) / 128;
        sealed(full) + (tokens - full * 128).div_ceil(16) * sub_block
    };
    let peak = (1..=tokens).map(open).max().unwrap_or(0);
    peak.max(sealed(tokens / 128))
}

/// The kind of a rejection.
pub fn kind(reason: &RejectReason) -> &'static str {
    match reason {
        RejectReason::QueueFull { .. } => "QueueFull",
        RejectReason::EmptyPrompt => "EmptyPrompt",
        RejectReason::Choices { .. } => "Choices",
        RejectReason::TooLong { .. } => "TooLong",
        RejectReason::NeverFits { .. } => "NeverFits",
    }
}
