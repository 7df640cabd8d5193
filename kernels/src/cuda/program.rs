//! A model's forward pass as a GPU walks it.
//!
//! Three lists do the same work. In `plain` a norm also adds what the part before it has put out.
//! In `gated` the product of gate and up opens the gates as well. In `normed` products also take
//! part in the norms between them: they add to the residual stream, and the next product divides.
//! Which list a step walks depends on its rows alone. In all of them layers of experts take norms
//! around them, where nothing else reads what these make.

use super::params::GemmShape;
use super::products::Products;
use super::weights::Weights;
use crate::model::ops::{Buffer, LinearName, Op as ModelOp, forward};
use crate::model::{Activation, Mixer, ModelSpec, NormKind, Norms, TensorName};

/// One operation on all rows of a step. Weights are indices into [`Weights`]; the residual stream
/// is f32, other buffers bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op<Vector = usize, Linear = usize> {
    /// `Residual` = the embeddings of the step's tokens.
    Embed,
    Norm(Norm<Vector>),
    /// `output = W input`.
    Linear {
        linear: Linear,
        input: Buffer,
        output: Buffer,
        fused: Fused<Vector>,
    },
    /// Finishes a layer's heads, appends keys and values, and attends.
    Attend(usize),
    /// A layer's `Attended` is multiplied by the Hadamard matrix that values were multiplied by.
    RotateBack(usize),
    /// A layer's `Attended ⊙= gate(OutputGate)`.
    OpenAttended(usize),
    /// A layer's recurrence, from `Heads` to `Attended`.
    Recur(usize),
    /// `Gated = activation(gate) ⊙ up` of a layer.
    Gate(usize, Activation),
    /// `Gated = activation(Gated)` of a layer, with the bias of the product before.
    Activate(usize, Activation),
    /// See the model's operations of these names.
    FinishLayerInputs,
    OpenLayerInput(usize, Activation),
    ScaleResidual(usize),
    /// A layer's experts, of `Normed`, and of `RouterInput` where their router has a norm.
    Experts(usize),
    /// A layer's experts with the norms around them.
    NormedExperts(usize, ExpertNorms<Vector>),
    /// See the model's operation of this name.
    JoinBranches(usize),
    /// `Residual += Branch`, with the bias of the product before; `Normed` stays.
    Add {
        bias: Option<LinearName>,
    },
}

/// `Residual += Branch` if `add`, `Branch` normalised with `post` first if there is one; then
/// `output = norm(Residual)`, or the residual stream itself without a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Norm<Vector = usize> {
    pub(super) add: bool,
    /// Whose bias is added to `Branch` first.
    pub(super) bias: Option<LinearName>,
    pub(super) post: Option<Vector>,
    pub(super) weight: Option<Vector>,
    /// `Normed`, or what a router reads.
    pub(super) output: Buffer,
}

impl Norm<TensorName> {
    fn load(self, vector: impl Fn(TensorName) -> usize) -> Norm {
        Norm {
            add: self.add,
            bias: self.bias,
            post: self.post.map(&vector),
            weight: self.weight.map(&vector),
            output: self.output,
        }
    }
}

/// The norms around a layer of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertNorms<Vector = usize> {
    /// Of `Normed`, which nothing but the experts and their router reads.
    pub(super) before: Option<Norm<Vector>>,
    /// `Residual += ` what the experts put out, then `Normed = norm(Residual)` with this weight.
    pub(super) after: Vector,
}

/// What a product does beside multiplying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fused<Vector = usize> {
    /// Its outputs are gates, which this opens, and what they open.
    pub(super) gated: Option<Activation>,
    /// Its inputs are still to be divided by their root mean square.
    pub(super) divides: bool,
    /// It adds its outputs to the residual stream and multiplies by this weight of the next norm.
    pub(super) adds: Option<Vector>,
}

impl<Vector> Fused<Vector> {
    const NONE: Self = Self {
        gated: None,
        divides: false,
        adds: None,
    };
}

/// What follows the layers: `add` if the last part's output is still to be added, with a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) norm: usize,
    pub(super) add: bool,
    pub(super) bias: Option<LinearName>,
    pub(super) lm_head: usize,
}

/// Which list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Plain,
    Gated,
    Normed,
}

type NamedOp = Op<TensorName, LinearName>;

/// The lists of a model.
#[derive(Debug)]
pub(super) struct Program {
    plain: Vec<Op>,
    gated: Vec<Op>,
    /// None where some norm is none that products can take part in.
    normed: Option<Vec<Op>>,
    pub(super) tail: Tail,
    /// Inputs and outputs of the products of a layer: Q K V or what a recurrence reads, output,
    /// gate and up or up alone, down. The first two are empty where nothing mixes tokens, the last
    /// two have no outputs where there is no MLP but experts, or none at all. One entry for layers
    /// of the same shape.
    shapes: Vec<[(usize, usize); 4]>,
    /// Of the gates of attention's output, likewise.
    output_gates: Vec<(usize, usize)>,
    /// The gates of every layer are packed with what they open.
    packs_gates: bool,
}

impl Program {
    /// Of a valid spec that this backend computes. `rotate_back` if attention's output is to be
    /// rotated.
    pub(super) fn new(spec: &ModelSpec, weights: &Weights, rotate_back: bool) -> Self {
        let (plain, (add, bias)) = plain(spec, rotate_back);
        let gated = gate(&plain);
        let normed = can_join(spec).then(|| join_norms(&gated)).flatten();
        let loaded = |ops: &[NamedOp]| {
            let ops = join_expert_norms(ops);
            ops.into_iter().map(|op| load(op, weights)).collect()
        };
        let mut shapes: Vec<_> = (0..spec.layers.len())
            .map(|layer| {
                let first = match spec.layers[layer].mixer {
                    Mixer::Attention(_) => Some(LinearName::Qkv(layer)),
                    Mixer::Recurrent(_) => Some(LinearName::Recurrent(layer)),
                    Mixer::None => None,
                };
                let of = &spec.layers[layer];
                let up = match of.plain_mlp().is_some() || of.is_shared_plain() {
                    true => LinearName::Up(layer),
                    false => LinearName::GateUp(layer),
                };
                let o = first.map(|_| LinearName::O(layer));
                let all = [first, o, Some(up), Some(LinearName::Down(layer))];
                all.map(|linear| linear.map_or((0, 0), |linear| linear.shape(spec)))
            })
            .collect();
        shapes.sort_unstable();
        shapes.dedup();
        let with_gates = spec.attentions().filter(|(_, a)| a.output_gate.is_some());
        let gates = with_gates.map(|(layer, _)| LinearName::OutputGate(layer).shape(spec));
        let mut output_gates: Vec<_> = gates.collect();
        output_gates.sort_unstable();
        output_gates.dedup();
        Self {
            plain: loaded(&plain),
            gated: loaded(&gated),
            normed: normed.map(|ops| loaded(&ops)),
            tail: Tail {
                norm: weights.vector_index(TensorName::FinalNorm),
                add,
                bias,
                lm_head: weights.linear_index(LinearName::LmHead),
            },
            shapes,
            output_gates,
            packs_gates: weights.packs_gates(spec),
        }
    }

    /// The list for a step of `rows` rows.
    pub(super) fn choose(&self, products: &Products, rows: usize) -> List {
        let layers = || self.layer_shapes(rows);
        if self.normed.is_some() && layers().all(|layer| products.norms(layer)) {
            List::Normed
        } else if layers().all(|[_, _, gate_up, _]| gate_up.outputs == 0 || products.gates(gate_up))
            || self.packs_gates && products.streams_packed(rows)
        {
            List::Gated
        } else {
            List::Plain
        }
    }

    fn ops(&self, list: List) -> &[Op] {
        match (list, &self.normed) {
            (List::Normed, Some(normed)) => normed,
            (List::Normed | List::Gated, _) => &self.gated,
            (List::Plain, _) => &self.plain,
        }
    }

    /// Operations of a list.
    pub(super) fn len(&self, list: List) -> usize {
        self.ops(list).len()
    }

    /// Operation `index` of a list.
    pub(super) fn op(&self, list: List, index: usize) -> Op {
        self.ops(list)[index]
    }

    /// The products of every kind of layer, but for the gates of attention's output.
    pub(super) fn layer_shapes(&self, rows: usize) -> impl Iterator<Item = [GemmShape; 4]> + '_ {
        let shape = move |shape| gemm(rows, shape);
        self.shapes.iter().map(move |layer| layer.map(shape))
    }

    /// The products of every kind of gates of attention's output.
    pub(super) fn output_gates(&self, rows: usize) -> impl Iterator<Item = GemmShape> + '_ {
        self.output_gates
            .iter()
            .map(move |shape| gemm(rows, *shape))
    }
}

fn gemm(rows: usize, (inputs, outputs): (usize, usize)) -> GemmShape {
    GemmShape {
        rows,
        inputs,
        outputs,
        wide: false,
    }
}

fn load(op: NamedOp, weights: &Weights) -> Op {
    let vector = |name: TensorName| weights.vector_index(name);
    match op {
        Op::Embed => Op::Embed,
        Op::Norm(norm) => Op::Norm(norm.load(vector)),
        Op::Linear {
            linear,
            input,
            output,
            fused,
        } => Op::Linear {
            linear: weights.linear_index(linear),
            input,
            output,
            fused: Fused {
                gated: fused.gated,
                divides: fused.divides,
                adds: fused.adds.map(vector),
            },
        },
        Op::Attend(layer) => Op::Attend(layer),
        Op::RotateBack(layer) => Op::RotateBack(layer),
        Op::FinishLayerInputs => Op::FinishLayerInputs,
        Op::OpenLayerInput(layer, activation) => Op::OpenLayerInput(layer, activation),
        Op::ScaleResidual(layer) => Op::ScaleResidual(layer),
        Op::OpenAttended(layer) => Op::OpenAttended(layer),
        Op::Recur(layer) => Op::Recur(layer),
        Op::Gate(layer, activation) => Op::Gate(layer, activation),
        Op::Activate(layer, activation) => Op::Activate(layer, activation),
        Op::Experts(layer) => Op::Experts(layer),
        Op::NormedExperts(layer, norms) => {
            let norms = ExpertNorms {
                before: norms.before.map(|norm| norm.load(vector)),
                after: vector(norms.after),
            };
            Op::NormedExperts(layer, norms)
        }
        Op::JoinBranches(layer) => Op::JoinBranches(layer),
        Op::Add { bias } => Op::Add { bias },
    }
}

/// The layers with sums joined to the norms behind them, and whether the last sum is left, with the
/// bias that is left with it.
fn plain(spec: &ModelSpec, rotate_back: bool) -> (Vec<NamedOp>, (bool, Option<LinearName>)) {
    let mut ops = Vec::new();
    // Whether `Branch` is still to be added.
    let mut add = false;
    // Whose bias is still to be added to it.
    let mut bias = None;
    // Attention finishes heads, and logits select their rows.
    let mut rest = forward(spec)
        .into_iter()
        .filter(|op| !matches!(op, ModelOp::FinishHeads(_) | ModelOp::SelectRows))
        .peekable();
    while let Some(op) = rest.next() {
        match op {
            ModelOp::Embed => ops.push(Op::Embed),
            ModelOp::Norm {
                weight: TensorName::FinalNorm,
                ..
            } => break,
            ModelOp::Norm {
                weight,
                input: Buffer::Branch,
                ..
            } => {
                rest.next_if_eq(&ModelOp::Add);
                let before = |op: &ModelOp| match op {
                    ModelOp::Norm { weight, output, .. } if *weight != TensorName::FinalNorm => {
                        Some((*weight, *output))
                    }
                    _ => None,
                };
                let next = rest.peek().and_then(before);
                if next.is_some() {
                    rest.next();
                }
                ops.push(Op::Norm(Norm {
                    add: true,
                    bias: bias.take(),
                    post: Some(weight),
                    weight: next.map(|(weight, _)| weight),
                    output: next.map_or(Buffer::Normed, |(_, output)| output),
                }));
            }
            ModelOp::Norm { weight, output, .. } => ops.push(Op::Norm(Norm {
                add: std::mem::take(&mut add),
                bias: bias.take(),
                post: None,
                weight: Some(weight),
                output,
            })),
            ModelOp::Linear {
                linear,
                input,
                output,
            } => {
                let input = normed(&mut ops, (&mut add, &mut bias), input);
                if std::mem::take(&mut add) {
                    // What attention read is read once more, and another sum is to come.
                    ops.push(Op::Add { bias: bias.take() });
                }
                if output == Buffer::Branch {
                    bias = (!linear.biases(spec).is_empty()).then_some(linear);
                }
                ops.push(Op::Linear {
                    linear,
                    input,
                    output,
                    fused: Fused::NONE,
                });
            }
            ModelOp::Attend(layer) => {
                ops.push(Op::Attend(layer));
                if rotate_back {
                    ops.push(Op::RotateBack(layer));
                }
            }
            ModelOp::OpenAttended(layer) => ops.push(Op::OpenAttended(layer)),
            ModelOp::Recur(layer) => ops.push(Op::Recur(layer)),
            ModelOp::Gate(layer) => {
                ops.push(Op::Gate(layer, spec.layers[layer].activation()));
            }
            ModelOp::Activate(layer) => {
                ops.push(Op::Activate(layer, spec.layers[layer].activation()));
            }
            ModelOp::Experts { layer, input, .. } => {
                normed(&mut ops, (&mut add, &mut bias), input);
                if std::mem::take(&mut add) {
                    ops.push(Op::Add { bias: bias.take() });
                }
                ops.push(Op::Experts(layer));
            }
            ModelOp::JoinBranches(layer) => ops.push(Op::JoinBranches(layer)),
            ModelOp::FinishLayerInputs => ops.push(Op::FinishLayerInputs),
            ModelOp::OpenLayerInput(layer) => {
                ops.push(Op::OpenLayerInput(layer, spec.layers[layer].activation()));
            }
            ModelOp::ScaleResidual(layer) => {
                if std::mem::take(&mut add) {
                    ops.push(Op::Add { bias: bias.take() });
                }
                ops.push(Op::ScaleResidual(layer));
            }
            ModelOp::Add => add = true,
            ModelOp::FinishHeads(_) | ModelOp::SelectRows => unreachable!("filtered out"),
            ModelOp::FinishLogits => unreachable!("behind the final norm"),
        }
    }
    (ops, (add, bias))
}

/// The buffer that products read in place of `input`: the residual stream is rounded for them, once
/// for all that read it.
fn normed(
    ops: &mut Vec<NamedOp>,
    (add, bias): (&mut bool, &mut Option<LinearName>),
    input: Buffer,
) -> Buffer {
    if input != Buffer::Residual {
        return input;
    }
    // Of the shared expert's products and the experts themselves, the first has had it rounded.
    let norms = ops.iter().rev().find_map(|op| match op {
        Op::Norm(norm) => Some(norm.weight.is_none()),
        Op::Embed | Op::Attend(_) | Op::Recur(_) | Op::ScaleResidual(_) => Some(false),
        _ => None,
    });
    if *add || norms != Some(true) {
        ops.push(Op::Norm(Norm {
            add: std::mem::take(add),
            bias: bias.take(),
            post: None,
            weight: None,
            output: Buffer::Normed,
        }));
    }
    Buffer::Normed
}

/// The same, with gates opened by the product before them.
fn gate(ops: &[NamedOp]) -> Vec<NamedOp> {
    let mut out: Vec<NamedOp> = Vec::with_capacity(ops.len());
    for op in ops {
        match (op, out.last_mut()) {
            (Op::Gate(_, activation), Some(Op::Linear { output, fused, .. })) => {
                *output = Buffer::Gated;
                fused.gated = Some(*activation);
            }
            _ => out.push(*op),
        }
    }
    out
}

/// Whether products compute the norms of a model and add what layers put out. Gates of attention's
/// output are products beside those that are asked whether they can.
fn can_join(spec: &ModelSpec) -> bool {
    let Norms {
        kind,
        from_one,
        bias,
    } = spec.norms;
    let is_plain = kind == NormKind::Rms && !from_one && !bias;
    is_plain && spec.residual_multiplier == 1.0 && !spec.has_output_gates()
}

/// The same, with all norms but the first and the last joined to the products around them.
fn join_norms(ops: &[NamedOp]) -> Option<Vec<NamedOp>> {
    let mut out: Vec<NamedOp> = Vec::with_capacity(ops.len());
    // Whether `Normed` is still to be divided.
    let mut undivided = false;
    for op in ops {
        match (*op, out.last_mut()) {
            (Op::Add { .. } | Op::ScaleResidual(_), _) => return None,
            (Op::Norm(norm), _) if norm.post.is_some() || norm.weight.is_none() => return None,
            // They read a norm's output as it is.
            (Op::Experts(_) | Op::NormedExperts(..) | Op::JoinBranches(_), _) => return None,
            (Op::Norm(norm), _) if norm.bias.is_some() => return None,
            (Op::Norm(norm), Some(Op::Linear { output, fused, .. })) if norm.add => {
                *output = Buffer::Normed;
                fused.adds = norm.weight;
                undivided = true;
            }
            (
                Op::Linear {
                    linear,
                    input,
                    output,
                    mut fused,
                },
                _,
            ) => {
                fused.divides = undivided && input == Buffer::Normed;
                out.push(Op::Linear {
                    linear,
                    input,
                    output,
                    fused,
                });
            }
            (op, _) => out.push(op),
        }
    }
    Some(out)
}

/// The same, with norms around experts joined to them: that before, if nothing else reads what it
/// makes, and that after, which adds what they put out.
fn join_expert_norms(ops: &[NamedOp]) -> Vec<NamedOp> {
    let mut out: Vec<NamedOp> = Vec::with_capacity(ops.len());
    let mut rest = ops;
    while let [op, behind @ ..] = rest {
        rest = behind;
        let (Op::Experts(layer), [Op::Norm(norm), ..]) = (op, behind) else {
            out.push(*op);
            continue;
        };
        let is_plain = |norm: &Norm<_>| norm.post.is_none() && norm.output == Buffer::Normed;
        let adds = norm.add && norm.bias.is_none() && is_plain(norm);
        let (Some(after), true) = (norm.weight, adds) else {
            out.push(*op);
            continue;
        };
        let before = match out.last() {
            Some(Op::Norm(norm)) if is_plain(norm) && norm.weight.is_some() => Some(*norm),
            _ => None,
        };
        if before.is_some() {
            out.pop();
        }
        out.push(Op::NormedExperts(*layer, ExpertNorms { before, after }));
        rest = &behind[1..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        ExpertActivation, ExpertsSpec, LayerTensor as L, Mlp, NormPlace, PlainMlp, Rope,
        RouterNorm, Routing, SharedExpert, UniformModel,
    };

    fn spec(layers: usize) -> ModelSpec {
        UniformModel {
            hidden: 64,
            layers,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 64,
            intermediate: 64,
            vocab: 100,
            rope: Rope::new(vec![1.0; 32], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec()
    }

    fn norm(add: bool, post: Option<L>, weight: Option<L>) -> NamedOp {
        let name = |tensor| TensorName::Layer(0, tensor);
        Op::Norm(Norm {
            add,
            bias: None,
            post: post.map(name),
            weight: weight.map(name),
            output: Buffer::Normed,
        })
    }

    fn linear(linear: LinearName, input: Buffer, output: Buffer) -> NamedOp {
        Op::Linear {
            linear,
            input,
            output,
            fused: Fused::NONE,
        }
    }

    #[test]
    fn a_plain_layer_has_two_norms_that_add_what_came_before() {
        use Buffer as B;
        use LinearName as N;
        let (ops, add) = plain(&spec(1), false);
        let expected = [
            Op::Embed,
            norm(false, None, Some(L::AttnNorm)),
            linear(N::Qkv(0), B::Normed, B::Heads),
            Op::Attend(0),
            linear(N::O(0), B::Attended, B::Branch),
            norm(true, None, Some(L::MlpNorm)),
            linear(N::GateUp(0), B::Normed, B::GateUp),
            Op::Gate(0, Activation::Silu),
            linear(N::Down(0), B::Gated, B::Branch),
        ];
        assert_eq!((ops.as_slice(), add), (&expected[..], (true, None)));
    }

    #[test]
    fn norms_after_a_part_add_it_themselves() {
        use Buffer as B;
        use LinearName as N;
        let mut spec = spec(1);
        spec.layers[0].mixer_norm = NormPlace::After;
        spec.layers[0].mlp_norm = NormPlace::Both;
        let (ops, add) = plain(&spec, false);
        let expected = [
            Op::Embed,
            norm(false, None, None),
            linear(N::Qkv(0), B::Normed, B::Heads),
            Op::Attend(0),
            linear(N::O(0), B::Attended, B::Branch),
            norm(true, Some(L::AttnPostNorm), Some(L::MlpNorm)),
            linear(N::GateUp(0), B::Normed, B::GateUp),
            Op::Gate(0, Activation::Silu),
            linear(N::Down(0), B::Gated, B::Branch),
            norm(true, Some(L::MlpPostNorm), None),
        ];
        assert_eq!((ops.as_slice(), add), (&expected[..], (false, None)));
        assert_eq!(join_norms(&gate(&ops)), None);
    }

    #[test]
    fn an_mlp_beside_attention_reads_what_that_read() {
        use Buffer as B;
        use LinearName as N;
        let mut spec = spec(1);
        spec.layers[0].mlp_norm = NormPlace::Shared;
        spec.layers[0].attention_mut().o_bias = true;
        let (ops, add) = plain(&spec, false);
        let expected = [
            Op::Embed,
            norm(false, None, Some(L::AttnNorm)),
            linear(N::Qkv(0), B::Normed, B::Heads),
            Op::Attend(0),
            linear(N::O(0), B::Attended, B::Branch),
            Op::Add {
                bias: Some(N::O(0)),
            },
            linear(N::GateUp(0), B::Normed, B::GateUp),
            Op::Gate(0, Activation::Silu),
            linear(N::Down(0), B::Gated, B::Branch),
        ];
        assert_eq!((ops.as_slice(), add), (&expected[..], (true, None)));
        assert_eq!(join_norms(&gate(&ops)), None);
    }

    #[test]
    fn branches_of_experts_are_normed_beside_the_layer() {
        use Buffer as B;
        use LinearName as N;
        let mut spec = spec(1);
        let layer = &mut spec.layers[0];
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        layer.mlp = Mlp::Experts(ExpertsSpec {
            activation: ExpertActivation::GeGlu,
            shared: Some(SharedExpert {
                intermediate: 64,
                gated: false,
            }),
            router_norm: Some(RouterNorm { multiplier: 0.125 }),
            weight_scales: true,
            branch_norms: true,
            ..ExpertsSpec::plain(4, 2, 32, Routing::SOFTMAX_OF_CHOSEN)
        });
        let Op::Norm(of_router) = norm(false, None, Some(L::RouterNorm)) else {
            unreachable!("it is one");
        };
        let (ops, left) = plain(&spec, false);
        let expected = [
            Op::Embed,
            norm(false, None, Some(L::AttnNorm)),
            linear(N::Qkv(0), B::Normed, B::Heads),
            Op::Attend(0),
            linear(N::O(0), B::Attended, B::Branch),
            norm(true, Some(L::AttnPostNorm), Some(L::MlpNorm)),
            linear(N::GateUp(0), B::Normed, B::GateUp),
            Op::Gate(0, Activation::GeluTanh),
            linear(N::Down(0), B::Gated, B::Branch),
            Op::Norm(Norm {
                output: B::RouterInput,
                ..of_router
            }),
            norm(false, None, Some(L::ExpertNorm)),
            Op::Experts(0),
            Op::JoinBranches(0),
            norm(true, Some(L::MlpPostNorm), None),
        ];
        assert_eq!((ops.as_slice(), left), (&expected[..], (false, None)));
        assert_eq!(join_norms(&gate(&ops)), None);
        assert_eq!(join_expert_norms(&ops), ops);
    }

    #[test]
    fn norms_are_joined_to_the_experts_between_them() {
        use Buffer as B;
        use LinearName as N;
        let mut spec = spec(2);
        let experts = ExpertsSpec::plain(4, 2, 32, Routing::SOFTMAX_OF_CHOSEN);
        for layer in &mut spec.layers {
            layer.mlp = Mlp::Experts(experts.clone());
        }
        let (ops, _) = plain(&spec, false);
        let joined = join_expert_norms(&ops);
        let after = TensorName::Layer(1, L::AttnNorm);
        let Op::Norm(before) = norm(true, None, Some(L::MlpNorm)) else {
            unreachable!("it is one");
        };
        let of_first = |before| Op::NormedExperts(0, ExpertNorms { before, after });
        // The norm behind the last layer's experts is the tail's, of selected rows.
        let mut expected = ops[..5].to_vec();
        expected.push(of_first(Some(before)));
        expected.extend(&ops[8..]);
        assert_eq!(joined, expected);
        assert_eq!(ops.last(), Some(&Op::Experts(1)));
        // What a shared expert reads is there before.
        for layer in &mut spec.layers {
            layer.mlp = Mlp::Experts(ExpertsSpec {
                shared: Some(SharedExpert {
                    intermediate: 64,
                    gated: false,
                }),
                ..experts.clone()
            });
        }
        let joined = join_expert_norms(&plain(&spec, false).0);
        assert_eq!(joined[5], Op::Norm(before));
        assert_eq!(joined[6], linear(N::GateUp(0), B::Normed, B::GateUp));
        assert_eq!(joined[9], of_first(None));
    }

    #[test]
    fn an_mlp_without_gates_leaves_its_last_bias_to_whoever_adds() {
        use Buffer as B;
        use LinearName as N;
        let mut spec = spec(1);
        let mlp = |bias| {
            Mlp::Plain(PlainMlp {
                intermediate: 64,
                activation: Activation::Relu2,
                bias,
            })
        };
        spec.layers[0].mlp = mlp(true);
        let (ops, left) = plain(&spec, false);
        let expected = [
            Op::Embed,
            norm(false, None, Some(L::AttnNorm)),
            linear(N::Qkv(0), B::Normed, B::Heads),
            Op::Attend(0),
            linear(N::O(0), B::Attended, B::Branch),
            norm(true, None, Some(L::MlpNorm)),
            linear(N::Up(0), B::Normed, B::Gated),
            Op::Activate(0, Activation::Relu2),
            linear(N::Down(0), B::Gated, B::Branch),
        ];
        assert_eq!(
            (ops.as_slice(), left),
            (&expected[..], (true, Some(N::Down(0))))
        );
        let divides = |op: &NamedOp| matches!(op, Op::Linear { fused, .. } if fused.divides);
        let joined = join_norms(&gate(&ops)).expect("plain norms can be joined");
        assert_eq!(joined.iter().filter(|op| divides(op)).count(), 1);
        // Between layers no product adds a bias.
        spec.layers.push(spec.layers[0].clone());
        assert_eq!(join_norms(&gate(&plain(&spec, false).0)), None);
        for layer in &mut spec.layers {
            layer.mlp = mlp(false);
        }
        let joined = join_norms(&gate(&plain(&spec, false).0)).expect("no bias");
        assert_eq!(joined.iter().filter(|op| divides(op)).count(), 3);
    }

    #[test]
    fn every_list_rotates_what_each_layer_attended_back() {
        let (ops, _) = plain(&spec(3), true);
        let gated = gate(&ops);
        let normed = join_norms(&gated).expect("plain norms can be joined");
        for list in [ops, gated, normed] {
            let attended = |pair: &&[NamedOp]| matches!(pair[0], Op::Attend(_));
            let behind: Vec<_> = list.windows(2).filter(attended).map(|p| p[1]).collect();
            assert_eq!(behind, [0, 1, 2].map(Op::RotateBack));
            let all = list.iter().filter(|op| matches!(op, Op::RotateBack(_)));
            assert_eq!(all.count(), 3);
        }
    }

    #[test]
    fn joined_norms_leave_the_first_alone_and_the_last_to_the_logits() {
        let (ops, _) = plain(&spec(2), false);
        let joined = join_norms(&gate(&ops)).expect("plain norms can be joined");
        assert_eq!(joined.len(), 2 + 2 * 5);
        let fused: Vec<_> = joined
            .iter()
            .filter_map(|op| match op {
                Op::Linear { output, fused, .. } => {
                    let Fused {
                        gated,
                        divides,
                        adds,
                    } = *fused;
                    assert_eq!(adds.is_some(), *output == Buffer::Normed);
                    Some((gated.is_some(), divides, adds.is_some()))
                }
                _ => None,
            })
            .collect();
        let of_layer = |first: bool, last: bool| {
            [
                (false, !first, false),
                (false, false, true),
                (true, true, false),
                (false, false, !last),
            ]
        };
        let expected = [of_layer(true, false), of_layer(false, true)].concat();
        assert_eq!(fused, expected);
    }
}
