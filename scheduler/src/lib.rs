//! Ebb's scheduler: queues, batches, admission and preemption as a synchronous state machine.
//!
//! Events go in ([`Scheduler::apply`]), step plans come out ([`Scheduler::plan`]). What was decided
//! about requests on the way is told by notices ([`Scheduler::drain_notices`]). The scheduler owns
//! the [`BlockManager`](ebb_block_manager::BlockManager) and is a pure function of its events: it
//! knows no clock (time arrives in [`Event::Tick`]), no thread, no device and no random number, so
//! the same events give the same plans, bit for bit.
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
mod promise;
mod request;
mod retire;
mod room;
mod scheduler;
mod seq;
mod slab;
mod static_mode;
mod stats;
mod submit;
mod urgency;

pub use ebb_block_manager::SeqBits;
pub use ebb_block_manager::pressure::{Admission, Mode};

pub use config::{Config, ConfigError, SetupError};
pub use event::{ChoiceOutput, Event};
pub use notice::{FinishReason, Notice, RejectReason};
pub use plan::{Logits, SAMPLED_LATER, Slice, StepPlan};
pub use request::{Millis, Request, RequestId};
pub use room::Room;
pub use scheduler::Scheduler;
pub use stats::Stats;

/// Failed steps in a row after which a sequence ends with [`FinishReason::Error`].
pub const FAILURES_MAX: u32 = 3;
