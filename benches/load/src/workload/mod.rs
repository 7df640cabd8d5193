//! What is asked: sessions of one request or more, each a function of the seed and its number
//! alone.

mod args;
mod lengths;
mod tokens;

use std::time::Duration;

use rand::RngExt as _;

pub use args::WorkloadArgs;
pub use lengths::Lengths;
pub use tokens::{Source, Tokens};

use crate::protocol::Target;
use crate::record::Class;
use crate::trace::Trace;

/// One client's requests, each of which repeats what was said before and adds to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name among all of the test: stage and number.
    pub id: u64,
    /// How its client behaves.
    pub class: Class,
    /// The shared prefix that it begins with, if any.
    pub prefix: Option<u32>,
    /// At least one.
    pub turns: Vec<Turn>,
}

/// One request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Tokens that the prompt has beyond those of the turn before and its answer (or beyond the
    /// prefix).
    pub added: u32,
    /// Tokens of the answer.
    pub answer: u32,
    /// Tokens after which the client cancels; 0: before the first.
    pub cancel_after: Option<u32>,
}

/// Sessions without end.
#[derive(Debug, Clone)]
pub struct Workload {
    args: WorkloadArgs,
    tokens: Tokens,
    /// Lengths come from here instead of distributions.
    trace: Option<Trace>,
    context: u32,
}

/// Sessions that a stage may have.
const SESSIONS_PER_STAGE: u64 = 1 << 40;

impl Workload {
    /// For a server. With a trace, its lengths take the place of the distributions'.
    pub fn new(args: &WorkloadArgs, trace: Option<Trace>, target: &Target) -> Self {
        Self {
            tokens: Tokens::new(args.seed, target.vocab_size, &target.end_tokens),
            args: args.clone(),
            trace,
            context: target.max_context,
        }
    }

    /// A stage's session of this number; none where its first turn does not fit the server's
    /// context. Turns that do not fit later are left out.
    pub fn session(&self, stage: usize, number: u64) -> Option<Session> {
        let args = &self.args;
        let id = stage as u64 * SESSIONS_PER_STAGE + number;
        let mut rng = self.tokens.plan(id);
        // All that may be drawn is drawn, so that one flag changes nothing else.
        let (class, prefix, group) = (
            rng.random::<f64>(),
            rng.random::<f64>(),
            rng.random_range(0..args.prefix_groups),
        );
        let class = match class {
            x if x < args.cancel => Class::Cancel,
            x if x < args.cancel + args.slow => Class::Slow,
            _ => Class::Steady,
        };
        let prefix = (args.prefix_tokens > 0 && prefix < args.prefix_share).then_some(group);
        let recorded = self.trace.as_ref().map(|trace| {
            let of = trace.get(number as usize);
            let scaled = |n: u32| (f64::from(n) * args.length_scale).round().max(1.0) as u32;
            (scaled(of.prompt), scaled(of.generated))
        });
        let mut turns = Vec::new();
        let mut context = prefix.map_or(0, |_| args.prefix_tokens);
        for _ in 0..args.turns.draw(&mut rng) {
            let drawn = (
                args.prompt_tokens.draw(&mut rng),
                args.output_tokens.draw(&mut rng),
            );
            let (added, answer) = recorded.unwrap_or(drawn);
            let cancel_after = rng.random_range(0..answer);
            let cancel_after = (class == Class::Cancel).then_some(cancel_after);
            context = context.saturating_add(added).saturating_add(answer);
            if context > self.context {
                break;
            }
            turns.push(Turn {
                added,
                answer,
                cancel_after,
            });
        }
        (!turns.is_empty()).then_some(Session {
            id,
            class,
            prefix,
            turns,
        })
    }

    /// The tokens that a session's prompts begin with.
    pub fn prefix(&self, session: &Session) -> Vec<u32> {
        let group = session.prefix.map(|group| self.tokens.prefix(group));
        group.map_or(Vec::new(), |mut tokens| {
            tokens.take(self.args.prefix_tokens)
        })
    }

    /// The tokens that a session's turns add, one after the other.
    pub fn added(&self, session: &Session) -> Source<'_> {
        self.tokens.session(session.id)
    }

    /// Time that a client takes to read an answer before its next turn, or between its sessions.
    pub fn think(&self) -> Duration {
        Duration::from_secs_f64(self.args.think)
    }

    /// What was asked for.
    pub fn args(&self) -> &WorkloadArgs {
        &self.args
    }

    /// Random numbers for the arrivals of a stage.
    pub fn arrivals(&self, stage: usize) -> rand_chacha::ChaCha8Rng {
        self.tokens.arrivals(stage)
    }
}

#[cfg(test)]
mod tests;
