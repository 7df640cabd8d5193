//! EXAONE 4: norms after attention and MLP and of each head, and in the larger model windows in
//! three of four layers, which alone have RoPE then.

use ebb_kernels::model::{ModelSpec, NormPlace, QkNorm};

use super::{Family, TextType, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{HfConfig, HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "exaone4",
    hf_class: "Exaone4ForCausalLM",
    hf_text: &[TextType {
        // The second is what EXAONE 4.5 came out with.
        model_types: &["exaone4", "exaone4_5_text"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 102400,
            "max_position_embeddings": 2048
        }"#,
        constants: r#"{"rms_norm_eps": 1e-5, "sliding_window": 4096}"#,
    }],
    hf_spec: |config| {
        let mut spec = spec(config)?;
        for layer in &mut spec.layers {
            (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::After);
        }
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: None,
};

/// Its layers, and those of EXAONE-MoE, with norms before attention and MLP.
pub(super) fn spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform(&HfDefaults::default())?;
    model.qk_norm = QkNorm::PerHead;
    let mut spec = model.spec();
    // Without a window every layer has RoPE, whatever its kind.
    let has_windows = config.size("sliding_window")?.is_some();
    let sliding = match has_windows {
        true => config.sliding_layers(&spec, FULL_INTERVAL)?,
        false => vec![false; spec.layers.len()],
    };
    config.put_windows(&mut spec, WindowRule::Always, |layer| sliding[layer])?;
    for (layer, is_sliding) in spec.layers.iter_mut().zip(sliding) {
        let attention = layer.attention_mut();
        attention.rope = attention.rope.filter(|_| is_sliding || !has_windows);
    }
    Ok(spec)
}
