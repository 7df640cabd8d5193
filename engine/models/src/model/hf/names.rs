//! What Hugging Face checkpoints call each tensor.

use ebb_kernels::model::{LayerTensor, TensorName};

/// The name of a tensor in a checkpoint of any supported family.
pub fn hf_name(name: TensorName) -> String {
    let (layer, tensor) = match name {
        TensorName::Embedding => return "model.embed_tokens.weight".to_owned(),
        TensorName::FinalNorm => return "model.norm.weight".to_owned(),
        TensorName::LmHead => return LM_HEAD.to_owned(),
        TensorName::Layer(layer, tensor) => (layer, tensor),
    };
    let tensor = match tensor {
        LayerTensor::AttnNorm => "input_layernorm.weight",
        LayerTensor::Q => "self_attn.q_proj.weight",
        LayerTensor::K => "self_attn.k_proj.weight",
        LayerTensor::V => "self_attn.v_proj.weight",
        LayerTensor::QBias => "self_attn.q_proj.bias",
        LayerTensor::KBias => "self_attn.k_proj.bias",
        LayerTensor::VBias => "self_attn.v_proj.bias",
        LayerTensor::QNorm => "self_attn.q_norm.weight",
        LayerTensor::KNorm => "self_attn.k_norm.weight",
        LayerTensor::O => "self_attn.o_proj.weight",
        LayerTensor::MlpNorm => "post_attention_layernorm.weight",
        LayerTensor::Gate => "mlp.gate_proj.weight",
        LayerTensor::Up => "mlp.up_proj.weight",
        LayerTensor::Down => "mlp.down_proj.weight",
    };
    format!("model.layers.{layer}.{tensor}")
}

/// The output projection.
pub(super) const LM_HEAD: &str = "lm_head.weight";

/// Tensors that some checkpoints hold although the model can do without: RoPE frequencies, which
/// the configuration gives.
pub(super) fn is_superfluous(file_name: &str) -> bool {
    file_name.ends_with(".rotary_emb.inv_freq")
}
