//! Several KV specifications over the same text at once, beside the 16-bit run that they are
//! compared with.
//!
//! Every trial is a sequence of its own in one arena, and all of them go through the model in the
//! same steps, so the weights and the 16-bit run are paid for once. That changes no bits: a row's
//! result depends on its own pages alone (on a GPU the backend is started batch-invariant for it).
//! Each trial has levels of its own, which one shrink order cannot hold, so frames are handed
//! out here and not by a block manager.

use ebb_kernels::SUB_BLOCK_TOKENS;
use ebb_kernels::backend::{Backend, StepInput, TableBuilder};
use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvGeometry, KvLayout, LayoutError};
use ebb_serving::kv_pages::PageFormats;

use super::{CHUNK, FeedError, Rows};

/// Where the sealed blocks of one trial stand, as more and more of them are sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialLevels {
    /// `[sealed blocks - 1][block]`, for as many as a window can have sealed.
    by_sealed: Vec<Vec<u16>>,
    /// Of blocks that nothing protects, in the end.
    last: u16,
}

impl TrialLevels {
    /// Those of the 16-bit run.
    pub fn whole() -> Self {
        Self {
            by_sealed: Vec::new(),
            last: 0,
        }
    }

    /// Levels of all sealed blocks, when so many are.
    fn when(&self, sealed: usize) -> &[u16] {
        let before = sealed.checked_sub(1);
        before
            .and_then(|i| self.by_sealed.get(i))
            .map_or(&[], Vec::as_slice)
    }
}

/// A block that stands at another precision level from some token on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The first token that reads it there, by its place in the sequence.
    pub before: u32,
    /// The block, by its place in the sequence; full by then.
    pub block: u32,
    /// The level.
    pub to: u16,
}

/// How the blocks of a sequence come down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// When blocks are sealed, as a specification has it.
    Sealed(TrialLevels),
    /// One by one, in this order.
    Moves(Vec<Move>),
}

impl Course {
    /// That of the 16-bit run.
    pub fn whole() -> Self {
        Self::Moves(Vec::new())
    }
}

/// The layout that all trials share, and each one's levels in it on the way to `context` tokens.
///
/// # Errors
/// When the model cannot have such pages.
pub fn lay_out(
    geometry: KvGeometry,
    trials: &[PageFormats],
    context: usize,
) -> Result<(KvLayout, Vec<TrialLevels>), LayoutError> {
    lay_out_beside(geometry, Vec::new(), trials, context)
}

/// The same for a layout whose levels from 1 on are these, whatever else the trials need; each
/// lists the formats of all pages.
///
/// # Errors
/// When the model cannot have such pages.
pub fn lay_out_beside(
    geometry: KvGeometry,
    mut shrunk: Vec<Vec<FormatId>>,
    trials: &[PageFormats],
    context: usize,
) -> Result<(KvLayout, Vec<TrialLevels>), LayoutError> {
    let mut level = |formats: &[FormatId]| -> u16 {
        if formats.iter().all(|f| *f == FormatId::F16) {
            return 0;
        }
        let at = shrunk.iter().position(|s| s == formats).unwrap_or_else(|| {
            shrunk.push(formats.to_vec());
            shrunk.len() - 1
        });
        at as u16 + 1
    };
    // The last block of a window is never followed by another.
    let sealed_max = context.div_ceil(CHUNK).saturating_sub(1);
    let mut of_trial = |trial: &PageFormats| {
        let mut when = |sealed: usize| -> Vec<u16> {
            // Most blocks stand where the one before does.
            let mut before = (Vec::new(), 0);
            let mut of_block = |block: usize| {
                let formats = trial.of_block(block == 0, sealed - 1 - block, sealed);
                if formats != before.0 {
                    before = (formats.clone(), level(&formats));
                }
                before.1
            };
            (0..sealed).map(&mut of_block).collect()
        };
        let by_sealed: Vec<Vec<u16>> = (1..=sealed_max).map(&mut when).collect();
        TrialLevels {
            by_sealed,
            last: level(&trial.sealed),
        }
    };
    let levels = trials.iter().map(&mut of_trial).collect();
    geometry.validate()?;
    let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk)?;
    Ok((layout, levels))
}

/// Frames that a trial's sequence needs at most on its way to `context` tokens, and the 16-bit run.
pub fn frames_needed(layout: &KvLayout, at: &TrialLevels, context: usize) -> u64 {
    let of = |level: u16| u64::from(layout.frames(level));
    let blocks = context.div_ceil(CHUNK);
    if *at == TrialLevels::whole() {
        return blocks as u64 * of(0);
    }
    let needed = |sealed: usize| {
        // While blocks shrink they are there twice: as they were and as they become.
        let before = at.when(sealed.saturating_sub(1)).iter().chain(&[0]);
        let now = at.when(sealed);
        let shrinking: u64 = now
            .iter()
            .zip(before.clone())
            .map(|(now, before)| of(*before) + u64::from(now != before) * of(*now))
            .sum();
        let open = now.iter().map(|level| of(*level)).sum::<u64>() + of(0);
        shrinking.max(open)
    };
    (0..blocks).map(needed).max().unwrap_or(0)
}

/// A block of a sequence: where it stands, and its frames.
#[derive(Debug, Clone, Default)]
struct Block {
    level: u16,
    frames: Vec<u32>,
}

/// A backend and an arena that run the 16-bit sequence and one sequence a trial over the same
/// tokens.
pub struct Trials {
    backend: Box<dyn Backend>,
    layout: KvLayout,
    courses: Vec<Course>,
    /// The 16-bit run, then the trials.
    seqs: Vec<Vec<Block>>,
    /// The same, with a slot for each.
    tables: TableBuilder,
    /// Of each, how many of its course's moves are done.
    moved: Vec<usize>,
    free: Vec<u32>,
    len: usize,
    input: StepInput,
}

impl Trials {
    /// Starts empty. The backend must have been made with `layout` and an arena of `frames` frames.
    pub fn new(
        backend: Box<dyn Backend>,
        frames: u32,
        layout: KvLayout,
        levels: Vec<TrialLevels>,
    ) -> Self {
        let mut trials = Self {
            backend,
            layout,
            courses: vec![Course::whole()],
            seqs: Vec::new(),
            tables: TableBuilder::default(),
            moved: Vec::new(),
            free: (0..frames).rev().collect(),
            len: 0,
            input: StepInput::default(),
        };
        trials.restart(levels.into_iter().map(Course::Sealed));
        trials
    }

    /// Starts other trials of the same layout, with nothing fed.
    pub fn restart(&mut self, courses: impl IntoIterator<Item = Course>) {
        self.reset();
        self.courses.truncate(1);
        self.courses.extend(courses);
        self.seqs.resize_with(self.courses.len(), Vec::new);
        self.moved = vec![0; self.courses.len()];
    }

    /// Forgets everything fed so far.
    pub fn reset(&mut self) {
        for (slot, seq) in (0..).zip(&mut self.seqs) {
            self.tables.clear_slot(slot);
            self.free.extend(seq.drain(..).flat_map(|b| b.frames));
        }
        self.moved.fill(0);
        self.len = 0;
    }

    /// The model.
    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// Trials, without the 16-bit run.
    pub fn trials(&self) -> usize {
        self.courses.len() - 1
    }

    /// Appends tokens to every sequence and returns logits `[16-bit run, trials..][rows][vocab]` of
    /// the rows asked for. Where a trial shrinks when blocks are sealed, all of the tokens lie in
    /// the same block; where one goes by moves, none of these comes due within them.
    ///
    /// What is due happens first. When a block opens, the blocks before it go where the trial's
    /// specification has them when so many are sealed.
    ///
    /// # Errors
    /// When the pool is full, a page cannot be shrunk, or the backend fails.
    pub fn feed(&mut self, tokens: &[u32], rows: Option<Rows>) -> Result<&[f32], FeedError> {
        assert!(!tokens.is_empty(), "something to feed");
        assert!(
            self.until_due().is_none_or(|most| tokens.len() <= most),
            "a chunk in which nothing comes due"
        );
        self.shrink_due()?;
        self.grow(tokens.len())?;
        self.fill(tokens, rows);
        let output = self.backend.step(&self.input)?;
        self.len += tokens.len();
        Ok(output.logits)
    }

    /// What is due happens in a step of its own, as a server's rows read a block where it has come
    /// to only once that step is back: a device may read one that it is still writing in another
    /// way, which rounds otherwise.
    fn shrink_due(&mut self) -> Result<(), FeedError> {
        self.input.clear();
        let mut old = Vec::new();
        self.shrink(&mut old)?;
        if !self.input.shrinks.is_empty() {
            let output = self.backend.step(&self.input)?;
            if let Some(failure) = output.failed_shrinks.first() {
                return Err(FeedError::Shrink(failure.to_string()));
            }
            self.free.extend(old);
            self.input.clear();
        }
        Ok(())
    }

    /// Tokens fed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was fed yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most tokens that can be fed at once before a block moves; `None`: any number.
    pub fn until_due(&self) -> Option<usize> {
        let of = |(course, moved): (&Course, &usize)| match course {
            Course::Sealed(_) => Some(CHUNK - self.len % CHUNK),
            Course::Moves(moves) => {
                let left = moves[*moved..].iter().map(|m| m.before as usize);
                left.filter(|before| *before > self.len)
                    .map(|before| before - self.len)
                    .min()
            }
        };
        self.courses.iter().zip(&self.moved).filter_map(of).min()
    }

    fn take(&mut self, count: usize) -> Result<Vec<u32>, FeedError> {
        match self.free.len().checked_sub(count) {
            Some(left) => Ok(self.free.split_off(left)),
            None => Err(FeedError::OutOfMemory {
                missing: (count - self.free.len()) as u32,
            }),
        }
    }

    /// Does the shrinks that are due; the old frames come to `old`, free after the step.
    fn shrink(&mut self, old: &mut Vec<u32>) -> Result<(), FeedError> {
        for seq in 0..self.seqs.len() {
            let due: Vec<(usize, u16)> = match &self.courses[seq] {
                Course::Sealed(at) if self.len.is_multiple_of(CHUNK) => {
                    let levels = at.when(self.len / CHUNK).iter().copied();
                    levels.enumerate().collect()
                }
                Course::Sealed(_) => Vec::new(),
                Course::Moves(moves) => {
                    let left = moves[self.moved[seq]..].iter();
                    let due = left.take_while(|m| m.before as usize <= self.len);
                    due.map(|m| (m.block as usize, m.to)).collect()
                }
            };
            if matches!(self.courses[seq], Course::Moves(_)) {
                self.moved[seq] += due.len();
            }
            // A block that is due more than once goes to the last place at once: its bytes depend
            // on that alone.
            for (index, &(block, to)) in due.iter().enumerate() {
                if due[index + 1..].iter().all(|(later, _)| *later != block) {
                    self.move_to(seq, block, to, old)?;
                }
            }
        }
        Ok(())
    }

    fn move_to(
        &mut self,
        seq: usize,
        block: usize,
        to: u16,
        old: &mut Vec<u32>,
    ) -> Result<(), FeedError> {
        let from = self.seqs[seq][block].level;
        if from == to {
            return Ok(());
        }
        let new = self.take(self.layout.frames(to) as usize)?;
        self.tables.set(seq as u32, block, to, &new);
        let block = &mut self.seqs[seq][block];
        self.input.push_shrink((from, &block.frames), (to, &new));
        old.append(&mut block.frames);
        *block = Block {
            level: to,
            frames: new,
        };
        Ok(())
    }

    /// Gives every sequence memory for `count` more tokens.
    fn grow(&mut self, count: usize) -> Result<(), FeedError> {
        let per_sub_block = self.layout.frame().frames_per_sub_block;
        let end = self.len + count;
        for seq in 0..self.seqs.len() {
            for block in self.len / CHUNK..end.div_ceil(CHUNK) {
                let tokens = CHUNK.min(end - block * CHUNK);
                let frames = tokens.div_ceil(SUB_BLOCK_TOKENS) * per_sub_block;
                if self.seqs[seq].len() == block {
                    self.seqs[seq].push(Block::default());
                }
                let held = self.seqs[seq][block].frames.len();
                let mut new = self.take(frames - held)?;
                let frames = &mut self.seqs[seq][block].frames;
                frames.append(&mut new);
                self.tables.set(seq as u32, block, 0, frames);
            }
        }
        Ok(())
    }

    fn fill(&mut self, tokens: &[u32], rows: Option<Rows>) {
        let input = &mut self.input;
        self.tables.take_deltas(&mut input.deltas);
        for slot in 0..self.seqs.len() as u32 {
            input.push_seq(slot, self.len as u32, tokens);
        }
        let all = input.tokens.len() as u32;
        match rows {
            None => {}
            Some(Rows::All) => input.logit_rows.extend(0..all),
            Some(Rows::Last) => {
                let last = input.seqs.iter().map(|s| s.first_row + s.rows - 1);
                input.logit_rows.extend(last);
            }
        }
    }

    /// What a trial's pages take at the moment.
    pub fn bits(&self, trial: usize) -> Bits {
        let geometry = self.layout.geometry();
        let elements = |tokens: usize| (tokens * geometry.records() * geometry.head_dim) as f64;
        let (mut bytes, mut frames) = (0, 0);
        for (index, block) in self.seqs[trial + 1].iter().enumerate() {
            frames += block.frames.len();
            let tokens = CHUNK.min(self.len - index * CHUNK);
            bytes += match block.level {
                0 => (tokens * geometry.token_bytes()) as u64,
                level => self.layout.bytes(level),
            };
        }
        let held = (frames * self.layout.frame().frame_bytes) as f64;
        let at = |level: u16| self.layout.bytes(level) as f64;
        let sealed = match &self.courses[trial + 1] {
            Course::Sealed(levels) => at(levels.last),
            // Of these the mean, as they stand: all but the first, the last full one and the open
            // one.
            Course::Moves(_) => {
                let blocks = &self.seqs[trial + 1];
                let unguarded = blocks.get(1..blocks.len().saturating_sub(2));
                let bytes = unguarded.into_iter().flatten().map(|b| at(b.level));
                let count = unguarded.map_or(0, <[_]>::len);
                if count == 0 {
                    at(0)
                } else {
                    bytes.sum::<f64>() / count as f64
                }
            }
        };
        Bits {
            stored: bytes as f64 * 8.0 / elements(self.len),
            held: held * 8.0 / elements(self.len),
            sealed: sealed * 8.0 / elements(CHUNK),
        }
    }
}

/// Average bits an element of the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bits {
    /// Codes and metadata of every block.
    pub stored: f64,
    /// Whole frames of every block.
    pub held: f64,
    /// Codes and metadata of sealed blocks that nothing protects.
    pub sealed: f64,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use ebb_kernels::backend::{BackendError, StepOutput};
    use ebb_kernels::model::ModelSpec;

    use super::*;

    /// Tells the shrinks and the rows of each step.
    struct Telling(Sender<(usize, usize)>);

    impl Backend for Telling {
        fn submit(&mut self, input: &StepInput) -> Result<(), BackendError> {
            let told = self.0.send((input.shrinks.len(), input.tokens.len()));
            told.expect("the test listens");
            Ok(())
        }

        fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
            Ok(StepOutput {
                logits: &[],
                samples: &[],
                top: &[],
                failed_shrinks: &[],
                shrink_time: Duration::ZERO,
            })
        }

        fn spec(&self) -> &ModelSpec {
            unreachable!("tokens are fed without it")
        }
    }

    // A GPU reads a block that the same step writes in another way than one that stands there, and
    // rounds otherwise; a server's rows never meet one.
    #[test]
    fn no_row_reads_a_block_that_its_own_step_writes() {
        let geometry = KvGeometry {
            layers: 2,
            kv_heads: 2,
            head_dim: 64,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        };
        let formats: PageFormats = "k=int4,v=int2"
            .parse::<ebb_serving::kv_spec::KvSpec>()
            .and_then(|spec| spec.formats(geometry))
            .expect("a specification");
        let (layout, levels) = lay_out(geometry, &[formats], 4 * CHUNK).expect("a layout");
        let (tell, told) = channel();
        let frames = 40 * layout.frames(0);
        let mut trials = Trials::new(Box::new(Telling(tell)), frames, layout, levels);
        let moves = [(150, 0, 1), (300, 1, 1), (400, 2, 1)];
        let moves = moves.map(|(before, block, to)| Move { before, block, to });
        for course in [None, Some(Course::Moves(moves.to_vec()))] {
            if let Some(course) = course {
                trials.restart([course]);
            }
            while trials.len() < 4 * CHUNK {
                let count = trials.until_due().unwrap_or(CHUNK);
                let count = count.min(CHUNK - trials.len() % CHUNK);
                trials.feed(&vec![0; count], None).expect("it runs");
            }
            let steps: Vec<_> = told.try_iter().collect();
            assert!(steps.iter().any(|(shrinks, _)| *shrinks > 0), "{steps:?}");
            assert!(
                steps
                    .iter()
                    .all(|(shrinks, rows)| *shrinks == 0 || *rows == 0),
                "{steps:?}"
            );
        }
    }
}
