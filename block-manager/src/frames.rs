//! Frames without an owner: free, or waiting for steps in flight.

use std::collections::VecDeque;

use crate::epoch::Epoch;

/// The frames of the arena that no block owns.
#[derive(Debug)]
pub(crate) struct FramePool {
    free: Vec<u32>,
    /// By rising epoch: one group for each step in flight, and one for the step being planned.
    retiring: VecDeque<Retiring>,
    retiring_frames: u32,
    /// Empty vectors of past groups, kept for their memory.
    spare: Vec<Vec<u32>>,
}

/// Frames that steps up to `epoch` may still touch.
#[derive(Debug)]
struct Retiring {
    epoch: Epoch,
    frames: Vec<u32>,
}

impl FramePool {
    /// All of `0..frames` free; low numbers are handed out first.
    pub(crate) fn new(frames: u32) -> Self {
        Self {
            free: (0..frames).rev().collect(),
            retiring: VecDeque::new(),
            retiring_frames: 0,
            spare: Vec::new(),
        }
    }

    /// Frames that can be handed out now.
    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Frames that wait for steps in flight.
    pub(crate) fn retiring(&self) -> u32 {
        self.retiring_frames
    }

    /// Fills `out` with free frames. The caller has made sure that there are enough.
    pub(crate) fn take(&mut self, out: &mut [u32]) {
        let left = self.free.len().checked_sub(out.len());
        let left = left.expect("frames are counted before they are taken");
        out.copy_from_slice(&self.free[left..]);
        self.free.truncate(left);
    }

    /// Takes frames back that steps up to `until` may touch. Steps up to `done` have retired.
    pub(crate) fn give(&mut self, frames: &[u32], until: Epoch, done: Epoch) {
        if until <= done {
            self.free.extend_from_slice(frames);
            return;
        }
        self.retiring_frames += frames.len() as u32;
        let younger = self
            .retiring
            .iter()
            .rev()
            .take_while(|group| group.epoch > until)
            .count();
        let at = self.retiring.len() - younger;
        let at = match at.checked_sub(1) {
            Some(before) if self.retiring[before].epoch == until => before,
            _ => {
                let frames = self.spare.pop().unwrap_or_default();
                self.retiring.insert(
                    at,
                    Retiring {
                        epoch: until,
                        frames,
                    },
                );
                at
            }
        };
        self.retiring[at].frames.extend_from_slice(frames);
    }

    /// Frees what waited for epochs up to `done`.
    pub(crate) fn reclaim(&mut self, done: Epoch) {
        while self
            .retiring
            .front()
            .is_some_and(|group| group.epoch <= done)
        {
            let mut group = self.retiring.pop_front().expect("the front was just seen");
            self.retiring_frames -= group.frames.len() as u32;
            self.free.append(&mut group.frames);
            self.spare.push(group.frames);
        }
    }

    /// Every unowned frame: first the free ones, then the retiring ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let retiring = self.retiring.iter().flat_map(|group| &group.frames);
        self.free.iter().chain(retiring).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_low_frames_first_and_each_once() {
        let mut pool = FramePool::new(6);
        let (mut a, mut b) = ([0; 4], [0; 2]);
        pool.take(&mut a);
        pool.take(&mut b);
        a.sort_unstable();
        b.sort_unstable();
        assert_eq!((a, b), ([0, 1, 2, 3], [4, 5]));
        assert_eq!(pool.free(), 0);
    }

    #[test]
    fn frames_wait_for_their_epoch_whatever_the_order_they_came_in() {
        let mut pool = FramePool::new(4);
        let mut all = [0; 4];
        pool.take(&mut all);
        pool.give(&[3], 7, 4);
        pool.give(&[0], 5, 4);
        pool.give(&[1], 7, 4);
        pool.give(&[2], 4, 4);
        assert_eq!((pool.free(), pool.retiring()), (1, 3));
        pool.reclaim(5);
        assert_eq!((pool.free(), pool.retiring()), (2, 2));
        pool.reclaim(6);
        assert_eq!(pool.free(), 2);
        pool.reclaim(7);
        assert_eq!((pool.free(), pool.retiring()), (4, 0));
        let mut back: Vec<u32> = pool.iter().collect();
        back.sort_unstable();
        assert_eq!(back, [0, 1, 2, 3]);
    }
}
