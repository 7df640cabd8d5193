//! What checkpoints call tensors.

use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName};

/// A tensor as a checkpoint stores it: under a name, by itself or as rows of a larger one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    /// The tensors that are stored one behind the other under that name, if there are several.
    parts: Vec<TensorName>,
    tensor: TensorName,
    /// Whether its heads rotate pairs of neighbouring channels.
    interleaved: bool,
}

impl StoredTensor {
    /// By itself.
    pub(crate) fn own(tensor: TensorName, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            parts: vec![tensor],
            tensor,
            interleaved: false,
        }
    }

    /// As rows of `name`, which holds `parts` of the same layer one behind the other.
    pub(crate) fn part(tensor: TensorName, name: String, parts: &[LayerTensor]) -> Self {
        let TensorName::Layer(layer, _) = tensor else {
            unreachable!("only tensors of layers are stored together");
        };
        let parts = parts.iter().map(|part| TensorName::Layer(layer, *part));
        Self {
            name,
            parts: parts.collect(),
            tensor,
            interleaved: false,
        }
    }

    /// In the order of a checkpoint whose RoPE rotates pairs of neighbouring channels, as far as it
    /// is of queries and keys: rows are put into half-split order as they are read.
    pub(crate) fn interleaved(self) -> Self {
        Self {
            interleaved: true,
            ..self
        }
    }

    /// Where the rows of queries and keys, and of their biases, lie if they are interleaved.
    pub(crate) fn order(&self, spec: &ModelSpec) -> Option<RowOrder> {
        use LayerTensor as L;
        match self.tensor {
            TensorName::Layer(layer, L::Q | L::K | L::QBias | L::KBias) if self.interleaved => {
                Some(RowOrder::of(spec, layer))
            }
            _ => None,
        }
    }

    /// The shape of what is stored under the name.
    pub(crate) fn shape(&self, spec: &ModelSpec) -> Vec<usize> {
        let mut shape = self.tensor.shape(spec);
        shape[0] = self.parts.iter().map(|part| part.shape(spec)[0]).sum();
        shape
    }

    /// The first of the tensor's rows.
    pub(crate) fn first_row(&self, spec: &ModelSpec) -> usize {
        let before = self.parts.iter().take_while(|part| **part != self.tensor);
        before.map(|part| part.shape(spec)[0]).sum()
    }
}

/// How interleaved heads become half-split ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowOrder {
    head_dim: usize,
    /// Channels that rotate, the first of a head.
    rotary_dim: usize,
}

impl RowOrder {
    /// Of a layer's queries and keys. Without RoPE any order will do, if both have it.
    pub(crate) fn of(spec: &ModelSpec, layer: usize) -> Self {
        let attention = spec.attention(layer);
        let rotary_dim = attention.rope.map(|rope| spec.ropes[rope].rotary_dim());
        Self {
            head_dim: attention.head_dim,
            rotary_dim: rotary_dim.unwrap_or(attention.head_dim),
        }
    }

    /// The row of the file that is `row` in half-split order: within the part of a head that
    /// rotates, row `2j + p` of the file (pair `j`, first or second channel) is row `p · rotary_dim
    /// / 2 + j`.
    pub(crate) fn stored(self, row: usize) -> usize {
        let (channel, half) = (row % self.head_dim, self.rotary_dim / 2);
        if channel >= self.rotary_dim {
            return row;
        }
        row - channel + 2 * (channel % half) + channel / half
    }
}

/// Names of Llama's checkpoints, which most families share. A tensor that Llama lacks has the name
/// that most families give it.
pub(crate) fn llama_hf(tensor: TensorName) -> StoredTensor {
    let (layer, part) = match tensor {
        TensorName::Embedding => {
            return StoredTensor::own(tensor, "model.embed_tokens.weight");
        }
        TensorName::FinalNorm => return StoredTensor::own(tensor, "model.norm.weight"),
        TensorName::FinalNormBias => return StoredTensor::own(tensor, "model.norm.bias"),
        TensorName::LmHead => return StoredTensor::own(tensor, "lm_head.weight"),
        TensorName::Layer(layer, part) => (layer, part),
    };
    let part = match part {
        LayerTensor::AttnNorm => "input_layernorm.weight",
        LayerTensor::AttnNormBias => "input_layernorm.bias",
        LayerTensor::Q => "self_attn.q_proj.weight",
        LayerTensor::K => "self_attn.k_proj.weight",
        LayerTensor::V => "self_attn.v_proj.weight",
        LayerTensor::QBias => "self_attn.q_proj.bias",
        LayerTensor::KBias => "self_attn.k_proj.bias",
        LayerTensor::VBias => "self_attn.v_proj.bias",
        LayerTensor::QNorm => "self_attn.q_norm.weight",
        LayerTensor::KNorm => "self_attn.k_norm.weight",
        LayerTensor::Sinks => "self_attn.sinks",
        LayerTensor::O => "self_attn.o_proj.weight",
        LayerTensor::OBias => "self_attn.o_proj.bias",
        LayerTensor::AttnPostNorm | LayerTensor::MlpNorm => "post_attention_layernorm.weight",
        LayerTensor::AttnPostNormBias | LayerTensor::MlpNormBias => "post_attention_layernorm.bias",
        LayerTensor::Gate => "mlp.gate_proj.weight",
        LayerTensor::Up => "mlp.up_proj.weight",
        LayerTensor::Down => "mlp.down_proj.weight",
        LayerTensor::MlpPostNorm => "post_feedforward_layernorm.weight",
        LayerTensor::MlpPostNormBias => "post_feedforward_layernorm.bias",
        LayerTensor::Router => "mlp.gate.weight",
        LayerTensor::RouterBias => "mlp.gate.bias",
        LayerTensor::RouterCorrection => "mlp.gate.e_score_correction_bias",
        LayerTensor::ExpertGate => "mlp.experts.*.gate_proj.weight",
        LayerTensor::ExpertUp => "mlp.experts.*.up_proj.weight",
        LayerTensor::ExpertDown => "mlp.experts.*.down_proj.weight",
        LayerTensor::ExpertGateBias => "mlp.experts.*.gate_proj.bias",
        LayerTensor::ExpertUpBias => "mlp.experts.*.up_proj.bias",
        LayerTensor::ExpertDownBias => "mlp.experts.*.down_proj.bias",
        LayerTensor::SharedGate => "mlp.shared_expert.gate_proj.weight",
        LayerTensor::SharedUp => "mlp.shared_expert.up_proj.weight",
        LayerTensor::SharedDown => "mlp.shared_expert.down_proj.weight",
        LayerTensor::SharedScore => "mlp.shared_expert_gate.weight",
    };
    StoredTensor::own(tensor, format!("model.layers.{layer}.{part}"))
}

/// Names of GGUF files, which most architectures share.
pub(crate) fn llama_gguf(tensor: TensorName) -> StoredTensor {
    let (layer, part) = match tensor {
        TensorName::Embedding => return StoredTensor::own(tensor, "token_embd.weight"),
        TensorName::FinalNorm => return StoredTensor::own(tensor, "output_norm.weight"),
        TensorName::FinalNormBias => return StoredTensor::own(tensor, "output_norm.bias"),
        TensorName::LmHead => return StoredTensor::own(tensor, "output.weight"),
        TensorName::Layer(layer, part) => (layer, part),
    };
    let part = match part {
        LayerTensor::AttnNorm => "attn_norm.weight",
        LayerTensor::AttnNormBias => "attn_norm.bias",
        LayerTensor::Q => "attn_q.weight",
        LayerTensor::K => "attn_k.weight",
        LayerTensor::V => "attn_v.weight",
        LayerTensor::QBias => "attn_q.bias",
        LayerTensor::KBias => "attn_k.bias",
        LayerTensor::VBias => "attn_v.bias",
        LayerTensor::QNorm => "attn_q_norm.weight",
        LayerTensor::KNorm => "attn_k_norm.weight",
        LayerTensor::Sinks => "attn_sinks.weight",
        LayerTensor::O => "attn_output.weight",
        LayerTensor::OBias => "attn_output.bias",
        LayerTensor::AttnPostNorm => "post_attention_norm.weight",
        LayerTensor::AttnPostNormBias => "post_attention_norm.bias",
        LayerTensor::MlpNorm => "ffn_norm.weight",
        LayerTensor::MlpNormBias => "ffn_norm.bias",
        LayerTensor::Gate => "ffn_gate.weight",
        LayerTensor::Up => "ffn_up.weight",
        LayerTensor::Down => "ffn_down.weight",
        LayerTensor::MlpPostNorm => "post_ffw_norm.weight",
        LayerTensor::MlpPostNormBias => "post_ffw_norm.bias",
        LayerTensor::Router => "ffn_gate_inp.weight",
        LayerTensor::RouterBias => "ffn_gate_inp.bias",
        LayerTensor::RouterCorrection => "exp_probs_b.bias",
        LayerTensor::ExpertGate => "ffn_gate_exps.weight",
        LayerTensor::ExpertUp => "ffn_up_exps.weight",
        LayerTensor::ExpertDown => "ffn_down_exps.weight",
        LayerTensor::ExpertGateBias => "ffn_gate_exps.bias",
        LayerTensor::ExpertUpBias => "ffn_up_exps.bias",
        LayerTensor::ExpertDownBias => "ffn_down_exps.bias",
        LayerTensor::SharedGate => "ffn_gate_shexp.weight",
        LayerTensor::SharedUp => "ffn_up_shexp.weight",
        LayerTensor::SharedDown => "ffn_down_shexp.weight",
        LayerTensor::SharedScore => "ffn_gate_inp_shexp.weight",
    };
    StoredTensor::own(tensor, format!("blk.{layer}.{part}"))
}
