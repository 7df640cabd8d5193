//! The step: what the device runs, in order.

mod activations;
mod forward;
mod logit_rows;
mod needs;
mod start;

use std::collections::{HashMap, VecDeque};

use super::arena::DeviceArena;
use super::attention::{Attention, DecodeWork, Parts};
use super::codecs::Codecs;
use super::driver::{Event, Graph, Stream};
use super::error::CudaError;
use super::experts::Experts;
use super::ops::{Ops, Recurrent};
use super::products::Products;
use super::program::Program;
use super::sample::Sampling;
use super::step::StepBuffers;
use super::weights::Weights;
use crate::backend::{
    Backend, BackendError, BlockTables, StatePositions, StepInput, StepInputError, StepLimits,
    StepOutput,
};
use crate::model::{LayerSpec, ModelSpec};
use activations::Activations;
use logit_rows::LogitRows;
pub use needs::DeviceNeeds;
pub use start::CudaConfig;

/// Runs a model on a GPU. Weights and pages are bf16, the residual stream f32, everything else bf16
/// with f32 sums.
///
/// A step whose sequences all have one row is replayed from a graph recorded for its batch bucket.
///
/// The block tables are in device memory and on the host; deltas change both.
///
/// Two steps may be in flight. The stream runs them in order over the same device buffers; what the
/// host writes and reads is there twice, by turns.
#[derive(Debug)]
pub struct CudaBackend {
    // Before what they use: graphs go first.
    /// By what they do; sequences: the batch bucket.
    graphs: HashMap<DecodeWork, Graph>,
    stream: Stream,
    buckets: Vec<usize>,
    forward: Forward,
    /// The tables in device memory, once the device has done what was submitted.
    tables: BlockTables,
    /// How far the states have come, once the device has done what was submitted.
    state_positions: StatePositions,
    /// Oldest first.
    in_flight: VecDeque<InFlight>,
    /// Which of the host's buffers the next step uses.
    turn: usize,
    /// When the last step of each turn was done.
    ended: [Event; 2],
    /// Samples of the step submitted last.
    samples_before: u32,
    logit_rows: LogitRows,
    /// Whether a row's bits may not depend on its company.
    batch_invariant: bool,
}

/// A step submitted and not waited for.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    turn: usize,
    /// Values of logits that come back.
    logits: usize,
}

/// Everything one pass over the layers touches.
#[derive(Debug)]
struct Forward {
    weights: Weights,
    arena: DeviceArena,
    step: StepBuffers,
    attention: Attention,
    /// If any layer has its heads in parts.
    parts: Option<Parts>,
    ops: Ops,
    products: Products,
    program: Program,
    spec: ModelSpec,
    activations: Activations,
    sampling: Sampling,
    /// If blocks shrink.
    codecs: Option<Codecs>,
    /// If any layer has some.
    experts: Option<Experts>,
    /// If any layer is.
    recurrent: Option<Recurrent>,
}

/// Which attention a pass needs. A recorded pass always decodes: how many units there are is read
/// on the device.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// Rows, padding included.
    rows: usize,
    /// Sequences, padding included.
    seqs: usize,
    decode: Option<DecodeWork>,
    prefill: bool,
    /// Shrunk blocks are decoded for each layer. How many is known on the host only, so such passes
    /// are not recorded.
    decodes: bool,
}

impl CudaBackend {
    /// Enqueues a checked step up to its first logits: those of all rows, unless there are more
    /// than fit.
    fn enqueue(&mut self, input: &StepInput, turn: usize) -> Result<(), CudaError> {
        for copy in &input.copies {
            self.forward
                .arena
                .copy_frame(&self.stream, copy.src, copy.dst)?;
        }
        if let Some(recurrent) = &mut self.forward.recurrent {
            recurrent.copy(&self.stream, &input.state_copies)?;
        }
        let (mut decodes, mut mixed, mut in_scratch) = (false, false, &[][..]);
        let Forward {
            codecs,
            arena,
            step,
            ..
        } = &mut self.forward;
        if let Some(codecs) = codecs {
            let tables = (&self.tables, &mut step.tables);
            codecs.begin(&self.stream, turn, arena, input, tables)?;
            (decodes, in_scratch) = (codecs.dequantises(), codecs.in_scratch());
            // Which kernel reads a sequence must not depend on what the others have shrunk to.
            mixed = codecs.reads() && (codecs.mixed() || self.batch_invariant);
        }
        let rows = input.tokens.len();
        let decode_only = input.seqs.iter().all(|s| s.rows == 1);
        let logit_rows = &self.logit_rows.all;
        let bucket = self
            .buckets
            .iter()
            .copied()
            .find(|b| *b >= rows)
            .filter(|_| decode_only && !decodes && !logit_rows.is_empty());
        step.load(
            &self.stream,
            input,
            logit_rows,
            bucket.unwrap_or(rows),
            (mixed, in_scratch),
        )?;
        let first = logit_rows
            .len()
            .min(self.forward.activations.logit_rows_max);
        let plan = &self.forward.step.plan;
        let decoded = &plan.decode[0];
        let seqs = bucket.unwrap_or(decoded.rows.len());
        let cut = decoded.partials > 0;
        let decode = DecodeWork {
            seqs,
            cut,
            at_once: cut && !mixed && decoded.units.len() <= self.forward.attention.spread().units,
            mixed,
        };
        if bucket.is_some() {
            self.record(decode)?;
            // SAFETY: the graph's buffers belong to `self` and keep their addresses; the stream
            // runs what uses them in order.
            return unsafe { self.graphs[&decode].launch(&self.stream) };
        }
        let work = Work {
            rows,
            seqs: input.seqs.len(),
            decode: (seqs > 0).then_some(decode),
            prefill: !self.forward.step.plan.tiles.is_empty(),
            decodes,
        };
        if rows > 0 {
            self.forward.layers(&self.stream, work)?;
        }
        if first > 0 {
            self.forward.logits(&self.stream, 0, first)
        } else {
            Ok(())
        }
    }

    /// Whether decode attention reads shrunk blocks as they are.
    fn reads_shrunk(&self) -> bool {
        self.forward.codecs.as_ref().is_some_and(Codecs::reads)
    }

    /// Records a decode step, unless it has been.
    fn record(&mut self, decode: DecodeWork) -> Result<(), CudaError> {
        if !self.graphs.contains_key(&decode) {
            let bucket = decode.seqs;
            let (stream, forward) = (&self.stream, &mut self.forward);
            let products = &mut forward.products;
            for [qkv, o, gate_up, down] in forward.program.layer_shapes(bucket) {
                for shape in [qkv, o, down] {
                    if shape.inputs > 0 {
                        products.prepare(shape)?;
                    }
                }
                if gate_up.outputs > 0 && !products.gates(gate_up) {
                    products.prepare(gate_up)?;
                }
            }
            for shape in forward.program.output_gates(bucket) {
                products.prepare(shape)?;
            }
            let spec = &forward.spec;
            for experts in spec.layers.iter().filter_map(LayerSpec::experts) {
                products.prepare(Experts::router_shape(experts, spec.hidden, bucket))?;
            }
            let lm_head = forward.weights.linear(forward.program.tail.lm_head);
            products.prepare(lm_head.shape(bucket, true))?;
            let work = Work {
                rows: bucket,
                seqs: bucket,
                decode: Some(decode),
                prefill: false,
                decodes: false,
            };
            let graph = stream.capture(|| {
                forward.layers(stream, work)?;
                forward.logits(stream, 0, bucket)
            })?;
            self.graphs.insert(decode, graph);
        }
        Ok(())
    }

    /// Applies the deltas and checks the rest.
    fn check(&mut self, input: &StepInput) -> Result<(), StepInputError> {
        let Forward {
            arena,
            step,
            spec,
            recurrent,
            ..
        } = &mut self.forward;
        let limits = StepLimits {
            vocab: spec.vocab,
            layout: arena.pages(),
            pool_frames: arena.frames(),
            samples_before: Some(self.samples_before),
        };
        let applied = |delta: &_| step.tables.apply(delta);
        self.tables.apply(limits.layout, &input.deltas, applied)?;
        limits.check(input, &mut self.tables)?;
        let slots = recurrent.as_ref().map(|recurrent| recurrent.slots());
        self.state_positions.apply(input, slots)
    }

    /// Bytes of the weights by what they are, the most first.
    pub fn weight_bytes(&self) -> Vec<(&'static str, usize)> {
        self.forward.weights.bytes()
    }

    /// The KV pages, to look at or to write; for tests.
    pub fn arena_mut(&mut self) -> &mut DeviceArena {
        &mut self.forward.arena
    }

    /// Enqueues a checked step, its samples, and what comes back.
    fn run(&mut self, input: &StepInput, turn: usize) -> Result<(), CudaError> {
        self.logit_rows.plan(&input.samples, &input.logit_rows);
        let most = self.forward.activations.logit_rows_max;
        let sampled_rows = self.logit_rows.sampled;
        if sampled_rows > most {
            return Err(CudaError::Unsupported(format!(
                "samples from {sampled_rows} rows, but this backend was started for {most}"
            )));
        }
        self.enqueue(input, turn)?;
        let (stream, vocab) = (&self.stream, self.forward.spec.vocab);
        let back = input.logit_rows.len() * vocab;
        let a = &mut self.forward.activations;
        a.reserve_host_logits(stream.device(), turn, back)?;
        let count = self.logit_rows.all.len();
        for first in (0..count).step_by(most) {
            let part = most.min(count - first);
            if first > 0 {
                self.forward.logits(stream, first, part)?;
            }
            // As the model gave them: before the samples edit them.
            let a = &mut self.forward.activations;
            for run in self.logit_rows.back(first..first + part) {
                // SAFETY: the host's buffer is this step's until it has been waited for; it lives
                // as long as `self`, which waits for the stream before it goes.
                unsafe {
                    stream.download_from(
                        &mut a.host_logits[turn],
                        run.to * vocab,
                        &a.logits,
                        (run.from - first) * vocab,
                        run.rows * vocab,
                    )?;
                }
            }
            if first == 0 {
                let (sampling, logits) = (&mut self.forward.sampling, &a.logits);
                sampling.run(stream, turn, logits, &input.samples, &input.edits)?;
            }
        }
        if count == 0 {
            // No samples either; the turn's results are none.
            let (sampling, logits) = (&mut self.forward.sampling, &self.forward.activations.logits);
            sampling.run(stream, turn, logits, &[], &[])?;
        }
        self.ended[turn].record(stream)
    }
}

impl Backend for CudaBackend {
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError> {
        assert!(
            self.in_flight.len() < self.depth(),
            "more steps submitted than the backend takes at once"
        );
        // The thread that submits need not be the one that loaded the model.
        self.stream.device().bind()?;
        self.check(input)?;
        let turn = self.turn;
        if let Err(error) = self.run(input, turn) {
            // What was enqueued of it may still read the host's buffers, which the next step uses.
            let waited = self.stream.synchronize();
            if self.forward.recurrent.is_some() {
                let copied = input.state_copies.iter().map(|copy| copy.dst);
                let moved_on = input.seqs.iter().map(|seq| seq.slot);
                self.state_positions.lose(copied.chain(moved_on));
            }
            return Err(waited.err().unwrap_or(error).into());
        }
        self.turn ^= 1;
        self.samples_before = input.samples.len() as u32;
        self.in_flight.push_back(InFlight {
            turn,
            logits: input.logit_rows.len() * self.forward.spec.vocab,
        });
        Ok(())
    }

    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
        let InFlight { turn, logits } = self.in_flight.pop_front().expect("a step was submitted");
        self.stream.device().bind()?;
        self.ended[turn].synchronize()?;
        let (samples, top) = self.forward.sampling.results(turn);
        let (failed_shrinks, shrink_time) = match &mut self.forward.codecs {
            Some(codecs) => codecs.results(turn)?,
            None => Default::default(),
        };
        Ok(StepOutput {
            logits: &self.forward.activations.host_logits[turn][..logits],
            samples,
            top,
            failed_shrinks,
            shrink_time,
        })
    }

    fn weight_bytes(&self) -> Vec<(String, u64)> {
        let bytes = self.forward.weights.bytes().into_iter();
        bytes
            .map(|(title, bytes)| (title.to_owned(), bytes as u64))
            .collect()
    }

    fn spec(&self) -> &ModelSpec {
        &self.forward.spec
    }

    fn depth(&self) -> usize {
        2
    }

    fn samples(&self) -> bool {
        true
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // The device may still read and write the host's buffers. After a sticky error there is
        // nothing to wait for.
        let _ = self.stream.device().bind();
        let _ = self.stream.synchronize();
    }
}

impl From<CudaError> for BackendError {
    fn from(error: CudaError) -> Self {
        Self::Device {
            lost: error.is_sticky(),
            message: error.to_string(),
        }
    }
}
