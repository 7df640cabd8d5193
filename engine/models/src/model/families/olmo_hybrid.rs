//! OLMo Hybrid: three of four layers follow the gated delta rule with doubled strengths, the fourth
//! has OLMo 3's attention with norms behind its parts; published files have no RoPE.

use ebb_kernels::model::{
    GatedDeltaSpec, LayerTensor, Mixer, NormPlace, QkNorm, RecurrentSpec, TensorName,
};

use super::qwen3_next::FULL_INTERVAL;
use super::{Family, StoredTensor, TextType, llama_hf};
use crate::model::hf::config::{HfDefaults, LINEAR};

/// That of the norm behind the delta rule, whatever the other norms have.
const DELTA_EPS: f32 = 1e-5;

pub(super) static FAMILY: Family = Family {
    name: "olmo_hybrid",
    hf_class: "OlmoHybridForCausalLM",
    hf_text: &[TextType {
        model_types: &["olmo_hybrid"],
        sizes: r#"{
            "hidden_size": 3840, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 30, "vocab_size": 100352, "max_position_embeddings": 65536
        }"#,
        constants: r#"{
            "num_key_value_heads": null, "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": true
        }"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        // Convolutions have the same.
        config.refuse_all_but_silu("silu")?;
        model.qk_norm = QkNorm::Whole;
        let (layers, heads, hidden) = (model.layers, model.q_heads, model.hidden);
        let k_heads = config.size("linear_num_key_heads")?.unwrap_or(heads);
        // Three quarters of the hidden size, if the file does not say it.
        let share = (hidden.saturating_mul(3) / 4).checked_div(k_heads);
        let k_dim = config.size("linear_key_head_dim")?.or(share).unwrap_or(0);
        let v_dim = config.size("linear_value_head_dim")?;
        let delta = GatedDeltaSpec {
            k_heads,
            v_heads: config.size("linear_num_value_heads")?.unwrap_or(heads),
            k_dim,
            v_dim: v_dim.unwrap_or(k_dim.saturating_mul(2)),
            taps: config.required_size("linear_conv_kernel_dim")?,
            norm_eps: DELTA_EPS,
            doubled: config.bool("linear_allow_neg_eigval")?.unwrap_or(true),
        };
        let by_interval = || {
            let mut attention: Vec<_> = (1..=layers).map(|l| l % FULL_INTERVAL == 0).collect();
            if let Some(last) = attention.last_mut() {
                *last |= layers < FULL_INTERVAL;
            }
            attention
        };
        let attention = config.attention_layers(layers, &[LINEAR])?;
        let attention = attention.unwrap_or_else(by_interval);
        let has_rope = config.has_rope_base()?;
        let mut spec = model.spec();
        for (layer, has_attention) in spec.layers.iter_mut().zip(attention) {
            if !has_attention {
                layer.mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(delta));
                continue;
            }
            (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::After);
            let attention = layer.attention_mut();
            attention.rope = attention.rope.filter(|_| has_rope);
        }
        Ok(spec)
    },
    hf_tensor,
    gguf: None,
};

fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        return llama_hf(name);
    };
    let own = |part: &str| StoredTensor::own(name, format!("model.layers.{layer}.{part}.weight"));
    let part = match part {
        // Published files call norms of layers without attention otherwise than transformers, which
        // writes the second of those names for layers with attention, too.
        L::AttnNorm => {
            return own("attention_layer_norm").or(Some(own("input_layernorm")));
        }
        L::MlpNorm | L::AttnPostNorm => {
            let other = own("feedforward_layer_norm");
            return own("post_attention_layernorm").or(Some(other));
        }
        L::DeltaQ => "linear_attn.q_proj",
        L::DeltaK => "linear_attn.k_proj",
        L::DeltaV => "linear_attn.v_proj",
        L::DeltaZ => "linear_attn.g_proj",
        L::DeltaB => "linear_attn.b_proj",
        L::DeltaA => "linear_attn.a_proj",
        L::DeltaNorm => "linear_attn.o_norm",
        L::DeltaOut => "linear_attn.o_proj",
        L::DeltaConv => {
            let stored = format!("model.layers.{layer}.linear_attn.*_conv1d.weight");
            return StoredTensor::taps_by_projection(name, stored);
        }
        _ => return llama_hf(name),
    };
    own(part)
}
