//! The step: what the device runs, in order.

mod activations;
mod logit_rows;
mod needs;
mod start;

use std::collections::{HashMap, VecDeque};

use super::arena::DeviceArena;
use super::attention::{Attention, DecodeWork, Queries};
use super::codecs::Codecs;
use super::driver::{DeviceBuffer, Event, Graph, Stream};
use super::error::CudaError;
use super::ops::{HeadSpec, Ops};
use super::params::{DevicePtr, GemmShape};
use super::products::{Ends, Products, Residual};
use super::sample::Sampling;
use super::step::StepBuffers;
use super::weights::Weights;
use crate::backend::{
    Backend, BackendError, CheckScratch, KeptTables, StepInput, StepInputError, StepLimits,
    StepOutput,
};
use crate::model::TransformerSpec;
use activations::Activations;
use logit_rows::LogitRows;
pub use needs::DeviceNeeds;
pub use start::CudaConfig;

/// Runs a model on a GPU. Weights and pages are bf16, the residual stream f32, everything else bf16
/// with f32 sums.
///
/// A step whose sequences all have one row is replayed from a graph recorded for its batch bucket.
///
/// Block tables are kept on the device and changed by deltas; a step that lists its blocks
/// overwrites them.
///
/// Two steps may be in flight. The stream runs them in order over the same device buffers; what the
/// host writes and reads is there twice, by turns.
#[derive(Debug)]
pub struct CudaBackend {
    spec: TransformerSpec,
    // Before what they use: graphs go first.
    /// By what they do; sequences: the batch bucket.
    graphs: HashMap<DecodeWork, Graph>,
    stream: Stream,
    buckets: Vec<usize>,
    forward: Forward,
    check: CheckScratch,
    /// The tables in device memory, once the device has done what was submitted.
    kept: KeptTables,
    /// Whether they are: a step that lists its blocks overwrites them.
    is_kept: bool,
    /// Oldest first.
    in_flight: VecDeque<InFlight>,
    /// Which of the host's buffers the next step uses.
    turn: usize,
    /// When the last step of each turn was done.
    ended: [Event; 2],
    /// Draws of the step submitted last.
    drawn: u32,
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
    ops: Ops,
    products: Products,
    shapes: Shapes,
    activations: Activations,
    sampling: Sampling,
    /// If blocks shrink.
    codecs: Option<Codecs>,
}

/// Columns of the matrix products.
#[derive(Debug, Clone, Copy)]
struct Shapes {
    hidden: usize,
    qkv: usize,
    q: usize,
    intermediate: usize,
    vocab: usize,
    heads: HeadSpec,
}

impl Shapes {
    fn new(spec: &TransformerSpec) -> Self {
        Self {
            hidden: spec.hidden,
            qkv: spec.q_width() + 2 * spec.kv_width(),
            q: spec.q_width(),
            intermediate: spec.intermediate,
            vocab: spec.vocab,
            heads: HeadSpec::of(spec),
        }
    }

    /// The four products of a layer: Q K V, output, gate and up, down.
    fn layer(&self, rows: usize) -> [GemmShape; 4] {
        let shape = |inputs, outputs| GemmShape {
            rows,
            inputs,
            outputs,
            wide: false,
        };
        [
            shape(self.hidden, self.qkv),
            shape(self.q, self.hidden),
            shape(self.hidden, 2 * self.intermediate),
            shape(self.intermediate, self.hidden),
        ]
    }

    fn logits(&self, rows: usize) -> GemmShape {
        GemmShape {
            rows,
            inputs: self.hidden,
            outputs: self.vocab,
            wide: true,
        }
    }
}

/// Which attention a pass needs. A recorded pass always decodes: how many units there are is read
/// on the device.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// Rows, padding included.
    rows: usize,
    decode: Option<DecodeWork>,
    prefill: bool,
    /// Shrunk blocks are decoded for each layer. How many is known on the host only, so such passes
    /// are not recorded.
    decodes: bool,
}

impl Forward {
    /// Enqueues the layers over the loaded step, up to the residual stream and the last layer's
    /// output.
    fn layers(&mut self, stream: &Stream, work: Work) -> Result<(), CudaError> {
        let Self {
            weights,
            arena,
            step,
            attention,
            ops,
            products,
            shapes,
            activations: a,
            sampling,
            codecs,
        } = self;
        let rows = work.rows;
        let pages = codecs.as_ref().map(Codecs::pages);
        let mut codecs = codecs.as_mut().filter(|_| work.decodes);
        let [qkv, o, gate_up, down] = shapes.layer(rows);
        ops.embed(
            stream,
            rows,
            step,
            sampling.drawn(),
            &weights.embedding,
            &mut a.residual,
        )?;
        ops.rope_table(stream, rows, step, &mut a.rope)?;
        let [normed, squares] = [a.normed.ptr(), a.squares.ptr()];
        // Whether products take part in the norms between them, all but the first and the last.
        let norms = products.norms(shapes.layer(rows));
        let after_norm = Ends {
            norms: norms.then_some((squares, ops.eps())),
            ..Ends::default()
        };
        let before_norm = |residual: &DeviceBuffer<f32>, weight| Ends {
            residual: Some(Residual {
                stream: residual.ptr(),
                weight,
                squares,
            }),
            ..Ends::default()
        };
        for (index, layer) in weights.layers.iter().enumerate() {
            let to_qkv = [normed, layer.qkv.ptr(), a.qkv.ptr()];
            if norms && index > 0 {
                // SAFETY: (also of the products below) the activations were sized for the step's
                // capacity, the weights have the spec's shapes, and no two arguments overlap.
                unsafe { products.run_to(after_norm, stream, qkv, to_qkv)? };
            } else {
                let delta = (index > 0).then_some(&a.delta);
                ops.norm(
                    stream,
                    rows,
                    delta,
                    &mut a.residual,
                    layer.attn_norm.ptr(),
                    &mut a.normed,
                    None,
                )?;
                let [x, w, y] = to_qkv;
                // SAFETY: see above.
                unsafe { products.run(stream, qkv, x, w, y)? };
            }
            let spec = &shapes.heads;
            let rope_weights = layer.rope_weights(spec.head_dim);
            let heads = ops.heads.params(rows, spec, rope_weights, &a.rope, &a.qkv);
            let finishes = |decode| attention.finishes(decode, spec);
            let finished = work.decode.is_some_and(finishes) && !work.prefill;
            let queries = if finished {
                Queries::Projected(spec, heads)
            } else {
                let heads = (spec, heads);
                ops.heads
                    .append(stream, rows, step, arena, index, heads, &mut a.q)?;
                Queries::Finished(&a.q)
            };
            if let Some(decode) = work.decode {
                let attended = &mut a.attended;
                attention.decode(stream, decode, step, arena, pages, index, queries, attended)?;
            }
            let turns = if work.prefill {
                step.plan.turns.len()
            } else {
                0
            };
            for turn in 0..turns {
                if let Some(codecs) = &mut codecs {
                    codecs.decode_layer(stream, arena, index, turn)?;
                }
                let at = (index, turn);
                attention.prefill(stream, step, arena, at, &a.q, &mut a.attended)?;
            }
            let attended = a.attended.ptr();
            if norms {
                let ends = before_norm(&a.residual, layer.mlp_norm.ptr());
                // SAFETY: see above.
                unsafe { products.run_to(ends, stream, o, [attended, layer.o.ptr(), normed])? };
            } else {
                // SAFETY: see above.
                unsafe { products.run(stream, o, attended, layer.o.ptr(), a.delta.ptr())? };
                ops.norm(
                    stream,
                    rows,
                    Some(&a.delta),
                    &mut a.residual,
                    layer.mlp_norm.ptr(),
                    &mut a.normed,
                    None,
                )?;
            }
            let (w, mlp) = (layer.gate_up.ptr(), a.mlp.ptr());
            if products.gates(gate_up) {
                let gated = Ends {
                    gated: true,
                    ..after_norm
                };
                // SAFETY: see above.
                unsafe { products.run_to(gated, stream, gate_up, [normed, w, mlp])? };
            } else {
                // SAFETY: see above.
                unsafe { products.run(stream, gate_up, normed, w, a.gate_up.ptr())? };
                ops.swiglu(stream, rows, &a.gate_up, &mut a.mlp)?;
            }
            match weights.layers.get(index + 1).filter(|_| norms) {
                // SAFETY: see above.
                Some(next) => unsafe {
                    let ends = before_norm(&a.residual, next.attn_norm.ptr());
                    products.run_to(ends, stream, down, [mlp, layer.down.ptr(), normed])?;
                },
                // SAFETY: see above.
                None => unsafe {
                    products.run(stream, down, mlp, layer.down.ptr(), a.delta.ptr())?;
                },
            }
        }
        Ok(())
    }

    /// Enqueues the logits of the selected rows `first..first + count`.
    fn logits(&mut self, stream: &Stream, first: usize, count: usize) -> Result<(), CudaError> {
        let a = &mut self.activations;
        let selected: DevicePtr = self.step.logit_rows() + 4 * first as u64;
        let weight = self.weights.final_norm.ptr();
        self.ops.norm(
            stream,
            count,
            Some(&a.delta),
            &mut a.residual,
            weight,
            &mut a.normed,
            Some(selected),
        )?;
        let shape = self.shapes.logits(count);
        // SAFETY: `count` is at most the rows of `logits` and of `normed`; the output projection
        // has the spec's shape.
        unsafe {
            self.products.run(
                stream,
                shape,
                a.normed.ptr(),
                self.weights.lm_head(),
                a.logits.ptr(),
            )
        }
    }
}

impl CudaBackend {
    /// Enqueues a checked step up to its first logits: those of all rows, unless there are more
    /// than fit.
    fn enqueue(&mut self, input: &StepInput, turn: usize) -> Result<(), CudaError> {
        // A backend may have been started by another thread.
        self.stream.device().bind()?;
        for copy in &input.copies {
            self.forward
                .arena
                .copy_frame(&self.stream, copy.src, copy.dst)?;
        }
        let (mut decodes, mut mixed, mut in_scratch) = (false, false, &[][..]);
        let Forward {
            codecs,
            arena,
            step,
            ..
        } = &mut self.forward;
        if let Some(codecs) = codecs {
            let tables = (&self.kept, &mut step.tables);
            codecs.begin(&self.stream, turn, arena, input, tables)?;
            (decodes, in_scratch) = (codecs.decodes(), codecs.in_scratch());
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
        let seqs = bucket.unwrap_or(plan.decodes.len());
        let cut = plan.partials > 0;
        let decode = DecodeWork {
            seqs,
            cut,
            at_once: cut && !mixed && plan.units.len() <= self.forward.attention.at_once(),
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
            let [qkv, o, gate_up, down] = forward.shapes.layer(bucket);
            for shape in [qkv, o, down, forward.shapes.logits(bucket)] {
                forward.products.prepare(shape)?;
            }
            if !forward.products.gates(gate_up) {
                forward.products.prepare(gate_up)?;
            }
            let work = Work {
                rows: bucket,
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
        let Forward { arena, step, .. } = &mut self.forward;
        let limits = StepLimits {
            vocab: self.spec.vocab,
            layout: arena.pages(),
            pool_frames: arena.frames(),
            drawn: Some(self.drawn),
        };
        if !input.is_kept() {
            limits.check(input, &mut self.check)?;
            // Frames alone are those of shrinks; they touch no table.
            if !input.blocks.is_empty() && std::mem::take(&mut self.is_kept) {
                self.kept.clear();
            }
            return Ok(());
        }
        self.is_kept = true;
        let tables = &mut step.tables;
        let applied = |delta: &_| tables.apply(delta);
        self.kept.apply(limits.layout, &input.deltas, applied)?;
        limits.check_kept(input, &mut self.kept, &mut self.check)?;
        if cfg!(debug_assertions) {
            limits.check(&self.kept.listed(input), &mut self.check)?;
        }
        Ok(())
    }

    /// The KV pages, to look at or to write; for tests.
    pub fn arena_mut(&mut self) -> &mut DeviceArena {
        &mut self.forward.arena
    }

    /// Enqueues a checked step, its draws, and what comes back.
    fn run(&mut self, input: &StepInput, turn: usize) -> Result<(), CudaError> {
        self.logit_rows.plan(&input.draws, &input.logit_rows);
        let most = self.forward.activations.logit_rows_max;
        let drawn_rows = self.logit_rows.drawn;
        if drawn_rows > most {
            return Err(CudaError::Unsupported(format!(
                "draws from {drawn_rows} rows, but this backend was started for {most}"
            )));
        }
        self.enqueue(input, turn)?;
        let (stream, vocab) = (&self.stream, self.spec.vocab);
        let back = input.logit_rows.len() * vocab;
        let a = &mut self.forward.activations;
        a.reserve_host_logits(stream.device(), turn, back)?;
        let count = self.logit_rows.all.len();
        for first in (0..count).step_by(most) {
            let part = most.min(count - first);
            if first > 0 {
                self.forward.logits(stream, first, part)?;
            }
            // As the model gave them: before the draws edit them.
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
                sampling.run(stream, turn, logits, &input.draws, &input.edits)?;
            }
        }
        if count == 0 {
            // No draws either; the turn's results are none.
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
        self.check(input)?;
        // The thread that submits need not be the one that loaded the model.
        self.stream.device().bind()?;
        let turn = self.turn;
        if let Err(error) = self.run(input, turn) {
            // What was enqueued of it may still read the host's buffers, which the next step uses.
            let waited = self.stream.synchronize();
            return Err(waited.err().unwrap_or(error).into());
        }
        self.turn ^= 1;
        self.drawn = input.draws.len() as u32;
        self.in_flight.push_back(InFlight {
            turn,
            logits: input.logit_rows.len() * self.spec.vocab,
        });
        Ok(())
    }

    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
        let InFlight { turn, logits } = self.in_flight.pop_front().expect("a step was submitted");
        self.stream.device().bind()?;
        self.ended[turn].synchronize()?;
        let (draws, top) = self.forward.sampling.results(turn);
        let (failed_shrinks, shrink_time) = match &mut self.forward.codecs {
            Some(codecs) => codecs.results(turn)?,
            None => Default::default(),
        };
        Ok(StepOutput {
            logits: &self.forward.activations.host_logits[turn][..logits],
            draws,
            top,
            failed_shrinks,
            shrink_time,
        })
    }

    fn spec(&self) -> &TransformerSpec {
        &self.spec
    }

    fn depth(&self) -> usize {
        2
    }

    fn draws(&self) -> bool {
        true
    }

    fn keeps_tables(&self) -> bool {
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
