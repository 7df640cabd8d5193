//! Gemma 4, the language model: wider heads in layers that see everything, layers that share keys
//! and values, an input of its own for each layer, a multiplier behind it, and experts beside a
//! dense MLP.

use ebb_kernels::model::{
    Activation, ExpertActivation, ExpertsSpec, LayerTensor, Mlp, ModelSpec, NormPlace,
    PerLayerInputs, QkNorm, RouterNorm, Routing, SharedExpert, TensorName,
};

use super::{Family, StoredTensor, TextType, gemma2, gemma4_gguf};
use crate::model::error::Refusal;
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults, RopeScalings, WindowRule};

/// One layer of so many sees everything, unless the configuration says otherwise.
pub(super) const FULL_INTERVAL: usize = 6;

/// Channels of a head in layers that see everything, unless the configuration says otherwise.
const FULL_HEAD_DIM: usize = 512;

/// The base of the RoPE of layers with windows.
pub(super) const SLIDING_BASE: f64 = 10_000.0;

pub(super) static FAMILY: Family = Family {
    name: "gemma4_text",
    hf_class: "Gemma4ForCausalLM",
    hf_text: &[
        TextType {
            model_types: &["gemma4_text"],
            sizes: r#"{
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262144,
            "max_position_embeddings": 131072
        }"#,
            constants: r#"{
            "head_dim": 256, "tie_word_embeddings": true, "sliding_window": 512,
            "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {
                    "rope_type": "proportional", "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0
                }
            }
        }"#,
        },
        // Gemma 4 without inputs of layers and experts.
        TextType {
            model_types: &["gemma4_unified_text"],
            sizes: r#"{
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262144,
            "max_position_embeddings": 262144
        }"#,
            constants: r#"{
            "head_dim": 256, "tie_word_embeddings": true, "sliding_window": 1024,
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {
                    "rope_type": "proportional", "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0
                }
            }
        }"#,
        },
    ],
    hf_spec: |config| {
        // Images alone are seen from both sides where this is "vision".
        if config.text("use_bidirectional_attention")? != Some("vision") {
            config.refuse("use_bidirectional_attention")?;
        }
        let mut spec = hf_spec(config)?;
        put_shared_layers(config, &mut spec)?;
        put_layer_inputs(config, &mut spec)?;
        put_experts(config, &mut spec)?;
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return gemma2::hf_tensor(name);
        };
        let part = match part {
            L::SharedGate => "mlp.gate_proj.weight",
            L::SharedUp => "mlp.up_proj.weight",
            L::SharedDown => "mlp.down_proj.weight",
            L::Router => "router.proj.weight",
            L::ExpertGate => "experts.*.gate_proj.weight",
            L::ExpertUp => "experts.*.up_proj.weight",
            L::ExpertDown => "experts.*.down_proj.weight",
            _ => return gemma2::hf_tensor(name),
        };
        StoredTensor::of_layer(name, layer, part)
    },
    gguf: Some(gemma4_gguf::FORM),
};

const DEFAULTS: HfDefaults = HfDefaults {
    attention_bias: AttentionBias::OfAll,
    rotates_part_of_a_head: false,
    rope_scalings: RopeScalings::Proportional,
    has_ropes_by_kind: true,
    has_gemma_activation: true,
    has_plain_mlp: false,
};

/// Everything but what layers share and get beside the residual stream.
fn hf_spec(config: &HfConfig) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform(&DEFAULTS)?;
    model.qk_norm = QkNorm::PerHead;
    let mut spec = model.spec();
    spec.embedding_multiplier = config.round((spec.hidden as f64).sqrt() as f32)?;
    let cap = config.number("final_logit_softcapping")?;
    spec.logit_soft_cap = cap.map(|cap| cap as f32);
    let sliding = config.sliding_layers(&spec, FULL_INTERVAL)?;
    if sliding.last() == Some(&true) {
        let expected = "full_attention in the last layer";
        return Err(Refusal::unsupported(
            "layer_types",
            "a window there",
            expected,
        ));
    }
    let values_are_keys = config.bool("attention_k_eq_v")? == Some(true);
    let full_head_dim = config.size("global_head_dim")?.unwrap_or(FULL_HEAD_DIM);
    let full_kv_heads = config.size("num_global_key_value_heads")?;
    let has_list = config.says("per_layer_config");
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        layer.output_scale = true;
        let attention = layer.attention_mut();
        (attention.scale, attention.v_norm) = (1.0, true);
        attention.v_is_k = values_are_keys && !sliding[index];
        // Without a list of layers, the same follows from fields of their own.
        let [head_dim, kv_heads] = match has_list {
            true => config.layer_sizes(index, ["head_dim", "num_key_value_heads"])?,
            false if sliding[index] => [None, None],
            false => [
                Some(full_head_dim),
                full_kv_heads.filter(|_| values_are_keys),
            ],
        };
        attention.head_dim = head_dim.unwrap_or(attention.head_dim);
        attention.kv_heads = kv_heads.unwrap_or(attention.kv_heads);
    }
    // A RoPE for each width of heads that see everything; the last is that of layers with windows.
    let base = config.sliding_rope(spec.heads().head_dim, Some(SLIDING_BASE))?;
    spec.ropes.clear();
    let mut widths = Vec::new();
    for (layer, _) in spec.layers.iter_mut().zip(&sliding).filter(|(_, s)| !**s) {
        let attention = layer.attention_mut();
        let width = attention.head_dim;
        let known = widths.iter().position(|known| *known == width);
        attention.rope = Some(known.unwrap_or(widths.len()));
        if known.is_none() {
            widths.push(width);
            spec.ropes.push(config.full_rope(width, &DEFAULTS)?);
        }
    }
    spec.ropes.push(base);
    config.put_windows(&mut spec, WindowRule::Always, |layer| sliding[layer])?;
    Ok(spec)
}

/// Layers that share keys and values, whose MLPs may be twice as wide.
fn put_shared_layers(config: &HfConfig, spec: &mut ModelSpec) -> Result<(), Refusal> {
    const KEY: &str = "num_kv_shared_layers";
    let shared = config.size(KEY)?.unwrap_or(0);
    if shared == 0 {
        return Ok(());
    }
    let sliding = config.sliding_layers(spec, FULL_INTERVAL)?;
    share_keys(spec, shared, &sliding, KEY)?;
    if config.bool("use_double_wide_mlp")? == Some(true) {
        for layer in spec.layers.iter_mut().rev().take(shared) {
            if let Mlp::Dense { intermediate, .. } = &mut layer.mlp {
                *intermediate *= 2;
            }
        }
    }
    Ok(())
}

/// The last layers read the keys and values of the last one before them of their kind. `field` is
/// what says how many do.
pub(super) fn share_keys(
    spec: &mut ModelSpec,
    shared: usize,
    sliding: &[bool],
    field: &str,
) -> Result<(), Refusal> {
    let layers = spec.layers.len();
    let first = layers.saturating_sub(shared);
    for index in first..layers {
        let source = (0..first).rfind(|before| sliding[*before] == sliding[index]);
        let Some(source) = source else {
            let expected = "layers of each kind before those that share";
            return Err(Refusal::invalid(field, shared, expected));
        };
        let attention = spec.layers[index].attention_mut();
        (attention.kv_from, attention.v_is_k) = (Some(source), false);
    }
    Ok(())
}

/// Every layer's dense MLP becomes an expert that all tokens go through, beside those that a router
/// chooses.
fn put_experts(config: &HfConfig, spec: &mut ModelSpec) -> Result<(), Refusal> {
    if config.bool("enable_moe_block")? != Some(true) {
        return Ok(());
    }
    let mut experts = ExpertsSpec::plain(
        config.required_size("num_experts")?,
        config.required_size("top_k_experts")?,
        config.required_size("moe_intermediate_size")?,
        Routing::SOFTMAX_OF_CHOSEN,
    );
    experts.router_norm = Some(RouterNorm {
        multiplier: (spec.hidden as f64).powf(-0.5) as f32,
    });
    (experts.weight_scales, experts.branch_norms) = (true, true);
    experts.activation = match spec.layers[0].activation() {
        Activation::Silu => ExpertActivation::SwiGlu,
        Activation::GeluTanh => ExpertActivation::GeGlu,
        Activation::Relu2 | Activation::Xielu => {
            let key = "hidden_activation";
            let found = format!("{:?}", config.text(key)?.unwrap_or_default());
            let expected = "silu or gelu_pytorch_tanh with experts";
            return Err(Refusal::unsupported(key, found, expected));
        }
    };
    for layer in &mut spec.layers {
        experts.shared = Some(SharedExpert {
            intermediate: layer.intermediate(),
            gated: false,
        });
        layer.mlp = Mlp::Experts(experts.clone());
    }
    Ok(())
}

fn put_layer_inputs(config: &HfConfig, spec: &mut ModelSpec) -> Result<(), Refusal> {
    let width = config.size("hidden_size_per_layer_input")?.unwrap_or(0);
    if width == 0 {
        return Ok(());
    }
    let key = "vocab_size_per_layer_input";
    if let Some(vocab) = config.size(key)?.filter(|vocab| *vocab != spec.vocab) {
        let expected = format!("vocab_size, {}", spec.vocab);
        return Err(Refusal::unsupported(key, vocab, &expected));
    }
    spec.per_layer_inputs = Some(PerLayerInputs {
        width,
        embedding_multiplier: config.round((width as f64).sqrt() as f32)?,
    });
    Ok(())
}
