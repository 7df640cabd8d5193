//! K-EXAONE: the layers of EXAONE 4 with norms before attention and MLP, and GLM-4-MoE's experts.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, exaone4, glm4_moe, llama_gguf};
use crate::model::experts::put_experts;
use crate::model::gguf::config::{PREDICTING, WINDOW_PATTERN};
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SHARED_WIDTH, SIGMOID_ROUTING,
};

/// What layers see whose GGUF file does not say it.
const GGUF_WINDOW: usize = 128;

pub(super) static FAMILY: Family = Family {
    name: "exaone_moe",
    hf_class: "ExaoneMoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["exaone_moe"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 102400,
            "max_position_embeddings": 2048, "num_experts": 64, "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024
        }"#,
        constants: r#"{
            "rms_norm_eps": 1e-5, "sliding_window": 4096, "num_shared_experts": 1,
            "first_k_dense_replace": 1, "routed_scaling_factor": 2.5
        }"#,
    }],
    hf_spec: |config| {
        let mut spec = exaone4::spec(config)?;
        let mut experts = config.experts("moe_intermediate_size", config.sigmoid_routing()?)?;
        experts.shared = config.shared_experts("num_shared_experts", experts.intermediate)?;
        let sparse = config.sparse_kinds(spec.layers.len())?;
        put_experts(&mut spec, &experts, |layer| sparse[layer]);
        Ok(spec)
    },
    hf_tensor: |name| match name {
        TensorName::Layer(layer, LayerTensor::RouterCorrection) => {
            let stored = format!("model.layers.{layer}.mlp.e_score_correction_bias");
            StoredTensor::own(name, stored)
        }
        _ => glm4_moe::hf_tensor(name),
    },
    gguf: Some(GgufFamily {
        architecture: "exaone-moe",
        keys: &[
            EXPERTS,
            SIGMOID_ROUTING,
            &[
                WINDOW_PATTERN,
                EXPERT_WIDTH,
                SHARED_COUNT,
                SHARED_WIDTH,
                DENSE_LAYERS,
                PREDICTING,
            ],
        ],
        spec: |config| {
            let mut spec = exaone4::gguf_spec(config, |_| Some(GGUF_WINDOW))?;
            config.put_sigmoid_experts(&mut spec, config.dense_layers(0)?, 0)?;
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
