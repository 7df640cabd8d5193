//! Frames that can be taken from the blocks that have them, and when.

use std::collections::VecDeque;

use crate::epoch::Epoch;

/// A sum of frames, of which some are still busy: steps in flight may touch them, so taking them
/// would free nothing yet.
#[derive(Debug, Default)]
pub(crate) struct Evictable {
    frames: u32,
    /// Busy frames by the step that they wait for, ascending.
    busy: VecDeque<(Epoch, u32)>,
    busy_frames: u32,
}

impl Evictable {
    /// All frames.
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Those that can be freed at once.
    pub(crate) fn idle(&self) -> u32 {
        self.frames - self.busy_frames
    }

    /// Adds frames that steps up to `until` may touch. Steps up to `done` have retired.
    pub(crate) fn add(&mut self, frames: u32, until: Epoch, done: Epoch) {
        self.frames += frames;
        if until <= done {
            return;
        }
        self.busy_frames += frames;
        let at = self.busy.partition_point(|&(epoch, _)| epoch < until);
        match self.busy.get_mut(at) {
            Some((epoch, count)) if *epoch == until => *count += frames,
            _ => self.busy.insert(at, (until, frames)),
        }
    }

    /// Undoes [`add`](Self::add).
    pub(crate) fn remove(&mut self, frames: u32, until: Epoch, done: Epoch) {
        self.frames -= frames;
        if until <= done {
            return;
        }
        self.busy_frames -= frames;
        let at = self.busy.partition_point(|&(epoch, _)| epoch < until);
        self.busy[at].1 -= frames;
    }

    /// Steps up to `done` have retired. Returns whether more can be freed.
    pub(crate) fn retire(&mut self, done: Epoch) -> bool {
        let before = self.busy_frames;
        while let Some(&(_, frames)) = self.busy.front().filter(|&&(epoch, _)| epoch <= done) {
            self.busy_frames -= frames;
            self.busy.pop_front();
        }
        self.busy_frames < before
    }

    /// Busy frames by what they wait for: for the audit.
    pub(crate) fn busy(&self) -> impl Iterator<Item = (Epoch, u32)> + '_ {
        self.busy.iter().copied()
    }
}
