//! The KV pool for people to look at: who holds how much of it, and at how many bits.
//!
//! A look is as large as a screen can show, whatever the pool's size. Neighbouring blocks of one
//! owner are told together as one [`Cell`] where there are more than [`CELLS_MAX`] blocks. Of the
//! running sequences at most [`RUNNING_MAX`] are told one by one, and the blocks of the others
//! together; of those that wait at most [`WAITING_MAX`]. Nothing of what a request says is in it.

use ebb_block_manager::{BlockId, BlockManager, SeqId};
use ebb_scheduler::{Phase, Scheduler, SequenceView};
use rustc_hash::FxHashSet;
use serde::Serialize;

/// Blocks that are told one by one. With more of them there are at most so many cells, and one
/// more for each owner.
pub const CELLS_MAX: u32 = 2048;
/// Running sequences that are told one by one.
pub const RUNNING_MAX: usize = 256;
/// Waiting sequences that are told.
pub const WAITING_MAX: usize = 32;

/// Neighbouring blocks of one owner: the mean stored bits of a value in them, and their frames.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell(pub f32, pub u32);

/// A sequence: a choice of a request, or the prompt that its choices still share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Number of its request, counted from the start of the engine.
    pub request: u64,
    /// Number of its choice.
    pub choice: u32,
    /// `waiting`, `preempted`, `prefill` or `decode`.
    pub phase: &'static str,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens in the KV cache.
    pub tokens: u32,
    /// Most tokens that it will have in the KV cache.
    pub tokens_max: u32,
    /// Lowest nominal bits that it has read.
    pub lowest_bits: u8,
    /// Mean stored bits of what it has read.
    pub mean_bits: f32,
    /// Blocks that it alone holds, oldest tokens first.
    pub cells: Vec<Cell>,
}

/// The pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KvPool {
    /// Bytes of one frame.
    pub frame_bytes: u64,
    /// Frames of the arena.
    pub frames: u32,
    /// Frames that nobody holds.
    pub frames_free: u32,
    /// Frames that a step in flight still reads or writes: of blocks that were freed, and those
    /// that blocks shrink to.
    pub frames_in_steps: u32,
    /// Frames of a block at 16 bit.
    pub block_frames: u32,
    /// Blocks of one cell; the last cell of an owner may have fewer.
    pub blocks_per_cell: u32,
    /// Sequences, first those that run.
    pub sequences: Vec<Row>,
    /// Blocks that several sequences hold.
    pub shared: Vec<Cell>,
    /// Blocks of running sequences that are not told one by one.
    pub others: Vec<Cell>,
    /// Blocks that only the prefix cache keeps, the least recently used first.
    pub cached: Vec<Cell>,
    /// Tokens of prompts computed since the start, with those computed again.
    pub tokens_prefill: u64,
    /// Tokens of answers computed since the start.
    pub tokens_decode: u64,
}

/// Blocks of one owner on their way into cells.
#[derive(Default)]
struct Cells {
    cells: Vec<Cell>,
    blocks: u32,
    frames: u32,
    centibits: u64,
}

impl Cells {
    fn push(&mut self, centibits: u64, frames: u32, blocks_per_cell: u32) {
        self.blocks += 1;
        self.frames += frames;
        self.centibits += centibits;
        if self.blocks >= blocks_per_cell {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.blocks > 0 {
            let centibits = self.centibits as f32 / self.blocks as f32;
            self.cells
                .push(Cell(centibits.round() / 100.0, self.frames));
        }
        (self.blocks, self.frames, self.centibits) = (0, 0, 0);
    }

    fn finish(mut self) -> Vec<Cell> {
        self.close();
        self.cells
    }
}

/// A pass over the blocks of all sequences.
struct Pass<'a> {
    blocks: &'a BlockManager,
    blocks_per_cell: u32,
    shared: Cells,
    /// Blocks of several sequences that were met already.
    seen: FxHashSet<BlockId>,
}

impl Pass<'_> {
    fn add(&self, cells: &mut Cells, centibits: u64, frames: u32) {
        cells.push(centibits, frames, self.blocks_per_cell);
    }

    /// Adds the blocks of a sequence to `own`, but for those that others hold, too.
    fn sequence(&mut self, seq: SeqId, own: &mut Cells) {
        for block in self.blocks.blocks_of(seq) {
            if block.holders <= 1 {
                self.add(own, block.centibits, block.frames);
            } else if self.seen.insert(block.block) {
                let mut shared = std::mem::take(&mut self.shared);
                self.add(&mut shared, block.centibits, block.frames);
                self.shared = shared;
            }
        }
    }
}

impl Row {
    fn new(view: &SequenceView, cells: Vec<Cell>) -> Self {
        Self {
            request: view.request.0,
            choice: view.choice,
            phase: match view.phase {
                Phase::Waiting => "waiting",
                Phase::Preempted => "preempted",
                Phase::Prefill => "prefill",
                Phase::Decode => "decode",
            },
            prompt_tokens: view.prompt_tokens,
            tokens: view.tokens,
            tokens_max: view.tokens_max,
            lowest_bits: view.bits.lowest,
            mean_bits: view.bits.mean_centibits as f32 / 100.0,
            cells,
        }
    }
}

impl KvPool {
    /// The pool of this scheduler as it is now.
    pub fn of(scheduler: &Scheduler) -> Self {
        let (blocks, stats) = (scheduler.blocks(), scheduler.stats());
        let usage = stats.blocks;
        let count = usage.blocks_live + usage.blocks_cached;
        let mut pass = Pass {
            blocks,
            blocks_per_cell: count.div_ceil(CELLS_MAX).max(1),
            shared: Cells::default(),
            seen: FxHashSet::default(),
        };
        let (mut sequences, mut others) = (Vec::new(), Cells::default());
        for view in scheduler.running() {
            let is_told = sequences.len() < RUNNING_MAX;
            let mut own = Cells::default();
            if let Some(seq) = view.kv {
                pass.sequence(seq, if is_told { &mut own } else { &mut others });
            }
            if is_told {
                sequences.push(Row::new(&view, own.finish()));
            }
        }
        let waiting = scheduler.waiting().take(WAITING_MAX);
        sequences.extend(waiting.map(|view| Row::new(&view, Vec::new())));
        let mut cached = Cells::default();
        for block in blocks.cached_blocks() {
            pass.add(&mut cached, block.centibits, block.frames);
        }
        Self {
            frame_bytes: usage.frame_bytes,
            frames: usage.frames_total,
            frames_free: usage.frames_free,
            frames_in_steps: usage.frames_retiring + usage.frames_shrinking,
            block_frames: blocks.config().block_frames(),
            blocks_per_cell: pass.blocks_per_cell,
            sequences,
            shared: pass.shared.finish(),
            others: others.finish(),
            cached: cached.finish(),
            tokens_prefill: stats.tokens_prefill,
            tokens_decode: stats.tokens_scheduled - stats.tokens_prefill,
        }
    }
}

#[cfg(test)]
mod tests {
    use ebb_block_manager::PoolConfig;
    use ebb_scheduler::{ChoiceOutput, Config, Event, Request, RequestId};

    use super::*;

    fn scheduler(frames: u32, config: Config) -> Scheduler {
        Scheduler::new(config, PoolConfig::whole(frames, 64, 1)).expect("sound limits")
    }

    /// Runs so many steps; every request goes on.
    fn steps(scheduler: &mut Scheduler, count: usize) {
        for _ in 0..count {
            let Some(plan) = scheduler.plan() else { return };
            let outputs = scheduler_outputs(&plan);
            let step = plan.step;
            scheduler.recycle(plan);
            scheduler.apply(Event::StepDone {
                step,
                outputs,
                failed_shrinks: vec![],
            });
        }
    }

    fn scheduler_outputs(plan: &ebb_scheduler::StepPlan) -> Vec<ChoiceOutput> {
        let sampled = plan.slices.iter().filter(|s| s.logits.choices() > 0);
        let output = |s: &ebb_scheduler::Slice| ChoiceOutput {
            request: s.request,
            choice: 0,
            token: 5,
            finish: false,
        };
        sampled.map(output).collect()
    }

    fn frames(cells: &[Cell]) -> u32 {
        cells.iter().map(|cell| cell.1).sum()
    }

    /// Every frame is told once.
    fn check(pool: &KvPool) {
        let own: u32 = pool.sequences.iter().map(|row| frames(&row.cells)).sum();
        let rest = frames(&pool.shared) + frames(&pool.others) + frames(&pool.cached);
        assert_eq!(
            own + rest + pool.frames_free + pool.frames_in_steps,
            pool.frames
        );
    }

    #[test]
    fn every_frame_is_told_once() {
        let mut scheduler = scheduler(200, Config::default());
        let prompt: Vec<u32> = (0..300).collect();
        for id in 0..3 {
            let request = Request::new(RequestId(id), prompt.clone(), 20);
            scheduler.apply(Event::Arrive(request));
            check(&KvPool::of(&scheduler));
            steps(&mut scheduler, 2);
            check(&KvPool::of(&scheduler));
        }
        let pool = KvPool::of(&scheduler);
        // The first two blocks of 8 frames are the same for all.
        assert_eq!(frames(&pool.shared), 16);
        assert_eq!(pool.shared[0], Cell(16.0, 8));
        assert_eq!(pool.sequences.len(), 3);
        let row = &pool.sequences[0];
        assert_eq!(
            (row.request, row.phase, row.prompt_tokens),
            (0, "decode", 300)
        );
        assert_eq!((row.tokens_max, frames(&row.cells)), (319, 3 + 1));
        steps(&mut scheduler, 40);
        let pool = KvPool::of(&scheduler);
        check(&pool);
        assert_eq!(pool.sequences, []);
        assert_eq!(frames(&pool.cached), 16);
        assert_eq!(pool.tokens_decode, 3 * 19);
    }

    #[test]
    fn a_look_is_bounded_whatever_the_pool_holds() {
        let config = Config {
            max_running: 400,
            max_waiting: 1000,
            max_logit_rows: 400,
            max_step_tokens: 1 << 20,
            prefill_chunk: 1 << 20,
            ..Config::default()
        };
        let mut scheduler = scheduler(100_000, config);
        for id in 0..500 {
            let prompt: Vec<u32> = (0..2600).map(|t| t ^ (id << 16)).collect();
            let request = Request::new(RequestId(id.into()), prompt, 20);
            scheduler.apply(Event::Arrive(request));
        }
        steps(&mut scheduler, 3);
        let pool = KvPool::of(&scheduler);
        check(&pool);
        let blocks = scheduler.stats().blocks.blocks_live;
        assert!(blocks > 3 * CELLS_MAX, "{blocks} blocks");
        let own = pool.sequences.iter().map(|row| row.cells.len());
        let cells = own.sum::<usize>() + pool.others.len();
        assert!(cells <= CELLS_MAX as usize + RUNNING_MAX + 1, "{cells}");
        assert_eq!(pool.sequences.len(), RUNNING_MAX + WAITING_MAX);
        assert!(frames(&pool.others) > 0);
        assert!(pool.sequences[0].cells[0].1 > pool.block_frames);
    }
}
