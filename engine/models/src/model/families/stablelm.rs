//! StableLM: Llama with LayerNorm that has biases, RoPE over a quarter of each head, and in some
//! the MLP beside attention.

use ebb_kernels::model::{ModelSpec, NormKind, NormPlace};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::gguf::config::LAYER_NORM_EPS;
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "stablelm",
    hf_class: "StableLmForCausalLM",
    hf_text: &[TextType {
        model_types: &["stablelm"],
        sizes: r#"{
            "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 50304,
            "max_position_embeddings": 4096
        }"#,
        constants: r#"{"partial_rotary_factor": 0.25}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            rotates_part_of_a_head: true,
            ..HfDefaults::default()
        };
        // LayerNorm of heads, each with weights of its own (StableLM 2 12B).
        config.refuse("qk_layernorm")?;
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("use_qkv_bias")? == Some(true);
        model.norm_eps = config.number("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let mut spec = model.spec();
        finish(
            &mut spec,
            config.bool("use_parallel_residual")? == Some(true),
        );
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "stablelm",
        // What converters write of the second where the model does not say so is wrong.
        keys: &[&[LAYER_NORM_EPS, "use_parallel_residual"]],
        spec: |config| {
            let mut model = config.uniform_with_part(false)?;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            let mut spec = model.spec();
            finish(&mut spec, !config.has_tensor("blk.0.ffn_norm.weight"));
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

fn finish(spec: &mut ModelSpec, is_parallel: bool) {
    spec.norms.kind = NormKind::Layer;
    spec.norms.bias = true;
    for layer in spec.layers.iter_mut().filter(|_| is_parallel) {
        layer.mlp_norm = NormPlace::Shared;
    }
}
