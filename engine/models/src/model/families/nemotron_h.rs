//! Nemotron-H and Nemotron 3: layers of one part each, which is Mamba-2, attention without RoPE, an
//! MLP or experts, without gates and of the square of ReLU. GGUF files are of an architecture of
//! their own where there are experts.

use ebb_kernels::model::{
    Activation, ExpertActivation, ExpertsSpec, LayerTensor, Mamba2Spec, Mixer, Mlp, ModelSpec,
    PlainMlp, RecurrentSpec, SharedExpert, TensorName,
};

use super::{Family, GgufFamily, StoredTensor, TextType, mamba};
use crate::model::error::Refusal;
use crate::model::gguf::config::{GgufConfig, LAYER_NORM_EPS, MLP_WIDTH, PREDICTING, RMS_NORM_EPS};
use crate::model::gguf::experts::{
    EXPERT_WIDTH, EXPERTS as EXPERT_KEYS, SHARED_COUNT, SHARED_WIDTH, SIGMOID_ROUTING,
};
use crate::model::hf::config::{HfConfig, HfDefaults};
use crate::model::rope::{Scaling, rope};
use crate::model::tensors::layer_count;

/// What a layer is, in the text that older files have, and by name.
const MAMBA: char = 'M';
const ATTENTION: char = '*';
const MLP: char = '-';
const EXPERTS: char = 'E';
const KINDS: &[(char, &[&str])] = &[
    (MAMBA, &["linear_attention", "mamba"]),
    (ATTENTION, &["full_attention", "attention"]),
    (MLP, &["mlp"]),
    (EXPERTS, &["moe"]),
];

const PATTERN: (&str, &str) = ("layers_block_type", "hybrid_override_pattern");

/// Keys of GGUF files. The MLPs' widths are a list: that is 0 for a layer that has none.
const KEYS: &[&str] = &[MLP_WIDTH, LAYER_NORM_EPS, RMS_NORM_EPS];
const LATENT: &str = "moe_latent_size";

pub(super) static FAMILY: Family = Family {
    name: "nemotron_h",
    hf_class: "NemotronHForCausalLM",
    hf_text: &[TextType {
        model_types: &["nemotron_h"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 21504, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 131072, "max_position_embeddings": 4096
        }"#,
        // Files need not say how many layers there are beside what each is.
        constants: r#"{"num_hidden_layers": 1, "head_dim": 128}"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        for key in ["mlp_bias", "use_bias", "mamba_proj_bias"] {
            config.refuse(key)?;
        }
        config.refuse_other_text("mlp_hidden_act", "relu2")?;
        config.refuse_other_text("mamba_hidden_act", "silu")?;
        model.norm_eps = config.number("layer_norm_epsilon")?.unwrap_or(1e-5) as f32;
        let mamba = mamba_2(config, model.norm_eps)?;
        let Some(kinds) = config.layer_pattern(PATTERN, KINDS)? else {
            return Err(Refusal::Missing(PATTERN.0.to_owned()));
        };
        let plain = PlainMlp {
            intermediate: model.intermediate,
            activation: Activation::Relu2,
            bias: false,
        };
        // Models without experts need not say what they would be.
        let experts = match kinds.contains(&EXPERTS) {
            true => Some(experts(config)?),
            false => None,
        };
        model.layers = layer_count(kinds.len())?;
        let mut spec = model.spec();
        for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
            match (kind, &experts) {
                (ATTENTION, _) => layer.attention_mut().rope = None,
                (MAMBA, _) => layer.mixer = Mixer::Recurrent(RecurrentSpec::Mamba2(mamba)),
                _ => layer.mixer = Mixer::None,
            }
            layer.mlp = match (kind, &experts) {
                (MLP, _) => Mlp::Plain(plain),
                (EXPERTS, Some(experts)) => Mlp::Experts(experts.clone()),
                _ => Mlp::None,
            };
        }
        Ok(spec)
    },
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "nemotron_h",
        keys: &[KEYS, mamba::GGUF_KEYS],
        spec: gguf_spec,
        tensor: gguf_tensor,
        permutes_qk: true,
    }),
};

/// Files of models that have experts.
pub(super) static WITH_EXPERTS: GgufFamily = GgufFamily {
    architecture: "nemotron_h_moe",
    keys: &[
        KEYS,
        mamba::GGUF_KEYS,
        EXPERT_KEYS,
        SIGMOID_ROUTING,
        &[EXPERT_WIDTH, SHARED_COUNT, SHARED_WIDTH, LATENT, PREDICTING],
    ],
    spec: gguf_spec,
    tensor: gguf_tensor,
    permutes_qk: true,
};

fn mamba_2(config: &HfConfig, norm_eps: f32) -> Result<Mamba2Spec, Refusal> {
    let size = |key, default| Ok::<_, Refusal>(config.size(key)?.unwrap_or(default));
    // Older files have names that come first where both are there.
    let either =
        |old, key, default| Ok::<_, Refusal>(config.size(old)?.unwrap_or(size(key, default)?));
    let limits = match config.says("mamba_dt_limit") {
        true => "mamba_dt_limit",
        false => "time_step_limit",
    };
    let groups = either("mamba_n_groups", "n_groups", 8)?;
    Ok(Mamba2Spec {
        heads: size("mamba_num_heads", 128)?,
        head_dim: size("mamba_head_dim", 64)?,
        groups,
        state_dim: size("ssm_state_size", 128)?,
        taps: either("mamba_d_conv", "conv_kernel", 4)?,
        conv_bias: config
            .bool("mamba_conv_bias")?
            .or(config.bool("use_conv_bias")?)
            .unwrap_or(true),
        norm_parts: Some(groups),
        norm_eps,
        // As published; transformers 5.17 takes `time_step_min` for the least in prompts alone.
        time_steps: config.limits(limits)?,
    })
}

fn experts(config: &HfConfig) -> Result<ExpertsSpec, Refusal> {
    if let Some(latent) = config.size(LATENT)? {
        return Err(Refusal::unsupported(LATENT, latent, "its absence"));
    }
    let mut experts = config.experts("moe_intermediate_size", config.sigmoid_routing()?)?;
    experts.activation = ExpertActivation::Relu2;
    experts.shared = Some(SharedExpert {
        intermediate: config.required_size("moe_shared_expert_intermediate_size")?,
        gated: false,
    });
    Ok(experts)
}

/// A layer has attention where it has heads of keys, an MLP or experts where it has a width of
/// them, and else Mamba-2.
fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    let mut model = config.uniform_with_part(false)?;
    let attention = config.layers_with_keys(model.layers)?;
    let Some(widths) = config.layer_sizes(MLP_WIDTH, model.layers)? else {
        let expected = format!("a list of {} numbers, one for each layer", model.layers);
        let name = config.name(MLP_WIDTH);
        return Err(Refusal::invalid(name, model.intermediate, expected));
    };
    config.leave_out_predicting(&mut model)?;
    // Files have both keys, and the model is of this one.
    model.norm_eps = config.number(LAYER_NORM_EPS)?.unwrap_or(model.norm_eps);
    // Files say how many channels would rotate. None do.
    model.rope = rope(10_000.0, model.head_dim, &Scaling::None)?;
    let mut kinds = attention.iter().zip(&widths).take(model.layers);
    if let Some(both) = kinds.position(|(has_keys, width)| *has_keys && *width > 0) {
        let found = format!("{} in layer {both}", widths[both]);
        let expected = "0 where there are heads of keys";
        return Err(Refusal::invalid(config.name(MLP_WIDTH), found, expected));
    }
    let is_mamba = |layer: usize| !attention[layer] && widths[layer] == 0;
    let mamba = match (0..model.layers).find(|layer| is_mamba(*layer)) {
        Some(first) => {
            let mut mamba = mamba::gguf_spec(config, first, model.norm_eps)?;
            mamba.norm_parts = Some(mamba.groups);
            Some(RecurrentSpec::Mamba2(mamba))
        }
        None => None,
    };
    let has_experts = config.size("expert_count")?.unwrap_or(0) > 0;
    let first = (0..model.layers).find(|layer| widths[*layer] > 0);
    let experts = match first.filter(|_| has_experts) {
        Some(first) => Some(gguf_experts(config, first)?),
        None => None,
    };
    let mut spec = model.spec();
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        match mamba.filter(|_| is_mamba(index)) {
            Some(mamba) => layer.mixer = Mixer::Recurrent(mamba),
            None if attention[index] => layer.attention_mut().rope = None,
            None => layer.mixer = Mixer::None,
        }
        layer.mlp = match (widths[index], &experts) {
            (0, _) => Mlp::None,
            (_, Some(experts)) => Mlp::Experts(experts.clone()),
            (intermediate, None) => Mlp::Plain(PlainMlp {
                intermediate,
                activation: Activation::Relu2,
                bias: false,
            }),
        };
    }
    Ok(spec)
}

/// The experts, which layer `first` is the first to have.
fn gguf_experts(config: &GgufConfig<'_>, first: usize) -> Result<ExpertsSpec, Refusal> {
    config.refuse_other(LATENT, 0)?;
    config.required_size(EXPERT_WIDTH)?;
    let mut experts = config.experts(first, config.sigmoid_routing(first)?)?;
    experts.activation = ExpertActivation::Relu2;
    experts.shared = config.shared_experts(1, experts.intermediate)?;
    Ok(experts)
}

/// Every layer has one norm, whatever it is before.
fn gguf_tensor(name: TensorName) -> StoredTensor {
    match name {
        TensorName::Layer(layer, LayerTensor::MlpNorm) => {
            StoredTensor::own(name, format!("blk.{layer}.attn_norm.weight"))
        }
        _ => mamba::gguf_tensor(name),
    }
}

fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        let stored = match name {
            TensorName::Embedding => "backbone.embeddings.weight",
            TensorName::FinalNorm => "backbone.norm_f.weight",
            _ => "lm_head.weight",
        };
        return StoredTensor::own(name, stored);
    };
    let prefix = format!("backbone.layers.{layer}");
    let of_each_expert = |part: &str| {
        StoredTensor::of_each_expert(name, format!("{prefix}.mixer.experts.*.{part}.weight"))
    };
    let part = match part {
        L::AttnNorm | L::MlpNorm => "norm.weight",
        L::Q => "mixer.q_proj.weight",
        L::K => "mixer.k_proj.weight",
        L::V => "mixer.v_proj.weight",
        L::O => "mixer.o_proj.weight",
        L::Up => "mixer.up_proj.weight",
        L::Down => "mixer.down_proj.weight",
        L::Router => "mixer.gate.weight",
        L::RouterCorrection => "mixer.gate.e_score_correction_bias",
        L::SharedUp => "mixer.shared_experts.up_proj.weight",
        L::SharedDown => "mixer.shared_experts.down_proj.weight",
        L::ExpertUp => return of_each_expert("up_proj"),
        L::ExpertDown => return of_each_expert("down_proj"),
        _ => {
            let mamba = mamba::hf_tensor(name, &format!("{prefix}.mixer"));
            return mamba.unwrap_or_else(|| unreachable!("no layer has a {part:?}"));
        }
    };
    StoredTensor::own(name, format!("{prefix}.{part}"))
}
