//! EXAONE 4: norms after attention and MLP and of each head, and in the larger model windows in
//! three of four layers, which alone have RoPE then.

use ebb_kernels::model::{ModelSpec, NormPlace, QkNorm};

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, PREDICTING, WINDOW_PATTERN};
use crate::model::hf::config::{HfConfig, HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

/// Layers of the model that has windows even where a GGUF file does not say so.
const GGUF_LAYERS_OF_32B: usize = 64;

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
        put_norms(&mut spec);
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "exaone4",
        keys: &[&[WINDOW_PATTERN, PREDICTING]],
        spec: |config| {
            let mut spec = gguf_spec(config, |layers| {
                (layers == GGUF_LAYERS_OF_32B).then_some(4096)
            })?;
            put_norms(&mut spec);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};

fn put_norms(spec: &mut ModelSpec) {
    for layer in &mut spec.layers {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::After);
    }
}

/// Its layers in GGUF files, and those of EXAONE-MoE, with norms before attention and MLP.
/// `by_default` is the window of a model of so many layers whose file does not say it.
pub(super) fn gguf_spec(
    config: &GgufConfig<'_>,
    by_default: impl Fn(usize) -> Option<usize>,
) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform()?;
    config.leave_out_predicting(&mut model)?;
    model.qk_norm = QkNorm::PerHead;
    let mut spec = model.spec();
    let window = config.window()?.or(by_default(spec.layers.len()));
    let sliding = config.put_windows(&mut spec, window, FULL_INTERVAL)?;
    keep_rope(&mut spec, &sliding, window.is_some());
    Ok(spec)
}

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
    keep_rope(&mut spec, &sliding, has_windows);
    Ok(spec)
}

/// Where some layers have windows, the others have no RoPE.
fn keep_rope(spec: &mut ModelSpec, sliding: &[bool], has_windows: bool) {
    for (layer, is_sliding) in spec.layers.iter_mut().zip(sliding) {
        let attention = layer.attention_mut();
        attention.rope = attention.rope.filter(|_| *is_sliding || !has_windows);
    }
}
