//! Streams over one backend: prefill and decode steps at a given context.

use std::error::Error;
use std::time::{Duration, Instant};

use ebb_kernels::BLOCK_TOKENS;
use ebb_kernels::backend::{Backend, StepInput, TableBuilder};
use ebb_kernels::cpu::CpuBackend;
use ebb_kernels::kv::KvArena;
use ebb_kernels::model::{ModelSpec, RandomWeights};

use crate::report::{Report, shortest};

/// A backend with memory for some streams of bounded length.
pub(super) struct Streams {
    backend: CpuBackend,
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
        let mut backend = CpuBackend::new(spec.clone(), &weights, arena, threads, &mut |_, _| ())?;
        let seconds = start.elapsed().as_secs_f64();
        report.figure("make random weights and pack", seconds, "s");
        let (mut tables, mut step) = (TableBuilder::default(), StepInput::default());
        let mut frames = 0..;
        for (stream, block) in
            (0..streams).flat_map(|s| (0..blocks_per_stream).map(move |b| (s, b)))
        {
            let own: Vec<u32> = frames.by_ref().take(layout.frames_per_block()).collect();
            tables.set(stream as u32, block, 0, &own);
        }
        tables.take_deltas(&mut step.deltas);
        backend.step(&step)?;
        Ok(Self { backend })
    }

    /// A step of `rows` tokens at `position` in each of `streams` streams.
    fn input(&self, streams: usize, position: usize, rows: usize) -> StepInput {
        let mut input = StepInput::default();
        for stream in 0..streams {
            let token = |i| ((stream * 31 + position + i) * 7919 % 49152) as u32;
            let tokens: Vec<u32> = (0..rows).map(token).collect();
            let new = input.push_seq(stream as u32, position as u32, &tokens);
            input.logit_rows.push(new.end - 1);
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

    /// Bytes of weights and pages that a decode step must read, and of states, which it writes too.
    pub(super) fn bytes_per_step(&self, streams: usize, context: usize) -> f64 {
        let spec = self.backend.spec();
        let token = spec.kv_geometry().token_bytes();
        let states = 2 * spec.state_floats() * size_of::<f32>();
        self.backend.weight_bytes_per_step() as f64 + (streams * (context * token + states)) as f64
    }

    /// Floating-point operations of a step that decodes a token of each stream.
    pub(super) fn decode_flops(&self, streams: usize, context: usize) -> f64 {
        let spec = self.backend.spec();
        let attention = 4 * spec.heads().q_width() * context * spec.attentions().count();
        // Two operations per weight, of two bytes.
        streams as f64 * (self.backend.weight_bytes_per_step() as f64 + attention as f64)
    }

    /// Floating-point operations of a step that runs a prompt, with the logits of its last row.
    pub(super) fn prefill_flops(&self, rows: usize) -> f64 {
        let spec = self.backend.spec();
        let head = 2.0 * (spec.hidden * spec.vocab) as f64;
        let attention = 4 * spec.heads().q_width() * (rows / 2) * spec.attentions().count();
        let weights = self.backend.weight_bytes_per_step() as f64 - head;
        rows as f64 * (weights + attention as f64) + head
    }
}
