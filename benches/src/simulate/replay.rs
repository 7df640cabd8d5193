//! A trace against the scheduler, on a clock that the cost model moves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ebb_block_manager::{BLOCK_TOKENS, PoolConfig};
use ebb_scheduler::{
    ChoiceOutput, Event, Mode, Notice, Request, RequestId, Scheduler, Slice, StepPlan,
};

use super::hardware::{Work, attended};
use super::outcome::{Outcome, Served, Sums};
use super::setup::Setup;
use super::trace::Trace;

/// What is kept of a request.
#[derive(Debug, Clone, Copy)]
struct Record {
    /// When its first and its newest token came.
    first_at: f64,
    last_at: f64,
    /// Tokens that it has in the KV cache, those of the step being run included.
    stored: u32,
    generated: u32,
}

/// Replays a trace to its end. With `misses_max`, stops as soon as more requests than that have
/// missed a target.
///
/// # Errors
/// A sentence when the setup is impossible.
///
/// # Panics
/// If the scheduler has work and plans nothing, or ends a request early: bugs.
pub fn replay(setup: &Setup, trace: &Trace, misses_max: Option<usize>) -> Result<Outcome, String> {
    let pool = setup.pool()?;
    let scheduler = Scheduler::new(setup.limits_of(&pool), pool.clone());
    let mut replay = Replay {
        scheduler: scheduler.map_err(|e| e.to_string())?,
        bytes_at: (0..pool.levels.len() as u16)
            .map(|level| pool.levels.level(level).size.bytes)
            .collect(),
        token_bytes: setup.shape.geometry.token_bytes() as u64,
        pool,
        setup,
        trace,
        records: Vec::with_capacity(trace.len()),
        now: 0.0,
        stored: 0,
        in_flight: VecDeque::new(),
        sums: Sums::default(),
        served: Served::new(setup.targets),
        outputs: Vec::new(),
        notices: Vec::new(),
    };
    replay.run(misses_max.unwrap_or(usize::MAX));
    let Replay {
        scheduler,
        served,
        sums,
        now,
        ..
    } = replay;
    Ok(Outcome::new(setup, trace, served, &sums, &scheduler, now))
}

struct Replay<'a> {
    scheduler: Scheduler,
    pool: PoolConfig,
    /// Bytes of a sealed block at each position.
    bytes_at: Vec<u64>,
    /// Bytes of a token at 16 bit.
    token_bytes: u64,
    setup: &'a Setup,
    trace: &'a Trace,
    /// Of the requests that have arrived.
    records: Vec<Record>,
    now: f64,
    /// Tokens in the KV cache.
    stored: u64,
    /// Steps that the device has been given, oldest first, and how long each takes.
    in_flight: VecDeque<(StepPlan, f64)>,
    sums: Sums,
    served: Served,
    outputs: Vec<ChoiceOutput>,
    notices: Vec<Notice>,
}

impl Replay<'_> {
    fn run(&mut self, misses_max: usize) {
        loop {
            self.deliver();
            let started = Instant::now();
            let plan = self.scheduler.plan();
            let planning = started.elapsed();
            self.heed_notices();
            if let Some(plan) = plan {
                self.sums.planned(planning);
                self.submit(plan);
            } else if let Some((plan, seconds)) = self.in_flight.pop_front() {
                self.now += seconds;
                self.done(plan);
                if self.served.misses() > misses_max {
                    return;
                }
            } else {
                assert!(self.scheduler.is_idle(), "requests wait and nothing runs");
                if self.records.len() == self.trace.len() {
                    return;
                }
                self.now = self.now.max(self.trace.get(self.records.len()).at);
            }
        }
    }

    /// Hands over the requests that have arrived by now.
    fn deliver(&mut self) {
        while self.records.len() < self.trace.len() {
            let index = self.records.len();
            let arrival = self.trace.get(index);
            if arrival.at > self.now {
                return;
            }
            // No two of them begin alike, so that nobody finds another's in the prefix cache.
            let prompt: Arc<[u32]> = vec![index as u32; arrival.prompt as usize].into();
            let max_tokens = f64::from(arrival.generated) * self.setup.max_tokens_factor;
            self.records.push(Record {
                first_at: f64::NAN,
                last_at: f64::NAN,
                stored: 0,
                generated: 0,
            });
            self.scheduler.apply(Event::Arrive(Request::new(
                RequestId(index as u64),
                prompt,
                (max_tokens.ceil() as u32).max(arrival.generated),
            )));
        }
    }

    /// Gives a plan to the device.
    fn submit(&mut self, plan: StepPlan) {
        let work = self.work(&plan);
        let seconds = (self.setup.hardware).step_seconds(&self.setup.shape, &work);
        self.sample(seconds, &work);
        self.in_flight.push_back((plan, seconds));
    }

    /// The device has run the oldest step that it had: its tokens come.
    fn done(&mut self, plan: StepPlan) {
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        // Not those of requests that ended with the step before.
        for (request, choice) in self.scheduler.awaited() {
            let index = request.0 as usize;
            let record = &mut self.records[index];
            if record.generated == 0 {
                record.first_at = self.now;
            }
            record.last_at = self.now;
            record.generated += 1;
            outputs.push(ChoiceOutput {
                request,
                choice,
                token: record.generated,
                finish: record.generated == self.trace.get(index).generated,
            });
        }
        let step = plan.step;
        self.scheduler.recycle(plan);
        self.scheduler.apply(Event::StepDone {
            step,
            outputs,
            failed_shrinks: Vec::new(),
        });
        self.heed_notices();
    }

    /// What a plan costs; counts its tokens as stored.
    fn work(&mut self, plan: &StepPlan) -> Work {
        let mut work = Work::default();
        for slice in &plan.slices {
            let (position, rows) = (u64::from(slice.position), slice.tokens.len() as u64);
            work.rows += rows;
            work.logit_rows += u64::from(slice.logits.choices() > 0);
            work.attended += attended(position, rows);
            let (whole, shrunk) = self.read(slice);
            work.kv_whole += whole;
            work.kv_shrunk += shrunk;
            work.kv_written += rows * self.token_bytes;
            self.sums.tokens_read += position + rows;

            let record = &mut self.records[slice.request.0 as usize];
            let stored = (position + rows) as u32;
            self.stored += u64::from(stored - record.stored);
            record.stored = stored;
        }
        for job in &plan.shrinks {
            work.shrink +=
                self.bytes_at[usize::from(job.from)] + self.bytes_at[usize::from(job.to)];
        }
        work
    }

    /// Bytes that a slice reads: of blocks at 16 bit and open ones, and of shrunk ones.
    fn read(&self, slice: &Slice) -> (u64, u64) {
        let tokens = u64::from(slice.position) + slice.tokens.len() as u64;
        if self.setup.limits.mode == Mode::PreemptOnly {
            return (tokens * self.token_bytes, 0);
        }
        let block = BLOCK_TOKENS as u64;
        let table = self.scheduler.blocks().table(slice.seq);
        let mut whole = tokens % block * self.token_bytes;
        let mut shrunk = 0;
        for (position, _) in table.iter().take((tokens / block) as usize) {
            let bytes = self.bytes_at[usize::from(position)];
            *(if position == 0 {
                &mut whole
            } else {
                &mut shrunk
            }) += bytes;
        }
        (whole, shrunk)
    }

    /// Adds the state of the pool to the averages over time.
    fn sample(&mut self, seconds: f64, work: &Work) {
        let blocks = self.scheduler.blocks();
        let usage = blocks.usage();
        let (mut held, mut count) = (0, 0);
        for at in blocks.level_use() {
            let live = u64::from(at.blocks - at.cached);
            held += live * self.bytes_at[usize::from(at.level)];
            count += live;
        }
        // Open blocks count as whole ones there.
        let empty = count * BLOCK_TOKENS as u64 - self.stored;
        let sums = &mut self.sums;
        sums.seconds += seconds;
        sums.bytes_read += (work.kv_whole + work.kv_shrunk) as f64;
        sums.resident += f64::from(usage.sequences) * seconds;
        sums.resident_max = sums.resident_max.max(usage.sequences);
        sums.token_seconds += self.stored as f64 * seconds;
        sums.byte_seconds += (held - empty * self.token_bytes) as f64 * seconds;
        let frames = u64::from(usage.frames_live) * self.pool.frame_bytes;
        sums.frame_byte_seconds += frames as f64 * seconds;
        sums.pool_byte_seconds +=
            (u64::from(self.pool.frames) * self.pool.frame_bytes) as f64 * seconds;
    }

    fn heed_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        self.scheduler.drain_notices(&mut notices);
        for notice in notices.drain(..) {
            match notice {
                Notice::Admitted { .. } => {}
                Notice::Rejected { .. } => self.served.reject(),
                Notice::Preempted { request, .. } => self.forget(request),
                Notice::Finished { request, bits, .. } => {
                    self.forget(request);
                    let record = self.records[request.0 as usize];
                    let arrival = self.trace.get(request.0 as usize);
                    assert_eq!(record.generated, arrival.generated, "{request} ended early");
                    let gaps = record.generated - 1;
                    self.served.finish(
                        record.first_at - arrival.at,
                        (gaps > 0).then(|| (record.last_at - record.first_at) / f64::from(gaps)),
                        record.generated,
                        bits,
                    );
                }
            }
        }
        self.notices = notices;
    }

    /// The memory of a request is given back.
    fn forget(&mut self, request: RequestId) {
        let record = &mut self.records[request.0 as usize];
        self.stored -= u64::from(std::mem::take(&mut record.stored));
    }
}
