//! Running a step.

use ebb_block_manager::{
    BLOCK_TOKENS, BlockId, NO_FRAME, SUB_BLOCK_TOKENS, ShrinkJob, precision::MinBits,
};
use ebb_scheduler::{SAMPLED_LATER, Slice};

use super::cell::{Cell, POISON, add, cell, shrunk};
use super::{Device, Expected, SliceView, Submitted};

impl Device {
    /// Fails a step in the worst way: all that it should have written is poison.
    pub fn run_failing(&mut self, step: &Submitted) {
        self.prepare(step);
        let copies = step.plan.copies.iter().map(|(_, dst)| dst);
        let shrinks = step.plan.shrinks.iter().flat_map(|job| &job.new);
        for frame in copies.chain(shrinks).filter(|frame| **frame != NO_FRAME) {
            self.pages[*frame as usize] = [POISON; SUB_BLOCK_TOKENS];
        }
        for (index, slice) in step.plan.slices.iter().enumerate() {
            self.write_poison(step, index, slice.position as usize, slice.tokens.len());
            self.lose_state(step, index);
        }
        self.lose_copies(step);
    }

    /// Runs a step: copies, shrinks, then all slices, each after everything that it attends to was
    /// read back. `expected` gives the tokens of a slice's sequence, `fails` whether a shrink
    /// fails. Returns for each slice the lowest bits that it was computed from.
    pub fn run<'a>(
        &mut self,
        step: &Submitted,
        expected: impl Fn(usize) -> Expected<'a>,
        mut fails: impl FnMut(BlockId) -> bool,
    ) -> Result<Vec<u8>, String> {
        self.prepare(step);
        self.copy_states(step)?;
        for job in &step.plan.shrinks {
            self.shrink(job, fails(job.block))?;
        }
        let mut lowest = Vec::new();
        for (index, slice) in step.plan.slices.iter().enumerate() {
            let (position, len) = (slice.position as usize, slice.tokens.len());
            if step.void[index] {
                self.write_poison(step, index, position, len);
                self.lose_state(step, index);
                lowest.push(16);
                continue;
            }
            let want = expected(index);
            let read = self.read_back(step, index, position, want)?;
            let read = self.move_state(step, index, want, read)?;
            lowest.push(read);
            let tokens = &step.plan.tokens[slice.tokens.start as usize..slice.tokens.end as usize];
            for (i, token) in tokens.iter().enumerate() {
                let at = position + i;
                let (known, context) = want.at(at).ok_or_else(|| {
                    format!("{} {}: nothing is at {at}", slice.request, slice.choice)
                })?;
                if *token != known && (*token != SAMPLED_LATER || at < want.prompt.len()) {
                    let (request, choice) = (slice.request, slice.choice);
                    return Err(format!(
                        "{request} {choice}: token {at} is {known}, not {token}"
                    ));
                }
                for part in 0..self.parts() {
                    let frame = self.locate(step, index, at, part)?;
                    self.pages[frame][at % SUB_BLOCK_TOKENS] = Cell {
                        lowest: read,
                        ..cell(known, context, part)
                    };
                }
            }
        }
        for (index, slice) in step.plan.slices.iter().enumerate() {
            if !step.void[index] {
                let end = slice.position as usize + slice.tokens.len();
                self.read_back(step, index, end, expected(index))?;
            }
        }
        Ok(lowest)
    }

    fn prepare(&mut self, step: &Submitted) {
        // Copies read before anything is written, also from frames handed out in this plan.
        let mut copied = vec![false; self.pages.len()];
        for (src, dst) in &step.plan.copies {
            self.pages[*dst as usize] = self.pages[*src as usize];
            copied[*dst as usize] = true;
        }
        for frame in &step.new_frames {
            if !copied[*frame as usize] {
                self.pages[*frame as usize] = [POISON; SUB_BLOCK_TOKENS];
            }
        }
    }

    /// A failing shrink leaves half of a page.
    fn shrink(&mut self, job: &ShrinkJob, fails: bool) -> Result<(), String> {
        let (have, lowest) = self
            .digest(job.from, &job.old)
            .map_err(|e| format!("{} cannot be shrunk: {e}", job.block))?;
        let to = self.pool.levels.level(job.to);
        // Static levels follow from a sequence alone, whatever of a block is left.
        let is_trimmed = job.old.contains(&NO_FRAME);
        let would_free = self.is_static && is_trimmed && job.new.len() < job.old.len();
        let frees = job.frames_freed() > 0 || would_free;
        if to.size.frames as usize != job.new.len() || !frees {
            return Err(format!("{job:?} frees nothing"));
        }
        let owned = job.new.iter().enumerate();
        for (part, &frame) in owned.filter(|(_, frame)| **frame != NO_FRAME) {
            self.pages[frame as usize] = [POISON; SUB_BLOCK_TOKENS];
            if !fails || part == 0 {
                self.pages[frame as usize][0] = shrunk(have, job.to, part, lowest);
            }
        }
        Ok(())
    }

    /// Digest of a full block, and the lowest bits that any of it was computed from.
    fn digest(&self, level: u16, frames: &[u32]) -> Result<(u64, u8), String> {
        let mut lowest = 16;
        if level > 0 {
            let first = self.pages[frames[0] as usize][0];
            let digest = u64::from(first.token) << 32 | u64::from(first.context);
            let owned = frames.iter().enumerate();
            for (part, &frame) in owned.filter(|(_, frame)| **frame != NO_FRAME) {
                let have = self.pages[frame as usize][0];
                let want = shrunk(digest, level, part, first.lowest);
                if have != want {
                    return Err(format!("part {part} holds {have:?} instead of {want:?}"));
                }
            }
            return Ok((digest, first.lowest));
        }
        let mut digest = 0;
        for at in 0..BLOCK_TOKENS {
            let own = &frames[at / SUB_BLOCK_TOKENS * self.parts()..][..self.parts()];
            let first = self.pages[own[0] as usize][at % SUB_BLOCK_TOKENS];
            let owned = own.iter().enumerate();
            for (part, &frame) in owned.filter(|(_, frame)| **frame != NO_FRAME) {
                let have = self.pages[frame as usize][at % SUB_BLOCK_TOKENS];
                let want = Cell {
                    part: part as u16,
                    ..first
                };
                if have != want || have.level != 0 {
                    return Err(format!("token {at} is {have:?}, part 0 has {first:?}"));
                }
            }
            lowest = lowest.min(first.lowest);
            digest = add(digest, first.token, first.context);
        }
        Ok((digest, lowest))
    }

    /// Reads the tokens before `end`. Returns the lowest bits that any of them has or was computed
    /// from.
    fn read_back(
        &self,
        step: &Submitted,
        index: usize,
        end: usize,
        expected: Expected<'_>,
    ) -> Result<u8, String> {
        let slice = &step.plan.slices[index];
        let mut lowest = 16;
        let wrong = |at: usize, what: String| {
            let (seq, request, choice) = (slice.seq, slice.request, slice.choice);
            let step = step.plan.step;
            format!("{step} {seq} ({request} choice {choice}) reads position {at}: {what}")
        };
        for first in (0..end).step_by(BLOCK_TOKENS) {
            let block = step.blocks[step.tables[index].first + first / BLOCK_TOKENS];
            let bits = self.pool.levels.level(block.level).lowest_bits;
            lowest = lowest.min(bits);
            self.check_level(first / BLOCK_TOKENS, block.level, slice, expected)?;
            if block.level > 0 {
                let frames = &step.frames[block.first_frame..][..block.frames];
                let (have, from) = self
                    .digest(block.level, frames)
                    .map_err(|e| wrong(first, e))?;
                let mut want = 0;
                for at in first..first + BLOCK_TOKENS {
                    let (token, context) = expected.at(at).ok_or("a sequence is shorter")?;
                    want = add(want, token, context.fingerprint());
                }
                if have != want {
                    let what = format!("a block of {have:x} instead of {want:x}");
                    return Err(wrong(first, what));
                }
                lowest = lowest.min(from);
                continue;
            }
            for at in first..end.min(first + BLOCK_TOKENS) {
                let (token, context) =
                    expected.at(at).ok_or("a sequence is shorter than its KV")?;
                for part in 0..self.parts() {
                    let frame = self.locate(step, index, at, part)?;
                    if frame == NO_FRAME as usize {
                        continue;
                    }
                    let have = self.pages[frame][at % SUB_BLOCK_TOKENS];
                    lowest = lowest.min(have.lowest);
                    let want = Cell {
                        lowest: have.lowest,
                        ..cell(token, context, part)
                    };
                    if have != want {
                        let what = format!("frame {frame} holds {have:?}, not {want:?}");
                        return Err(wrong(at, what));
                    }
                }
            }
        }
        if lowest < expected.min_kv_bits {
            let asked = expected.min_kv_bits;
            return Err(wrong(0, format!("{lowest} bits instead of {asked}")));
        }
        Ok(lowest)
    }

    /// The first full block keeps its protected bits, and so does the last one, unless it had
    /// shrunk before the sequence found it in the prefix cache. In static mode every block is at
    /// its level.
    fn check_level(
        &self,
        index: usize,
        level: u16,
        slice: &Slice,
        expected: Expected<'_>,
    ) -> Result<(), String> {
        let positions = &self.pool.levels;
        let own = MinBits(expected.min_kv_bits);
        let position = slice.position as usize;
        let writing = match expected.chunk {
            Some(chunk) if position < expected.prompt.len() => position / chunk * chunk,
            _ => position,
        } / BLOCK_TOKENS;
        let is_own = self.begun[&slice.seq] as usize <= index * BLOCK_TOKENS;
        let (first, edge) = (own.max(self.pool.sink), own.max(self.pool.protected));
        let (bound, floor) = match expected.chunk {
            // What shrank before each step of the sequence, one after the other.
            Some(chunk) => {
                let mut at = (MinBits::SIXTEEN, 0);
                for (computed, first_recent) in recent_blocks(expected, chunk, position) {
                    let sealed = computed / BLOCK_TOKENS;
                    at.0 = match index {
                        _ if index >= sealed || index >= first_recent => MinBits::SIXTEEN,
                        0 => first,
                        _ if index + 1 == sealed => edge,
                        _ => own,
                    };
                    at.1 = positions.last_target(at.1, at.0).unwrap_or(at.1);
                }
                at
            }
            None if index >= writing => (MinBits::SIXTEEN, 0),
            None if index == 0 => (first, 0),
            None if index + 1 == writing && is_own => (edge, 0),
            None => (own, 0),
        };
        let bits = positions.level(level).lowest_bits;
        let least = positions.level(positions.last(bound)).lowest_bits;
        if bits < least || (expected.is_fixed && level != floor) {
            return Err(format!(
                "{} at {} reads block {index} at level {level} of {bits} bits, \
                 not {floor} of {least}",
                slice.request, slice.position
            ));
        }
        Ok(())
    }

    fn write_poison(&mut self, step: &Submitted, index: usize, position: usize, len: usize) {
        for at in position..position + len {
            for part in 0..self.parts() {
                if let Ok(frame) = self.locate(step, index, at, part) {
                    self.pages[frame][at % SUB_BLOCK_TOKENS] = POISON;
                }
            }
        }
    }

    /// Frame of a part of the token at a position, in a block of 16 bit.
    fn locate(
        &self,
        step: &Submitted,
        index: usize,
        at: usize,
        part: usize,
    ) -> Result<usize, String> {
        let SliceView { first, len } = step.tables[index];
        let block = step.blocks[first..first + len][at / BLOCK_TOKENS];
        let within = at % BLOCK_TOKENS / SUB_BLOCK_TOKENS * self.parts() + part;
        if block.level > 0 || within >= block.frames {
            return Err(format!("token {at} lies in {block:?}"));
        }
        Ok(step.frames[block.first_frame + within] as usize)
    }
}

/// In static mode: the tokens computed before each step of a sequence up to the one that computes
/// `position`, and the first block that lies wholly within its recent context then. The steps are
/// the chunks of the prompt and the blocks of the answer; KVmix's rule keeps a share of what each
/// adds and of what was kept before.
fn recent_blocks(
    expected: Expected<'_>,
    chunk: usize,
    position: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let (prompt, share) = (expected.prompt.len(), expected.recent_permille as usize);
    let (mut computed, mut kept) = (0, 0);
    std::iter::from_fn(move || {
        let next = if computed < prompt {
            (computed + chunk).min(prompt)
        } else {
            (computed / BLOCK_TOKENS + 1) * BLOCK_TOKENS
        };
        (next <= position).then(|| {
            kept = (kept + next - computed) * share / 1000;
            computed = next;
            (computed, (computed - kept).div_ceil(BLOCK_TOKENS))
        })
    })
}
