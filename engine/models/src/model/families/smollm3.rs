//! SmolLM3: Llama with some layers that know no positions (NoPE).

use ebb_kernels::model::ModelSpec;

use super::{Family, GgufFamily, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{HfConfig, HfDefaults, WindowRule};

/// Every fourth layer has no RoPE, unless the configuration says otherwise.
const NO_ROPE_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "smollm3",
    hf_class: "SmolLM3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["smollm3"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256,
            "max_position_embeddings": 32768
        }"#,
        constants: r#"{"rope_theta": 2000000.0, "tie_word_embeddings": true}"#,
    }],
    hf_spec,
    hf_tensor: llama_hf,
    gguf: Some(GgufFamily {
        architecture: "smollm3",
        keys: &[],
        spec: |config| {
            let mut spec = config.uniform()?.spec();
            remove_rope(&mut spec, |layer| layer % NO_ROPE_INTERVAL == 3);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: true,
    }),
};

fn hf_spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    const FIELD: &str = "no_rope_layers";
    let mut spec = config.uniform(&HfDefaults::default())?.spec();
    // 1 for a layer with RoPE, as transformers has it.
    match config.sizes(FIELD)? {
        None => {
            let interval = config.interval("no_rope_layer_interval", NO_ROPE_INTERVAL)?;
            remove_rope(&mut spec, |layer| (layer + 1) % interval == 0);
        }
        Some(has_rope) if has_rope.len() != spec.layers.len() => {
            let expected = format!("one number for each of {} layers", spec.layers.len());
            return Err(Refusal::invalid(FIELD, has_rope.len(), expected));
        }
        Some(has_rope) => remove_rope(&mut spec, |layer| has_rope[layer] == 0),
    }
    let layers = spec.attentions();
    let has_rope: Vec<bool> = layers.map(|(_, a)| a.rope.is_some()).collect();
    config.put_windows(&mut spec, WindowRule::IfFlagged, |layer| !has_rope[layer])?;
    Ok(spec)
}

fn remove_rope(spec: &mut ModelSpec, is_without: impl Fn(usize) -> bool) {
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if is_without(index) {
            layer.attention_mut().rope = None;
        }
    }
}
