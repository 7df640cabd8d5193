//! Ministral 3: Mistral whose queries grow with their position.

use ebb_kernels::model::QueryGrowth;

use super::{Family, TextType, llama_hf};
use crate::model::error::Refusal;
use crate::model::hf::config::{HfDefaults, RopeScalings, WindowRule};

const BETA: &str = "llama_4_scaling_beta";
const INTERVAL: &str = "original_max_position_embeddings";

pub(super) static FAMILY: Family = Family {
    name: "ministral3",
    hf_class: "Ministral3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["ministral3"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072,
            "max_position_embeddings": 262144
        }"#,
        constants: r#"{
            "head_dim": 128, "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
                "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1
            }
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            rope_scalings: RopeScalings::WithQueryGrowth,
            ..HfDefaults::default()
        };
        let mut spec = config.uniform(&defaults)?.spec();
        config.put_windows(&mut spec, WindowRule::Always, |_| true)?;
        let Some(beta) = config.rope_number(BETA)? else {
            return Ok(spec);
        };
        let interval = match config.rope_number(INTERVAL)? {
            Some(interval) => interval,
            None => return Err(Refusal::Missing(INTERVAL.to_owned())),
        };
        if !(interval >= 1.0 && interval <= f64::from(u32::MAX) && interval.fract() == 0.0) {
            let expected = "a whole number above 0";
            return Err(Refusal::invalid(INTERVAL, interval, expected));
        }
        for layer in &mut spec.layers {
            layer.attention_mut().query_growth = Some(QueryGrowth {
                beta: beta as f32,
                interval: interval as u32,
                from_one: false,
            });
        }
        Ok(spec)
    },
    hf_tensor: llama_hf,
    gguf: None,
};
