//! A model's forward pass as the CPU walks it: what its products do at once is one operation.

use super::linear::Then;
use crate::model::ops::{Buffer, LinearName, Op as ModelOp, forward};
use crate::model::{
    AttentionSpec, Feature, LayerSpec, LayerTensor, ModelSpec, RecurrentSpec, TensorName,
};

/// What this backend computes beyond a plain layer.
pub(super) const FEATURES: [Feature; 47] = [
    Feature::NoRope,
    Feature::PartialRope,
    Feature::Scale,
    Feature::Window,
    Feature::Chunks,
    Feature::Sinks,
    Feature::SoftCap,
    Feature::OutputBias,
    Feature::WholeQkNorm,
    Feature::NormAfter,
    Feature::NormBoth,
    Feature::ParallelMlp,
    Feature::GeluTanh,
    Feature::Relu2,
    Feature::Xielu,
    Feature::PlainMlp,
    Feature::MlpBias,
    Feature::LayerNorm,
    Feature::NormBias,
    Feature::NormFromOne,
    Feature::QkNormBehindRope,
    Feature::QueryGrowth,
    Feature::LmHeadBias,
    Feature::EmbeddingMultiplier,
    Feature::EmbeddingNorm,
    Feature::ResidualMultiplier,
    Feature::LogitMultiplier,
    Feature::LogitSoftCap,
    Feature::Experts,
    Feature::PlainExperts,
    Feature::WeightedInput,
    Feature::RouterCap,
    Feature::ExpertNorms,
    Feature::LoneParts,
    Feature::UnevenHeads,
    Feature::UnevenQueries,
    Feature::SharedKv,
    Feature::ValueNorm,
    Feature::OutputScale,
    Feature::PerLayerInputs,
    Feature::OutputGate,
    Feature::SoftplusGate,
    Feature::HeadGate,
    Feature::GatedDelta,
    Feature::DoubledDelta,
    Feature::Mamba2,
    Feature::ShortConv,
];

/// One operation on all rows of a step. Weights are named until they are loaded, then they are
/// indices into [`Weights`](super::weights::Weights).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op<N, L> {
    Embed,
    Norm {
        weight: N,
        bias: Option<N>,
        input: Buffer,
        output: Buffer,
    },
    Linear {
        linear: L,
        input: Buffer,
        output: Buffer,
        then: Then,
        /// The linear layer that follows.
        next: Option<L>,
    },
    FinishHeads(usize),
    Attend(usize),
    /// Attention's output is multiplied by the Hadamard matrix that values were multiplied by.
    RotateBack(usize),
    /// See the model's operation of this name, as the next.
    OpenAttended(usize),
    Recur(usize),
    Activate(usize),
    /// See the model's operation of this name.
    Experts {
        layer: usize,
        input: Buffer,
        router: Buffer,
        output: Buffer,
    },
    /// `Branch += Chosen`, both normalised.
    Join,
    Add,
    /// With the norm's weights.
    FinishLayerInputs(N),
    OpenLayerInput(usize),
    ScaleResidual(usize),
    SelectRows,
    FinishLogits,
}

/// An operation that names its weights.
pub(super) type NamedOp = Op<TensorName, LinearName>;
/// An operation whose weights are loaded.
pub(super) type LoadedOp = Op<usize, usize>;

/// The program of a model. `rotate_back` if attention's output is to be rotated.
pub(super) fn program(spec: &ModelSpec, rotate_back: bool) -> Vec<NamedOp> {
    let mut ops = Vec::new();
    let mut rest = forward(spec).into_iter().peekable();
    while let Some(op) = rest.next() {
        let op = match op {
            ModelOp::Embed => Op::Embed,
            ModelOp::Norm {
                weight,
                input,
                output,
            } => Op::Norm {
                weight,
                bias: weight.norm_bias().filter(|_| spec.norms.bias),
                input,
                output,
            },
            ModelOp::Linear {
                linear,
                input,
                output,
            } => {
                let has_bias = !linear.biases(spec).is_empty();
                let adds = !has_bias && spec.residual_multiplier == 1.0;
                let (then, output) = match rest.peek() {
                    Some(ModelOp::Gate(layer)) => {
                        let activation = spec.layers[*layer].activation();
                        (Then::Gated(activation), Buffer::Gated)
                    }
                    Some(ModelOp::Add) if adds => (Then::Add, Buffer::Residual),
                    _ => (Then::Store, output),
                };
                if then != Then::Store {
                    rest.next();
                }
                Op::Linear {
                    linear,
                    input,
                    output,
                    then,
                    next: None,
                }
            }
            ModelOp::FinishHeads(layer) => Op::FinishHeads(layer),
            ModelOp::Attend(layer) => Op::Attend(layer),
            ModelOp::OpenAttended(layer) => Op::OpenAttended(layer),
            ModelOp::Recur(layer) => Op::Recur(layer),
            ModelOp::Activate(layer) => Op::Activate(layer),
            ModelOp::Gate(_) => unreachable!("gates are fused into their product"),
            ModelOp::Experts {
                layer,
                input,
                router,
                output,
            } => Op::Experts {
                layer,
                input,
                router,
                output,
            },
            ModelOp::JoinBranches(layer) => {
                let branches = [
                    (LayerTensor::SharedPostNorm, Buffer::Branch),
                    (LayerTensor::ExpertPostNorm, Buffer::Chosen),
                ];
                ops.extend(branches.map(|(tensor, branch)| Op::Norm {
                    weight: TensorName::Layer(layer, tensor),
                    bias: None,
                    input: branch,
                    output: branch,
                }));
                Op::Join
            }
            ModelOp::Add => Op::Add,
            ModelOp::FinishLayerInputs => Op::FinishLayerInputs(TensorName::PerLayerNorm),
            ModelOp::OpenLayerInput(layer) => Op::OpenLayerInput(layer),
            ModelOp::ScaleResidual(layer) => Op::ScaleResidual(layer),
            ModelOp::SelectRows => Op::SelectRows,
            ModelOp::FinishLogits => Op::FinishLogits,
        };
        ops.push(op);
        if let (true, Op::Attend(layer)) = (rotate_back, op) {
            ops.push(Op::RotateBack(layer));
        }
    }
    name_successors(&mut ops);
    ops
}

/// Tells every linear layer which one follows. Behind a layer whose experts follow there is none:
/// they read more than caches hold.
fn name_successors(ops: &mut [NamedOp]) {
    let mut following = None;
    for op in ops.iter_mut().rev() {
        match op {
            Op::Linear { linear, next, .. } => *next = following.replace(*linear),
            Op::Experts { .. } => following = None,
            _ => {}
        }
    }
}

/// Floats of a row of each buffer that a program uses, by [`Buffer`]; 0 of the others.
pub(super) fn widths(spec: &ModelSpec, ops: &[NamedOp]) -> [usize; Buffer::COUNT] {
    let heads = |width: fn(&AttentionSpec) -> usize| {
        let layers = spec.attentions().map(|(_, attention)| width(attention));
        layers.max().unwrap_or(0)
    };
    let q_width = heads(|attention| attention.heads().q_width());
    let recurrent = |width: fn(&RecurrentSpec, usize) -> usize| {
        let layers = spec.layers.iter().filter_map(LayerSpec::recurrent);
        layers.map(|r| width(r, spec.hidden)).max().unwrap_or(0)
    };
    let mut widths = [0; Buffer::COUNT];
    let mut uses = |buffer: Buffer| {
        widths[buffer as usize] = match buffer {
            Buffer::Residual
            | Buffer::Normed
            | Buffer::Branch
            | Buffer::RouterInput
            | Buffer::Chosen => spec.hidden,
            Buffer::Heads => {
                let attention = heads(AttentionSpec::heads_width);
                attention.max(recurrent(RecurrentSpec::in_width))
            }
            Buffer::OutputGate => q_width,
            Buffer::Attended => q_width.max(recurrent(RecurrentSpec::out_width)),
            Buffer::GateUp => 2 * spec.intermediate_max(),
            Buffer::Gated => spec.intermediate_max(),
            Buffer::LayerInputs => spec.per_layer_width(),
            Buffer::LayerInput => spec.input_width(),
            Buffer::Logits => spec.vocab,
        };
    };
    for op in ops {
        match op {
            Op::Norm { input, output, .. } | Op::Linear { input, output, .. } => {
                uses(*input);
                uses(*output);
            }
            Op::Experts {
                input,
                router,
                output,
                ..
            } => [*input, *router, *output].into_iter().for_each(&mut uses),
            _ => {}
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ExpertsSpec, Mlp, Rope, Routing, UniformModel};

    #[test]
    fn no_product_names_one_behind_experts_as_the_next() {
        let mut spec = UniformModel {
            hidden: 64,
            layers: 2,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 32,
            intermediate: 64,
            vocab: 100,
            rope: Rope::new(vec![1.0; 16], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec();
        let successors = |spec: &ModelSpec| -> Vec<_> {
            let ops = program(spec, false).into_iter();
            let linears = ops.filter_map(|op| match op {
                Op::Linear { linear, next, .. } => Some((linear, next)),
                _ => None,
            });
            linears.collect()
        };
        let dense = successors(&spec);
        for pair in dense.windows(2) {
            assert_eq!(pair[0].1, Some(pair[1].0));
        }
        spec.layers[0].mlp = Mlp::Experts(ExpertsSpec::plain(4, 2, 32, Routing::SOFTMAX_OF_CHOSEN));
        let sparse = successors(&spec);
        let (first, behind) = (&sparse[..2], &sparse[2..]);
        assert_eq!(first[0].1, Some(first[1].0));
        assert_eq!(first[1].1, None);
        assert_eq!(behind, &dense[4..]);
    }
}
