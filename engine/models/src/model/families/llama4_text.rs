//! Llama 4, the language model: attention in chunks, and layers without RoPE that see everything,
//! whose queries grow; experts whose inputs are weighted by sigmoids, one beside them that every
//! token goes through, and dense layers between.

use ebb_kernels::model::{
    ExpertsSpec, LayerTensor, ModelSpec, QkNorm, QueryGrowth, RouterScores, Routing, SharedExpert,
    TensorName,
};

use super::stored::GATE_UP;
use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::config::{GgufConfig, WINDOW_PATTERN};
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::model::hf::config::{AttentionBias, HfConfig, HfDefaults};

/// One layer of so many has no RoPE, unless the configuration says otherwise.
const NO_ROPE_INTERVAL: usize = 4;

const CHUNK: &str = "attention_chunk_size";

/// One layer of so many has experts, in either form of a model.
const EXPERT_INTERVAL: &str = "interleave_moe_layer_step";

pub(super) static FAMILY: Family = Family {
    name: "llama4_text",
    hf_class: "Llama4ForCausalLM",
    hf_text: &[TextType {
        model_types: &["llama4_text"],
        sizes: r#"{
            "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48,
            "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 202048,
            "max_position_embeddings": 131072, "num_local_experts": 16, "num_experts_per_tok": 1
        }"#,
        constants: r#"{
            "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "intermediate_size_mlp": 16384, "attention_chunk_size": 8192, "floor_scale": 8192
        }"#,
    }],
    hf_spec: |config| {
        let defaults = HfDefaults {
            attention_bias: AttentionBias::OfAll,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        let layers = model.layers;
        let (width, rotated) = (model.intermediate, rotated_layers(config, layers)?);
        model.intermediate = config.required_size("intermediate_size_mlp")?;
        let mut spec = model.spec();
        let full = config.attention_layers(layers, &["chunked_attention"])?;
        let full = full.unwrap_or_else(|| rotated.iter().map(|rotated| !rotated).collect());
        let has_norms = config.bool("use_qk_norm")?.unwrap_or(true);
        put_chunks(&mut spec, config.size(CHUNK)?, &full);
        put_positions(&mut spec, &rotated, growth(config)?, has_norms);
        let listed = config.sizes("moe_layers")?;
        let step = match &listed {
            Some(_) => 1,
            None => config.interval(EXPERT_INTERVAL, 1)?,
        };
        let has_experts = |layer: usize| match &listed {
            Some(listed) => listed.contains(&layer),
            None => (layer + 1).is_multiple_of(step),
        };
        if !(0..layers).any(has_experts) {
            return Ok(spec);
        }
        let experts = config.experts("intermediate_size", ROUTING)?;
        put_experts(&mut spec, &beside_shared(experts, width), has_experts);
        Ok(spec)
    },
    hf_tensor,
    gguf: Some(GgufFamily {
        architecture: "llama4",
        keys: &[EXPERTS, &[EXPERT_WIDTH, EXPERT_INTERVAL, WINDOW_PATTERN]],
        spec: gguf_spec,
        tensor: |name| match name {
            TensorName::Layer(_, LayerTensor::QNorm | LayerTensor::KNorm) => {
                StoredTensor::ones(name)
            }
            _ => llama_gguf(name),
        },
        // They leave them as they are, which is in that order.
        permutes_qk: true,
    }),
};

const ROUTING: Routing = Routing {
    scores: RouterScores::Sigmoid,
    renormalised: false,
    ..Routing::SOFTMAX_OF_CHOSEN
};

/// Experts whose inputs are weighted, beside one of `width` rows that every token goes through.
fn beside_shared(experts: ExpertsSpec, width: usize) -> ExpertsSpec {
    ExpertsSpec {
        weighted_input: true,
        shared: Some(SharedExpert {
            intermediate: width,
            gated: false,
        }),
        ..experts
    }
}

/// Gives chunks to the layers that do not see everything, if the context has several.
fn put_chunks(spec: &mut ModelSpec, chunk: Option<usize>, full: &[bool]) {
    let chunk = chunk.filter(|chunk| *chunk < spec.max_positions);
    for (layer, full) in spec.layers.iter_mut().zip(full) {
        let attention = layer.attention_mut();
        attention.window = chunk.filter(|_| !full);
        attention.chunked = attention.window.is_some();
    }
}

/// Norms behind RoPE if there are any, or in place of RoPE queries that grow.
fn put_positions(
    spec: &mut ModelSpec,
    rotated: &[bool],
    growth: Option<QueryGrowth>,
    has_norms: bool,
) {
    for (layer, rotated) in spec.layers.iter_mut().zip(rotated) {
        let attention = layer.attention_mut();
        if !rotated {
            (attention.rope, attention.query_growth) = (None, growth);
        } else if has_norms {
            attention.qk_norm = QkNorm::PerHeadBehindRope;
        }
    }
}

/// Files do not say what all published models have in common: the chunks, which layers see
/// everything and have no RoPE, and how their queries grow. Norms are what the model of 128 experts
/// does without.
fn gguf_spec(config: &GgufConfig<'_>) -> Result<ModelSpec, Refusal> {
    const LENGTH: u16 = 8192;
    const WITHOUT_NORMS: usize = 128;
    // Without chunks, files do not say where RoPE is.
    config.refuse_other("attention.sliding_window", LENGTH.into())?;
    config.refuse_other(WINDOW_PATTERN, NO_ROPE_INTERVAL)?;
    let mut spec = config.uniform()?.spec();
    let step = config.interval(EXPERT_INTERVAL, 1)?;
    let experts = config.experts(step - 1, ROUTING)?;
    let layers = 1..=spec.layers.len();
    let full: Vec<bool> = layers
        .map(|layer| layer.is_multiple_of(NO_ROPE_INTERVAL))
        .collect();
    let rotated: Vec<bool> = full.iter().map(|full| !full).collect();
    let growth = QueryGrowth {
        beta: 0.1,
        interval: LENGTH.into(),
        from_one: true,
    };
    put_chunks(&mut spec, Some(LENGTH.into()), &full);
    let has_norms = experts.experts != WITHOUT_NORMS;
    put_positions(&mut spec, &rotated, Some(growth), has_norms);
    let width = experts.intermediate;
    put_experts(&mut spec, &beside_shared(experts, width), |layer| {
        (layer + 1).is_multiple_of(step)
    });
    Ok(spec)
}

/// Which layers have RoPE: those that `no_rope_layers` has a 1 for.
fn rotated_layers(config: &HfConfig, layers: usize) -> Result<Vec<bool>, Refusal> {
    const KEY: &str = "no_rope_layers";
    let listed = config.sizes(KEY)?.filter(|listed| !listed.is_empty());
    let Some(listed) = listed else {
        let interval = config.interval("no_rope_layer_interval", NO_ROPE_INTERVAL)?;
        return Ok((1..=layers).map(|layer| layer % interval != 0).collect());
    };
    if listed.len() < layers {
        let expected = format!("a number for each of {layers} layers");
        return Err(Refusal::invalid(KEY, listed.len(), expected));
    }
    Ok(listed[..layers]
        .iter()
        .map(|rotated| *rotated != 0)
        .collect())
}

/// How queries of layers without RoPE grow, if they do: older files have a number that says it.
fn growth(config: &HfConfig) -> Result<Option<QueryGrowth>, Refusal> {
    const FLAG: &str = "attn_temperature_tuning";
    const INTERVAL: &str = "floor_scale";
    let number = config.size(FLAG).map(|flag| flag.map(|flag| flag != 0));
    if !number.or_else(|_| config.bool(FLAG))?.unwrap_or(true) {
        return Ok(None);
    }
    let interval = config.required_size(INTERVAL)?;
    let fits = u32::try_from(interval)
        .ok()
        .filter(|interval| *interval > 0);
    let expected = "a whole number above 0";
    Ok(Some(QueryGrowth {
        beta: config.number("attn_scale")?.unwrap_or(0.1) as f32,
        interval: fits.ok_or_else(|| Refusal::invalid(INTERVAL, interval, expected))?,
        from_one: true,
    }))
}

/// Published files have transposed matrices of all experts, quantised ones a tensor for each.
fn hf_tensor(name: TensorName) -> StoredTensor {
    use LayerTensor as L;
    let TensorName::Layer(layer, part) = name else {
        return llama_hf(name).interleaved();
    };
    let all = |part: &str| format!("model.layers.{layer}.feed_forward.experts.{part}");
    let part = match part {
        // They have no weights.
        L::QNorm | L::KNorm => return StoredTensor::ones(name),
        L::Gate => "gate_proj",
        L::Up => "up_proj",
        L::Down => "down_proj",
        L::Router => "router",
        L::SharedGate => "shared_expert.gate_proj",
        L::SharedUp => "shared_expert.up_proj",
        L::SharedDown => "shared_expert.down_proj",
        L::ExpertGate => "experts.*.gate_proj",
        L::ExpertUp => "experts.*.up_proj",
        L::ExpertDown => "experts.*.down_proj",
        _ => return llama_hf(name).interleaved(),
    };
    let stored = StoredTensor::of_layer(name, layer, &format!("feed_forward.{part}.weight"));
    match name {
        TensorName::Layer(_, L::ExpertGate | L::ExpertUp) => stored.or(Some(
            StoredTensor::by_columns(name, all("gate_up_proj"), GATE_UP),
        )),
        TensorName::Layer(_, L::ExpertDown) => stored.or(Some(StoredTensor::by_columns(
            name,
            all("down_proj"),
            &[L::ExpertDown],
        ))),
        _ => stored,
    }
}
