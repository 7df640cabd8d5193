//! OLMo 3: OLMo 2 with a window in three of four layers, whose RoPE is not scaled. In GGUF files it
//! is of the `olmo2` architecture.

use super::{Family, TextType, llama_hf, olmo2};
use crate::model::hf::config::{HfDefaults, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
pub(super) const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "olmo3",
    hf_class: "Olmo3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["olmo3"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 50304, "max_position_embeddings": 2048
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "sliding_window": 4096
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            has_ropes_by_kind: true,
            ..HfDefaults::default()
        };
        let model = config.uniform(&defaults)?;
        let head_dim = model.head_dim;
        let mut spec = olmo2::spec(model);
        // The last is that of the layers with windows.
        spec.ropes.push(config.sliding_rope(head_dim, None)?);
        let is_sliding = |layer| layer % FULL_INTERVAL != FULL_INTERVAL - 1;
        config.put_windows(&mut spec, WindowRule::Always, is_sliding)?;
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: None,
};
