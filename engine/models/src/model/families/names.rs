//! Names of tensors that most families share.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::stored::{GATE_UP, StoredTensor};

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
        TensorName::PerLayerEmbedding => {
            return StoredTensor::own(tensor, "model.embed_tokens_per_layer.weight");
        }
        TensorName::PerLayerProjection => {
            return StoredTensor::own(tensor, "model.per_layer_model_projection.weight");
        }
        TensorName::PerLayerNorm => {
            return StoredTensor::own(tensor, "model.per_layer_projection_norm.weight");
        }
        TensorName::LmHeadBias => return StoredTensor::own(tensor, "lm_head.bias"),
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
        LayerTensor::OutputGate => "self_attn.gate_proj.weight",
        LayerTensor::O => "self_attn.o_proj.weight",
        LayerTensor::OBias => "self_attn.o_proj.bias",
        LayerTensor::DeltaQ => "linear_attn.in_proj_q.weight",
        LayerTensor::DeltaK => "linear_attn.in_proj_k.weight",
        LayerTensor::DeltaV => "linear_attn.in_proj_v.weight",
        LayerTensor::DeltaZ => "linear_attn.in_proj_z.weight",
        LayerTensor::DeltaB => "linear_attn.in_proj_b.weight",
        LayerTensor::DeltaA => "linear_attn.in_proj_a.weight",
        LayerTensor::DeltaConv => "linear_attn.conv1d.weight",
        LayerTensor::DeltaDecay => "linear_attn.A_log",
        LayerTensor::DeltaDecayBias => "linear_attn.dt_bias",
        LayerTensor::DeltaNorm => "linear_attn.norm.weight",
        LayerTensor::DeltaOut => "linear_attn.out_proj.weight",
        LayerTensor::MambaX
        | LayerTensor::MambaB
        | LayerTensor::MambaC
        | LayerTensor::MambaZ
        | LayerTensor::MambaDt
        | LayerTensor::MambaConv
        | LayerTensor::MambaConvBias
        | LayerTensor::MambaDecay
        | LayerTensor::MambaDtBias
        | LayerTensor::MambaSkip
        | LayerTensor::MambaNorm
        | LayerTensor::MambaOut => unreachable!("a family that has it says what it lies in"),
        LayerTensor::ConvIn => "conv.in_proj.weight",
        LayerTensor::ConvInBias => "conv.in_proj.bias",
        LayerTensor::Conv => "conv.conv.weight",
        LayerTensor::ConvBias => "conv.conv.bias",
        LayerTensor::ConvOut => "conv.out_proj.weight",
        LayerTensor::ConvOutBias => "conv.out_proj.bias",
        LayerTensor::AttnPostNorm | LayerTensor::MlpNorm => "post_attention_layernorm.weight",
        LayerTensor::AttnPostNormBias | LayerTensor::MlpNormBias => "post_attention_layernorm.bias",
        LayerTensor::Gate => "mlp.gate_proj.weight",
        LayerTensor::Up => "mlp.up_proj.weight",
        LayerTensor::UpBias => "mlp.up_proj.bias",
        LayerTensor::XieluPositive => "mlp.act_fn.alpha_p",
        LayerTensor::XieluNegative => "mlp.act_fn.alpha_n",
        LayerTensor::XieluBeta => "mlp.act_fn.beta",
        LayerTensor::XieluEps => "mlp.act_fn.eps",
        LayerTensor::Down => "mlp.down_proj.weight",
        LayerTensor::DownBias => "mlp.down_proj.bias",
        LayerTensor::MlpPostNorm => "post_feedforward_layernorm.weight",
        LayerTensor::MlpPostNormBias => "post_feedforward_layernorm.bias",
        LayerTensor::InputGate => "per_layer_input_gate.weight",
        LayerTensor::InputOut => "per_layer_projection.weight",
        LayerTensor::InputNorm => "post_per_layer_input_norm.weight",
        LayerTensor::OutputScale => "layer_scalar",
        LayerTensor::RouterNorm => "router.scale",
        LayerTensor::Router => "mlp.gate.weight",
        LayerTensor::RouterBias => "mlp.gate.bias",
        LayerTensor::RouterCorrection => "mlp.gate.e_score_correction_bias",
        LayerTensor::ExpertScale => "router.per_expert_scale",
        LayerTensor::ExpertNorm => "pre_feedforward_layernorm_2.weight",
        LayerTensor::ExpertPostNorm => "post_feedforward_layernorm_2.weight",
        LayerTensor::SharedPostNorm => "post_feedforward_layernorm_1.weight",
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
    StoredTensor::of_layer(tensor, layer, part)
}

/// Names of GGUF files, which most architectures share.
pub(crate) fn llama_gguf(tensor: TensorName) -> StoredTensor {
    let (layer, part) = match tensor {
        TensorName::Embedding => return StoredTensor::own(tensor, "token_embd.weight"),
        TensorName::FinalNorm => return StoredTensor::own(tensor, "output_norm.weight"),
        TensorName::FinalNormBias => return StoredTensor::own(tensor, "output_norm.bias"),
        TensorName::LmHead => return StoredTensor::own(tensor, "output.weight"),
        TensorName::PerLayerEmbedding => {
            return StoredTensor::own(tensor, "per_layer_token_embd.weight");
        }
        TensorName::PerLayerProjection => {
            return StoredTensor::own(tensor, "per_layer_model_proj.weight");
        }
        TensorName::PerLayerNorm => {
            return StoredTensor::own(tensor, "per_layer_proj_norm.weight");
        }
        TensorName::LmHeadBias => return StoredTensor::own(tensor, "output.bias"),
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
        LayerTensor::UpBias => "ffn_up.bias",
        LayerTensor::Down => "ffn_down.weight",
        LayerTensor::DownBias => "ffn_down.bias",
        LayerTensor::MlpPostNorm => "post_ffw_norm.weight",
        LayerTensor::MlpPostNormBias => "post_ffw_norm.bias",
        LayerTensor::InputGate => "inp_gate.weight",
        LayerTensor::InputOut => "proj.weight",
        LayerTensor::InputNorm => "post_norm.weight",
        LayerTensor::OutputScale => "layer_output_scale.weight",
        LayerTensor::RouterNorm => "ffn_gate_inp.scale",
        LayerTensor::Router => "ffn_gate_inp.weight",
        LayerTensor::RouterBias => "ffn_gate_inp.bias",
        LayerTensor::RouterCorrection => "exp_probs_b.bias",
        LayerTensor::ExpertScale => "ffn_down_exps.scale",
        LayerTensor::ExpertNorm => "pre_ffw_norm_2.weight",
        LayerTensor::ExpertPostNorm => "post_ffw_norm_2.weight",
        LayerTensor::SharedPostNorm => "post_ffw_norm_1.weight",
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
        LayerTensor::DeltaZ => "attn_gate.weight",
        LayerTensor::DeltaB => "ssm_beta.weight",
        LayerTensor::DeltaA => "ssm_alpha.weight",
        LayerTensor::DeltaConv => "ssm_conv1d.weight",
        LayerTensor::DeltaDecay => "ssm_a",
        LayerTensor::DeltaDecayBias => "ssm_dt.bias",
        LayerTensor::DeltaNorm => "ssm_norm.weight",
        LayerTensor::DeltaOut => "ssm_out.weight",
        LayerTensor::MambaConv => "ssm_conv1d.weight",
        LayerTensor::MambaConvBias => "ssm_conv1d.bias",
        LayerTensor::MambaDecay => "ssm_a",
        LayerTensor::MambaDtBias => "ssm_dt.bias",
        LayerTensor::MambaSkip => "ssm_d",
        LayerTensor::MambaNorm => "ssm_norm.weight",
        LayerTensor::MambaOut => "ssm_out.weight",
        LayerTensor::ConvIn => "shortconv.in_proj.weight",
        LayerTensor::ConvInBias => "shortconv.in_proj.bias",
        LayerTensor::Conv => "shortconv.conv.weight",
        LayerTensor::ConvBias => "shortconv.conv.bias",
        LayerTensor::ConvOut => "shortconv.out_proj.weight",
        LayerTensor::ConvOutBias => "shortconv.out_proj.bias",
        LayerTensor::OutputGate
        | LayerTensor::MambaX
        | LayerTensor::MambaB
        | LayerTensor::MambaC
        | LayerTensor::MambaZ
        | LayerTensor::MambaDt
        | LayerTensor::DeltaQ
        | LayerTensor::DeltaK
        | LayerTensor::DeltaV
        | LayerTensor::XieluPositive
        | LayerTensor::XieluNegative
        | LayerTensor::XieluBeta
        | LayerTensor::XieluEps => {
            unreachable!("a family that has it says what it lies in")
        }
    };
    let stored = StoredTensor::own_matrix(tensor, format!("blk.{layer}.{part}"));
    match tensor {
        // Converters put them together on request.
        TensorName::Layer(_, LayerTensor::ExpertGate | LayerTensor::ExpertUp) => {
            let name = format!("blk.{layer}.ffn_gate_up_exps.weight");
            stored.or(Some(StoredTensor::by_expert(tensor, name, GATE_UP)))
        }
        _ => stored,
    }
}
