//! Nemotron-4 and Minitron: LayerNorm with biases whose weights count from 1, RoPE over half of
//! each head, an MLP without gates, of the square of ReLU.

use ebb_kernels::model::{Activation, ModelSpec, NormKind};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf, put_plain_mlp};
use crate::model::gguf::config::LAYER_NORM_EPS;
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "nemotron",
    hf_class: "NemotronForCausalLM",
    hf_text: &[TextType {
        model_types: &["nemotron"],
        sizes: r#"{
            "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
            "num_attention_heads": 48, "vocab_size": 256000, "max_position_embeddings": 4096
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "partial_rotary_factor": 0.5, "hidden_act": "relu2"
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            rotates_part_of_a_head: true,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.norm_eps = config.number("norm_eps")?.unwrap_or(1e-5) as f32;
        let mut spec = model.spec();
        finish(&mut spec, config.bool("mlp_bias")? == Some(true));
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "nemotron",
        keys: &[&[LAYER_NORM_EPS]],
        spec: |config| {
            let mut model = config.uniform_with_part(false)?;
            model.activation = Activation::Relu2;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            model.o_bias = model.qkv_bias;
            let mut spec = model.spec();
            finish(&mut spec, config.has_tensor("blk.0.ffn_up.bias"));
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

fn finish(spec: &mut ModelSpec, has_mlp_bias: bool) {
    spec.norms.kind = NormKind::Layer;
    spec.norms.from_one = true;
    spec.norms.bias = true;
    put_plain_mlp(spec, has_mlp_bias);
}
