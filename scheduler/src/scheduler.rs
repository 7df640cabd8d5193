//! The state machine: its state and its interface.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ebb_block_manager::pressure::{BlockedBy, Policy};
use ebb_block_manager::{BlockManager, PoolConfig, SeqBits};
use rustc_hash::FxHashMap;

use crate::admit::Candidate;
use crate::batch::Batch;
use crate::group::{Choice, Group};
use crate::in_flight::StepInFlight;
use crate::seq::Seq;
use crate::slab::{Key, Slab};
use crate::stats::Counters;
use crate::urgency::Urgency;
use crate::{Config, Event, FinishReason, Millis, Notice, RequestId, SetupError, Stats, StepPlan};

/// The scheduler. See the [crate] documentation.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) blocks: BlockManager,
    pub(crate) policy: Policy,
    pub(crate) now: Millis,

    pub(crate) groups: Slab<Group>,
    pub(crate) seqs: Slab<Seq>,
    pub(crate) requests: FxHashMap<RequestId, Key>,
    pub(crate) deadlines: BTreeSet<(Millis, Key)>,
    /// The queue: sequences without memory, new or preempted, most urgent first.
    pub(crate) waiting: BTreeMap<Urgency, Key>,
    /// Sequences with memory, most urgent first. The first one is never preempted while others run,
    /// so one sequence always makes progress.
    pub(crate) running: Vec<(Urgency, Key)>,
    /// Sequences that the running ones are, or will be once their choices fork.
    pub(crate) running_choices: usize,
    /// The same for the waiting ones.
    pub(crate) waiting_choices: usize,
    /// The head of the queue, if it did not fit when it was last tried and nothing has come free
    /// since.
    pub(crate) blocked_head: Option<(Key, BlockedBy)>,
    /// Oldest first.
    pub(crate) in_flight: VecDeque<StepInFlight>,
    pub(crate) candidate: Candidate,
    /// States to copy in the next step, `(source, destination)`.
    pub(crate) state_copies: Vec<(u32, u32)>,
    /// Frames that prompts will take in the steps after the last one planned. Only where blocks
    /// shrink and more than one step is in flight.
    pub(crate) prompt_frames: u32,

    pub(crate) arrivals: u64,
    pub(crate) admissions: u64,
    pub(crate) counters: Counters,
    pub(crate) notices: Vec<Notice>,

    // Buffers for reuse.
    pub(crate) batch: Batch,
    pub(crate) scratch: Vec<u32>,
    pub(crate) spare_plans: Vec<StepPlan>,
    pub(crate) spare_in_flight: Vec<StepInFlight>,
}

impl Scheduler {
    /// A scheduler without requests and with an empty pool.
    pub fn new(config: Config, pool: PoolConfig) -> Result<Self, SetupError> {
        config.validate()?;
        let blocks = BlockManager::new(pool)?;
        Ok(Self {
            policy: config.policy(blocks.config(), blocks.available()),
            config,
            blocks,
            now: Millis(0),
            groups: Slab::new(),
            seqs: Slab::new(),
            requests: FxHashMap::default(),
            deadlines: BTreeSet::new(),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            running_choices: 0,
            waiting_choices: 0,
            blocked_head: None,
            in_flight: VecDeque::new(),
            candidate: Candidate::default(),
            state_copies: Vec::new(),
            prompt_frames: 0,
            arrivals: 0,
            admissions: 0,
            counters: Counters::default(),
            notices: Vec::new(),
            batch: Batch::default(),
            scratch: Vec::new(),
            spare_plans: Vec::new(),
            spare_in_flight: Vec::new(),
        })
    }

    /// Applies an event. Cancellations and deadlines take effect at once; their memory becomes free
    /// when the steps in flight have retired.
    ///
    /// # Panics
    /// If a request arrives with the id of an active one, or if the step of a `StepDone` or
    /// `StepFailed` is not the oldest in flight: bugs of the caller.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Arrive(request) => self.arrive(request),
            Event::Cancel(request) => {
                if let Some(&group) = self.requests.get(&request) {
                    self.end_group(group, FinishReason::Cancelled);
                }
            }
            Event::CancelChoice(request, choice) => {
                if let Some(&group) = self.requests.get(&request)
                    && (choice as usize) < self.groups[group].choices.len()
                {
                    self.end_choice(group, choice, FinishReason::Cancelled);
                }
            }
            Event::Tick(now) => self.tick(now),
            Event::StepDone {
                step,
                outputs,
                failed_shrinks,
            } => self.step_done(step, &outputs, &failed_shrinks),
            Event::StepFailed { step } => self.step_failed(step),
        }
    }

    /// Gives a plan's buffers back for reuse.
    pub fn recycle(&mut self, plan: StepPlan) {
        if self.spare_plans.len() <= self.config.max_in_flight {
            self.spare_plans.push(plan);
        }
    }

    /// Moves the notices since the last call to the end of `out`.
    pub fn drain_notices(&mut self, out: &mut Vec<Notice>) {
        out.append(&mut self.notices);
    }

    /// The choices whose samples of the oldest step in flight will be used, in the order of its
    /// slices. With `max_in_flight` above 1, samples for choices that have already finished, or
    /// whose earlier step failed, are discarded. An engine that keeps state for each choice must
    /// discard them too.
    pub fn awaited(&self) -> impl Iterator<Item = (RequestId, u32)> + '_ {
        let slices = self
            .in_flight
            .front()
            .into_iter()
            .flat_map(|step| &step.slices);
        let awaited = slices.filter(|slice| {
            slice.samples > 0
                && self
                    .seqs
                    .get(slice.seq)
                    .is_some_and(|s| s.epoch == slice.epoch)
        });
        awaited.flat_map(|slice| {
            let group = &self.groups[self.seqs[slice.seq].group];
            let all = slice.samples > 1;
            let shared = group.active_choices().filter(move |_| all);
            let own = (!all).then_some(slice.choice);
            shared.chain(own).map(|choice| (slice.request, choice))
        })
    }

    /// Bits that an active choice has been computed from so far, including the steps in flight.
    /// `None`: it has ended.
    pub fn bits(&self, request: RequestId, choice: u32) -> Option<SeqBits> {
        let group = &self.groups[*self.requests.get(&request)?];
        match group.choices.get(choice as usize)? {
            Choice::Own(seq) => Some(self.seq_bits(*seq)),
            Choice::Sharing => group.leader.map(|leader| self.seq_bits(leader)),
            Choice::Ended => None,
        }
    }

    /// The lowest bits that a running sequence has read, and the mean of their means.
    pub fn running_bits(&self) -> SeqBits {
        let (mut lowest, mut sum, mut tokens) = (16, 0, 0);
        for (_, key) in &self.running {
            let bits = self.seq_bits(*key);
            lowest = bits.lowest.min(lowest);
            sum += bits.mean_centibits;
            tokens += bits.tokens;
        }
        let mean = sum.checked_div(self.running.len() as u32);
        SeqBits {
            lowest,
            mean_centibits: mean.unwrap_or(1600),
            tokens,
        }
    }

    /// Whether no request is active and no step in flight.
    pub fn is_idle(&self) -> bool {
        self.groups.len() == 0 && self.in_flight.is_empty()
    }

    /// The scheduler's limits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The KV pool.
    pub fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// Counts for metrics.
    pub fn stats(&self) -> Stats {
        self.counters.stats(self)
    }

    /// Frames that `tokens` more tokens of one sequence take at first.
    pub(crate) fn frames_of(&self, tokens: u64) -> u64 {
        self.blocks.config().whole_frames_at_16_bit(tokens)
    }

    /// Most frames that `tokens` more tokens of a sequence take, once those behind its window are
    /// given back.
    pub(crate) fn frames_at_most(&self, tokens: u64) -> u64 {
        let pool = self.blocks.config();
        pool.frames_at_16_bit(tokens, self.policy.tokens_ahead)
    }

    /// Sequences that a running or waiting one is, or will be once its choices fork.
    pub(crate) fn sequence_count(&self, seq: Key) -> usize {
        let seq = &self.seqs[seq];
        if seq.is_shared() {
            self.groups[seq.group].active as usize
        } else {
            1
        }
    }

    pub(crate) fn run(&mut self, key: Key) {
        let urgency = self.seqs[key].urgency;
        let at = self.running.partition_point(|(u, _)| *u < urgency);
        self.running.insert(at, (urgency, key));
    }

    pub(crate) fn stop_running(&mut self, key: Key) {
        let urgency = self.seqs[key].urgency;
        let at = self.running.partition_point(|(u, _)| *u < urgency);
        assert_eq!(
            self.running[at].1, key,
            "a resident sequence is in the running list"
        );
        self.running.remove(at);
    }

    /// Adds a sequence to the queue.
    pub(crate) fn enqueue(&mut self, key: Key) {
        let seq = &self.seqs[key];
        self.counters.waiting_preempted += usize::from(seq.preempted);
        let before = self.waiting.insert(seq.urgency, key);
        debug_assert!(before.is_none(), "urgencies are unique");
    }

    /// Removes a sequence from the queue.
    pub(crate) fn dequeue(&mut self, key: Key) {
        let seq = &self.seqs[key];
        self.counters.waiting_preempted -= usize::from(seq.preempted);
        let found = self.waiting.remove(&seq.urgency);
        debug_assert_eq!(found, Some(key), "a sequence without memory waits");
    }
}
