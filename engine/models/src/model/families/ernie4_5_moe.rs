//! ERNIE 4.5 with experts: chosen by a softmax with a correction, and shared ones; RoPE rotates
//! pairs of neighbouring channels.

use ebb_kernels::model::{LayerTensor, Routing, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, glm4_moe, llama_gguf};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SHARED_WIDTH,
};
use crate::model::hf::config::HfDefaults;

/// The key of the interval at which layers have experts, behind the dense ones.
const GGUF_INTERVAL: &str = "interleave_moe_layer_step";

pub(super) static FAMILY: Family = Family {
    name: "ernie4_5_moe",
    hf_class: "Ernie4_5_MoeForCausalLM",
    hf_text: &[TextType {
        model_types: &["ernie4_5_moe"],
        sizes: r#"{
            "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
            "num_attention_heads": 20, "num_key_value_heads": 4, "vocab_size": 103424,
            "max_position_embeddings": 131072, "moe_num_experts": 64, "moe_k": 6,
            "moe_intermediate_size": 1536
        }"#,
        constants: r#"{
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true,
            "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1
        }"#,
    }],
    hf_spec: |config| {
        config.refuse("use_bias")?;
        let mut spec = config.uniform(&HfDefaults::default())?.spec();
        let routing = Routing {
            correction: true,
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let mut experts = config.experts("moe_intermediate_size", routing)?;
        experts.shared = config.shared_experts("moe_num_shared_experts", experts.intermediate)?;
        let first = config.size("moe_layer_start_index")?.unwrap_or(1);
        // -1 stands for the last layer.
        let last = match config.number("moe_layer_end_index")? {
            None | Some(-1.0) => usize::MAX,
            Some(_) => config.required_size("moe_layer_end_index")?,
        };
        let interval = config.interval("moe_layer_interval", 1)?;
        put_experts(&mut spec, &experts, |layer| {
            (layer + 1) % interval == 0 && (first..=last).contains(&layer)
        });
        Ok(spec)
    },
    hf_tensor: |name| match name {
        TensorName::Layer(layer, LayerTensor::RouterCorrection) => {
            let module = format!("model.layers.{layer}.mlp.moe_statics");
            StoredTensor::own(name, format!("{module}.e_score_correction_bias"))
        }
        _ => glm4_moe::hf_tensor(name).interleaved(),
    },
    gguf: Some(GgufFamily {
        architecture: "ernie4_5-moe",
        keys: &[
            EXPERTS,
            &[
                EXPERT_WIDTH,
                SHARED_COUNT,
                SHARED_WIDTH,
                DENSE_LAYERS,
                GGUF_INTERVAL,
            ],
        ],
        spec: |config| {
            let mut spec = config.uniform()?.spec();
            let dense = config.dense_layers(1)?;
            let interval = config.interval(GGUF_INTERVAL, 1)?;
            let has_experts = |layer| layer >= dense && (layer + 1) % interval == 0;
            let first = (dense..spec.layers.len()).find(|layer| has_experts(*layer));
            let first = first.unwrap_or(dense);
            let routing = Routing {
                correction: config.has_correction(first),
                ..Routing::SOFTMAX_OF_CHOSEN
            };
            let mut experts = config.experts(first, routing)?;
            experts.shared = config.shared_experts(0, experts.intermediate)?;
            put_experts(&mut spec, &experts, has_experts);
            Ok(spec)
        },
        tensor: llama_gguf,
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};
