//! Ebb's scheduler: which sequences compute which tokens in each step.
//!
//! # What it owns
//! - **The queue**: requests in order of urgency. Waiting raises a request, so none starves.
//! - **The batch**: the running sequences. A request is one sequence while its prompt is computed;
//!   then each of its `n` choices is one. Admission gives a sequence memory, preemption takes it.
//! - **Step plans**: slices of prompts and single tokens of decodes, in one list. Each comes with
//!   the copies, shrinks and table changes that it needs. Up to `max_in_flight` steps are out at a
//!   time.
//! - **The KV cache pool**, by its [`BlockManager`](ebb_block_manager::BlockManager). What happens
//!   when memory is short is one policy, [`ebb_block_manager::pressure`], with a worked example.
//!
//! # What it must not know
//! Devices, threads, clocks, random numbers, text. Time arrives in [`Event::Tick`], sampled tokens
//! in [`Event::StepDone`]. It is a pure function of its events: the same events give the same
//! plans, bit for bit, which the simulation in `tests/` relies on.
//!
//! # Entry points
//! Events go in ([`Scheduler::apply`]), step plans come out ([`Scheduler::plan`]). What was decided
//! about requests comes out as notices ([`Scheduler::drain_notices`]).
//!
//! | file | what happens there |
//! |---|---|
//! | `arrive` | a request is rejected or queued |
//! | `batch` | a step is planned: **start reading here** |
//! | `admit`, `promise` | the head of the queue gets memory, if it fits |
//! | `memory`, `preempt` | running sequences get memory, wait for it, or lose it |
//! | `priority` | a running sequence yields to an urgent one of the queue |
//! | `demand`, `static_mode` | blocks are chosen that shrink |
//! | `recent` | how much of the latest context KVmix's rule keeps from that |
//! | `submit` | the plan is written |
//! | `retire` | a step returns: tokens are committed, choices fork, failures are undone |
//! | `end` | a choice finishes, is cancelled or is too late |
//! | `view` | what an observer sees of the sequences |
//!
//! # How a step is planned
//! 1. Every running sequence that decodes gets memory for one token, the most urgent first.
//! 2. Running sequences with unfinished prompts get as many tokens as the step and the memory
//!    allow.
//! 3. If no running sequence lacked memory, the head of the queue is admitted, then the next one,
//!    until one does not fit.
//! 4. Blocks are chosen that shrink with this step, for what the next steps will need.
//! 5. The plan is written. A step may consist of shrinks alone.
//!
//! ```
//! use ebb_block_manager::PoolConfig;
//! use ebb_scheduler::{ChoiceOutput, Config, Event, Notice, Request, RequestId, Scheduler};
//!
//! // 64 frames of 4 KiB, one for each 16 tokens.
//! let pool = PoolConfig::whole(64, 4096, 1);
//! let mut scheduler = Scheduler::new(Config::default(), pool)?;
//! let request = RequestId(1);
//! scheduler.apply(Event::Arrive(Request::new(request, vec![5, 6, 7], 2)));
//! let mut answer = Vec::new();
//! while let Some(plan) = scheduler.plan() {
//!     // A backend would run the plan; this model always says 9.
//!     let step = plan.step;
//!     let outputs = vec![ChoiceOutput { request, choice: 0, token: 9, finish: false }];
//!     answer.push(9);
//!     scheduler.recycle(plan);
//!     scheduler.apply(Event::StepDone { step, outputs, failed_shrinks: vec![] });
//! }
//! let mut notices = Vec::new();
//! scheduler.drain_notices(&mut notices);
//! assert_eq!(answer.len(), 2);
//! assert!(matches!(notices.last(), Some(Notice::Finished { .. })));
//! # Ok::<(), ebb_scheduler::SetupError>(())
//! ```

mod admit;
mod arrive;
mod batch;
mod check;
mod config;
mod demand;
mod end;
mod event;
mod group;
mod in_flight;
mod memory;
mod notice;
mod plan;
mod preempt;
mod priority;
mod promise;
mod queue_capacity;
mod recent;
mod request;
mod retire;
mod scheduler;
mod seq;
mod slab;
mod states;
mod static_mode;
mod stats;
mod submit;
mod urgency;
mod view;

pub use ebb_block_manager::SeqBits;
pub use ebb_block_manager::pressure::{Admission, Mode};

pub use config::{Config, ConfigError, SetupError};
pub use event::{ChoiceOutput, Event};
pub use notice::{FinishReason, Notice, RejectReason};
pub use plan::{Logits, SAMPLED_LATER, Slice, StepPlan};
pub use queue_capacity::QueueCapacity;
pub use recent::{recent_tokens, recent_tokens_max};
pub use request::{Millis, Request, RequestId};
pub use scheduler::Scheduler;
pub use stats::Stats;
pub use view::{Phase, SequenceView};

/// Failed steps in a row after which a sequence ends with [`FinishReason::Error`].
pub const FAILURES_MAX: u32 = 3;
