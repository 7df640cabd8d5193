//! Arcee's AFM: Llama with an MLP without gates, of the square of ReLU.

use ebb_kernels::model::Activation;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf, put_plain_mlp};
use crate::model::hf::config::{AttentionBias, HfDefaults};

pub(super) static FAMILY: Family = Family {
    name: "arcee",
    hf_class: "ArceeForCausalLM",
    hf_text: &[TextType {
        model_types: &["arcee"],
        sizes: r#"{
            "hidden_size": 2560, "intermediate_size": 18432, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "rms_norm_eps": 1e-5, "hidden_act": "relu2"
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            has_plain_mlp: true,
            ..HfDefaults::default()
        };
        let model = config.uniform(&defaults)?;
        let mut spec = model.spec();
        put_plain_mlp(&mut spec, config.bool("mlp_bias")? == Some(true));
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "arcee",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.activation = Activation::Relu2;
            let mut spec = model.spec();
            put_plain_mlp(&mut spec, false);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};
