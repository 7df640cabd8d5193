//! A backend whose pages hold what was written: token, context, format, provenance and place.
//!
//! It keeps its own copy of the block tables and changes it only by a plan's deltas. Steps run in
//! order, each on the tables as its plan left them. Whatever a sequence is about to attend to is
//! read back through the tables and compared with the sequence's own tokens, so a page that was
//! aliased, reused too early, shared wrongly, not copied or half shrunk shows at once. Every cell
//! also knows the lowest width of anything that it was computed from, so a request that is served
//! from less than it asked for shows too.

use std::collections::{BTreeMap, VecDeque};

use ebb_block_manager::{
    BLOCK_TOKENS, BlockId, BlockManager, PoolConfig, SUB_BLOCK_TOKENS, SeqId, ShrinkJob,
    TableDelta, schedule::Bound,
};
use ebb_scheduler::{SAMPLED_LATER, Slice, StepPlan};

use super::model::Context;
use super::rng::mix;

/// What a frame holds of one token. A sub-block of several frames holds each token in all of them,
/// so a frame also tells which part of its sub-block it is. A frame of a shrunk block has a digest
/// of all the block's tokens in its first cell, and tells which part of the block it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    token: u32,
    /// Fingerprint of all tokens up to this one: KV depends on everything before.
    context: u32,
    format: u16,
    part: u16,
    /// Lowest width of anything that this was computed from.
    lowest: u8,
}

/// What memory holds that nobody has written since it was handed out.
const POISON: Cell = Cell {
    token: 0xdead_beef,
    context: 0xdead_beef,
    format: 0xdead,
    part: 0xdead,
    lowest: 0,
};

#[derive(Clone, Debug, Default)]
struct MirrorBlock {
    position: u16,
    frames: Vec<u32>,
}

/// What the sequence of a slice consists of, by the client's own books.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Lowest width that it may be computed from.
    pub min_kv_bits: u8,
    /// Whether what it reads follows from its own length alone: every block at its place.
    pub is_fixed: bool,
    /// Tokens of a prompt that read each other at 16 bit, if the mode has chunks of them.
    pub chunk: Option<usize>,
    /// The prompt.
    pub prompt: &'a [u32],
    /// Contexts after each of its tokens.
    pub prompt_contexts: &'a [Context],
    /// Tokens sampled since.
    pub tokens: &'a [u32],
    /// Contexts after each of them.
    pub contexts: &'a [Context],
}

impl Expected<'_> {
    fn at(&self, position: usize) -> Option<(u32, Context)> {
        if let Some(token) = self.prompt.get(position) {
            return Some((*token, self.prompt_contexts[position]));
        }
        let at = position - self.prompt.len();
        self.tokens.get(at).map(|token| (*token, self.contexts[at]))
    }
}

/// A plan on its way through the device.
#[derive(Debug)]
pub struct Submitted {
    /// The plan.
    pub plan: StepPlan,
    /// For each slice: an earlier failure of its sequence made it meaningless.
    pub void: Vec<bool>,
    tables: Vec<View>,
    /// Blocks of all slices.
    blocks: Vec<Place>,
    /// Frames of all blocks.
    frames: Vec<u32>,
    new_frames: Vec<u32>,
    touched: Vec<bool>,
}

/// Blocks of a slice, in [`Submitted::blocks`].
#[derive(Clone, Copy, Debug)]
struct View {
    first: usize,
    len: usize,
}

/// A block as a step finds it.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Its schedule position.
    format: u16,
    /// Its frames, in [`Submitted::frames`].
    first_frame: usize,
    frames: usize,
}

/// The backend.
#[derive(Debug)]
pub struct Device {
    pool: PoolConfig,
    /// Rows of its tables.
    slots: usize,
    rows: Vec<Vec<usize>>,
    blocks: Vec<MirrorBlock>,
    pages: Vec<[Cell; SUB_BLOCK_TOKENS]>,
    queue: VecDeque<Submitted>,
    /// Position of the first token that a sequence computed itself.
    begun: BTreeMap<SeqId, u32>,
}

impl Device {
    /// A device with a pool full of poison and tables of `slots` rows.
    pub fn new(pool: PoolConfig, slots: usize) -> Self {
        let frames = pool.frames;
        Self {
            pool,
            slots,
            rows: Vec::new(),
            blocks: Vec::new(),
            pages: vec![[POISON; SUB_BLOCK_TOKENS]; frames as usize],
            queue: VecDeque::new(),
            begun: BTreeMap::new(),
        }
    }

    /// Steps submitted and not run.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Takes a plan. Fails if it hands out a frame that a step in flight may touch, or if the
    /// tables as the deltas left them are not those of the block manager.
    pub fn submit(&mut self, plan: StepPlan, manager: &BlockManager) -> Result<(), String> {
        let mut new_frames = Vec::new();
        for delta in &plan.deltas {
            self.apply(delta, &mut new_frames)?;
        }
        let mut frames = Vec::new();
        let mut blocks = Vec::new();
        let mut tables = Vec::new();
        for slice in &plan.slices {
            self.begun.entry(slice.seq).or_insert(slice.position);
            let first = blocks.len();
            self.view(slice, manager, &mut blocks, &mut frames)?;
            let len = blocks.len() - first;
            tables.push(View { first, len });
        }
        let mut touched = vec![false; self.pages.len()];
        let copied = plan.copies.iter().flat_map(|(src, dst)| [src, dst]);
        let shrunk = plan.shrinks.iter();
        let shrunk = shrunk.flat_map(|job| job.old.iter().chain(&job.new));
        for frame in frames.iter().chain(copied).chain(shrunk) {
            touched[*frame as usize] = true;
        }
        for job in &plan.shrinks {
            for &frame in &job.new {
                self.check_unused(frame)?;
            }
        }
        let void = vec![false; plan.slices.len()];
        self.queue.push_back(Submitted {
            plan,
            void,
            tables,
            blocks,
            frames,
            new_frames,
            touched,
        });
        Ok(())
    }

    /// The blocks of a slice by the mirrored tables, which must be those of the block manager.
    fn view(
        &self,
        slice: &Slice,
        manager: &BlockManager,
        blocks: &mut Vec<Place>,
        frames: &mut Vec<u32>,
    ) -> Result<(), String> {
        let table = manager.table(slice.seq);
        let row = self.rows.get(slice.slot.0 as usize);
        let row = row.map_or(&[][..], Vec::as_slice);
        let mut room = 0;
        for (index, (id, (position, want))) in table.ids().iter().zip(table.iter()).enumerate() {
            let have = row.get(index).copied();
            if have != Some(id.0 as usize) {
                return Err(format!(
                    "{}: entry {index} of its row is {have:?}",
                    slice.seq
                ));
            }
            let mirror = &self.blocks[id.0 as usize];
            if mirror.position != position || mirror.frames != want {
                return Err(format!("{}: {id} is {mirror:?}, not {want:?}", slice.seq));
            }
            blocks.push(Place {
                format: position,
                first_frame: frames.len(),
                frames: want.len(),
            });
            frames.extend_from_slice(want);
            room += if position == 0 {
                want.len() / self.parts() * SUB_BLOCK_TOKENS
            } else {
                BLOCK_TOKENS
            };
        }
        let end = slice.position as usize + slice.tokens.len();
        if room < end {
            return Err(format!("{}: {end} tokens in memory for {room}", slice.seq));
        }
        Ok(())
    }

    /// Frames of a 16-bit sub-block.
    fn parts(&self) -> usize {
        self.pool.frames_per_sub_block as usize
    }

    fn check_unused(&self, frame: u32) -> Result<(), String> {
        if self.queue.iter().any(|step| step.touched[frame as usize]) {
            return Err(format!(
                "frame {frame} is reused while a step in flight has it"
            ));
        }
        Ok(())
    }

    fn apply(&mut self, delta: &TableDelta, new_frames: &mut Vec<u32>) -> Result<(), String> {
        match *delta {
            TableDelta::Row { slot, index, block } => {
                let room = self.pool.max_blocks_per_seq;
                if slot.0 as usize >= self.slots || index >= room {
                    let slots = self.slots;
                    return Err(format!("{delta:?} beyond {slots} rows of {room} blocks"));
                }
                let row = entry(&mut self.rows, slot.0 as usize);
                // A device that counts the entries of a row takes no holes.
                if index as usize > row.len() {
                    return Err(format!("{delta:?} leaves a hole"));
                }
                *entry(row, index as usize) = block.0 as usize;
                entry(&mut self.blocks, block.0 as usize);
            }
            TableDelta::Block { block, position } => {
                let mirror = entry(&mut self.blocks, block.0 as usize);
                mirror.position = position;
                mirror.frames.clear();
            }
            TableDelta::Frame {
                block,
                index,
                frame,
            } => {
                self.check_unused(frame)?;
                let mirror = entry(&mut self.blocks, block.0 as usize);
                *entry(&mut mirror.frames, index as usize) = frame;
                // A shrink has written the others.
                if mirror.position == 0 {
                    new_frames.push(frame);
                }
            }
        }
        Ok(())
    }

    /// Makes slices of a sequence in steps not yet run meaningless, because an earlier one failed.
    pub fn void(&mut self, seq: SeqId) {
        for step in &mut self.queue {
            for (slice, void) in step.plan.slices.iter().zip(&mut step.void) {
                *void |= slice.seq == seq;
            }
        }
    }

    /// Takes the oldest step off the queue.
    pub fn pop(&mut self) -> Option<Submitted> {
        self.queue.pop_front()
    }

    /// Fails a step in the worst way: nothing that it should have written is there.
    pub fn run_failing(&mut self, step: &Submitted) {
        self.prepare(step);
        let copies = step.plan.copies.iter().map(|(_, dst)| dst);
        let shrinks = step.plan.shrinks.iter().flat_map(|job| &job.new);
        for frame in copies.chain(shrinks) {
            self.pages[*frame as usize] = [POISON; SUB_BLOCK_TOKENS];
        }
        for (index, slice) in step.plan.slices.iter().enumerate() {
            self.write_poison(step, index, slice.position as usize, slice.tokens.len());
        }
    }

    /// Runs a step: copies, shrinks, then the rows of all slices, each after everything that they
    /// attend to was read back. `expected` gives the tokens of a slice's sequence, `fails` whether
    /// a shrink fails. Tells for each slice the lowest width that it was computed from.
    pub fn run<'a>(
        &mut self,
        step: &Submitted,
        expected: impl Fn(usize) -> Expected<'a>,
        mut fails: impl FnMut(BlockId) -> bool,
    ) -> Result<Vec<u8>, String> {
        self.prepare(step);
        for job in &step.plan.shrinks {
            self.transcode(job, fails(job.block))?;
        }
        let mut lowest = Vec::new();
        for (index, slice) in step.plan.slices.iter().enumerate() {
            let (position, len) = (slice.position as usize, slice.tokens.len());
            if step.void[index] {
                self.write_poison(step, index, position, len);
                lowest.push(16);
                continue;
            }
            let want = expected(index);
            let read = self.read_back(step, index, position, want)?;
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
        // Copies read before anything is written, so also from frames handed out in this very plan.
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
    fn transcode(&mut self, job: &ShrinkJob, fails: bool) -> Result<(), String> {
        let (have, lowest) = self
            .digest(job.from, &job.old)
            .map_err(|e| format!("{} cannot be shrunk: {e}", job.block))?;
        let to = self.pool.positions.standing(job.to);
        if to.cost.frames as usize != job.new.len() || job.new.len() >= job.old.len() {
            return Err(format!("{job:?} frees nothing"));
        }
        for (part, &frame) in job.new.iter().enumerate() {
            self.pages[frame as usize] = [POISON; SUB_BLOCK_TOKENS];
            if !fails || part == 0 {
                self.pages[frame as usize][0] = shrunk(have, job.to, part, lowest);
            }
        }
        Ok(())
    }

    /// Digest of what a full block holds, and the lowest width that any of it was computed from.
    fn digest(&self, format: u16, frames: &[u32]) -> Result<(u64, u8), String> {
        let mut lowest = 16;
        if format > 0 {
            let first = self.pages[frames[0] as usize][0];
            let digest = u64::from(first.token) << 32 | u64::from(first.context);
            for (part, &frame) in frames.iter().enumerate() {
                let have = self.pages[frame as usize][0];
                let want = shrunk(digest, format, part, first.lowest);
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
            for (part, &frame) in own.iter().enumerate() {
                let have = self.pages[frame as usize][at % SUB_BLOCK_TOKENS];
                let want = Cell {
                    part: part as u16,
                    ..first
                };
                if have != want || have.format != 0 {
                    return Err(format!("token {at} is {have:?}, part 0 has {first:?}"));
                }
            }
            lowest = lowest.min(first.lowest);
            digest = add(digest, first.token, first.context);
        }
        Ok((digest, lowest))
    }

    /// Reads the tokens before `end`; tells the lowest width that any of it has or was computed
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
            let place = step.blocks[step.tables[index].first + first / BLOCK_TOKENS];
            let bits = self.pool.positions.standing(place.format).min_bits;
            lowest = lowest.min(bits);
            self.check_width(first / BLOCK_TOKENS, place.format, slice, expected)?;
            if place.format > 0 {
                let frames = &step.frames[place.first_frame..][..place.frames];
                let (have, from) = self
                    .digest(place.format, frames)
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

    /// The first full block keeps the protected width, and so does the last unless it was shrunk
    /// before the sequence found it cached; where the mode fixes what is read, every block is at
    /// its place.
    fn check_width(
        &self,
        index: usize,
        format: u16,
        slice: &Slice,
        expected: Expected<'_>,
    ) -> Result<(), String> {
        let positions = &self.pool.positions;
        let own = Bound(expected.min_kv_bits);
        let position = slice.position as usize;
        let writing = match expected.chunk {
            Some(chunk) if position < expected.prompt.len() => position / chunk * chunk,
            _ => position,
        } / BLOCK_TOKENS;
        let is_own = self.begun[&slice.seq] as usize <= index * BLOCK_TOKENS;
        let (first, edge) = (own.max(self.pool.sink), own.max(self.pool.protected));
        let down = |from, bound| positions.last_stop(from, bound).unwrap_or(from);
        // Where a block goes that is first protected, then not.
        let (bound, floor) = match index {
            _ if index >= writing => (Bound::NEVER, 0),
            _ if index == 0 => (first, down(0, first)),
            _ if index + 1 == writing && is_own => (edge, down(0, edge)),
            _ => (own, down(down(0, edge), own)),
        };
        let bits = positions.standing(format).min_bits;
        let least = positions.standing(positions.last(bound)).min_bits;
        if bits < least || (expected.is_fixed && format != floor) {
            return Err(format!(
                "{} at {} reads block {index} at position {format} of {bits} bits, not {floor} of \
                 {least}",
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
        let View { first, len } = step.tables[index];
        let block = at / BLOCK_TOKENS;
        let place = step.blocks[first..first + len][block];
        let within = at % BLOCK_TOKENS / SUB_BLOCK_TOKENS * self.parts() + part;
        if place.format > 0 || within >= place.frames {
            return Err(format!("token {at} lies in {place:?}"));
        }
        Ok(step.frames[place.first_frame + within] as usize)
    }
}

/// A token at 16 bit.
fn cell(token: u32, context: Context, part: usize) -> Cell {
    Cell {
        token,
        context: context.fingerprint(),
        format: 0,
        part: part as u16,
        lowest: 16,
    }
}

/// Part of a shrunk block.
fn shrunk(digest: u64, format: u16, part: usize, lowest: u8) -> Cell {
    Cell {
        token: (digest >> 32) as u32,
        context: digest as u32,
        format,
        part: part as u16,
        lowest,
    }
}

/// Digest with one more token.
fn add(digest: u64, token: u32, context: u32) -> u64 {
    mix(digest ^ (u64::from(token) << 32 | u64::from(context)))
}

/// Element `index`, which is made if it is not there.
fn entry<T: Default + Clone>(items: &mut Vec<T>, index: usize) -> &mut T {
    if items.len() <= index {
        items.resize(index + 1, T::default());
    }
    &mut items[index]
}
