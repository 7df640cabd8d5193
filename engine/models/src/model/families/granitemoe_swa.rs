//! Granite MoE with windows, sinks, and a RoPE of its own for each layer, or none.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::{Family, StoredTensor, TextType, granitemoeshared};
use crate::model::error::Refusal;
use crate::model::hf::config::{HfDefaults, WindowRule};

const GATE_UP: &[LayerTensor] = &[LayerTensor::ExpertGate, LayerTensor::ExpertUp];

/// The first layer of so many sees everything, unless the configuration says otherwise.
const FULL_INTERVAL: usize = 4;

pub(super) static FAMILY: Family = Family {
    name: "granitemoe_swa",
    hf_class: "GraniteMoeSWAForCausalLM",
    hf_text: &[TextType {
        model_types: &["granitemoe_swa"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
            "num_local_experts": 8, "num_experts_per_tok": 2
        }"#,
        constants: r#"{"num_key_value_heads": null, "sliding_window": 128}"#,
    }],
    hf_spec: |config| {
        let mut spec = granitemoeshared::hf_spec(config)?;
        let is_sliding = |layer| layer % FULL_INTERVAL != 0;
        config.put_windows(&mut spec, WindowRule::Always, is_sliding)?;
        for layer in &mut spec.layers {
            layer.attention_mut().sinks = true;
        }
        let Some(bases) = config.numbers("layer_rope_theta")? else {
            return Ok(spec);
        };
        if bases.len() != spec.layers.len() {
            let expected = format!("one base for each of {} layers", spec.layers.len());
            return Err(Refusal::invalid("layer_rope_theta", bases.len(), expected));
        }
        // One RoPE for each base; 0 stands for none.
        let mut known: Vec<f64> = bases.iter().copied().filter(|base| *base != 0.0).collect();
        known.sort_by(f64::total_cmp);
        known.dedup();
        let head_dim = spec.heads().head_dim;
        let ropes = known.iter().map(|base| {
            let defaults = HfDefaults::default();
            config.rope_with_base(&defaults, head_dim, *base)
        });
        spec.ropes = ropes.collect::<Result<_, _>>()?;
        for (layer, base) in spec.layers.iter_mut().zip(bases) {
            layer.attention_mut().rope = known.iter().position(|known| *known == base);
        }
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return granitemoeshared::hf_tensor(name);
        };
        let stored = |part: &str| format!("model.layers.{layer}.block_sparse_moe.{part}");
        match part {
            L::Router => StoredTensor::own(name, stored("router.weight")),
            L::ExpertGate | L::ExpertUp => {
                StoredTensor::by_expert(name, stored("experts.gate_up_proj"), GATE_UP)
            }
            L::ExpertDown => StoredTensor::own(name, stored("experts.down_proj")),
            _ => granitemoeshared::hf_tensor(name),
        }
    },
    gguf: None,
};
