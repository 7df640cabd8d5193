//! Follows every choice while it runs, and logs its trajectory when it has ended.

use ebb_block_manager::Table;
use ebb_scheduler::{FinishReason, RequestId, Slice};
use rustc_hash::FxHashMap;

use super::active_request::ActiveRequest;
use crate::metrics::Recorder;
use crate::trajectory::{Follower, Trajectory, TrajectoryLog};

/// The trajectories of all live choices, and the log that they go to.
pub(super) struct Recording {
    log: TrajectoryLog,
    recorder: Recorder,
    /// By request, its choices. They stay until the request leaves: one that begins late has begun
    /// with another's prompt.
    choices: FxHashMap<RequestId, Vec<Recorded>>,
}

/// One choice so far.
#[derive(Default)]
struct Recorded {
    /// None until it computes.
    follower: Option<Follower>,
    tokens: Vec<u32>,
    logprobs: Vec<f64>,
}

impl Recording {
    pub(super) fn new(log: TrajectoryLog, recorder: Recorder) -> Self {
        Self {
            log,
            recorder,
            choices: FxHashMap::default(),
        }
    }

    /// A slice is being submitted, with this table; `lowest` are the lowest bits that it has read
    /// so far.
    pub(super) fn slice(
        &mut self,
        slice: &Slice,
        live: &ActiveRequest,
        table: Table<'_>,
        lowest: u8,
    ) {
        let choices = self.choices.entry(slice.request).or_default();
        choices.resize_with(live.request.params.n as usize, Recorded::default);
        let own = slice.choice as usize;
        let follower = match follower(choices, own, slice.position) {
            Some(follower) => choices[own].follower.insert(follower),
            None => choices[own].follower.get_or_insert_default(),
        };
        let levels = table.iter().map(|(level, _)| level);
        follower.slice(slice.position, slice.tokens.len() as u32, levels, lowest);
    }

    /// A choice got its next token.
    pub(super) fn token(
        &mut self,
        request: RequestId,
        choice: u32,
        token: u32,
        logprob: Option<f32>,
    ) {
        let choices = self.choices.get_mut(&request);
        if let Some(recorded) = choices.and_then(|c| c.get_mut(choice as usize)) {
            recorded.tokens.push(token);
            recorded.logprobs.extend(logprob.map(f64::from));
        }
    }

    /// A choice lost its memory.
    pub(super) fn preempted(&mut self, request: RequestId, choice: u32) {
        let choices = self.choices.get_mut(&request);
        let Some(recorded) = choices.and_then(|c| c.get_mut(choice as usize)) else {
            return;
        };
        let generated = recorded.tokens.len() as u32;
        let follower = recorded.follower.get_or_insert_default();
        follower.restart(generated);
    }

    /// A choice ended: what it was goes to the log, if it came to any token.
    pub(super) fn finished(&mut self, live: &ActiveRequest, choice: u32, reason: FinishReason) {
        let Some(choices) = self.choices.get_mut(&live.request.id) else {
            return;
        };
        let own = choice as usize;
        // Its first token may have been its last.
        let begun = follower(choices, own, live.request.prompt.len() as u32);
        let recorded = &mut choices[own];
        let life = match begun.as_ref().or(recorded.follower.as_ref()) {
            Some(follower) if !recorded.tokens.is_empty() => follower.life().clone(),
            _ => return,
        };
        let mut sampling = (**live.request.params).clone();
        sampling.seed = Some(live.seed);
        let is_written = self.log.add(&Trajectory {
            request: live.request.name.clone(),
            choice,
            end: match reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
                FinishReason::Cancelled => "cancelled",
                FinishReason::DeadlineExceeded => "deadline",
                FinishReason::Error => "error",
            }
            .to_owned(),
            prompt: live.request.prompt.to_vec(),
            sampling,
            tokens: std::mem::take(&mut recorded.tokens),
            logprobs: std::mem::take(&mut recorded.logprobs),
            cached: life.cached.0,
            cached_bits: life.cached.1,
            earlier: life.earlier,
            exchanged: life.exchanged,
            steps: life.steps,
            moves: life.moves,
        });
        self.recorder.trajectory(is_written);
    }

    /// A request left.
    pub(super) fn left(&mut self, request: RequestId) {
        self.choices.remove(&request);
    }
}

/// What a choice begins with that has computed nothing yet and goes on at `position`: what another
/// one has computed for all.
fn follower(choices: &[Recorded], own: usize, position: u32) -> Option<Follower> {
    if choices[own].follower.is_some() || position == 0 {
        return None;
    }
    let mut others = choices.iter().filter_map(|c| c.follower.as_ref());
    let sharing = others.find(|f| f.computed() >= position);
    sharing.map(|f| f.fork(position))
}
