//! Solar Open: Llama with GLM-4-MoE's experts in every layer. In GGUF files it is of the `glm4moe`
//! architecture.

use super::{Family, TextType, glm4_moe};
use crate::model::experts::put_experts;
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "solar_open",
    hf_class: "SolarOpenForCausalLM",
    hf_text: &[TextType {
        model_types: &["solar_open"],
        sizes: r#"{
            "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
            "num_key_value_heads": 8, "vocab_size": 196608, "max_position_embeddings": 131072,
            "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1280
        }"#,
        // No layer is as wide as intermediate_size says.
        constants: r#"{
            "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
            "n_shared_experts": 1, "intermediate_size": 10240
        }"#,
    }],
    hf_spec: |config| {
        config.refuse("use_qk_norm")?;
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            rotates_part_of_a_head: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
        let mut spec = model.spec();
        let mut experts = config.experts("moe_intermediate_size", config.sigmoid_routing()?)?;
        experts.shared = config.shared_experts("n_shared_experts", experts.intermediate)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: glm4_moe::hf_tensor,
    gguf: None,
};
