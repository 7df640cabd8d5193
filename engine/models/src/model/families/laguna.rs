//! Laguna: gated attention of more query heads in some layers than in others, a RoPE for each kind
//! of layers, and experts chosen by sigmoids with a correction, one beside them.

use ebb_kernels::model::{
    LayerTensor, OutputGate, QkNorm, RouterScores, Routing, SharedExpert, TensorName,
};

use super::{Family, StoredTensor, TextType, glm4_moe, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, WindowRule};

pub(super) static FAMILY: Family = Family {
    name: "laguna",
    hf_class: "LagunaForCausalLM",
    hf_text: &[TextType {
        model_types: &["laguna"],
        sizes: r#"{
            "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
            "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 100352,
            "max_position_embeddings": 131072, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512
        }"#,
        constants: r#"{
            "head_dim": 128, "sliding_window": 512, "shared_expert_intermediate_size": 512,
            "first_k_dense_replace": 1,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}
            }
        }"#,
    }],
    hf_spec: |config| {
        config.refuse("moe_apply_router_weight_on_input")?;
        // Fields of older files.
        for key in ["swa_rope_parameters", "gating_types"] {
            config.refuse(key)?;
        }
        for key in ["moe_router_use_sigmoid", "norm_topk_prob"] {
            if config.bool(key)? == Some(false) {
                return Err(Refusal::unsupported(key, false, "true"));
            }
        }
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            rotates_part_of_a_head: true,
            has_ropes_by_kind: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        // The last is that of the layers with windows.
        let rope = config.sliding_rope(spec.heads().head_dim, None)?;
        spec.ropes.push(rope);
        config.put_windows(&mut spec, WindowRule::Always, |_| false)?;
        let (gate, heads) = (gate(config)?, heads(config, spec.layers.len())?);
        for (index, layer) in spec.layers.iter_mut().enumerate() {
            let attention = layer.attention_mut();
            attention.output_gate = Some(gate);
            attention.q_heads = heads.as_ref().map_or(attention.q_heads, |all| all[index]);
        }
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            scale: config.number("moe_routed_scaling_factor")?.unwrap_or(1.0) as f32,
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let mut experts = config.experts("moe_intermediate_size", routing)?;
        // 0 stands for none, as does less.
        let cap = config.number("moe_router_logit_softcapping")?;
        experts.router_cap = cap.filter(|cap| *cap > 0.0).map(|cap| cap as f32);
        experts.shared = Some(SharedExpert {
            intermediate: config.required_size("shared_expert_intermediate_size")?,
            gated: false,
        });
        let sparse = config.sparse_kinds(spec.layers.len())?;
        put_experts(&mut spec, &experts, |layer| sparse[layer]);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        match name {
            TensorName::Layer(layer, L::OutputGate) => StoredTensor::own(
                name,
                format!("model.layers.{layer}.self_attn.g_proj.weight"),
            ),
            // Published files have other names than transformers.
            TensorName::Layer(layer, L::RouterCorrection) => {
                let stored = format!("model.layers.{layer}.mlp.experts.e_score_correction_bias");
                StoredTensor::own(name, stored).or(Some(llama_hf(name)))
            }
            TensorName::Layer(_, L::SharedGate | L::SharedUp | L::SharedDown) => {
                llama_hf(name).or(Some(glm4_moe::hf_tensor(name)))
            }
            _ => llama_hf(name),
        }
    },
    gguf: None,
};

/// How attention is gated: `true` stands for a gate for each head.
fn gate(config: &HfConfig) -> Result<OutputGate, Refusal> {
    const KEY: &str = "gating";
    let (flag, kind) = match config.bool(KEY) {
        Ok(flag) => (flag.unwrap_or(true), "per-head"),
        Err(_) => (true, config.text(KEY)?.unwrap_or_default()),
    };
    let supported = "true, per-head, per-element";
    match (flag, kind) {
        (true, "per-head" | "per-element") => Ok(OutputGate {
            softplus: true,
            per_head: kind == "per-head",
        }),
        (false, _) => Err(Refusal::unsupported(KEY, false, supported)),
        (true, other) => Err(Refusal::unsupported(KEY, format!("{other:?}"), supported)),
    }
}

/// Query heads of each layer, where the configuration lists them.
fn heads(config: &HfConfig, layers: usize) -> Result<Option<Vec<usize>>, Refusal> {
    const KEY: &str = "num_attention_heads_per_layer";
    match config.sizes(KEY)? {
        Some(heads) if heads.len() != layers => {
            let expected = format!("a number for each of {layers} layers");
            Err(Refusal::invalid(KEY, heads.len(), expected))
        }
        heads => Ok(heads),
    }
}
