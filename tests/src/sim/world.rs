//! One seed's life: arrivals, faults, steps, then calm until everybody is served.

use ebb_scheduler::{
    ChoiceOutput, Event, FinishReason, Logits, Millis, Notice, RequestId, Scheduler, StepPlan,
};

use super::client::{Clients, Crowd, Planning, kind, refusal};
use super::device::{Device, Submitted};
use super::model::{Sampled, VOCAB, sample};
use super::rng::Rng;
use super::settings::Settings;
use super::trace::Trace;
use super::workload::{Workload, chance};

/// Rounds after which a world that is still busy counts as stuck: far more than the longest needs.
const ROUNDS_MAX: u64 = 200_000;

/// What a seed did, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Digest of the trace.
    pub digest: u64,
    /// Rounds until the end.
    pub rounds: u64,
    /// What the scheduler counted.
    pub stats: ebb_scheduler::Stats,
    /// Plans with copies.
    pub copies: u64,
    /// Choices by how they ended, in the order of [`FinishReason`].
    pub ended: [u64; 5],
    /// Choices that ended after reading something below 16 bit.
    pub degraded: u64,
    /// Requests taken while as many waited as may, because there were places for them.
    pub taken_for_places: u64,
    /// Plans that showed places to be kept empty by memory, after a request was refused in spite of
    /// them.
    pub places_kept_empty: u64,
}

/// The simulation of one seed.
#[derive(Debug)]
pub struct World {
    rng: Rng,
    settings: Settings,
    scheduler: Scheduler,
    device: Device,
    clients: Clients,
    workload: Workload,
    now: Millis,
    trace: Trace,
    report: Report,
    failed_last: bool,
    /// A request was refused in spite of free places, and nothing but arrivals that were refused
    /// has come since: the next plan must admit nobody.
    claims_no_memory: bool,
    notices: Vec<Notice>,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, print: bool) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let settings = Settings::draw(&mut rng);
        let scheduler = Scheduler::new(settings.scheduler.clone(), settings.pool.clone());
        let workload = Workload::new(&mut rng, &settings);
        let trace = Trace::new(print);
        trace.say(|| format!("{settings:#?}"));
        Ok(Self {
            scheduler: scheduler.map_err(|e| e.to_string())?,
            device: Device::new(settings.pool.clone(), settings.scheduler.max_running),
            clients: Clients::new(&settings),
            workload,
            now: Millis(0),
            trace,
            report: Report::default(),
            failed_last: false,
            claims_no_memory: false,
            notices: Vec::new(),
            rng,
            settings,
        })
    }

    /// Lives it to the end.
    pub fn live(&mut self) -> Result<Report, String> {
        while self.workload.made() < self.settings.requests {
            self.round()?;
        }
        for _ in 0..self.rng.below(200) {
            self.round()?;
        }
        self.settings.calm();
        while !self.scheduler.is_idle() {
            if self.report.rounds > ROUNDS_MAX {
                return Err("the faults are over, and still not everybody is served".into());
            }
            self.round()?;
        }
        self.clients.check_answers()?;
        let usage = self.scheduler.blocks().usage();
        let room = self.settings.pool.frames - self.settings.pool.held_back();
        let on_loan = usage.frames_live + usage.frames_retiring + usage.frames_shrinking;
        if on_loan > 0 || usage.sequences > 0 {
            return Err(format!("memory is not back: {usage:?}"));
        }
        if self.scheduler.blocks().available() != room {
            return Err(format!(
                "{} of {room} frames are back",
                self.scheduler.blocks().available()
            ));
        }
        self.report.digest = self.trace.digest();
        self.report.stats = self.scheduler.stats();
        Ok(self.report)
    }

    /// Rounds lived so far.
    pub fn rounds(&self) -> u64 {
        self.report.rounds
    }

    fn round(&mut self) -> Result<(), String> {
        self.report.rounds += 1;
        self.arrivals()?;
        self.cancellations()?;
        self.time()?;
        let mut idle = true;
        while self.rng.one_in(2) || idle {
            let Some(plan) = self.plan()? else { break };
            idle = false;
            self.submit(plan)?;
        }
        if self.device.in_flight() == 0 {
            // No step will come back to change anything, so there must be nothing to do.
            if idle && !self.scheduler.is_idle() {
                return Err(format!("nothing is planned: {:?}", self.scheduler.stats()));
            }
        } else if !chance(&mut self.rng, self.settings.delay_one_in) {
            self.step_returns()?;
        }
        Ok(())
    }

    fn arrivals(&mut self) -> Result<(), String> {
        if !chance(&mut self.rng, self.settings.arrival_one_in) {
            return Ok(());
        }
        for _ in 0..self.rng.range(1, self.settings.burst_max) {
            if self.workload.made() == self.settings.requests {
                break;
            }
            let generated = self
                .workload
                .request(&mut self.rng, &self.settings, self.now);
            let stats = self.scheduler.stats();
            let crowd = Crowd {
                waiting: stats.waiting,
                choices: self.clients.choices(),
            };
            self.clients.open(&generated, stats.steps);
            let request = generated.request;
            let (id, deadline) = (request.id.0, request.deadline);
            let settings = &self.settings;
            let want = refusal(&request, crowd, &settings.scheduler, &settings.pool);
            let is_crowded = crowd.waiting >= settings.scheduler.max_waiting;
            if want.is_none() && deadline.is_some_and(|deadline| deadline <= self.now) {
                self.clients
                    .expect_all_end(id, FinishReason::DeadlineExceeded);
            }
            let have = self.apply(Event::Arrive(request))?;
            let for_memory = want.is_none() && have == Some("QueueFull") && is_crowded;
            if have != want && !for_memory {
                return Err(format!(
                    "request {id} is refused for {have:?}, not {want:?}"
                ));
            }
            self.claims_no_memory = for_memory || (self.claims_no_memory && have.is_some());
            self.report.taken_for_places += u64::from(is_crowded && have.is_none());
        }
        Ok(())
    }

    fn cancellations(&mut self) -> Result<(), String> {
        if chance(&mut self.rng, self.settings.cancel_one_in) {
            // Live ones, ended ones (again) and ones that never were.
            let any = self.rng.below(self.workload.made() + 3);
            let live = self.clients.live(self.rng.bits());
            let request = if self.rng.one_in(4) {
                any
            } else {
                live.unwrap_or(any)
            };
            if request < self.workload.made() {
                self.clients
                    .expect_all_end(request, FinishReason::Cancelled);
            }
            self.apply(Event::Cancel(RequestId(request)))?;
        }
        if chance(&mut self.rng, self.settings.cancel_choice_one_in)
            && let Some(request) = self.clients.live(self.rng.bits())
        {
            let choices = self.clients.book(request).choices.len() as u32;
            let choice = self.rng.below(u64::from(choices) + 1) as u32;
            if choice < choices {
                self.clients
                    .expect_end(request, choice, FinishReason::Cancelled);
            }
            self.apply(Event::CancelChoice(RequestId(request), choice))?;
        }
        Ok(())
    }

    fn time(&mut self) -> Result<(), String> {
        let tick = Millis((self.now.0 + self.rng.below(6)).saturating_sub(1));
        self.now = self.now.max(tick);
        self.clients.expect_deadlines(self.now);
        self.apply(Event::Tick(tick)).map(|_| ())
    }

    fn plan(&mut self) -> Result<Option<StepPlan>, String> {
        let before = self.scheduler.stats();
        let plan = self.scheduler.plan();
        let can_plan = before.in_flight < self.settings.scheduler.max_in_flight;
        let claims_no_memory = can_plan && std::mem::take(&mut self.claims_no_memory);
        self.read_notices(Some(Planning {
            step: before.steps + 1,
            running: before.running,
        }))?;
        if claims_no_memory {
            if self.scheduler.stats().running > before.running {
                return Err("there was memory for one more, and a request was refused".into());
            }
            self.report.places_kept_empty += 1;
        }
        let Some(plan) = plan else { return Ok(None) };
        self.trace.plan(&plan);
        self.scheduler.check()?;
        self.report.copies += u64::from(!plan.copies.is_empty());

        let config = &self.settings.scheduler;
        let rows: usize = plan.slices.iter().map(|s| s.tokens.len()).sum();
        let logit_rows = plan.slices.iter().map(|s| match s.logits {
            Logits::None => 0,
            Logits::Last { .. } => 1,
            Logits::All { .. } => s.tokens.len(),
        });
        let logit_rows: usize = logit_rows.sum();
        let mut seqs: Vec<_> = plan.slices.iter().map(|s| s.seq).collect();
        seqs.sort_unstable();
        seqs.dedup();
        if (rows == 0 && plan.shrinks.is_empty())
            || rows != plan.tokens.len()
            || rows > config.max_step_tokens
            || logit_rows > config.max_logit_rows
            || seqs.len() != plan.slices.len()
            || plan
                .slices
                .iter()
                .any(|s| s.tokens.len() > config.prefill_chunk.max(1))
        {
            return Err(format!(
                "a plan of {rows} rows, {logit_rows} with logits: {plan:?}"
            ));
        }
        for slice in &plan.slices {
            if !self.clients.is_live(slice.request.0, slice.choice) {
                let (request, choice) = (slice.request, slice.choice);
                return Err(format!(
                    "{request} choice {choice} has ended and is planned"
                ));
            }
        }
        Ok(Some(plan))
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), String> {
        self.device.submit(plan, self.scheduler.blocks())
    }

    /// The oldest step comes back, one way or the other.
    fn step_returns(&mut self) -> Result<(), String> {
        let again = self.failed_last && chance(&mut self.rng, self.settings.fail_again_one_in);
        let fails = again || chance(&mut self.rng, self.settings.fail_one_in);
        self.failed_last = fails;
        let Some(step) = self.device.pop() else {
            return Ok(());
        };
        let id = step.plan.step;
        if fails {
            self.device.run_failing(&step);
            for (slice, void) in step.plan.slices.iter().zip(&step.void) {
                if !void {
                    self.clients.slice_failed(slice.request.0, slice.choice);
                    self.device.void(slice.seq);
                }
            }
            self.apply(Event::StepFailed { step: id })?;
        } else {
            let clients = &self.clients;
            let slices = &step.plan.slices;
            let expected = |index: usize| {
                let slice: &ebb_scheduler::Slice = &slices[index];
                clients.expected(slice.request.0, slice.choice)
            };
            let (rng, one_in) = (&mut self.rng, self.settings.fail_shrink_one_in);
            let mut failed_shrinks = Vec::new();
            let fails = |block| {
                let fails = chance(rng, one_in);
                failed_shrinks.extend(fails.then_some(block));
                fails
            };
            let lowest = self.device.run(&step, expected, fails)?;
            for ((slice, void), lowest) in slices.iter().zip(&step.void).zip(lowest) {
                if !void {
                    self.clients.read(slice.request.0, slice.choice, lowest);
                }
            }
            let outputs = self.outputs(&step)?;
            self.apply(Event::StepDone {
                step: id,
                outputs,
                failed_shrinks,
            })?;
        }
        self.scheduler.recycle(step.plan);
        Ok(())
    }

    /// Samples what a step that ran has to sample, and keeps the books.
    fn outputs(&mut self, step: &Submitted) -> Result<Vec<ChoiceOutput>, String> {
        let mut outputs = Vec::new();
        let mut used = Vec::new();
        let mut lost = Vec::new();
        for (slice, void) in step.plan.slices.iter().zip(&step.void) {
            let request = slice.request.0;
            let book = self.clients.book(request);
            let choices = slice.logits.choices();
            let range = if choices > 1 {
                0..choices
            } else {
                slice.choice..slice.choice + choices
            };
            let shared = choices > 1;
            let context = book.context(slice.choice);
            let seed = book.sampling_seed;
            let sampled: Vec<(u32, Sampled)> = range
                .map(|c| (c, sample(context, seed, c, self.settings.stop_one_in)))
                .collect();
            let output = |(choice, sampled): (u32, Sampled)| ChoiceOutput {
                request: slice.request,
                choice,
                token: sampled.token,
                finish: sampled.finish,
            };
            if *void {
                // A void slice samples as well, from nothing.
                let garbage = Sampled {
                    token: VOCAB + 7,
                    finish: self.rng.one_in(2),
                };
                outputs.extend(sampled.iter().map(|(c, _)| output((*c, garbage))));
                continue;
            }
            let live: Vec<u32> = sampled.iter().map(|(c, _)| *c).collect();
            let live: Vec<u32> = live
                .into_iter()
                .filter(|c| self.clients.is_live(request, *c))
                .collect();
            used.extend(live.iter().map(|c| (slice.request, *c)));
            if !live.is_empty() && chance(&mut self.rng, self.settings.lose_one_in) {
                let gone = self.rng.pick(&live);
                outputs.extend(
                    sampled
                        .iter()
                        .filter(|(c, _)| *c != gone)
                        .map(|s| output(*s)),
                );
                lost.push((slice.seq, request, slice.choice));
                continue;
            }
            outputs.extend(sampled.iter().map(|s| output(*s)));
            let end = slice.position + slice.tokens.len() as u32;
            let all_rows = matches!(slice.logits, Logits::All { .. });
            let positions = (slice.position, end);
            self.clients
                .slice_ran(request, slice.choice, positions, all_rows)?;
            for (choice, sampled) in sampled {
                let book = self.clients.book(request);
                let at = end as usize - book.request.prompt.len();
                if book.choices[choice as usize].tokens.len() != at {
                    return Err(format!(
                        "{} {choice}: token {at} out of turn",
                        slice.request
                    ));
                }
                self.clients.sampled(request, choice, sampled);
            }
            if shared {
                self.clients.part(request);
            }
        }
        let mut awaited: Vec<_> = self.scheduler.awaited().collect();
        awaited.sort_unstable();
        used.sort_unstable();
        if awaited != used {
            return Err(format!(
                "{} awaits {awaited:?}, not {used:?}",
                step.plan.step
            ));
        }
        for (seq, request, choice) in lost {
            self.clients.slice_failed(request, choice);
            self.device.void(seq);
        }
        if chance(&mut self.rng, self.settings.noise_one_in) {
            let stranger = RequestId(self.workload.made() + 5);
            outputs.push(ChoiceOutput {
                request: stranger,
                choice: 0,
                token: 1,
                finish: true,
            });
            let len = outputs.len() as u64;
            for i in 0..outputs.len() {
                outputs.swap(i, self.rng.below(len) as usize);
            }
        }
        Ok(outputs)
    }

    /// Applies an event, reads what it led to and audits. Returns the kind of rejection, if any.
    fn apply(&mut self, event: Event) -> Result<Option<&'static str>, String> {
        self.claims_no_memory &= matches!(event, Event::Arrive(_) | Event::Tick(_));
        self.trace.event(&event, "");
        self.scheduler.apply(event);
        let rejected = self.read_notices(None)?;
        self.clients.settle()?;
        self.scheduler.check()?;
        Ok(rejected)
    }

    fn read_notices(&mut self, planning: Option<Planning>) -> Result<Option<&'static str>, String> {
        let mut notices = std::mem::take(&mut self.notices);
        self.scheduler.drain_notices(&mut notices);
        let mut rejected = None;
        for notice in notices.drain(..) {
            self.trace.notice(&notice);
            self.clients
                .notice(&notice, planning, &self.settings.scheduler)?;
            match notice {
                Notice::Rejected { reason, .. } => rejected = Some(kind(&reason)),
                Notice::Finished { reason, bits, .. } => {
                    self.claims_no_memory = false;
                    self.report.ended[reason as usize] += 1;
                    self.report.degraded += u64::from(bits.lowest < 16);
                }
                Notice::Admitted { .. } | Notice::Preempted { .. } => {}
            }
        }
        self.notices = notices;
        Ok(rejected)
    }
}
