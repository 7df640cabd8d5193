//! What happened, as a digest and, if wanted, as text.

use std::fmt::{Debug, Display};

use ebb_block_manager::TableDelta;
use ebb_scheduler::{Notice, StepPlan};

use super::rng::mix;

/// A digest of all plans and notices.
#[derive(Debug)]
pub struct Trace {
    digest: u64,
    prints: bool,
}

impl Trace {
    /// An empty trace. `print` also writes each event to standard output.
    pub fn new(print: bool) -> Self {
        Self {
            digest: 0,
            prints: print,
        }
    }

    /// Equal digests: equal traces, but for a chance of 2^-64.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Writes a line, if text is wanted.
    pub fn print(&self, what: impl FnOnce() -> String) {
        if self.prints {
            println!("{}", what());
        }
    }

    /// Adds a plan.
    pub fn plan(&mut self, plan: &StepPlan) {
        self.add(plan.step.0);
        for (src, dst) in &plan.copies {
            self.add(u64::from(*src) << 32 | u64::from(*dst));
        }
        for job in &plan.shrinks {
            self.add(u64::from(job.block.0) << 32 | u64::from(job.from) << 16 | u64::from(job.to));
            for frame in job.old.iter().chain(&job.new) {
                self.add(u64::from(*frame));
            }
        }
        for slice in &plan.slices {
            self.add(slice.request.0 << 32 | u64::from(slice.choice));
            self.add(u64::from(slice.slot.0) << 32 | u64::from(slice.position));
            self.add(u64::from(slice.tokens.end) << 32 | u64::from(slice.logits.choices()));
        }
        for token in &plan.tokens {
            self.add(u64::from(*token));
        }
        for delta in &plan.deltas {
            let (kind, a, b, c) = match *delta {
                TableDelta::Row { slot, index, block } => (1, slot.0, index, block.0),
                TableDelta::Block { block, level } => (2, block.0, u32::from(level), 0),
                TableDelta::Frame {
                    block,
                    index,
                    frame,
                } => (3, block.0, index, frame),
            };
            self.add(u64::from(a) << 32 | u64::from(b));
            self.add(u64::from(c) << 8 | kind);
        }
        self.print(|| {
            let slices = plan.slices.iter().map(|s| {
                format!(
                    "{}.{}@{}+{} {:?}",
                    s.request.0,
                    s.choice,
                    s.position,
                    s.tokens.len(),
                    s.logits
                )
            });
            let slices: Vec<_> = slices.collect();
            let shrinks = plan.shrinks.iter();
            let shrinks = shrinks.map(|job| format!("{}: {} to {}", job.block, job.from, job.to));
            let shrinks: Vec<_> = shrinks.collect();
            format!(
                "plan {}: copies {:?}, shrinks {shrinks:?}, {}",
                plan.step,
                plan.copies,
                slices.join(", ")
            )
        });
    }

    /// Adds a notice.
    pub fn notice(&mut self, notice: &Notice) {
        let (kind, request, detail) = match notice {
            Notice::Rejected { request, .. } => (1, request, 0),
            Notice::Admitted {
                request,
                cached_tokens,
            } => (2, request, *cached_tokens),
            Notice::Preempted { request, choice } => (3, request, *choice),
            Notice::Finished {
                request,
                choice,
                reason,
                ..
            } => (4 + *reason as u64, request, *choice),
        };
        self.add(request.0 << 32 | u64::from(detail));
        self.add(kind);
        self.print(|| format!("  {notice:?}"));
    }

    /// Writes an event.
    pub fn event(&self, event: &(impl Debug + ?Sized), note: impl Display) {
        self.print(|| format!("apply {event:?} {note}"));
    }

    fn add(&mut self, word: u64) {
        self.digest = mix(self.digest.rotate_left(5) ^ word.wrapping_add(1));
    }
}
