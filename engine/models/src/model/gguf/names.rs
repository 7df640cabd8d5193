//! What GGUF calls each tensor.

use ebb_kernels::model::{LayerTensor, TensorName};

/// The frequency factors of Llama 3's RoPE scaling, `[head_dim / 2]`.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The name of a tensor in a GGUF file of any supported architecture.
pub(super) fn gguf_name(name: TensorName) -> String {
    let (layer, tensor) = match name {
        TensorName::Embedding => return "token_embd.weight".to_owned(),
        TensorName::FinalNorm => return "output_norm.weight".to_owned(),
        TensorName::LmHead => return "output.weight".to_owned(),
        TensorName::Layer(layer, tensor) => (layer, tensor),
    };
    let tensor = match tensor {
        LayerTensor::AttnNorm => "attn_norm.weight",
        LayerTensor::Q => "attn_q.weight",
        LayerTensor::K => "attn_k.weight",
        LayerTensor::V => "attn_v.weight",
        LayerTensor::QBias => "attn_q.bias",
        LayerTensor::KBias => "attn_k.bias",
        LayerTensor::VBias => "attn_v.bias",
        LayerTensor::QNorm => "attn_q_norm.weight",
        LayerTensor::KNorm => "attn_k_norm.weight",
        LayerTensor::O => "attn_output.weight",
        LayerTensor::MlpNorm => "ffn_norm.weight",
        LayerTensor::Gate => "ffn_gate.weight",
        LayerTensor::Up => "ffn_up.weight",
        LayerTensor::Down => "ffn_down.weight",
    };
    format!("blk.{layer}.{tensor}")
}
