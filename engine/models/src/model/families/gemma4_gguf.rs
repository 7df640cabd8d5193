//! GGUF files of Gemma 4, the language model.

use ebb_kernels::bf16;
use ebb_kernels::model::{Activation, Mlp, ModelSpec, NormPlace, PerLayerInputs, QkNorm};

use super::gemma4_text::{FULL_INTERVAL, SLIDING_BASE, share_keys};
use super::{GgufFamily, gemma2, llama_gguf};
use crate::model::error::Refusal;
use crate::model::gguf::config::{
    GgufConfig, KV_HEADS, MLP_WIDTH, SLIDING_BASE as SLIDING_BASE_KEY, WINDOW_PATTERN,
};

// Heads of layers with windows have widths of their own.
const SLIDING_KEY_WIDTH: &str = "attention.key_length_swa";
const SLIDING_VALUE_WIDTH: &str = "attention.value_length_swa";
const SLIDING_ROTARY_DIM: &str = "rope.dimension_count_swa";
const SHARED_LAYERS: &str = "attention.shared_kv_layers";
const INPUT_WIDTH: &str = "embedding_length_per_layer_input";
const LOGIT_CAP: &str = "final_logit_softcapping";

/// Files divide the frequencies of pairs that do not rotate by 1e30: none is so low.
const LEAST_FREQUENCY: f32 = 1e-20;

pub(super) const FORM: GgufFamily = GgufFamily {
    architecture: "gemma4",
    keys: &[&[
        KV_HEADS,
        MLP_WIDTH,
        WINDOW_PATTERN,
        SLIDING_BASE_KEY,
        SLIDING_KEY_WIDTH,
        SLIDING_VALUE_WIDTH,
        SLIDING_ROTARY_DIM,
        SHARED_LAYERS,
        INPUT_WIDTH,
        LOGIT_CAP,
    ]],
    spec: |config| {
        let (mut spec, sliding) = layers(config)?;
        let shared = config.size(SHARED_LAYERS)?.unwrap_or(0);
        share_keys(&mut spec, shared, &sliding, &config.name(SHARED_LAYERS))?;
        let width = config.size(INPUT_WIDTH)?.filter(|width| *width > 0);
        spec.per_layer_inputs = width.map(|width| PerLayerInputs {
            width,
            embedding_multiplier: bf16::from_f32((width as f64).sqrt() as f32).to_f32(),
        });
        Ok(spec)
    },
    tensor: llama_gguf,
    permutes_qk: false,
};

/// Everything but what layers share and get beside the residual stream, and which layers have
/// windows.
fn layers(config: &GgufConfig<'_>) -> Result<(ModelSpec, Vec<bool>), Refusal> {
    const ROPE_FACTORS: &str = "rope_freqs.weight";
    if !config.has_tensor(ROPE_FACTORS) {
        return Err(Refusal::MissingTensor(ROPE_FACTORS.to_owned()));
    }
    // It is of heads that see everything.
    let mut model = config.uniform()?;
    model.activation = Activation::GeluTanh;
    model.qk_norm = QkNorm::PerHead;
    let layers = model.layers;
    let kv_heads = config.layer_sizes(KV_HEADS, layers)?;
    let mlp_widths = config.layer_sizes(MLP_WIDTH, layers)?;
    let mut spec = model.spec();
    // Files do not say of which type the checkpoint was; all that are published were of this one.
    spec.embedding_multiplier = bf16::from_f32(gemma2::root_of_width(&spec)).to_f32();
    // 0 stands for none.
    spec.logit_soft_cap = config.number(LOGIT_CAP)?.filter(|cap| *cap != 0.0);
    let frequencies = spec.ropes.iter_mut().flat_map(|rope| &mut rope.inv_freq);
    for frequency in frequencies.filter(|frequency| **frequency < LEAST_FREQUENCY) {
        *frequency = 0.0;
    }
    let sliding_dim = config.required_size(SLIDING_KEY_WIDTH)?;
    config.refuse_other(SLIDING_VALUE_WIDTH, sliding_dim)?;
    config.refuse_other(SLIDING_ROTARY_DIM, sliding_dim)?;
    // The last is that of layers with windows.
    spec.ropes
        .push(config.sliding_rope(sliding_dim, SLIDING_BASE)?);
    let missing = || Refusal::Missing(config.name("attention.sliding_window"));
    let window = config.window()?.ok_or_else(missing)?;
    let sliding = config.put_windows(&mut spec, Some(window), FULL_INTERVAL)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let has_tensor = |name: &str| config.has_tensor(&format!("blk.{index}.{name}.weight"));
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        layer.output_scale = has_tensor("layer_output_scale");
        if let (Some(widths), Mlp::Dense { intermediate, .. }) = (&mlp_widths, &mut layer.mlp) {
            *intermediate = widths[index];
        }
        let attention = layer.attention_mut();
        (attention.scale, attention.v_norm) = (1.0, true);
        attention.v_is_k = !has_tensor("attn_v");
        if sliding[index] {
            attention.head_dim = sliding_dim;
        }
        if let Some(kv_heads) = &kv_heads {
            attention.kv_heads = kv_heads[index];
        }
    }
    Ok((spec, sliding))
}
