//! Streams over one backend: prefill and decode steps at a given context.

use std::error::Error;
use std::time::{Duration, Instant};

use ebb_kernels::backend::{Backend, BlockRef, SeqRows, StepInput};
use ebb_kernels::cpu::CpuBackend;
use ebb_kernels::kv::{FrameLayout, KvArena};
use ebb_kernels::model::{ModelSpec, RandomWeights};
use ebb_kernels::{BLOCK_TOKENS, SUB_BLOCKS};

use crate::report::{Report, shortest};

/// A backend with memory for some streams of bounded length.
pub(super) struct Streams {
    backend: CpuBackend,
    layout: FrameLayout,
    blocks_per_stream: usize,
}

impl Streams {
    pub(super) fn new(
        spec: &ModelSpec,
        threads: usize,
        streams: usize,
        tokens: usize,
        report: &mut Report,
    ) -> Result<Self, Box<dyn Error>> {
        let layout = spec.kv_geometry().frame_layout();
        let blocks_per_stream = tokens.div_ceil(BLOCK_TOKENS);
        let frames = streams * blocks_per_stream * layout.frames_per_block();
        let arena = KvArena::new(layout, u32::try_from(frames)?)?;
        let weights = RandomWeights {
            spec: spec.clone(),
            seed: 1,
        };
        let start = Instant::now();
        let backend = CpuBackend::new(spec.clone(), &weights, arena, threads, &mut |_, _| ())?;
        let seconds = start.elapsed().as_secs_f64();
        report.figure("make random weights and pack", seconds, "s");
        Ok(Self {
            backend,
            layout,
            blocks_per_stream,
        })
    }

    /// A step of `rows` tokens at `position` in each of `streams` streams.
    fn input(&self, streams: usize, position: usize, rows: usize) -> StepInput {
        let mut input = StepInput::default();
        let blocks = (position + rows).div_ceil(BLOCK_TOKENS);
        let frames = self.layout.frames_per_sub_block * SUB_BLOCKS;
        for stream in 0..streams {
            input.seqs.push(SeqRows {
                first_row: (stream * rows) as u32,
                rows: rows as u32,
                position: position as u32,
                first_block: (stream * blocks) as u32,
                blocks: blocks as u32,
            });
            for block in 0..blocks {
                let first = (stream * self.blocks_per_stream + block) * frames;
                input.blocks.push(BlockRef {
                    schedule_position: 0,
                    first_frame: input.frames.len() as u32,
                    frames: frames as u32,
                });
                input.frames.extend(first as u32..(first + frames) as u32);
            }
            let token = |i| ((stream * 31 + position + i) * 7919 % 49152) as u32;
            input.tokens.extend((0..rows).map(token));
            input.logit_rows.push(((stream + 1) * rows - 1) as u32);
        }
        input
    }

    /// Time of a step that decodes one token of each stream behind `context` tokens.
    pub(super) fn decode(
        &mut self,
        streams: usize,
        context: usize,
        budget: Duration,
    ) -> Result<Duration, Box<dyn Error>> {
        let fill = self.input(streams, 0, context);
        self.backend.step(&fill)?;
        let input = self.input(streams, context, 1);
        Ok(shortest(budget, || self.backend.step(&input).map(|_| ()))?)
    }

    /// Time of a step that runs a prompt of `rows` tokens.
    pub(super) fn prefill(
        &mut self,
        rows: usize,
        budget: Duration,
    ) -> Result<Duration, Box<dyn Error>> {
        let input = self.input(1, 0, rows);
        Ok(shortest(budget, || self.backend.step(&input).map(|_| ()))?)
    }

    /// Bytes of weights and pages that a decode step must read.
    pub(super) fn bytes_per_step(&self, streams: usize, context: usize) -> f64 {
        let token = self.backend.spec().kv_geometry().token_bytes();
        self.backend.weight_bytes_per_step() as f64 + (streams * context * token) as f64
    }

    /// Floating-point operations of a step that decodes a token of each stream.
    pub(super) fn decode_flops(&self, streams: usize, context: usize) -> f64 {
        let spec = self.backend.spec();
        let attention = 4 * spec.heads().q_width() * context * spec.layers.len();
        // Two operations per weight, of two bytes.
        streams as f64 * (self.backend.weight_bytes_per_step() as f64 + attention as f64)
    }

    /// Floating-point operations of a step that runs a prompt, with the logits of its last row.
    pub(super) fn prefill_flops(&self, rows: usize) -> f64 {
        let spec = self.backend.spec();
        let head = 2.0 * (spec.hidden * spec.vocab) as f64;
        let attention = 4 * spec.heads().q_width() * (rows / 2) * spec.layers.len();
        let weights = self.backend.weight_bytes_per_step() as f64 - head;
        rows as f64 * (weights + attention as f64) + head
    }
}
