//! One step's walk over the model's operations.

use super::{Activations, Forward, Work};
use crate::cuda::attention::{PartsLayer, Queries, ScoreSpec, ScoredLayer};
use crate::cuda::codecs::Codecs;
use crate::cuda::driver::{DeviceBuffer, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::experts::{ExpertNorms, Experts, ExpertsIo, NormBefore};
use crate::cuda::ops::{Delta, HeadParts, NormWeights, RecurrentIo, RecurrentWeights, RopeWeights};
use crate::cuda::params::DevicePtr;
use crate::cuda::products::{Ends, Residual};
use crate::cuda::program::{self, Fused, Norm, Op};
use crate::model::ops::{Buffer, LinearName};
use crate::model::{ExpertsSpec, LayerTensor, TensorName};

impl Forward {
    /// Enqueues the layers over the loaded step, up to the residual stream and the last layer's
    /// output.
    pub(super) fn layers(&mut self, stream: &Stream, work: Work) -> Result<(), CudaError> {
        let list = self.program.choose(&self.products, work.rows);
        for index in 0..self.program.len(list) {
            match self.program.op(list, index) {
                Op::Embed => self.embed(stream, work.rows)?,
                Op::Norm(norm) => self.norm(stream, work.rows, norm)?,
                Op::Linear {
                    linear,
                    input,
                    output,
                    fused,
                } => {
                    let ends = self.ends(fused);
                    let a = &self.activations;
                    let io = [a.narrow(input).ptr(), a.narrow(output).ptr()];
                    let linear = self.weights.linear(linear);
                    let shape = linear.shape(work.rows, false);
                    // SAFETY: the activations were sized for the step's capacity, the weights have
                    // the spec's shapes, and no operation reads what it writes.
                    unsafe { linear.multiply(&mut self.products, stream, shape, io, ends)? };
                }
                Op::Attend(layer) => self.attend(stream, work, layer)?,
                Op::RotateBack(layer) => {
                    let attended = &mut self.activations.attended;
                    self.ops.rotate_back(stream, (layer, work.rows), attended)?;
                }
                Op::FinishLayerInputs => self.finish_layer_inputs(stream, work.rows)?,
                Op::OpenLayerInput(layer, activation) => {
                    let a = &mut self.activations;
                    let (inputs, gates) = (&a.layer_inputs, &mut a.layer_input);
                    let of = (layer, activation);
                    let ops = &self.ops.layer_inputs;
                    ops.open(stream, work.rows, of, inputs, gates)?;
                }
                Op::ScaleResidual(layer) => {
                    let scale = self.weights.of_layer(layer, LayerTensor::OutputScale);
                    let residual = &mut self.activations.residual;
                    let ops = &self.ops.layer_inputs;
                    ops.scale(stream, work.rows, scale, residual)?;
                }
                Op::OpenAttended(layer) => {
                    let attention = (work.rows, self.spec.attention(layer));
                    let a = &mut self.activations;
                    let (gates, attended) = (&a.output_gate, &mut a.attended);
                    self.ops.open_attended(stream, attention, gates, attended)?;
                }
                Op::Recur(layer) => self.recur(stream, work, layer)?,
                Op::Gate(layer, activation) => {
                    let shape = (work.rows, self.spec.layers[layer].intermediate());
                    let a = &mut self.activations;
                    self.ops
                        .gate(stream, shape, activation, &a.gate_up, &mut a.mlp)?;
                }
                Op::Activate(layer, activation) => {
                    let shape = (work.rows, self.spec.layers[layer].intermediate());
                    let bias = self.bias(Some(LinearName::Up(layer)));
                    let mlp = &mut self.activations.mlp;
                    self.ops.activate(stream, shape, activation, bias, mlp)?;
                }
                Op::Add { bias } => {
                    let bias = self.bias(bias);
                    let a = &mut self.activations;
                    let values = &a.delta;
                    let delta = Some(Delta { values, bias });
                    let none = [NormWeights::default(); 2];
                    self.ops
                        .post_norm(stream, work.rows, delta, &mut a.residual, none, None)?;
                }
                Op::Experts(layer) => self.experts(stream, work.rows, layer, None)?,
                Op::NormedExperts(layer, norms) => {
                    self.experts(stream, work.rows, layer, Some(norms))?;
                }
                Op::JoinBranches(layer) => {
                    let norms = [LayerTensor::SharedPostNorm, LayerTensor::ExpertPostNorm];
                    let norms = norms.map(|norm| self.weights.of_layer(layer, norm));
                    let a = &mut self.activations;
                    let (branch, other) = (&mut a.delta, &a.chosen);
                    self.ops
                        .join_branches(stream, work.rows, branch, other, norms)?;
                }
            }
        }
        Ok(())
    }

    /// Embeddings, and the angles of the rows' positions, which every layer uses.
    fn embed(&mut self, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        let (step, a) = (&self.step, &mut self.activations);
        let table = self.weights.embedding();
        let (sampled, residual) = (self.sampling.sampled(), &mut a.residual);
        self.ops
            .embed(stream, rows, step, sampled, table, residual)?;
        self.ops.rope_tables(stream, rows, step, &mut a.ropes)
    }

    /// What layers get of the step's tokens beside the residual stream.
    fn finish_layer_inputs(&mut self, stream: &Stream, rows: usize) -> Result<(), CudaError> {
        let Some(table) = self.weights.per_layer_embedding() else {
            unreachable!("an operation of models whose layers have inputs of their own");
        };
        let norm = self.weights.vector_index(TensorName::PerLayerNorm);
        let tensors = [table, self.weights.vector(norm)];
        let step = (&self.step, self.sampling.sampled());
        let inputs = &mut self.activations.layer_inputs;
        let ops = &self.ops.layer_inputs;
        ops.finish(stream, rows, step, tensors, inputs)
    }

    fn norm(&mut self, stream: &Stream, rows: usize, norm: Norm) -> Result<(), CudaError> {
        let bias = self.bias(norm.bias);
        let a = &mut self.activations;
        let values = &a.delta;
        let delta = norm.add.then_some(Delta { values, bias });
        let (weights, ops) = (&self.weights, &self.ops);
        let residual = &mut a.residual;
        let out = match norm.output {
            Buffer::RouterInput => &mut a.router_input,
            _ => &mut a.normed,
        };
        match norm {
            Norm {
                post: None,
                weight: Some(weight),
                ..
            } => {
                let weight = weights.of_norm(weight);
                ops.norm(stream, rows, delta, residual, weight, out, None)
            }
            Norm { post, weight, .. } => {
                let vectors = [post, weight];
                let vectors =
                    vectors.map(|v| v.map_or_else(Default::default, |v| weights.of_norm(v)));
                ops.post_norm(stream, rows, delta, residual, vectors, Some(out))
            }
        }
    }

    /// The bias of a linear layer, or null.
    fn bias(&self, linear: Option<LinearName>) -> DevicePtr {
        let bias = linear.and_then(|linear| self.weights.named(linear).bias());
        bias.map_or(0, DeviceBuffer::ptr)
    }

    /// What a product does beside multiplying, with addresses.
    fn ends(&self, fused: Fused) -> Ends {
        let a = &self.activations;
        let squares = a.squares.ptr();
        Ends {
            gated: fused.gated,
            residual: fused.adds.map(|weight| Residual {
                stream: a.residual.ptr(),
                weight: self.weights.vector(weight).ptr(),
                squares,
            }),
            norms: fused.divides.then_some((squares, self.ops.eps())),
        }
    }

    /// Whether the norm before a layer of experts is joined to its router's product.
    fn joins_norm_before(&self, rows: usize, layer: usize) -> bool {
        let (experts, spec) = (&self.experts, self.spec.layers[layer].experts());
        let can = |experts: &Experts| experts.joins_norm_before(rows);
        let reads_normed = |spec: &ExpertsSpec| spec.router_norm.is_none();
        let is_free = !self.products.is_invariant();
        is_free && experts.as_ref().is_some_and(can) && spec.is_some_and(reads_normed)
    }

    /// A layer of experts, with norms around it.
    fn experts(
        &mut self,
        stream: &Stream,
        rows: usize,
        layer: usize,
        norms: Option<program::ExpertNorms>,
    ) -> Result<(), CudaError> {
        let joins = self.joins_norm_before(rows, layer);
        let before = norms.and_then(|norms| norms.before);
        if let Some(before) = before.filter(|_| !joins) {
            self.norm(stream, rows, before)?;
        }
        let bias = self.bias(before.and_then(|norm| norm.bias));
        let (Some(experts), Some(spec)) = (&mut self.experts, self.spec.layers[layer].experts())
        else {
            unreachable!("an operation of layers of experts");
        };
        let (a, weights) = (&mut self.activations, &self.weights);
        // What experts put out goes to the residual stream where a norm follows, so `delta` stays.
        let joined = before.filter(|_| joins);
        let (out, delta) = match (spec.branch_norms, joined) {
            (true, _) => (Some(&mut a.chosen), None),
            (false, None) => (Some(&mut a.delta), None),
            (false, Some(_)) => (None, Some(&a.delta)),
        };
        let before = joined.map(|norm| NormBefore {
            delta: delta
                .filter(|_| norm.add)
                .map(|values| Delta { values, bias }),
            weights: norm
                .weight
                .map_or_else(NormWeights::default, |weight| weights.of_norm(weight)),
        });
        let norms = norms.map(|norms| ExpertNorms {
            before,
            after: weights.of_norm(norms.after),
            form: self.ops.norm_form(),
            residual: &a.residual,
            normed: &a.normed,
        });
        let io = ExpertsIo {
            rows,
            x: &a.normed,
            router: match spec.router_norm {
                Some(_) => &a.router_input,
                None => &a.normed,
            },
            out,
            norms,
        };
        let weights = self.weights.experts(layer);
        experts.run(stream, &mut self.products, spec, weights, io)
    }

    /// A recurrent layer.
    fn recur(&mut self, stream: &Stream, work: Work, layer: usize) -> Result<(), CudaError> {
        let (Some(recurrent), Some(spec)) = (&self.recurrent, self.spec.layers[layer].recurrent())
        else {
            unreachable!("an operation of recurrent layers");
        };
        let a = &mut self.activations;
        let io = RecurrentIo {
            rows: work.rows,
            step: self.step.recurrence(work.seqs),
            heads: &mut a.qkv,
            out: &mut a.attended,
        };
        let weights = RecurrentWeights::of(&self.weights, spec, layer);
        recurrent.run(stream, spec, layer, weights, io)
    }

    /// Finishes the heads of a layer and attends.
    fn attend(&mut self, stream: &Stream, work: Work, layer: usize) -> Result<(), CudaError> {
        let Self {
            weights,
            arena,
            step,
            attention,
            parts,
            ops,
            activations: a,
            codecs,
            spec,
            ..
        } = self;
        // Pages are counted by layers of the KV cache.
        let place = ops.kv_place(layer);
        let kv_layer = place.first_layer;
        let pages = codecs.as_ref().map(Codecs::pages);
        let mut codecs = codecs.as_mut().filter(|_| work.decodes);
        let of_heads = RopeWeights {
            key_factors: ops.key_factors(kv_layer),
            ..weights.of_heads(spec, layer)
        };
        let of_layer = ops.head_spec(layer);
        let head_parts = HeadParts::of(spec.attention(layer), place);
        let table = &a.ropes[spec.attention(layer).rope.unwrap_or(0)];
        let heads = ops
            .heads
            .params(work.rows, &of_layer, of_heads, table, &a.qkv);
        let scored = ScoredLayer {
            index: kv_layer,
            scores: ScoreSpec::of(spec.attention(layer)),
            sinks: weights.sinks(spec, layer).map_or(0, |sinks| sinks.ptr()),
        };
        let in_parts = parts.as_mut().filter(|parts| parts.attends(layer));
        let finishes = |decode| {
            head_parts.is_none()
                && in_parts.is_none()
                && attention.finishes(step, decode, &of_layer, &scored.scores)
        };
        let queries = if work.decode.is_some_and(finishes) && !work.prefill {
            Queries::Projected(&of_layer, heads)
        } else if let Some(parts) = &head_parts {
            let heads = (&of_layer, heads);
            let on = (&*step, &mut *arena);
            ops.heads
                .append_parts(stream, work.rows, on, parts, heads, &mut a.q)?;
            Queries::Finished(&a.q)
        } else {
            let heads = (&of_layer, heads);
            ops.heads
                .append(stream, work.rows, step, arena, kv_layer, heads, &mut a.q)?;
            Queries::Finished(&a.q)
        };
        let turns = match work.prefill {
            true => step.plan.turns.len(),
            false => 0,
        };
        if let Some(parts) = in_parts {
            let layer = PartsLayer {
                attention: spec.attention(layer),
                place,
                scored,
                scale_log2: of_layer.scale_log2(),
            };
            if let Some(decode) = work.decode {
                let decode = attention.work_in(step, decode, &scored.scores);
                let on = (&*step, &*arena, attention.windows());
                let seqs = (decode.seqs, decode.cut);
                parts.decode(stream, seqs, on, &layer, &a.q, &mut a.attended)?;
            }
            for turn in 0..turns {
                if let Some(codecs) = &mut codecs {
                    for kv_layer in kv_layer..kv_layer + place.layers() {
                        codecs.dequantise_layer(stream, arena, kv_layer, turn)?;
                    }
                }
                let on = (&*step, &*arena, attention.windows());
                parts.prefill(stream, turn, on, &layer, &a.q, &mut a.attended)?;
            }
            return Ok(());
        }
        if let Some(decode) = work.decode {
            let attended = &mut a.attended;
            let layer = &scored;
            attention.decode(stream, decode, step, arena, pages, layer, queries, attended)?;
        }
        for turn in 0..turns {
            if let Some(codecs) = &mut codecs {
                codecs.dequantise_layer(stream, arena, kv_layer, turn)?;
            }
            let turn = (&scored, turn);
            attention.prefill(stream, step, arena, turn, &a.q, &mut a.attended)?;
        }
        Ok(())
    }

    /// Enqueues the logits of the selected rows `first..first + count`.
    pub(super) fn logits(
        &mut self,
        stream: &Stream,
        first: usize,
        count: usize,
    ) -> Result<(), CudaError> {
        let tail = self.program.tail;
        let bias = self.bias(tail.bias);
        let a = &mut self.activations;
        let selected: DevicePtr = self.step.logit_rows() + 4 * first as u64;
        self.ops.norm(
            stream,
            count,
            tail.add.then_some(Delta {
                values: &a.delta,
                bias,
            }),
            &mut a.residual,
            self.weights.of_norm(tail.norm),
            &mut a.normed,
            Some(selected),
        )?;
        let lm_head = self.weights.linear(tail.lm_head);
        let shape = lm_head.shape(count, true);
        let io = [a.normed.ptr(), a.logits.ptr()];
        // SAFETY: `count` is at most the rows of `logits` and of `normed`; the output projection
        // has the spec's shape.
        unsafe { lm_head.multiply(&mut self.products, stream, shape, io, Ends::default())? };
        let bias = lm_head.bias().map_or(0, DeviceBuffer::ptr);
        self.ops.finish_logits(stream, count, bias, &mut a.logits)
    }
}

impl Activations {
    /// A buffer of bf16.
    pub(super) fn narrow(&self, buffer: Buffer) -> &DeviceBuffer<half::bf16> {
        match buffer {
            Buffer::Normed => &self.normed,
            Buffer::Heads => &self.qkv,
            Buffer::OutputGate => &self.output_gate,
            Buffer::Attended => &self.attended,
            Buffer::GateUp => &self.gate_up,
            Buffer::Gated => &self.mlp,
            Buffer::Branch => &self.delta,
            Buffer::LayerInputs => &self.layer_inputs,
            Buffer::LayerInput => &self.layer_input,
            Buffer::RouterInput => &self.router_input,
            Buffer::Chosen => &self.chosen,
            Buffer::Residual | Buffer::Logits => unreachable!("f32, which no product here reads"),
        }
    }
}
