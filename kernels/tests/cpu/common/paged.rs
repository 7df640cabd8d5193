//! Sequences in paged memory, with frames handed out in random order, and the steps over them.

use ebb_kernels::backend::{Backend, FrameCopy, StepInput, TableBuilder};
use ebb_kernels::cpu::simd::Isa;
use ebb_kernels::cpu::{CpuBackend, CpuOptions};
use ebb_kernels::kv::{FrameLayout, KvArena, KvLayout};
use ebb_kernels::model::{ModelSpec, WeightSource};
use ebb_kernels::{BLOCK_TOKENS, SUB_BLOCK_TOKENS};

use super::{Random, RandomWeights};

/// A backend, its free frames, and sequences.
pub(crate) struct Paged {
    pub(crate) backend: CpuBackend,
    layout: FrameLayout,
    pub(crate) pages: KvLayout,
    free: Vec<u32>,
    pub(crate) seqs: Vec<Seq>,
    tables: TableBuilder,
}

/// A sequence: what is in its pages, and its frames in order.
#[derive(Clone, Default)]
pub(crate) struct Seq {
    pub(crate) len: usize,
    pub(crate) frames: Vec<u32>,
    /// Schedule positions of its first blocks; the others are at 0.
    pub(crate) positions: Vec<u16>,
}

impl Seq {
    /// Position of a block and how many frames it has when the sequence holds `len` tokens.
    fn block(&self, pages: &KvLayout, block: usize, len: usize) -> (u16, usize) {
        match self.positions.get(block) {
            Some(&position) if position > 0 => (position, pages.frames(position) as usize),
            _ => {
                let tokens = BLOCK_TOKENS.min(len - block * BLOCK_TOKENS);
                let fps = pages.frame().frames_per_sub_block;
                (0, tokens.div_ceil(SUB_BLOCK_TOKENS) * fps)
            }
        }
    }
}

/// A block that has been given new frames, to be attached to a step.
pub(crate) struct Pending {
    from: u16,
    to: u16,
    source: Vec<u32>,
    target: Vec<u32>,
}

impl Pending {
    /// Makes it part of a step.
    pub(crate) fn attach(&self, input: &mut StepInput) {
        input.push_shrink((self.from, &self.source), (self.to, &self.target));
    }
}

/// Some tokens of a sequence to run in a step, and whether each row's logits are wanted.
pub(crate) struct Chunk<'a> {
    pub(crate) seq: usize,
    pub(crate) tokens: &'a [u32],
}

impl Paged {
    /// A pool of `frames` frames full of NaN, whose placement depends on `seed`.
    pub(crate) fn new(weights: &RandomWeights, frames: u32, threads: usize, seed: u64) -> Self {
        Self::with_isa(weights, frames, threads, seed, Isa::detect())
    }

    pub(crate) fn with_isa(
        weights: &RandomWeights,
        frames: u32,
        threads: usize,
        seed: u64,
        isa: Isa,
    ) -> Self {
        let pages = KvLayout::sixteen_bit(weights.spec.kv_geometry()).unwrap();
        let options = CpuOptions {
            isa,
            layout: Some(pages),
            ..CpuOptions::new(threads)
        };
        Self::with_options(weights, frames, seed, options)
    }

    pub(crate) fn with_options(
        weights: &RandomWeights,
        frames: u32,
        seed: u64,
        options: CpuOptions,
    ) -> Self {
        Self::of(&weights.spec, weights, frames, seed, options)
    }

    /// With weights from anywhere.
    pub(crate) fn of<W: WeightSource>(
        spec: &ModelSpec,
        weights: &W,
        frames: u32,
        seed: u64,
        options: CpuOptions,
    ) -> Self {
        let pages = options.layout.clone().unwrap();
        let layout = pages.frame();
        let mut arena = KvArena::new(layout, frames).unwrap();
        for f in 0..frames {
            arena.frame_mut(f).fill(0xff);
        }
        let spec = spec.clone();
        let backend =
            CpuBackend::with_options(spec, weights, arena, options, &mut |_, _| ()).unwrap();
        let mut free: Vec<u32> = (0..frames).collect();
        let mut random = Random::new(seed);
        for i in (1..free.len()).rev() {
            free.swap(i, random.below(i + 1));
        }
        Self {
            backend,
            layout,
            pages,
            free,
            seqs: vec![],
            tables: TableBuilder::default(),
        }
    }

    pub(crate) fn add(&mut self) -> usize {
        self.seqs.push(Seq::default());
        self.seqs.len() - 1
    }

    /// A copy of a sequence: whole blocks shared, the open one copied frame by frame.
    pub(crate) fn fork(&mut self, parent: usize) -> (usize, Vec<FrameCopy>) {
        let mut child = self.seqs[parent].clone();
        let shared = child.len / BLOCK_TOKENS * self.layout.frames_per_block();
        let mut copies = vec![];
        for frame in &mut child.frames[shared..] {
            let dst = self.free.pop().unwrap();
            copies.push(FrameCopy { src: *frame, dst });
            *frame = dst;
        }
        self.seqs.push(child);
        (self.seqs.len() - 1, copies)
    }

    /// Gives a sequence memory for `len` tokens.
    pub(crate) fn grow(&mut self, seq: usize, len: usize) {
        let seq = &mut self.seqs[seq];
        let blocks = 0..len.div_ceil(BLOCK_TOKENS);
        let needed: usize = blocks.map(|b| seq.block(&self.pages, b, len).1).sum();
        while seq.frames.len() < needed {
            let frame = self.free.pop().expect("the pool is too small");
            seq.frames.push(frame);
        }
    }

    /// The step that runs these chunks, all logits wanted; grows the sequences.
    pub(crate) fn input(&mut self, chunks: &[Chunk<'_>]) -> StepInput {
        let mut input = StepInput::default();
        for chunk in chunks {
            let end = self.seqs[chunk.seq].len + chunk.tokens.len();
            self.grow(chunk.seq, end);
            let (slot, seq) = (chunk.seq as u32, &mut self.seqs[chunk.seq]);
            let mut used = 0;
            for block in 0..end.div_ceil(BLOCK_TOKENS) {
                let (position, count) = seq.block(&self.pages, block, end);
                let frames = &seq.frames[used..used + count];
                self.tables.set(slot, block, position, frames);
                used += count;
            }
            input.push_seq(slot, seq.len as u32, chunk.tokens);
            seq.len = end;
        }
        self.tables.take_deltas(&mut input.deltas);
        input.logit_rows = (0..input.tokens.len() as u32).collect();
        input
    }

    /// Gives a full block the frames of a later position; the old ones are not used again.
    pub(crate) fn shrink(&mut self, seq: usize, block: usize, to: u16) -> Pending {
        let target: Vec<u32> = (0..self.pages.frames(to))
            .map(|_| self.free.pop().expect("the pool is too small"))
            .collect();
        let seq = &mut self.seqs[seq];
        let before = |b: usize| seq.block(&self.pages, b, seq.len).1;
        let first = (0..block).map(before).sum::<usize>();
        let (from, count) = seq.block(&self.pages, block, seq.len);
        let source = seq.frames.splice(first..first + count, target.clone());
        let source = source.collect();
        if seq.positions.len() <= block {
            seq.positions.resize(block + 1, 0);
        }
        seq.positions[block] = to;
        Pending {
            from,
            to,
            source,
            target,
        }
    }

    /// Runs chunks; the logits of every row.
    pub(crate) fn run(&mut self, chunks: &[Chunk<'_>]) -> Vec<Vec<f32>> {
        let input = self.input(chunks);
        self.step(&input)
    }

    pub(crate) fn step(&mut self, input: &StepInput) -> Vec<Vec<f32>> {
        let vocab = self.backend.spec().vocab;
        let output = self.backend.step(input).unwrap();
        output
            .logits
            .chunks_exact(vocab)
            .map(<[f32]>::to_vec)
            .collect()
    }
}

/// Whether two rows of logits are the same bits, and finite.
pub(crate) fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.to_bits() == b.to_bits() && a.is_finite())
}
