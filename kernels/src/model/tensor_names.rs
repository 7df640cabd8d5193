//! Names of the tensors that a backend loads, and their shapes.

use std::fmt;

use super::attention::QkNorm;
use super::experts::ExpertsSpec;
use super::recurrent::RecurrentSpec;
use super::spec::{Activation, LayerSpec, Mixer, ModelSpec};

/// A tensor of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorName {
    /// `[vocab][hidden]`.
    Embedding,
    /// `[hidden]`.
    FinalNorm,
    /// `[hidden]`, only with biases of norms.
    FinalNormBias,
    /// `[vocab][hidden]`; absent if the embeddings are tied.
    LmHead,
    /// `[vocab][layers * width]`, only with per-layer inputs, as the next two.
    PerLayerEmbedding,
    /// `[layers * width][hidden]`.
    PerLayerProjection,
    /// `[width]`.
    PerLayerNorm,
    /// `[vocab]`, only with `lm_head_bias`.
    LmHeadBias,
    /// A tensor of one layer, counted from 0.
    Layer(usize, LayerTensor),
}

/// A tensor of a layer. Projections are `[out][in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerTensor {
    /// `[hidden]`, only with a norm before attention.
    AttnNorm,
    /// `[hidden]`, only with a norm before attention that has a bias.
    AttnNormBias,
    /// `[q_heads * head_dim][hidden]`, in half-split RoPE order.
    Q,
    /// `[kv_heads * head_dim][hidden]`, in half-split RoPE order.
    K,
    /// `[kv_heads * head_dim][hidden]`.
    V,
    /// `[q_heads * head_dim]`, only with `qkv_bias`.
    QBias,
    /// `[kv_heads * head_dim]`, only with `qkv_bias`.
    KBias,
    /// `[kv_heads * head_dim]`, only with `qkv_bias`.
    VBias,
    /// `[head_dim]`, or `[q_heads * head_dim]` of whole projections; only with `qk_norm`.
    QNorm,
    /// `[head_dim]`, or `[kv_heads * head_dim]` of whole projections; only with `qk_norm`.
    KNorm,
    /// `[q_heads]`, only with `sinks`.
    Sinks,
    /// `[q_heads * head_dim][hidden]`, or `[q_heads][hidden]` of gates per head; only with
    /// `output_gate`.
    OutputGate,
    /// `[hidden][q_heads * head_dim]`.
    O,
    /// `[hidden]`, only with `o_bias`.
    OBias,
    /// `[k_heads * k_dim][hidden]`, only with the delta rule, as are the following.
    DeltaQ,
    /// `[k_heads * k_dim][hidden]`.
    DeltaK,
    /// `[v_heads * v_dim][hidden]`.
    DeltaV,
    /// `[v_heads * v_dim][hidden]`: opens what comes out.
    DeltaZ,
    /// `[v_heads][hidden]`: how strongly a token is written.
    DeltaB,
    /// `[v_heads][hidden]`: how fast the state decays.
    DeltaA,
    /// `[2 * k_heads * k_dim + v_heads * v_dim][taps]`: of queries, keys and values.
    DeltaConv,
    /// `[2][v_heads]`: rounded, and what that leaves. Decays of long memory differ by less than
    /// bf16 can tell.
    DeltaDecay,
    /// `[2][v_heads]`: rounded, and what that leaves.
    DeltaDecayBias,
    /// `[v_dim]`.
    DeltaNorm,
    /// `[hidden][v_heads * v_dim]`.
    DeltaOut,
    /// `[heads * head_dim][hidden]`, only with Mamba-2, as are the following.
    MambaX,
    /// `[groups * state_dim][hidden]`: what a token is written by.
    MambaB,
    /// `[groups * state_dim][hidden]`: what a token reads by.
    MambaC,
    /// `[heads * head_dim][hidden]`: opens what comes out.
    MambaZ,
    /// `[heads][hidden]`: time steps.
    MambaDt,
    /// `[heads * head_dim + 2 * groups * state_dim][taps]`: of `x`, `B` and `C`.
    MambaConv,
    /// `[heads * head_dim + 2 * groups * state_dim]`, only with a bias of the convolution.
    MambaConvBias,
    /// `[2][heads]`: rounded, and what that leaves.
    MambaDecay,
    /// `[2][heads]`: rounded, and what that leaves.
    MambaDtBias,
    /// `[heads]`: how much of `x` is added to what comes out.
    MambaSkip,
    /// `[heads * head_dim]`, only with a norm.
    MambaNorm,
    /// `[hidden][heads * head_dim]`.
    MambaOut,
    /// `[3 * hidden][hidden]`, only with a short convolution, as are the following: `B`, `C`, `x`.
    ConvIn,
    /// `[3 * hidden]`, only with biases.
    ConvInBias,
    /// `[hidden][taps]`.
    Conv,
    /// `[hidden]`, only with biases.
    ConvBias,
    /// `[hidden][hidden]`.
    ConvOut,
    /// `[hidden]`, only with biases.
    ConvOutBias,
    /// `[hidden]`, only with a norm after attention.
    AttnPostNorm,
    /// `[hidden]`, only with a norm after attention that has a bias.
    AttnPostNormBias,
    /// `[hidden]`, only with a norm before the MLP.
    MlpNorm,
    /// `[hidden]`, only with a norm before the MLP that has a bias.
    MlpNormBias,
    /// `[intermediate][hidden]`, of a dense MLP with gates.
    Gate,
    /// `[intermediate][hidden]`, of a dense MLP.
    Up,
    /// `[intermediate]`, only of an MLP without gates that has biases.
    UpBias,
    /// `[1]`, only of an MLP without gates that has xIELU, as are the next three: of what is above
    /// 0.
    XieluPositive,
    /// `[1]`: of what is below.
    XieluNegative,
    /// `[1]`.
    XieluBeta,
    /// `[1]`.
    XieluEps,
    /// `[hidden][intermediate]`, of a dense MLP.
    Down,
    /// `[hidden]`, only of an MLP without gates that has biases.
    DownBias,
    /// `[hidden]`, only with a router that has a norm of its own.
    RouterNorm,
    /// `[experts][hidden]`, only with experts, as are the following.
    Router,
    /// `[experts]`, only with `router_bias`.
    RouterBias,
    /// `[2][experts]`, only with a correction of the router's scores: rounded, and what that
    /// leaves. Scores differ by less than bf16 can tell corrections apart.
    RouterCorrection,
    /// `[experts]`, only with scales of experts' weights.
    ExpertScale,
    /// `[hidden]`, of what the experts read: only with norms of branches, as are the next two.
    ExpertNorm,
    /// `[hidden]`, of what those chosen put out.
    ExpertPostNorm,
    /// `[hidden]`, of what the shared expert puts out.
    SharedPostNorm,
    /// `[experts][intermediate][hidden]`.
    ExpertGate,
    /// `[experts][intermediate][hidden]`.
    ExpertUp,
    /// `[experts][hidden][intermediate]`.
    ExpertDown,
    /// `[experts][intermediate]`, only with biases of experts.
    ExpertGateBias,
    /// `[experts][intermediate]`, only with biases of experts.
    ExpertUpBias,
    /// `[experts][hidden]`, only with biases of experts.
    ExpertDownBias,
    /// `[intermediate][hidden]` of the shared expert, only with one.
    SharedGate,
    /// `[intermediate][hidden]` of the shared expert, only with one.
    SharedUp,
    /// `[hidden][intermediate]` of the shared expert, only with one.
    SharedDown,
    /// `[1][hidden]`, only with a gated shared expert.
    SharedScore,
    /// `[width]` of per-layer inputs `[hidden]`, only with such, as the next two.
    InputGate,
    /// `[hidden][width]`.
    InputOut,
    /// `[hidden]`.
    InputNorm,
    /// `[1]`: what the residual stream is multiplied by behind the layer, only with that.
    OutputScale,
    /// `[hidden]`, only with a norm after the MLP.
    MlpPostNorm,
    /// `[hidden]`, only with a norm after the MLP that has a bias.
    MlpPostNormBias,
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("embedding"),
            Self::FinalNorm => f.write_str("final norm"),
            Self::FinalNormBias => f.write_str("bias of the final norm"),
            Self::LmHead => f.write_str("output projection"),
            Self::PerLayerEmbedding => f.write_str("per-layer embedding"),
            Self::PerLayerProjection => f.write_str("projection of per-layer inputs"),
            Self::PerLayerNorm => f.write_str("norm of per-layer inputs"),
            Self::LmHeadBias => f.write_str("bias of the output projection"),
            Self::Layer(layer, tensor) => write!(f, "layer {layer} {tensor:?}"),
        }
    }
}

impl TensorName {
    /// Whether it is the matrix of a linear layer; the embedding and the output projection are not.
    pub fn is_linear(self) -> bool {
        matches!(self, Self::Layer(_, tensor) if tensor.is_linear())
    }

    /// Whether it is the matrices of all experts of a layer, the shared one's not.
    pub fn is_of_experts(self) -> bool {
        use LayerTensor as L;
        matches!(
            self,
            Self::Layer(_, L::ExpertGate | L::ExpertUp | L::ExpertDown)
        )
    }

    /// The weights of a norm, those of queries and keys included.
    pub fn is_norm(self) -> bool {
        use LayerTensor as L;
        match self {
            Self::FinalNorm | Self::PerLayerNorm => true,
            Self::Layer(_, tensor) => matches!(
                tensor,
                L::AttnNorm
                    | L::AttnPostNorm
                    | L::MlpNorm
                    | L::MlpPostNorm
                    | L::InputNorm
                    | L::RouterNorm
                    | L::ExpertNorm
                    | L::ExpertPostNorm
                    | L::SharedPostNorm
                    | L::QNorm
                    | L::KNorm
            ),
            _ => false,
        }
    }

    /// The bias that belongs to the weights of a norm, in a model whose norms have them.
    pub fn norm_bias(self) -> Option<Self> {
        use LayerTensor as L;
        match self {
            Self::FinalNorm => Some(Self::FinalNormBias),
            Self::Layer(layer, tensor) => {
                let bias = match tensor {
                    L::AttnNorm => L::AttnNormBias,
                    L::AttnPostNorm => L::AttnPostNormBias,
                    L::MlpNorm => L::MlpNormBias,
                    L::MlpPostNorm => L::MlpPostNormBias,
                    _ => return None,
                };
                Some(Self::Layer(layer, bias))
            }
            _ => None,
        }
    }

    /// The shape this tensor must have in a model of `spec`: row-major, `[out][in]` or `[len]`.
    pub fn shape(self, spec: &ModelSpec) -> Vec<usize> {
        let hidden = spec.hidden;
        match self {
            Self::Embedding | Self::LmHead => vec![spec.vocab, hidden],
            Self::LmHeadBias => vec![spec.vocab],
            Self::FinalNorm | Self::FinalNormBias => vec![hidden],
            Self::PerLayerEmbedding => vec![spec.vocab, spec.per_layer_width()],
            Self::PerLayerProjection => vec![spec.per_layer_width(), hidden],
            Self::PerLayerNorm => vec![spec.input_width()],
            Self::Layer(_, LayerTensor::InputGate) => vec![spec.input_width(), hidden],
            Self::Layer(_, LayerTensor::InputOut) => vec![hidden, spec.input_width()],
            Self::Layer(layer, tensor) => tensor.shape(hidden, &spec.layers[layer]),
        }
    }

    /// Outputs and inputs of a matrix, or of one of stacked ones.
    pub(crate) fn matrix_shape(self, spec: &ModelSpec) -> [usize; 2] {
        match self.shape(spec)[..] {
            [.., outputs, inputs] => [outputs, inputs],
            _ => unreachable!("the {self} tensor is no matrix"),
        }
    }

    /// What a layer's recurrence reads beside its products.
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    pub(crate) fn of_recurrence(spec: &ModelSpec, layer: usize) -> Vec<Self> {
        use LayerTensor as L;
        let tensors: &[L] = match spec.layers[layer].recurrent() {
            None => &[],
            Some(RecurrentSpec::GatedDelta(_)) => {
                &[L::DeltaConv, L::DeltaDecay, L::DeltaDecayBias, L::DeltaNorm]
            }
            Some(RecurrentSpec::Mamba2(_)) => {
                let all = LayerTensor::all_of_mixer(&spec.layers[layer].mixer);
                let beside = all.into_iter().filter(|tensor| !tensor.is_linear());
                return beside.map(|tensor| Self::Layer(layer, tensor)).collect();
            }
            Some(RecurrentSpec::ShortConv(conv)) if conv.bias => &[L::Conv, L::ConvBias],
            Some(RecurrentSpec::ShortConv(_)) => &[L::Conv],
        };
        tensors
            .iter()
            .map(|tensor| Self::Layer(layer, *tensor))
            .collect()
    }

    /// Every tensor that a model of `spec` has, in load order.
    pub fn all(spec: &ModelSpec) -> Vec<TensorName> {
        let mut names = vec![Self::Embedding];
        if spec.per_layer_inputs.is_some() {
            names.extend([
                Self::PerLayerEmbedding,
                Self::PerLayerProjection,
                Self::PerLayerNorm,
            ]);
        }
        for (index, layer) in spec.layers.iter().enumerate() {
            for tensor in LayerTensor::all(layer) {
                let name = Self::Layer(index, tensor);
                names.push(name);
                names.extend(name.norm_bias().filter(|_| spec.norms.bias));
            }
            if spec.per_layer_inputs.is_some() {
                use LayerTensor as L;
                let tensors = [L::InputGate, L::InputOut, L::InputNorm];
                names.extend(tensors.map(|tensor| Self::Layer(index, tensor)));
            }
            if layer.output_scale {
                names.push(Self::Layer(index, LayerTensor::OutputScale));
            }
        }
        names.push(Self::FinalNorm);
        names.extend(Self::FinalNorm.norm_bias().filter(|_| spec.norms.bias));
        if !spec.tied_embeddings {
            names.push(Self::LmHead);
        }
        names.extend(spec.lm_head_bias.then_some(Self::LmHeadBias));
        names
    }
}

impl LayerTensor {
    /// Whether it is the matrix of a linear layer, or those of all experts. A router is not: it
    /// decides, and is small.
    pub fn is_linear(self) -> bool {
        use LayerTensor as L;
        matches!(
            self,
            L::Q | L::K
                | L::V
                | L::OutputGate
                | L::O
                | L::DeltaQ
                | L::DeltaK
                | L::DeltaV
                | L::DeltaZ
                | L::DeltaB
                | L::DeltaA
                | L::DeltaOut
                | L::MambaX
                | L::MambaB
                | L::MambaC
                | L::MambaZ
                | L::MambaDt
                | L::MambaOut
                | L::ConvIn
                | L::ConvOut
                | L::Gate
                | L::Up
                | L::Down
                | L::ExpertGate
                | L::ExpertUp
                | L::ExpertDown
                | L::SharedGate
                | L::SharedUp
                | L::SharedDown
                | L::InputGate
                | L::InputOut
        )
    }

    /// Whether its values are about 1 in any model, whatever norms count from.
    pub(super) fn is_about_one(self) -> bool {
        use LayerTensor as L;
        matches!(
            self,
            L::DeltaNorm | L::MambaNorm | L::MambaSkip | L::ExpertScale
        )
    }

    /// Whether it is a bias of all experts' products, a row for each.
    pub fn is_expert_bias(self) -> bool {
        use LayerTensor as L;
        matches!(
            self,
            L::ExpertGateBias | L::ExpertUpBias | L::ExpertDownBias
        )
    }

    fn shape(self, hidden: usize, layer: &LayerSpec) -> Vec<usize> {
        if let Some(shape) = self.mixer_shape(hidden, layer) {
            return shape;
        }
        let intermediate = layer.intermediate();
        // Only layers of experts have their tensors.
        let (experts, inner) = match layer.experts() {
            Some(spec) => (spec.experts, spec.intermediate),
            None => (0, 0),
        };
        match self {
            Self::Gate | Self::Up | Self::SharedGate | Self::SharedUp => {
                vec![intermediate, hidden]
            }
            Self::UpBias => vec![intermediate],
            Self::Down | Self::SharedDown => vec![hidden, intermediate],
            Self::Router => vec![experts, hidden],
            Self::RouterBias | Self::ExpertScale => vec![experts],
            Self::RouterCorrection => vec![2, experts],
            Self::ExpertGate | Self::ExpertUp => vec![experts, inner, hidden],
            Self::ExpertDown => vec![experts, hidden, inner],
            Self::ExpertGateBias | Self::ExpertUpBias => vec![experts, inner],
            Self::ExpertDownBias => vec![experts, hidden],
            Self::SharedScore => vec![1, hidden],
            Self::OutputScale
            | Self::XieluPositive
            | Self::XieluNegative
            | Self::XieluBeta
            | Self::XieluEps => vec![1],
            // Norms, and biases of what is added to the residual stream.
            _ => vec![hidden],
        }
    }

    /// The shape of a tensor of what mixes tokens. A layer has those of one kind of mixer only:
    /// others are empty.
    fn mixer_shape(self, hidden: usize, layer: &LayerSpec) -> Option<Vec<usize>> {
        let (q, kv, q_heads, head_dim, is_whole) = match &layer.mixer {
            Mixer::Attention(spec) => {
                let heads = spec.heads();
                let is_whole = spec.qk_norm == QkNorm::Whole;
                let widths = (heads.q_width(), heads.kv_width());
                (widths.0, widths.1, spec.q_heads, spec.head_dim, is_whole)
            }
            Mixer::Recurrent(_) | Mixer::None => (0, 0, 0, 0, false),
        };
        let gate = layer.attention().and_then(|spec| spec.output_gate);
        let gates_heads = gate.is_some_and(|gate| gate.per_head);
        let norm = |width| vec![if is_whole { width } else { head_dim }];
        let (k_width, v_width, v_heads, v_dim) = match layer.recurrent() {
            Some(RecurrentSpec::GatedDelta(delta)) => {
                (delta.k_width(), delta.v_width(), delta.v_heads, delta.v_dim)
            }
            _ => (0, 0, 0, 0),
        };
        let (heads, width, group_width) = match layer.recurrent() {
            Some(RecurrentSpec::Mamba2(mamba)) => (mamba.heads, mamba.width(), mamba.group_width()),
            _ => (0, 0, 0),
        };
        let taps = layer.recurrent().map_or(0, |spec| spec.conv(hidden).1);
        Some(match self {
            Self::OutputGate if gates_heads => vec![q_heads, hidden],
            Self::Q | Self::OutputGate => vec![q, hidden],
            Self::K | Self::V => vec![kv, hidden],
            Self::QBias => vec![q],
            Self::KBias | Self::VBias => vec![kv],
            Self::QNorm => norm(q),
            Self::KNorm => norm(kv),
            Self::Sinks => vec![q_heads],
            Self::O => vec![hidden, q],
            Self::OBias => vec![hidden],
            Self::DeltaQ | Self::DeltaK => vec![k_width, hidden],
            Self::DeltaV | Self::DeltaZ => vec![v_width, hidden],
            Self::DeltaB | Self::DeltaA => vec![v_heads, hidden],
            Self::DeltaConv => vec![2 * k_width + v_width, taps],
            Self::DeltaDecay | Self::DeltaDecayBias => vec![2, v_heads],
            Self::DeltaNorm => vec![v_dim],
            Self::DeltaOut => vec![hidden, v_width],
            Self::MambaX | Self::MambaZ => vec![width, hidden],
            Self::MambaB | Self::MambaC => vec![group_width, hidden],
            Self::MambaDt => vec![heads, hidden],
            Self::MambaConv => vec![width + 2 * group_width, taps],
            Self::MambaConvBias => vec![width + 2 * group_width],
            Self::MambaDecay | Self::MambaDtBias => vec![2, heads],
            Self::MambaSkip => vec![heads],
            Self::MambaNorm => vec![width],
            Self::MambaOut => vec![hidden, width],
            Self::ConvIn => vec![3 * hidden, hidden],
            Self::ConvInBias => vec![3 * hidden],
            Self::Conv => vec![hidden, taps],
            Self::ConvBias | Self::ConvOutBias => vec![hidden],
            Self::ConvOut => vec![hidden, hidden],
            _ => return None,
        })
    }

    /// The tensors that a layer has, in load order; without biases of norms.
    fn all(layer: &LayerSpec) -> Vec<Self> {
        let experts = layer.experts();
        let is_dense = experts.is_none() && layer.has_mlp();
        let plain = layer.plain_mlp();
        let is_gated = is_dense && plain.is_none();
        let has_mlp_biases = plain.is_some_and(|plain| plain.bias);
        let has_xielu = plain.is_some_and(|plain| plain.activation == Activation::Xielu);
        let of_experts = |has: fn(&ExpertsSpec) -> bool| experts.is_some_and(has);
        let has_biases = of_experts(|spec| spec.biases);
        let has_experts = experts.is_some();
        let has_gates = of_experts(|spec| spec.activation.is_gated());
        let has_norm = layer.has_mlp() && layer.mlp_norm.is_before();
        let has_shared = of_experts(|spec| spec.shared.is_some());
        let has_score = of_experts(|spec| spec.shared.is_some_and(|shared| shared.gated));
        let has_branch_norms = of_experts(|spec| spec.branch_norms);
        let mut all = Vec::new();
        if layer.has_mixer() {
            all.extend(layer.mixer_norm.is_before().then_some(Self::AttnNorm));
        }
        all.extend(Self::all_of_mixer(&layer.mixer));
        let tensors = [
            (
                Self::AttnPostNorm,
                layer.has_mixer() && layer.mixer_norm.is_after(),
            ),
            (Self::MlpNorm, has_norm),
            (Self::Gate, is_gated),
            (Self::Up, is_dense),
            (Self::UpBias, has_mlp_biases),
            (Self::XieluPositive, has_xielu),
            (Self::XieluNegative, has_xielu),
            (Self::XieluBeta, has_xielu),
            (Self::XieluEps, has_xielu),
            (Self::Down, is_dense),
            (Self::DownBias, has_mlp_biases),
            (Self::SharedGate, has_shared && has_gates),
            (Self::SharedUp, has_shared),
            (Self::SharedDown, has_shared),
            (Self::SharedScore, has_score),
            (Self::SharedPostNorm, has_branch_norms),
            (
                Self::RouterNorm,
                of_experts(|spec| spec.router_norm.is_some()),
            ),
            (Self::Router, has_experts),
            (Self::RouterBias, of_experts(|spec| spec.router_bias)),
            (
                Self::RouterCorrection,
                of_experts(|spec| spec.routing.correction),
            ),
            (Self::ExpertScale, of_experts(|spec| spec.weight_scales)),
            (Self::ExpertNorm, has_branch_norms),
            (Self::ExpertGate, has_gates),
            (Self::ExpertUp, has_experts),
            (Self::ExpertGateBias, has_biases && has_gates),
            (Self::ExpertUpBias, has_biases),
            (Self::ExpertDown, has_experts),
            (Self::ExpertDownBias, has_biases),
            (Self::ExpertPostNorm, has_branch_norms),
            (
                Self::MlpPostNorm,
                layer.has_mlp() && layer.mlp_norm.is_after(),
            ),
        ];
        let present = tensors.into_iter().filter(|(_, is_present)| *is_present);
        all.extend(present.map(|(tensor, _)| tensor));
        all
    }

    /// The tensors of what mixes tokens, in load order.
    fn all_of_mixer(mixer: &Mixer) -> Vec<Self> {
        let spec = match mixer {
            Mixer::Attention(attention) => {
                let has_qk_norm = attention.qk_norm != QkNorm::None;
                let has_kv = attention.kv_from.is_none();
                let tensors = [
                    (Self::Q, true),
                    (Self::K, has_kv),
                    (Self::V, has_kv),
                    (Self::QBias, attention.qkv_bias),
                    (Self::KBias, attention.qkv_bias && has_kv),
                    (Self::VBias, attention.qkv_bias && has_kv),
                    (Self::QNorm, has_qk_norm),
                    (Self::KNorm, has_qk_norm && has_kv),
                    (Self::Sinks, attention.sinks),
                    (Self::OutputGate, attention.output_gate.is_some()),
                    (Self::O, true),
                    (Self::OBias, attention.o_bias),
                ];
                let present = tensors.into_iter().filter(|(_, is_present)| *is_present);
                return present.map(|(tensor, _)| tensor).collect();
            }
            Mixer::Recurrent(spec) => spec,
            Mixer::None => return Vec::new(),
        };
        match spec {
            RecurrentSpec::GatedDelta(_) => vec![
                Self::DeltaQ,
                Self::DeltaK,
                Self::DeltaV,
                Self::DeltaZ,
                Self::DeltaB,
                Self::DeltaA,
                Self::DeltaConv,
                Self::DeltaDecay,
                Self::DeltaDecayBias,
                Self::DeltaNorm,
                Self::DeltaOut,
            ],
            RecurrentSpec::Mamba2(mamba) => {
                let tensors = [
                    (Self::MambaX, true),
                    (Self::MambaB, true),
                    (Self::MambaC, true),
                    (Self::MambaZ, true),
                    (Self::MambaDt, true),
                    (Self::MambaConv, true),
                    (Self::MambaConvBias, mamba.conv_bias),
                    (Self::MambaDecay, true),
                    (Self::MambaDtBias, true),
                    (Self::MambaSkip, true),
                    (Self::MambaNorm, mamba.norm_parts.is_some()),
                    (Self::MambaOut, true),
                ];
                let present = tensors.into_iter().filter(|(_, is_present)| *is_present);
                present.map(|(tensor, _)| tensor).collect()
            }
            RecurrentSpec::ShortConv(_) if spec.has_bias() => vec![
                Self::ConvIn,
                Self::ConvInBias,
                Self::Conv,
                Self::ConvBias,
                Self::ConvOut,
                Self::ConvOutBias,
            ],
            RecurrentSpec::ShortConv(_) => vec![Self::ConvIn, Self::Conv, Self::ConvOut],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        ExpertActivation, Mlp, NormPlace, Rope, RouterNorm, Routing, SharedExpert, UniformModel,
    };

    #[test]
    fn names_follow_the_family() {
        let mut spec = UniformModel {
            hidden: 576,
            layers: 2,
            q_heads: 9,
            kv_heads: 3,
            head_dim: 64,
            intermediate: 1536,
            vocab: 49152,
            norm_eps: 1e-5,
            rope: Rope::new(vec![1.0; 32], 1.0),
            tied_embeddings: true,
            max_positions: 8192,
            ..UniformModel::default()
        }
        .spec();
        assert_eq!(spec.validate(), Ok(()));
        assert_eq!(TensorName::all(&spec).len(), 2 + 2 * 9);
        for layer in &mut spec.layers {
            layer.attention_mut().qkv_bias = true;
            layer.attention_mut().qk_norm = QkNorm::PerHead;
        }
        spec.tied_embeddings = false;
        assert_eq!(TensorName::all(&spec).len(), 3 + 2 * 14);
        let k = TensorName::Layer(1, LayerTensor::K);
        assert_eq!(k.shape(&spec), [192, 576]);
        assert_eq!(k.to_string(), "layer 1 K");
        let norm = TensorName::Layer(1, LayerTensor::KNorm);
        assert_eq!(norm.shape(&spec), [64]);
        let layer = &mut spec.layers[1];
        layer.attention_mut().qk_norm = QkNorm::Whole;
        layer.attention_mut().o_bias = true;
        layer.attention_mut().sinks = true;
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::Both);
        assert_eq!(norm.shape(&spec), [192]);
        assert_eq!(TensorName::all(&spec).len(), 3 + 14 + 17);
        let shared = SharedExpert {
            intermediate: 96,
            gated: false,
        };
        spec.layers[1].mlp = Mlp::Experts(ExpertsSpec {
            activation: ExpertActivation::GeGlu,
            shared: Some(shared),
            router_norm: Some(RouterNorm { multiplier: 0.5 }),
            weight_scales: true,
            branch_norms: true,
            ..ExpertsSpec::plain(8, 2, 64, Routing::SOFTMAX_OF_CHOSEN)
        });
        assert_eq!(spec.validate(), Ok(()));
        // Three of the shared expert, a router and three of the experts, four norms and the scales
        // take the place of three of the MLP.
        assert_eq!(TensorName::all(&spec).len(), 3 + 14 + 17 + 9);
        let scales = TensorName::Layer(1, LayerTensor::ExpertScale);
        assert_eq!(scales.shape(&spec), [8]);
        let norm = TensorName::Layer(1, LayerTensor::RouterNorm);
        assert_eq!((norm.shape(&spec), norm.is_norm()), (vec![576], true));
    }
}
