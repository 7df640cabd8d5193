//! Gemma (1) and CodeGemma: Llama with norms whose weights count from 1, GELU, and embeddings that
//! are multiplied.

use ebb_kernels::bf16;
use ebb_kernels::model::Activation;

use super::gemma2::{self, root_of_width};
use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::HfConfig;

pub(super) static FAMILY: Family = Family {
    name: "gemma",
    hf_class: "GemmaForCausalLM",
    hf_text: &[TextType {
        model_types: &["gemma"],
        sizes: r#"{
            "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 256000,
            "max_position_embeddings": 8192
        }"#,
        constants: r#"{"head_dim": 256, "tie_word_embeddings": true}"#,
    }],
    hf_spec: |config| {
        config.refuse("use_bidirectional_attention")?;
        check_activation(config)?;
        let model = config.uniform(&gemma2::DEFAULTS)?;
        let mut spec = model.spec();
        spec.embedding_multiplier = config.round(root_of_width(&spec))?;
        spec.norms.from_one = true;
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "gemma",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform()?;
            model.activation = Activation::GeluTanh;
            let mut spec = model.spec();
            // All checkpoints that are published were of this type.
            spec.embedding_multiplier = bf16::from_f32(root_of_width(&spec)).to_f32();
            spec.norms.from_one = true;
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

/// The first files have `gelu` as `hidden_act`, which was never what the models were trained with:
/// `hidden_activation` alone can name another activation.
fn check_activation(config: &HfConfig) -> Result<(), Refusal> {
    const KEY: &str = "hidden_act";
    match (config.text("hidden_activation")?, config.text(KEY)?) {
        (None, Some(found)) if !["gelu", "gelu_pytorch_tanh"].contains(&found) => {
            let found = format!("{found:?}");
            Err(Refusal::unsupported(KEY, found, "gelu_pytorch_tanh"))
        }
        _ => Ok(()),
    }
}
