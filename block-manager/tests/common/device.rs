//! A device that stores, instead of keys and values, a digest of all that they depend on: the
//! token, its position and every token before it. It knows the pool only through table deltas and
//! copies, runs each step as late as allowed, and reads every context back after every step.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::is_windowed;
use ebb_block_manager::{
    BLOCK_TOKENS, BlockId, BlockManager, NO_FRAME, PoolConfig, SUB_BLOCK_TOKENS, SeqId, ShrinkJob,
    Slot, TableDelta,
};

/// Digest of a prefix of token ids.
pub(crate) fn digest(before: u64, token: u32) -> u64 {
    let mixed = (before ^ u64::from(token))
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// One step, as the host submitted it.
struct Step {
    id: u64,
    deltas: Vec<TableDelta>,
    copies: Vec<(u32, u32)>,
    shrinks: Vec<ShrinkJob>,
    sequences: Vec<Rows>,
    /// Frames that the step may read or write.
    touched: HashSet<u32>,
}

/// The part of a sequence in one step.
pub(crate) struct Rows {
    pub(crate) seq: u64,
    pub(crate) slot: Slot,
    /// Tokens that the cache holds after the step.
    pub(crate) tokens: Vec<u32>,
    /// The first token that this step computes.
    pub(crate) from: usize,
}

/// The simulated device.
pub(crate) struct Device {
    config: PoolConfig,
    /// Contents of each frame: 16 cells at level 0, one cell for shrunk blocks.
    frames: Vec<Vec<u64>>,
    rows: BTreeMap<(Slot, u32), BlockId>,
    blocks: BTreeMap<BlockId, (u16, Vec<u32>)>,
    queue: VecDeque<Step>,
    in_flight: BTreeMap<u64, HashSet<u32>>,
    pub(crate) tokens_read: u64,
}

impl Device {
    pub(crate) fn new(config: PoolConfig) -> Self {
        let mut frames = Vec::new();
        frames.resize(config.frames as usize, vec![0; SUB_BLOCK_TOKENS]);
        Self {
            config,
            frames,
            rows: BTreeMap::new(),
            blocks: BTreeMap::new(),
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            tokens_read: 0,
        }
    }

    /// Submits a step and returns how many frames it copies. Fails if it was given a frame that a
    /// step in flight may touch.
    pub(crate) fn submit(
        &mut self,
        id: u64,
        pool: &mut BlockManager,
        shrinks: Vec<ShrinkJob>,
        sequences: Vec<Rows>,
    ) -> Result<u32, String> {
        let (mut deltas, mut copies) = (Vec::new(), Vec::new());
        pool.drain_deltas(&mut deltas);
        pool.drain_copies(&mut copies);
        let copied = copies.len() as u32;
        for delta in &deltas {
            let TableDelta::Frame { frame, .. } = *delta else {
                continue;
            };
            let toucher = self
                .in_flight
                .iter()
                .find(|(_, touched)| touched.contains(&frame));
            if let Some((step, _)) = toucher {
                return Err(format!(
                    "frame {frame} is handed out while step {step} may touch it"
                ));
            }
        }
        let mut touched = HashSet::new();
        for rows in &sequences {
            for (index, (level, frames)) in pool.table(SeqId(rows.seq)).iter().enumerate() {
                let seen = self.seen(rows, index, level, frames);
                touched.extend(seen.filter(|&frame| frame != NO_FRAME));
            }
        }
        touched.extend(copies.iter().flat_map(|&(from, to)| [from, to]));
        touched.extend(
            shrinks
                .iter()
                .flat_map(|job| job.old.iter().chain(&job.new))
                .filter(|&&frame| frame != NO_FRAME),
        );
        self.in_flight.insert(id, touched.clone());
        self.queue.push_back(Step {
            id,
            deltas,
            copies,
            shrinks,
            sequences,
            touched,
        });
        Ok(copied)
    }

    /// Runs the steps up to `id`, as the host retires it.
    pub(crate) fn finish(&mut self, id: u64) -> Result<(), String> {
        while self.queue.front().is_some_and(|step| step.id <= id) {
            let step = self.queue.pop_front().expect("the front was just seen");
            self.run(&step)
                .map_err(|e| format!("step {}: {e}", step.id))?;
        }
        self.in_flight.remove(&id);
        Ok(())
    }

    fn run(&mut self, step: &Step) -> Result<(), String> {
        step.deltas.iter().for_each(|&delta| self.apply(delta));
        for &(from, to) in &step.copies {
            self.frames[to as usize] = self.frames[from as usize].clone();
        }
        step.shrinks
            .iter()
            .try_for_each(|job| self.transcode(job))?;
        for rows in &step.sequences {
            self.write(rows, &step.touched)?;
        }
        step.sequences.iter().try_for_each(|rows| self.read(rows))
    }

    fn apply(&mut self, delta: TableDelta) {
        match delta {
            TableDelta::Row { slot, index, block } => _ = self.rows.insert((slot, index), block),
            TableDelta::Block { block, level } => {
                self.blocks.insert(block, (level, Vec::new()));
            }
            TableDelta::Frame {
                block,
                index,
                frame,
            } => {
                let (_, frames) = self
                    .blocks
                    .get_mut(&block)
                    .expect("a block comes before frames");
                assert_eq!(
                    frames.len() as u32,
                    index,
                    "frames of {block} come in order"
                );
                frames.push(frame);
            }
        }
    }

    /// Cells of the 128 tokens of a full block.
    fn cells(&self, level: u16, frames: &[u32]) -> Vec<u64> {
        if level > 0 {
            let owned = frames.iter().filter(|&&f| f != NO_FRAME);
            return owned.map(|&f| self.frames[f as usize][0]).collect();
        }
        (0..BLOCK_TOKENS).map(|at| self.cell(frames, at)).collect()
    }

    /// A token's cell, if all the frames of its sub-block agree on it.
    fn cell(&self, frames: &[u32], at: usize) -> u64 {
        let per = self.config.frames_per_sub_block as usize;
        let own = &frames[at / SUB_BLOCK_TOKENS * per..][..per];
        let owned = own.iter().filter(|&&f| f != NO_FRAME);
        let mut cells = owned.map(|&f| self.frames[f as usize][at % SUB_BLOCK_TOKENS]);
        let first = cells.next().expect("a sub-block has frames");
        if cells.all(|cell| cell == first) {
            first
        } else {
            u64::MAX
        }
    }

    fn transcode(&mut self, job: &ShrinkJob) -> Result<(), String> {
        let last = *self
            .cells(job.from, &job.old)
            .last()
            .expect("a block has frames");
        if job.from > 0 && last != self.frames[job.old[0] as usize][0] {
            return Err(format!("{} was torn before it shrinks", job.block));
        }
        for &frame in job.new.iter().filter(|&&f| f != NO_FRAME) {
            // The digest of the last token is that of the whole block.
            self.frames[frame as usize] = vec![last];
        }
        Ok(())
    }

    fn write(&mut self, rows: &Rows, touched: &HashSet<u32>) -> Result<(), String> {
        let digests = prefix_digests(&rows.tokens);
        let per = self.config.frames_per_sub_block as usize;
        for (position, &cell) in digests.iter().enumerate().skip(rows.from) {
            let (shrunk, frames) = self.block(rows, position)?;
            let at = position % BLOCK_TOKENS;
            let own = frames
                .get(at / SUB_BLOCK_TOKENS * per..)
                .and_then(|own| own.get(..per));
            let (0, Some(own)) = (shrunk, own) else {
                return Err(format!(
                    "seq {}: no memory to write token {position}",
                    rows.seq
                ));
            };
            let own = own.to_vec();
            for frame in own {
                if !touched.contains(&frame) {
                    return Err(format!(
                        "seq {}: the tables name frame {frame}, the host does not",
                        rows.seq
                    ));
                }
                let cells = &mut self.frames[frame as usize];
                cells.resize(SUB_BLOCK_TOKENS, 0);
                cells[at % SUB_BLOCK_TOKENS] = cell;
            }
        }
        Ok(())
    }

    fn read(&mut self, rows: &Rows) -> Result<(), String> {
        let digests = prefix_digests(&rows.tokens);
        for (block, expected) in digests.chunks(BLOCK_TOKENS).enumerate() {
            let (level, frames) = self.block(rows, block * BLOCK_TOKENS)?;
            let frames: Vec<u32> = self.seen(rows, block, level, frames).collect();
            let frames = &frames[..];
            let is_right = if level > 0 {
                self.cells(level, frames)
                    .iter()
                    .all(|cell| expected.last() == Some(cell))
            } else {
                (0..expected.len()).all(|at| self.cell(frames, at) == expected[at])
            };
            if !is_right {
                return Err(format!(
                    "seq {} reads foreign tokens in its block {block}",
                    rows.seq
                ));
            }
        }
        self.tokens_read += digests.len() as u64;
        Ok(())
    }

    /// The frames of a block that a step reads: behind the window of the first token that it
    /// computes none that is windowed.
    fn seen<'a>(
        &'a self,
        rows: &Rows,
        block: usize,
        level: u16,
        frames: &'a [u32],
    ) -> impl Iterator<Item = u32> + 'a {
        let window = self.config.window.as_ref();
        let first = window.map_or(0, |w| (rows.from + 1).saturating_sub(w.tokens as usize));
        let is_behind = (block + 1) * BLOCK_TOKENS <= first;
        let places = frames.iter().enumerate();
        places.map(
            move |(at, &frame)| match is_windowed(&self.config, level, at) {
                true if is_behind => NO_FRAME,
                _ => frame,
            },
        )
    }

    fn block(&self, rows: &Rows, position: usize) -> Result<(u16, &[u32]), String> {
        let index = (position / BLOCK_TOKENS) as u32;
        let id = self.rows.get(&(rows.slot, index));
        let id = id.ok_or_else(|| format!("row {:?} ends before block {index}", rows.slot))?;
        let (level, frames) = &self.blocks[id];
        Ok((*level, frames))
    }

    /// Compares the device's tables, after all deltas, with the pool's.
    pub(crate) fn compare_tables(&self, pool: &BlockManager, slots: &BTreeMap<u64, Slot>) {
        let mut names = BTreeSet::new();
        for (&seq, &slot) in slots {
            assert!(names.insert(slot), "two sequences share {slot:?}");
            for (index, (level, frames)) in pool.table(SeqId(seq)).iter().enumerate() {
                let id = self.rows[&(slot, index as u32)];
                let (known_level, known) = &self.blocks[&id];
                assert_eq!((level, frames.len()), (*known_level, known.len()));
                // Nobody is told what a block has given back.
                let pairs = frames.iter().zip(known);
                pairs.for_each(|(frame, known)| assert!(*frame == NO_FRAME || frame == known));
            }
        }
    }
}

fn prefix_digests(tokens: &[u32]) -> Vec<u64> {
    let mut before = 0;
    tokens
        .iter()
        .map(|&token| {
            before = digest(before, token);
            before
        })
        .collect()
}
