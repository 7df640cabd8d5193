//! Qwen3-VL with experts, the language model: Qwen3-MoE, whose experts are stored stacked.

use ebb_kernels::model::{LayerTensor, QkNorm, Routing, TensorName};

use super::qwen3_vl_text::IMAGES;
use super::stored::GATE_UP;
use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "qwen3_vl_moe_text",
    hf_class: "Qwen3VLMoeForConditionalGeneration",
    hf_text: &[TextType {
        model_types: &["qwen3_vl_moe_text"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936,
            "max_position_embeddings": 128000, "num_local_experts": 60, "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408
        }"#,
        constants: r#"{"rope_theta": 500000.0}"#,
    }],
    hf_spec: |config| {
        const SHARES: &str = "norm_topk_prob";
        if config.bool(SHARES)? == Some(false) {
            return Err(Refusal::unsupported(SHARES, false, "true"));
        }
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        let experts = config.experts("moe_intermediate_size", Routing::SOFTMAX_OF_CHOSEN)?;
        put_experts(&mut spec, &experts, config.sparse_layers()?);
        Ok(spec)
    },
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "qwen3vlmoe",
        keys: &[IMAGES, EXPERTS, &[EXPERT_WIDTH]],
        spec: |config| {
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            let experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
            put_experts(&mut spec, &experts, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

/// Published files have transposed matrices, quantised ones a tensor for each expert.
fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        return llama_hf(name);
    };
    let stored = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}");
    let published = match part {
        L::ExpertGate | L::ExpertUp => {
            StoredTensor::by_columns(name, stored("gate_up_proj"), GATE_UP)
        }
        L::ExpertDown => StoredTensor::by_columns(name, stored("down_proj"), &[L::ExpertDown]),
        _ => return llama_hf(name),
    };
    llama_hf(name).or(Some(published))
}
