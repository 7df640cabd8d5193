//! The forward pass of a model as a list of operations.
//!
//! [`forward`] says what is computed, with nothing fused. A backend rewrites the list once, when it
//! loads the model: it joins what its kernels compute at once and settles which kernel does it.
//! A step then walks the backend's list.

use super::experts::ExpertsSpec;
use super::recurrent::RecurrentSpec;
use super::spec::{LayerSpec, Mixer, Mlp, ModelSpec, NormPlace};
use super::tensor_names::{LayerTensor, TensorName};

/// An activation, one row per token of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Buffer {
    /// `[hidden]`: the residual stream.
    Residual,
    /// `[hidden]`: normalised, the input of a linear layer.
    Normed,
    /// `[q heads | k heads | v heads]`, or what a recurrence reads
    /// ([`RecurrentSpec::in_width`](super::RecurrentSpec::in_width)).
    Heads,
    /// `[q heads]`, or `[query heads]` of one channel each: what opens what attention puts out.
    OutputGate,
    /// `[q heads]`: what attention puts out, or what a recurrence does.
    Attended,
    /// `[gate | up]`.
    GateUp,
    /// `[intermediate]`: gated or activated, the input of the MLP's last linear layer.
    Gated,
    /// `[hidden]`: what a part of a layer is about to add to the residual stream.
    Branch,
    /// `[hidden]`: what a router reads that has a norm of its own.
    RouterInput,
    /// `[hidden]`: what the chosen experts put out, if it is a branch by itself.
    Chosen,
    /// `[layers * width]`: what each layer gets of a token.
    LayerInputs,
    /// `[width]`: what a layer makes of that.
    LayerInput,
    /// `[vocab]`.
    Logits,
}

impl Buffer {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Logits as usize + 1;
}

/// A linear layer: one or several tensors beside each other that share their input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LinearName {
    /// Queries, keys and values of a layer.
    Qkv(usize),
    /// What a recurrence reads.
    Recurrent(usize),
    /// What opens what attention puts out.
    OutputGate(usize),
    /// The output projection of attention or of a recurrence.
    O(usize),
    /// Gate and up of an MLP, or of a shared expert.
    GateUp(usize),
    /// The first product of an MLP without gates.
    Up(usize),
    /// The last product of an MLP, or of a shared expert.
    Down(usize),
    /// Gate and up of every expert of a layer, stacked. No operation of its own: part of
    /// [`Op::Experts`], as the next two.
    ExpertGateUp(usize),
    /// The first product of every expert of a layer without gates, stacked.
    ExpertUp(usize),
    /// The last product of every expert of a layer, stacked.
    ExpertDown(usize),
    /// What all layers get of a token, of its embedding.
    PerLayerProjection,
    /// What opens a layer's own input.
    InputGate(usize),
    /// The product behind that.
    InputOut(usize),
    /// The output projection, which is the embedding where the two are tied.
    LmHead,
}

impl LinearName {
    /// The weights, `[out][in]` each, in order of their outputs.
    pub(crate) fn weights(self, spec: &ModelSpec) -> Vec<TensorName> {
        use LayerTensor as L;
        let of = |layer, tensors: &[L]| {
            let names = tensors.iter().map(|t| TensorName::Layer(layer, *t));
            names.collect()
        };
        let is_shared = |layer: usize| spec.layers[layer].experts().is_some();
        match self {
            Self::Qkv(layer) if spec.attention(layer).kv_from.is_some() => of(layer, &[L::Q]),
            Self::Qkv(layer) => of(layer, &[L::Q, L::K, L::V]),
            Self::Recurrent(layer) => match spec.layers[layer].recurrent() {
                Some(RecurrentSpec::ShortConv(_)) => of(layer, &[L::ConvIn]),
                Some(RecurrentSpec::Mamba2(_)) => {
                    let all = [L::MambaX, L::MambaB, L::MambaC, L::MambaZ, L::MambaDt];
                    of(layer, &all)
                }
                _ => {
                    let all = [
                        L::DeltaQ,
                        L::DeltaK,
                        L::DeltaV,
                        L::DeltaZ,
                        L::DeltaB,
                        L::DeltaA,
                    ];
                    of(layer, &all)
                }
            },
            Self::OutputGate(layer) => of(layer, &[L::OutputGate]),
            Self::O(layer) => match spec.layers[layer].recurrent() {
                None => of(layer, &[L::O]),
                Some(RecurrentSpec::GatedDelta(_)) => of(layer, &[L::DeltaOut]),
                Some(RecurrentSpec::Mamba2(_)) => of(layer, &[L::MambaOut]),
                Some(RecurrentSpec::ShortConv(_)) => of(layer, &[L::ConvOut]),
            },
            Self::GateUp(layer) if is_shared(layer) => of(layer, &[L::SharedGate, L::SharedUp]),
            Self::Down(layer) if is_shared(layer) => of(layer, &[L::SharedDown]),
            Self::GateUp(layer) => of(layer, &[L::Gate, L::Up]),
            Self::Up(layer) if is_shared(layer) => of(layer, &[L::SharedUp]),
            Self::Up(layer) => of(layer, &[L::Up]),
            Self::Down(layer) => of(layer, &[L::Down]),
            Self::ExpertGateUp(layer) => of(layer, &[L::ExpertGate, L::ExpertUp]),
            Self::ExpertUp(layer) => of(layer, &[L::ExpertUp]),
            Self::ExpertDown(layer) => of(layer, &[L::ExpertDown]),
            Self::PerLayerProjection => vec![TensorName::PerLayerProjection],
            Self::InputGate(layer) => of(layer, &[L::InputGate]),
            Self::InputOut(layer) => of(layer, &[L::InputOut]),
            Self::LmHead if spec.tied_embeddings => vec![TensorName::Embedding],
            Self::LmHead => vec![TensorName::LmHead],
        }
    }

    /// The biases, in the same order; none if there is none.
    pub(crate) fn biases(self, spec: &ModelSpec) -> Vec<TensorName> {
        use LayerTensor as L;
        let has_biases = |layer: usize| spec.layers[layer].experts().is_some_and(|e| e.biases);
        let is_biased = |layer: usize| spec.layers[layer].plain_mlp().is_some_and(|p| p.bias);
        match self {
            Self::Qkv(layer) if spec.attention(layer).qkv_bias => {
                let has_kv = spec.attention(layer).kv_from.is_none();
                let names = [L::QBias, L::KBias, L::VBias].into_iter();
                let names = names.take(if has_kv { 3 } else { 1 });
                names.map(|t| TensorName::Layer(layer, t)).collect()
            }
            Self::O(layer) if spec.layers[layer].has_o_bias() => {
                let bias = match &spec.layers[layer].mixer {
                    Mixer::Attention(_) => L::OBias,
                    Mixer::Recurrent(_) | Mixer::None => L::ConvOutBias,
                };
                vec![TensorName::Layer(layer, bias)]
            }
            Self::Recurrent(layer) if spec.layers[layer].has_o_bias() => {
                vec![TensorName::Layer(layer, L::ConvInBias)]
            }
            Self::Up(layer) if is_biased(layer) => vec![TensorName::Layer(layer, L::UpBias)],
            Self::Down(layer) if is_biased(layer) => vec![TensorName::Layer(layer, L::DownBias)],
            Self::LmHead if spec.lm_head_bias => vec![TensorName::LmHeadBias],
            Self::ExpertGateUp(layer) if has_biases(layer) => {
                let names = [L::ExpertGateBias, L::ExpertUpBias];
                names.map(|t| TensorName::Layer(layer, t)).to_vec()
            }
            Self::ExpertUp(layer) if has_biases(layer) => {
                vec![TensorName::Layer(layer, L::ExpertUpBias)]
            }
            Self::ExpertDown(layer) if has_biases(layer) => {
                vec![TensorName::Layer(layer, L::ExpertDownBias)]
            }
            _ => Vec::new(),
        }
    }

    /// The first product of a layer's experts.
    pub(crate) fn first_of_experts(layer: usize, experts: &ExpertsSpec) -> Self {
        match experts.activation.is_gated() {
            true => Self::ExpertGateUp(layer),
            false => Self::ExpertUp(layer),
        }
    }

    /// Inputs of the product, and outputs (of gate and up: of both); of one expert, where they are
    /// stacked.
    pub(crate) fn shape(self, spec: &ModelSpec) -> (usize, usize) {
        let mut shape = (0, 0);
        for name in self.weights(spec) {
            let [outputs, inputs] = name.matrix_shape(spec);
            shape = (inputs, shape.1 + outputs);
        }
        shape
    }

    /// Whether it is one of each expert.
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    pub(crate) fn is_stacked(self) -> bool {
        matches!(
            self,
            Self::ExpertGateUp(_) | Self::ExpertUp(_) | Self::ExpertDown(_)
        )
    }

    /// Whether outputs are gates and what they open.
    pub(crate) fn is_gated(self) -> bool {
        matches!(self, Self::GateUp(_) | Self::ExpertGateUp(_))
    }
}

/// One operation on all rows of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// `Residual` = the embeddings of the step's tokens, times their multiplier, and normalised.
    Embed,
    /// `output = norm(input) * weight`, plus a bias if norms have one.
    Norm {
        weight: TensorName,
        input: Buffer,
        output: Buffer,
    },
    /// `output = W input + bias`.
    Linear {
        linear: LinearName,
        input: Buffer,
        output: Buffer,
    },
    /// Finishes `Heads` of a layer: norms and RoPE; appends keys and values to their pages.
    FinishHeads(usize),
    /// `Attended` = attention of a layer's queries over its pages.
    Attend(usize),
    /// `Attended ⊙= gate(OutputGate)` ([`OutputGate`](super::OutputGate)).
    OpenAttended(usize),
    /// `Attended` = what a layer's recurrence makes of `Heads` and of the states of the step's
    /// sequences, which it moves on.
    Recur(usize),
    /// `Gated = activation(gate) ⊙ up`.
    Gate(usize),
    /// `Gated = activation(Gated)`, of an MLP without gates.
    Activate(usize),
    /// `output` = the sum of the chosen experts' outputs of a layer. If that is `Branch`, what is
    /// there is added, which the shared expert has put out, if there is one; that is multiplied by
    /// its score before, if it has one. Experts read `input`, their router `router`.
    Experts {
        layer: usize,
        input: Buffer,
        router: Buffer,
        output: Buffer,
    },
    /// `Branch = norm(Branch) + norm(Chosen)`, the norms of a layer's branches.
    JoinBranches(usize),
    /// `Residual += Branch`, times the residual multiplier.
    Add,
    /// `LayerInputs` = its norm, layer by layer, and the embeddings of the step's tokens
    /// ([`PerLayerInputs`](super::PerLayerInputs)).
    FinishLayerInputs,
    /// `LayerInput = activation(LayerInput) ⊙` a layer's part of `LayerInputs`.
    OpenLayerInput(usize),
    /// `Residual *=` a layer's output scale.
    ScaleResidual(usize),
    /// Only rows of `Residual` whose logits are wanted go on.
    SelectRows,
    /// `Logits` times their multiplier, and capped.
    FinishLogits,
}

/// The forward pass of a valid spec.
pub(crate) fn forward(spec: &ModelSpec) -> Vec<Op> {
    let mut ops = vec![Op::Embed];
    let has_inputs = spec.per_layer_inputs.is_some();
    if has_inputs {
        ops.push(Op::Linear {
            linear: LinearName::PerLayerProjection,
            input: Buffer::Residual,
            output: Buffer::LayerInputs,
        });
        ops.push(Op::FinishLayerInputs);
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        mixer(&mut ops, index, layer);
        let is_last = index + 1 == spec.layers.len();
        // What attention and MLP share is of all rows, and so are inputs of layers.
        let shares = layer.mlp_norm == NormPlace::Shared || has_inputs;
        if is_last && !shares {
            // Nothing after the last attention is needed of rows without logits.
            ops.push(Op::SelectRows);
        }
        mlp(&mut ops, index, layer);
        if has_inputs {
            layer_input(&mut ops, index);
        }
        if layer.output_scale {
            ops.push(Op::ScaleResidual(index));
        }
        if is_last && shares {
            ops.push(Op::SelectRows);
        }
    }
    ops.push(Op::Norm {
        weight: TensorName::FinalNorm,
        input: Buffer::Residual,
        output: Buffer::Normed,
    });
    ops.push(Op::Linear {
        linear: LinearName::LmHead,
        input: Buffer::Normed,
        output: Buffer::Logits,
    });
    if spec.logit_multiplier != 1.0 || spec.logit_soft_cap.is_some() {
        ops.push(Op::FinishLogits);
    }
    ops
}

fn mixer(ops: &mut Vec<Op>, index: usize, layer: &LayerSpec) {
    if !layer.has_mixer() {
        return;
    }
    let place = layer.mixer_norm;
    let norm = TensorName::Layer(index, LayerTensor::AttnNorm);
    let input = normed_input(ops, place.is_before().then_some(norm));
    let mut linear = |linear, output| {
        ops.push(Op::Linear {
            linear,
            input,
            output,
        });
    };
    match &layer.mixer {
        Mixer::Attention(attention) => {
            linear(LinearName::Qkv(index), Buffer::Heads);
            if attention.output_gate.is_some() {
                linear(LinearName::OutputGate(index), Buffer::OutputGate);
            }
            ops.push(Op::FinishHeads(index));
            ops.push(Op::Attend(index));
            if attention.output_gate.is_some() {
                ops.push(Op::OpenAttended(index));
            }
        }
        Mixer::Recurrent(_) => {
            linear(LinearName::Recurrent(index), Buffer::Heads);
            ops.push(Op::Recur(index));
        }
        Mixer::None => {}
    }
    ops.push(Op::Linear {
        linear: LinearName::O(index),
        input: Buffer::Attended,
        output: Buffer::Branch,
    });
    let norm = TensorName::Layer(index, LayerTensor::AttnPostNorm);
    add_branch(ops, place.is_after().then_some(norm));
}

fn mlp(ops: &mut Vec<Op>, index: usize, layer: &LayerSpec) {
    if !layer.has_mlp() {
        return;
    }
    let place = layer.mlp_norm;
    let norm = TensorName::Layer(index, LayerTensor::MlpNorm);
    let input = match place {
        NormPlace::Shared => Buffer::Normed,
        _ => normed_input(ops, place.is_before().then_some(norm)),
    };
    match &layer.mlp {
        Mlp::Dense { .. } => dense(ops, index, input),
        Mlp::Plain(_) => plain(ops, index, input),
        Mlp::Experts(experts) => {
            match experts.shared {
                Some(_) if layer.is_shared_plain() => plain(ops, index, input),
                Some(_) => dense(ops, index, input),
                None => {}
            }
            routed(ops, index, experts, input);
        }
        Mlp::None => {}
    }
    let norm = TensorName::Layer(index, LayerTensor::MlpPostNorm);
    add_branch(ops, place.is_after().then_some(norm));
}

/// The experts that a router chooses, beside what the shared one has put out.
fn routed(ops: &mut Vec<Op>, index: usize, experts: &ExpertsSpec, input: Buffer) {
    let mut norm = |tensor, output| {
        ops.push(Op::Norm {
            weight: TensorName::Layer(index, tensor),
            input: Buffer::Residual,
            output,
        });
        output
    };
    let has_norm = experts.router_norm.is_some();
    let router = has_norm.then(|| norm(LayerTensor::RouterNorm, Buffer::RouterInput));
    let (input, output) = match experts.branch_norms {
        true => (
            norm(LayerTensor::ExpertNorm, Buffer::Normed),
            Buffer::Chosen,
        ),
        false => (input, Buffer::Branch),
    };
    ops.push(Op::Experts {
        layer: index,
        input,
        router: router.unwrap_or(input),
        output,
    });
    if experts.branch_norms {
        ops.push(Op::JoinBranches(index));
    }
}

/// What a layer adds of its own input.
fn layer_input(ops: &mut Vec<Op>, index: usize) {
    ops.push(Op::Linear {
        linear: LinearName::InputGate(index),
        input: Buffer::Residual,
        output: Buffer::LayerInput,
    });
    ops.push(Op::OpenLayerInput(index));
    ops.push(Op::Linear {
        linear: LinearName::InputOut(index),
        input: Buffer::LayerInput,
        output: Buffer::Branch,
    });
    add_branch(ops, Some(TensorName::Layer(index, LayerTensor::InputNorm)));
}

/// A dense MLP, or a shared expert.
fn dense(ops: &mut Vec<Op>, index: usize, input: Buffer) {
    let first = (LinearName::GateUp(index), Buffer::GateUp);
    two_products(ops, index, (input, first), Op::Gate(index));
}

/// An MLP without gates, or a shared expert.
fn plain(ops: &mut Vec<Op>, index: usize, input: Buffer) {
    let first = (LinearName::Up(index), Buffer::Gated);
    two_products(ops, index, (input, first), Op::Activate(index));
}

/// The products of an MLP, and what is between them.
fn two_products(
    ops: &mut Vec<Op>,
    index: usize,
    (input, (first, output)): (Buffer, (LinearName, Buffer)),
    between: Op,
) {
    ops.push(Op::Linear {
        linear: first,
        input,
        output,
    });
    ops.push(between);
    ops.push(Op::Linear {
        linear: LinearName::Down(index),
        input: Buffer::Gated,
        output: Buffer::Branch,
    });
}

/// What a part of a layer reads: the residual stream, normalised if there is a norm.
fn normed_input(ops: &mut Vec<Op>, norm: Option<TensorName>) -> Buffer {
    let Some(weight) = norm else {
        return Buffer::Residual;
    };
    ops.push(Op::Norm {
        weight,
        input: Buffer::Residual,
        output: Buffer::Normed,
    });
    Buffer::Normed
}

/// Adds what a part of a layer has put out, normalised if there is a norm.
fn add_branch(ops: &mut Vec<Op>, norm: Option<TensorName>) {
    if let Some(weight) = norm {
        ops.push(Op::Norm {
            weight,
            input: Buffer::Branch,
            output: Buffer::Branch,
        });
    }
    ops.push(Op::Add);
}
