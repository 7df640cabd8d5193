//! One step's walk over the model's operations.

use super::attention::{Attention, Pages, Plans};
use super::experts::ExpertsIo;
use super::linear::{Io, Then};
use super::ops::{
    Activate, HeadOps, LayerInputs, Norm, Normalise, RowPlace, activate_rows, finish_logits,
    for_rows, open, open_layer_input, rotate_back,
};
use super::program::Op;
use super::recurrent::{Recurrence, States};
use super::scratch::Scratch;
use super::shared::SharedSlice;
use super::simd::Isa;
use super::threads::{Pool, TaskPanic};
use super::weights::Weights;
use crate::BLOCK_TOKENS;
use crate::backend::{SeqRows, StepInput};
use crate::model::ops::Buffer;
use crate::model::{KvPlace, ModelSpec, QkNorm};

/// What a step works on.
pub(super) struct Forward<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) isa: Isa,
    pub(super) pool: &'a mut Pool,
    pub(super) weights: &'a Weights,
    pub(super) plans: &'a Plans,
    pub(super) pages: Pages<'a>,
    pub(super) states: &'a mut States,
    pub(super) input: &'a StepInput,
    pub(super) scratch: &'a mut Scratch,
    /// Those of the step, and after the last attention those with logits.
    pub(super) rows: usize,
    pub(super) rotate_k: bool,
    pub(super) rotate_v: bool,
    /// Of each layer, if it has attention: where its keys and values lie.
    pub(super) kv_places: &'a [Option<KvPlace>],
    /// Of each layer with attention.
    pub(super) key_factors: Option<&'a [Vec<f32>]>,
}

impl Forward<'_> {
    /// Leaves the logits of the rows that want them in [`Buffer::Logits`].
    pub(super) fn run(mut self) -> Result<(), TaskPanic> {
        self.place_rows();
        if self.states.is_needed() {
            self.states.begin(&self.input.seqs);
        }
        let weights = self.weights;
        for op in &weights.ops {
            match *op {
                Op::Embed => self.embed()?,
                Op::Norm {
                    weight,
                    bias,
                    input,
                    output,
                } => {
                    let norm = Norm {
                        kind: self.spec.norms.kind,
                        weight: &weights.norms[weight],
                        bias: bias.map(|bias| &weights.norms[bias][..]),
                        eps: self.spec.norm_eps,
                    };
                    self.norm(norm, input, output)?;
                }
                Op::Linear {
                    linear,
                    input,
                    output,
                    then,
                    next,
                } => self.linear(linear, (input, output), then, next)?,
                Op::FinishHeads(layer) => self.finish_heads(layer)?,
                Op::Attend(layer) => self.attend(layer)?,
                Op::RotateBack(layer) => {
                    let width = self.spec.attention(layer).heads().q_width();
                    let attended = self.scratch.rows_mut(Buffer::Attended, self.rows);
                    let attended = &mut attended[..self.rows * width];
                    let record_dim = self.pages.geometry.head_dim;
                    rotate_back(self.pool, attended, (width, record_dim))?;
                }
                Op::FinishLayerInputs(norm) => self.finish_layer_inputs(&weights.norms[norm])?,
                Op::OpenLayerInput(layer) => self.open_layer_input(layer)?,
                Op::ScaleResidual(layer) => {
                    let x = self.scratch.rows_mut(Buffer::Residual, self.rows);
                    if let Some(scale) = weights.output_scales[layer] {
                        x.iter_mut().for_each(|x| *x *= scale);
                    }
                }
                Op::OpenAttended(layer) => self.open_attended(layer)?,
                Op::Recur(layer) => self.recur(layer)?,
                Op::Activate(layer) => self.activate(layer)?,
                Op::Experts {
                    layer,
                    input,
                    router,
                    output,
                } => self.experts(layer, (input, router), output)?,
                Op::Join => self.join(),
                Op::Add => self.add(),
                Op::SelectRows => self.select_rows(),
                Op::FinishLogits => self.finish_logits()?,
            }
        }
        Ok(())
    }

    /// The rows' places in their pages and their angles, which every layer uses.
    fn place_rows(&mut self) {
        let input = self.input;
        let positions = |s: &SeqRows| s.position..s.position + s.rows;
        let max_positions = self.spec.max_positions;
        for (rope, table) in self.spec.ropes.iter().zip(&mut self.scratch.ropes) {
            table.fill(rope, max_positions, input.seqs.iter().flat_map(positions));
        }
        let places = &mut self.scratch.places;
        places.clear();
        for s in &input.seqs {
            let blocks = self.pages.tables.row(s.slot);
            places.extend(positions(s).map(|position| RowPlace {
                position,
                block: blocks[position as usize / BLOCK_TOKENS],
                token: position % BLOCK_TOKENS as u32,
            }));
        }
    }

    fn embed(&mut self) -> Result<(), TaskPanic> {
        let (hidden, weights) = (self.spec.hidden, self.weights);
        let multiplier = self.spec.embedding_multiplier;
        let eps = self.spec.embedding_norm.then_some(self.spec.norm_eps);
        let isa = self.isa;
        let tokens = &self.input.tokens;
        let x = SharedSlice::new(self.scratch.rows_mut(Buffer::Residual, self.rows));
        for_rows(self.pool, self.rows, hidden, |first, end| {
            for (row, token) in (first..end).zip(&tokens[first..end]) {
                // SAFETY: ranges of rows are disjoint.
                let x = unsafe { x.slice(row * hidden, hidden) };
                weights.embed(*token as usize, x);
                if multiplier != 1.0 {
                    x.iter_mut().for_each(|x| *x *= multiplier);
                }
                if let Some(eps) = eps {
                    isa.run(Normalise { x, eps });
                }
            }
        })
    }

    fn norm(&mut self, norm: Norm<'_>, input: Buffer, output: Buffer) -> Result<(), TaskPanic> {
        let (rows, isa) = (self.rows, self.isa);
        if input == output {
            let x = self.scratch.rows_mut(input, rows);
            return norm.run_in_place(self.pool, isa, x);
        }
        let mut out = self.scratch.take(output);
        let x = self.scratch.rows(input, rows);
        let result = norm.run(self.pool, isa, x, &mut out[..x.len()]);
        self.scratch.put(output, out);
        result
    }

    fn linear(
        &mut self,
        linear: usize,
        (input, output): (Buffer, Buffer),
        then: Then,
        next: Option<usize>,
    ) -> Result<(), TaskPanic> {
        let linears = &self.weights.linears;
        let mut out = self.scratch.take(output);
        let mut quantised = std::mem::take(&mut self.scratch.quantised);
        let inputs = self.rows * linears[linear].inputs();
        let io = Io {
            rows: self.rows,
            input: &self.scratch.rows(input, self.rows)[..inputs],
            quantised: &mut quantised,
            output: &mut out[..],
        };
        let next = next.map(|next| &linears[next]);
        let on = (&mut *self.pool, self.isa);
        let result = linears[linear].multiply(on, io, then, next);
        self.scratch.quantised = quantised;
        self.scratch.put(output, out);
        result
    }

    fn kv_place(&self, layer: usize) -> KvPlace {
        self.kv_places[layer].expect("a layer with attention")
    }

    fn finish_heads(&mut self, layer: usize) -> Result<(), TaskPanic> {
        let attention = self.spec.attention(layer);
        let place = self.kv_place(layer);
        let mut qkv = self.scratch.take(Buffer::Heads);
        let qk_norm = self.weights.qk_norms[layer].as_ref();
        let ops = HeadOps {
            heads: attention.heads(),
            has_kv: attention.kv_from.is_none(),
            eps: self.spec.norm_eps,
            rope: attention.rope.map(|rope| &self.scratch.ropes[rope]),
            pages: self.pages,
            places: &self.scratch.places,
            place,
            qk_norm: qk_norm.map(|(q, k)| (&q[..], &k[..])),
            v_norm: attention.v_norm,
            norms_behind_rope: attention.qk_norm == QkNorm::PerHeadBehindRope,
            growth: attention.query_growth,
            rotate_k: self.rotate_k,
            rotate_v: self.rotate_v,
            // Those of models with a layer of the KV cache for each with attention.
            key_factors: self.key_factors.map(|of| &of[place.first_layer][..]),
        };
        let result = ops.run(self.pool, self.isa, &mut qkv);
        self.scratch.put(Buffer::Heads, qkv);
        result
    }

    fn attend(&mut self, layer: usize) -> Result<(), TaskPanic> {
        let spec = self.spec.attention(layer);
        let heads = spec.heads();
        let mut attended = self.scratch.take(Buffer::Attended);
        let queries = self.scratch.take(Buffer::Heads);
        let attention = Attention {
            pages: self.pages,
            plan: self.plans.of(spec.seen(), heads.into()),
            place: self.kv_place(layer),
            heads: heads.into(),
            queries: &queries,
            query_stride: spec.heads_width(),
            scale: spec.scale,
            soft_cap: spec.soft_cap,
            sinks: self.weights.sinks[layer].as_deref(),
        };
        let Scratch {
            attention: scratch,
            partials,
            ..
        } = &mut *self.scratch;
        let result = attention.run(self.pool, self.isa, scratch, partials, &mut attended);
        self.scratch.put(Buffer::Heads, queries);
        self.scratch.put(Buffer::Attended, attended);
        result
    }

    fn open_attended(&mut self, layer: usize) -> Result<(), TaskPanic> {
        let attention = self.spec.attention(layer);
        let Some(gate) = attention.output_gate else {
            unreachable!("the program opens what has gates");
        };
        let heads = attention.heads();
        let mut attended = self.scratch.take(Buffer::Attended);
        let gates = self.scratch.rows_mut(Buffer::OutputGate, self.rows);
        let on = (&mut *self.pool, self.isa);
        let opened = &mut attended[..self.rows * heads.q_width()];
        let result = open(on, opened, gates, (gate, heads));
        self.scratch.put(Buffer::Attended, attended);
        result
    }

    fn recur(&mut self, layer: usize) -> Result<(), TaskPanic> {
        let spec = self.spec.layers[layer].recurrent();
        let Some((spec, weights)) = spec.zip(self.weights.recurrent[layer].as_ref()) else {
            unreachable!("the program recurs where the spec does");
        };
        let mut input = self.scratch.take(Buffer::Heads);
        let mut output = self.scratch.take(Buffer::Attended);
        let recurrence = Recurrence {
            spec: *spec,
            hidden: self.spec.hidden,
            layer,
            weights,
            seqs: &self.input.seqs,
        };
        let on = (&mut *self.pool, self.isa);
        let result = recurrence.run(on, self.states, &mut input, &mut output);
        self.scratch.put(Buffer::Heads, input);
        self.scratch.put(Buffer::Attended, output);
        result
    }

    /// What is between the products of an MLP without gates.
    fn activate(&mut self, layer: usize) -> Result<(), TaskPanic> {
        let spec = &self.spec.layers[layer];
        let (activation, width) = (spec.activation(), spec.intermediate());
        let gated = &mut self.scratch.rows_mut(Buffer::Gated, self.rows)[..self.rows * width];
        let (on, shape) = ((&mut *self.pool, self.isa), (self.rows, width));
        match &self.weights.xielus[layer] {
            Some(xielu) => activate_rows(on, gated, shape, xielu),
            None => activate_rows(on, gated, shape, &Activate(activation)),
        }
    }

    fn experts(
        &mut self,
        layer: usize,
        (input, router): (Buffer, Buffer),
        output: Buffer,
    ) -> Result<(), TaskPanic> {
        let spec = self.spec.layers[layer].experts();
        let Some((spec, experts)) = spec.zip(self.weights.experts[layer].as_ref()) else {
            unreachable!("the program has experts where the spec has them");
        };
        let hidden = self.spec.hidden;
        let mut out = self.scratch.take(output);
        let mut quantised = std::mem::take(&mut self.scratch.quantised);
        let mut scratch = std::mem::take(&mut self.scratch.experts);
        let io = ExpertsIo {
            rows: self.rows,
            input: self.scratch.rows(input, self.rows),
            router: self.scratch.rows(router, self.rows),
            output: &mut out[..self.rows * hidden],
            quantised: &mut quantised,
            scratch: &mut scratch,
        };
        let result = experts.run((&mut *self.pool, self.isa), spec, io);
        self.scratch.experts = scratch;
        self.scratch.quantised = quantised;
        self.scratch.put(output, out);
        result
    }

    /// The sum of a shared expert's branch and of what was chosen beside it.
    fn join(&mut self) {
        let mut branch = self.scratch.take(Buffer::Branch);
        let chosen = self.scratch.rows(Buffer::Chosen, self.rows);
        branch.iter_mut().zip(chosen).for_each(|(x, c)| *x += c);
        self.scratch.put(Buffer::Branch, branch);
    }

    /// The residual connection, where no product makes it.
    fn add(&mut self) {
        let mut x = self.scratch.take(Buffer::Residual);
        let branch = self.scratch.rows(Buffer::Branch, self.rows);
        match self.spec.residual_multiplier {
            1.0 => x.iter_mut().zip(branch).for_each(|(x, b)| *x += b),
            by => x.iter_mut().zip(branch).for_each(|(x, b)| *x += b * by),
        }
        self.scratch.put(Buffer::Residual, x);
    }

    fn finish_layer_inputs(&mut self, norm: &[f32]) -> Result<(), TaskPanic> {
        let spec = self.spec;
        let Some((inputs, table)) = spec
            .per_layer_inputs
            .zip(self.weights.per_layer_embedding.as_ref())
        else {
            unreachable!("the program has inputs of layers where the spec has them");
        };
        let finish = LayerInputs {
            norm,
            eps: spec.norm_eps,
            projection_multiplier: (spec.hidden as f32).powf(-0.5),
            embedding_multiplier: inputs.embedding_multiplier,
            layers: spec.layers.len(),
        };
        let tokens = &self.input.tokens;
        let x = self.scratch.rows_mut(Buffer::LayerInputs, self.rows);
        let on = (&mut *self.pool, self.isa);
        finish.run(on, x, |row, out| table.row(tokens[row] as usize, out))
    }

    fn open_layer_input(&mut self, layer: usize) -> Result<(), TaskPanic> {
        let width = self.spec.input_width();
        let activation = self.spec.layers[layer].activation();
        let mut gates = self.scratch.take(Buffer::LayerInput);
        let inputs = self.scratch.rows(Buffer::LayerInputs, self.rows);
        let inputs = (inputs, self.spec.per_layer_width(), layer * width);
        let on = (&mut *self.pool, self.isa);
        let rows = &mut gates[..self.rows * width];
        let result = open_layer_input(on, activation, (rows, width), inputs);
        self.scratch.put(Buffer::LayerInput, gates);
        result
    }

    fn finish_logits(&mut self) -> Result<(), TaskPanic> {
        let spec = self.spec;
        let logits = self.scratch.rows_mut(Buffer::Logits, self.rows);
        let (multiplier, cap) = (spec.logit_multiplier, spec.logit_soft_cap);
        let on = (&mut *self.pool, self.isa);
        finish_logits(on, logits, spec.vocab, multiplier, cap)
    }

    /// Moves the rows with logits to the front.
    fn select_rows(&mut self) {
        let hidden = self.spec.hidden;
        let wanted = &self.input.logit_rows;
        let x = self.scratch.rows_mut(Buffer::Residual, self.rows);
        for (to, from) in wanted.iter().enumerate() {
            let from = *from as usize * hidden;
            x.copy_within(from..from + hidden, to * hidden);
        }
        self.rows = wanted.len();
    }
}
