//! StarCoder 2: LayerNorm, an MLP without gates, of GELU, and biases everywhere.

use ebb_kernels::model::{Activation, LayerTensor, ModelSpec, NormKind, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf, put_plain_mlp};
use crate::model::gguf::config::LAYER_NORM_EPS;
use crate::model::hf::config::{AttentionBias, HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "starcoder2",
    hf_class: "Starcoder2ForCausalLM",
    hf_text: &[TextType {
        model_types: &["starcoder2"],
        sizes: r#"{
            "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
            "num_attention_heads": 24, "num_key_value_heads": 2, "vocab_size": 49152,
            "max_position_embeddings": 4096
        }"#,
        constants: r#"{"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": true}"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::Other,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qkv_bias = config.bool("use_bias")?.unwrap_or(true);
        model.o_bias = model.qkv_bias;
        model.norm_eps = config.number("norm_epsilon")?.unwrap_or(1e-5) as f32;
        let mut spec = model.spec();
        config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
        finish(&mut spec);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return llama_hf(name);
        };
        let part = match part {
            L::Up => "c_fc.weight",
            L::UpBias => "c_fc.bias",
            L::Down => "c_proj.weight",
            L::DownBias => "c_proj.bias",
            _ => return llama_hf(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.mlp.{part}"))
    },
    gguf: Some(GgufFamily {
        architecture: "starcoder2",
        keys: &[&[LAYER_NORM_EPS]],
        spec: |config| {
            let mut model = config.uniform()?;
            model.activation = Activation::GeluTanh;
            model.qkv_bias = config.has_tensor("blk.0.attn_q.bias");
            model.o_bias = model.qkv_bias;
            let mut spec = model.spec();
            finish(&mut spec);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

/// Its norms and its MLP, which has biases where Q, K and V do.
fn finish(spec: &mut ModelSpec) {
    spec.norms.kind = NormKind::Layer;
    spec.norms.bias = true;
    let has_biases = spec.layers[0].attention_mut().qkv_bias;
    put_plain_mlp(spec, has_biases);
}
