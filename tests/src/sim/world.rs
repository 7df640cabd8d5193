//! The world of one seed: arrivals, faults, steps, then no more faults until every request is
//! served.

mod step_returns;

use ebb_block_manager::NO_FRAME;
use ebb_scheduler::{Event, FinishReason, Millis, Notice, RequestId, Scheduler, StepPlan};

use super::client::{Clients, Planning};
use super::device::Device;
use super::plan_rules::PlanRules;
use super::rejection::{Load, expected_rejection, kind};
use super::rng::Rng;
use super::settings::Settings;
use super::trace::Trace;
use super::workload::{Workload, chance};

/// A world that is still busy after this many rounds counts as stuck: far more than the longest
/// needs.
const ROUNDS_MAX: u64 = 200_000;

/// What happened in a world, for statistics.
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
    /// States that were kept for prefixes.
    pub states_kept: u64,
    /// States that sequences began with.
    pub states_found: u64,
    /// Plans that copy from a block which they shrink.
    pub together: u64,
    /// Plans made while blocks in use were hidden behind a sliding window.
    pub hidden: u64,
    /// Plans made while some blocks were trimmed.
    pub trimmed: u64,
    /// Plans that shrink a trimmed block.
    pub shrinks_trimmed: u64,
    /// Choices by how they ended, in the order of [`FinishReason`].
    pub ended: [u64; 5],
    /// Choices that ended after reading something below 16 bit.
    pub degraded: u64,
    /// Requests taken into a full queue because there were free batch slots.
    pub taken_for_free_slots: u64,
    /// Plans that showed that free batch slots lacked memory, after a request was rejected in spite
    /// of them.
    pub slots_without_memory: u64,
}

/// The simulation of one seed.
#[derive(Debug)]
pub struct World {
    rng: Rng,
    settings: Settings,
    scheduler: Scheduler,
    device: Device,
    rules: PlanRules,
    clients: Clients,
    workload: Workload,
    now: Millis,
    trace: Trace,
    report: Report,
    failed_last: bool,
    /// A request was rejected in spite of free batch slots, and only rejected requests have arrived
    /// since: the next plan must admit none.
    no_memory_expected: bool,
    notices: Vec<Notice>,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, print: bool) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let settings = Settings::from_seed(&mut rng);
        Self::with(settings, rng, print)
    }

    /// A world with these settings; the rest comes from `rng`.
    ///
    /// # Errors
    /// When the settings make no scheduler.
    pub fn with(settings: Settings, mut rng: Rng, print: bool) -> Result<Self, String> {
        let scheduler = Scheduler::new(settings.scheduler.clone(), settings.pool.clone());
        let workload = Workload::new(&mut rng, &settings);
        let trace = Trace::new(print);
        trace.print(|| format!("{settings:#?}"));
        Ok(Self {
            scheduler: scheduler.map_err(|e| e.to_string())?,
            device: Device::new(settings.pool.clone(), &settings.scheduler),
            rules: PlanRules::new(&settings.scheduler, &settings.pool),
            clients: Clients::new(&settings),
            workload,
            now: Millis(0),
            trace,
            report: Report::default(),
            failed_last: false,
            no_memory_expected: false,
            notices: Vec::new(),
            rng,
            settings,
        })
    }

    /// Runs it to the end.
    pub fn run(&mut self) -> Result<Report, String> {
        while self.workload.made() < self.settings.requests {
            self.round()?;
        }
        for _ in 0..self.rng.below(200) {
            self.round()?;
        }
        self.settings.stop_faults();
        while !self.scheduler.is_idle() {
            if self.report.rounds > ROUNDS_MAX {
                return Err("the faults are over, but requests are left".into());
            }
            self.round()?;
        }
        self.clients.check_answers()?;
        let usage = self.scheduler.blocks().usage();
        let room = self.settings.pool.frames - self.settings.pool.shrink_reserve();
        let on_loan = usage.frames_live
            + usage.frames_hidden
            + usage.frames_retiring
            + usage.frames_shrinking;
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

    /// Rounds so far.
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
            // No step will return to change anything, so there must be nothing to do.
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
            let load = Load {
                waiting: stats.waiting,
                choices: self.clients.choices(),
            };
            self.clients.open(&generated, stats.steps);
            let request = generated.request;
            let (id, deadline) = (request.id.0, request.deadline);
            let settings = &self.settings;
            let want = expected_rejection(&request, load, &settings.scheduler, &settings.pool);
            let is_queue_full = load.waiting >= settings.scheduler.max_waiting;
            if want.is_none() && deadline.is_some_and(|deadline| deadline <= self.now) {
                self.clients
                    .expect_all_end(id, FinishReason::DeadlineExceeded);
            }
            let have = self.apply(Event::Arrive(request))?;
            let for_memory = want.is_none() && have == Some("QueueFull") && is_queue_full;
            if have != want && !for_memory {
                return Err(format!(
                    "request {id} is rejected for {have:?}, not {want:?}"
                ));
            }
            self.no_memory_expected = for_memory || (self.no_memory_expected && have.is_some());
            self.report.taken_for_free_slots += u64::from(is_queue_full && have.is_none());
        }
        Ok(())
    }

    fn cancellations(&mut self) -> Result<(), String> {
        if chance(&mut self.rng, self.settings.cancel_one_in) {
            // Active ones, ended ones (again) and unknown ones.
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
            let choices = self.clients.record(request).choices.len() as u32;
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
        let no_memory_expected = can_plan && std::mem::take(&mut self.no_memory_expected);
        self.read_notices(Some(Planning {
            step: before.steps + 1,
            running: before.running,
        }))?;
        if no_memory_expected {
            if self.scheduler.stats().running > before.running {
                return Err("there was memory for one more, and a request was rejected".into());
            }
            self.report.slots_without_memory += 1;
        }
        let Some(plan) = plan else { return Ok(None) };
        self.trace.plan(&plan);
        self.scheduler.check()?;
        self.report.copies += u64::from(!plan.copies.is_empty());
        if let Some(slots) = self.settings.pool.states {
            for (src, dst) in &plan.state_copies {
                self.report.states_kept += u64::from(*dst >= slots.first);
                self.report.states_found += u64::from(*src >= slots.first);
            }
        }
        let mut shrunk = plan.shrinks.iter().flat_map(|job| &job.old);
        let is_copied = |frame: &u32| plan.copies.iter().any(|(source, _)| source == frame);
        self.report.together += u64::from(!plan.copies.is_empty() && shrunk.any(is_copied));

        let blocks = self.scheduler.blocks();
        self.report.hidden += u64::from(blocks.usage().frames_hidden > 0);
        self.report.trimmed += u64::from(blocks.level_use().any(|level| level.trimmed > 0));
        let mut shrunk = plan.shrinks.iter().flat_map(|job| &job.old);
        self.report.shrinks_trimmed += u64::from(shrunk.any(|frame| *frame == NO_FRAME));

        self.rules.check(&plan)?;
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

    /// Applies an event, reads the notices and audits. Returns the kind of rejection, if any.
    fn apply(&mut self, event: Event) -> Result<Option<&'static str>, String> {
        self.no_memory_expected &= matches!(event, Event::Arrive(_) | Event::Tick(_));
        self.trace.event(&event, "");
        self.scheduler.apply(event);
        let rejected = self.read_notices(None)?;
        self.clients.check_no_end_missing()?;
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
                    self.no_memory_expected = false;
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
