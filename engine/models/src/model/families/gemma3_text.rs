//! Gemma 3, the language model: Gemma 2 with norms of heads in place of caps, and a RoPE of their
//! own in five of six layers, which have windows.

use ebb_kernels::model::QkNorm;

use super::{Family, GgufFamily, TextType, gemma2, llama_gguf};
use crate::model::gguf::config::WINDOW_PATTERN;
use crate::model::hf::config::{HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 6;

/// The base of the RoPE of layers with windows.
const SLIDING_BASE: f64 = 10_000.0;

/// Layers of Gemma 3 27B.
const GGUF_LAYERS_OF_27B: usize = 62;

pub(super) static FAMILY: Family = Family {
    name: "gemma3_text",
    hf_class: "Gemma3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["gemma3_text"],
        sizes: r#"{
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
            "max_position_embeddings": 131072
        }"#,
        constants: r#"{
            "head_dim": 256, "tie_word_embeddings": true, "sliding_window": 4096,
            "rope_theta": 1000000.0
        }"#,
    }],
    hf_spec: |config| {
        // transformers leaves this field out of account.
        config.refuse("attn_logit_softcapping")?;
        let defaults = HfDefaults {
            has_ropes_by_kind: true,
            ..gemma2::DEFAULTS
        };
        let mut spec = gemma2::hf_spec(config, &defaults)?;
        for layer in &mut spec.layers {
            layer.attention_mut().qk_norm = QkNorm::PerHead;
        }
        let cap = config.number("final_logit_softcapping")?;
        spec.logit_soft_cap = cap.map(|cap| cap as f32);
        // The last is that of the layers with windows.
        let base = config.number("rope_local_base_freq")?;
        let head_dim = spec.heads().head_dim;
        let rope = config.sliding_rope(head_dim, base.or(Some(SLIDING_BASE)))?;
        spec.ropes.push(rope);
        let sliding = config.sliding_layers(&spec, FULL_INTERVAL)?;
        config.put_windows(&mut spec, WindowRule::Always, |layer| sliding[layer])?;
        Ok(spec)
    },
    hf_tensor: gemma2::hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "gemma3",
        keys: &[&[
            "final_logit_softcapping",
            "rope.freq_base_swa",
            WINDOW_PATTERN,
        ]],
        spec: |config| {
            let mut spec = gemma2::gguf_spec(config, GGUF_LAYERS_OF_27B)?;
            for layer in &mut spec.layers {
                layer.attention_mut().qk_norm = QkNorm::PerHead;
            }
            // 0 stands for none.
            let cap = config.number("final_logit_softcapping")?;
            spec.logit_soft_cap = cap.filter(|cap| *cap != 0.0);
            if let Some(window) = config.window()? {
                // The last is that of the layers with windows.
                let rope = config.sliding_rope(spec.heads().head_dim, SLIDING_BASE)?;
                spec.ropes.push(rope);
                config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
            }
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
