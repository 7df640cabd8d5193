//! OLMo 2: norms after attention and MLP, and of whole Q and K projections. GGUF files of its
//! architecture may be OLMo 3's: they have windows.

use ebb_kernels::model::{ModelSpec, NormPlace, QkNorm, UniformModel};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf, olmo3};
use crate::model::gguf::config::{SLIDING_BASE, WINDOW_PATTERN};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "olmo2",
    hf_class: "Olmo2ForCausalLM",
    hf_text: &[TextType {
        model_types: &["olmo2"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 50304, "max_position_embeddings": 2048
        }"#,
        constants: r#"{"num_key_value_heads": null, "rms_norm_eps": 1e-5}"#,
    }],
    hf_spec: |config| Ok(spec(config.uniform(&HfDefaults::default())?)),
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "olmo2",
        keys: &[&[WINDOW_PATTERN, SLIDING_BASE]],
        spec: |config| {
            let mut spec = spec(config.uniform()?);
            if let Some(window) = config.window()? {
                // It is OLMo 3. The last is that of the layers with windows.
                let base = config.number("rope.freq_base")?.unwrap_or(10_000.0);
                let rope = config.sliding_rope(spec.heads().head_dim, base.into())?;
                spec.ropes.push(rope);
                config.put_windows(&mut spec, Some(window), olmo3::FULL_INTERVAL)?;
            }
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

pub(super) fn spec(model: UniformModel) -> ModelSpec {
    let mut spec = model.spec();
    for layer in &mut spec.layers {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::After);
        layer.attention_mut().qk_norm = QkNorm::Whole;
    }
    spec
}
