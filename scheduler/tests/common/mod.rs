//! A scheduler with synthetic events, for all test files.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use ebb_block_manager::PoolConfig;
use ebb_scheduler::{
    ChoiceOutput, Config, Event, FinishReason, Logits, Notice, Request, RequestId, Scheduler,
    Slice, StepPlan,
};

/// A pool of `sub_blocks` sub-blocks of one frame each.
pub fn pool(sub_blocks: u32) -> PoolConfig {
    PoolConfig {
        max_blocks_per_seq: 64,
        ..PoolConfig::whole(sub_blocks, 1000, 1)
    }
}

/// Limits that are out of the way; tests set those that they are about.
pub fn config() -> Config {
    Config {
        max_step_tokens: 10_000,
        max_running: 64,
        max_waiting: 1000,
        max_in_flight: 1,
        prefill_chunk: 10_000,
        max_logit_rows: 10_000,
        aging_steps: 10,
        headroom_tokens: 0,
        ..Config::default()
    }
}

/// A request with a prompt that shares nothing with another id's.
pub fn request(id: u64, prompt_tokens: u32, max_tokens: u32) -> Request {
    let first = id as u32 * 100_000;
    let prompt: Vec<u32> = (first..first + prompt_tokens).collect();
    Request::new(RequestId(id), prompt, max_tokens)
}

pub struct Harness {
    pub scheduler: Scheduler,
    pub notices: Vec<Notice>,
}

impl Harness {
    pub fn new(config: Config, pool: PoolConfig) -> Self {
        let scheduler = Scheduler::new(config, pool).expect("the test's limits are valid");
        Self {
            scheduler,
            notices: Vec::new(),
        }
    }

    pub fn apply(&mut self, event: Event) {
        self.scheduler.apply(event);
        self.read_notices();
    }

    pub fn arrive(&mut self, request: Request) {
        self.apply(Event::Arrive(request));
    }

    pub fn plan(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan();
        self.read_notices();
        plan
    }

    fn read_notices(&mut self) {
        self.scheduler.drain_notices(&mut self.notices);
        self.scheduler.check().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Plans a step that must exist.
    pub fn planned(&mut self) -> StepPlan {
        self.plan().expect("there is something to run")
    }

    /// The oldest step ran; every token it samples is `token`.
    pub fn done_with(&mut self, plan: &StepPlan, token: u32) {
        let outputs = outputs(plan, token);
        self.apply(Event::StepDone {
            step: plan.step,
            outputs,
            failed_shrinks: Vec::new(),
        });
    }

    /// The oldest step ran.
    pub fn done(&mut self, plan: &StepPlan) {
        self.done_with(plan, 7);
    }

    /// Plans a step and runs it.
    pub fn step(&mut self) -> StepPlan {
        let plan = self.planned();
        self.done(&plan);
        plan
    }

    /// Runs steps until nothing is left, at most 10,000.
    pub fn run_dry(&mut self) {
        for _ in 0..10_000 {
            let Some(plan) = self.plan() else {
                assert!(self.scheduler.is_idle(), "{:?}", self.scheduler.stats());
                return;
            };
            self.done(&plan);
        }
        panic!("still busy: {:?}", self.scheduler.stats());
    }

    /// How a choice ended, if it did; once at most.
    pub fn end_of(&self, request: u64, choice: u32) -> Option<FinishReason> {
        let ends = self.notices.iter().filter_map(|notice| match notice {
            Notice::Finished {
                request: r,
                choice: c,
                reason,
                ..
            } if (r.0, *c) == (request, choice) => Some(*reason),
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        assert!(
            ends.len() <= 1,
            "request {request} choice {choice} ends {ends:?}"
        );
        ends.first().copied()
    }

    /// Requests in the order of their admissions, and the tokens each had cached.
    pub fn admissions(&self) -> Vec<(u64, u32)> {
        let admitted = self.notices.iter().filter_map(|notice| match notice {
            Notice::Admitted {
                request,
                cached_tokens,
            } => Some((request.0, *cached_tokens)),
            _ => None,
        });
        admitted.collect()
    }

    /// Requests in the order of their preemptions.
    pub fn preemptions(&self) -> Vec<u64> {
        let preempted = self.notices.iter().filter_map(|notice| match notice {
            Notice::Preempted { request, .. } => Some(request.0),
            _ => None,
        });
        preempted.collect()
    }

    /// Whether all frames are free or cached.
    pub fn memory_is_back(&self) -> bool {
        let usage = self.scheduler.blocks().usage();
        usage.frames_live == 0 && usage.frames_retiring == 0
    }
}

/// The outputs of a backend that always samples `token`.
pub fn outputs(plan: &StepPlan, token: u32) -> Vec<ChoiceOutput> {
    let sampled = plan.slices.iter().flat_map(|slice| {
        let choices = match slice.logits.choices() {
            0 => 0..0,
            1 => slice.choice..slice.choice + 1,
            n => 0..n,
        };
        let request = slice.request;
        choices.map(move |choice| ChoiceOutput {
            request,
            choice,
            token,
            finish: false,
        })
    });
    sampled.collect()
}

/// The slices of a plan as (request, position, tokens, whether a token is sampled).
pub fn slices(plan: &StepPlan) -> Vec<(u64, u32, usize, bool)> {
    let brief = |s: &Slice| {
        (
            s.request.0,
            s.position,
            s.tokens.len(),
            !matches!(s.logits, Logits::None),
        )
    };
    plan.slices.iter().map(brief).collect()
}

/// The tokens of a slice.
pub fn tokens<'a>(plan: &'a StepPlan, slice: &Slice) -> &'a [u32] {
    &plan.tokens[slice.tokens.start as usize..slice.tokens.end as usize]
}
