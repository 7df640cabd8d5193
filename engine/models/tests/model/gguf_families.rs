//! Tiny GGUF models of every architecture: shapes, weights in order, and RoPE.

use std::path::Path;

use ebb_kernels::model::{
    Activation, LayerTensor, Mlp, ModelSpec, NormKind, NormPlace, QkNorm, Rope, TensorName,
};
use ebb_models::model::gguf::GgmlType;
use ebb_models::model::{GenerationDefaults, LoadedModel, ModelError, ModelFiles};
use tempfile::TempDir;

use crate::gguf_builder::{GgufBuilder, Value, texts};
use crate::tiny;

pub(crate) fn gguf_name(name: TensorName) -> String {
    match name {
        TensorName::Embedding => "token_embd.weight".into(),
        TensorName::FinalNorm => "output_norm.weight".into(),
        TensorName::FinalNormBias => "output_norm.bias".into(),
        TensorName::LmHead => "output.weight".into(),
        TensorName::LmHeadBias => "output.bias".into(),
        TensorName::PerLayerEmbedding
        | TensorName::PerLayerProjection
        | TensorName::PerLayerNorm => panic!("{name} of a plain model"),
        TensorName::Layer(layer, tensor) => {
            let tensor = match tensor {
                LayerTensor::AttnNorm => "attn_norm.weight",
                LayerTensor::AttnNormBias => "attn_norm.bias",
                LayerTensor::MlpNormBias => "ffn_norm.bias",
                LayerTensor::OBias => "attn_output.bias",
                LayerTensor::UpBias => "ffn_up.bias",
                LayerTensor::DownBias => "ffn_down.bias",
                LayerTensor::Q => "attn_q.weight",
                LayerTensor::K => "attn_k.weight",
                LayerTensor::V => "attn_v.weight",
                LayerTensor::QBias => "attn_q.bias",
                LayerTensor::KBias => "attn_k.bias",
                LayerTensor::VBias => "attn_v.bias",
                LayerTensor::QNorm => "attn_q_norm.weight",
                LayerTensor::KNorm => "attn_k_norm.weight",
                LayerTensor::O => "attn_output.weight",
                LayerTensor::MlpNorm => "ffn_norm.weight",
                LayerTensor::Gate => "ffn_gate.weight",
                LayerTensor::Up => "ffn_up.weight",
                LayerTensor::Down => "ffn_down.weight",
                LayerTensor::AttnPostNorm => "post_attention_norm.weight",
                LayerTensor::MlpPostNorm => "post_ffw_norm.weight",
                other => panic!("{other:?} of a plain model"),
            };
            format!("blk.{layer}.{tensor}")
        }
    }
}

/// Q and K as interleaved RoPE has them. Where all of a head rotates it is what llama.cpp's
/// converter does to them of the `llama` architecture: `w.reshape(heads, 2, rows // heads // 2,
/// columns).swapaxes(1, 2)`.
fn permute(values: &[f32], heads: usize, rows: usize, rotary_dim: usize) -> Vec<f32> {
    let (columns, head_dim, pairs) = (values.len() / rows, rows / heads, rotary_dim / 2);
    let mut out = Vec::new();
    for head in 0..heads {
        let rotating = (0..pairs).flat_map(|pair| [pair, pairs + pair]);
        for channel in rotating.chain(rotary_dim..head_dim) {
            let row = head * head_dim + channel;
            out.extend_from_slice(&values[row * columns..(row + 1) * columns]);
        }
    }
    out
}

/// Architectures whose files have interleaved heads.
const INTERLEAVED: [&str; 9] = [
    "llama",
    "smollm3",
    "granite",
    "glm4",
    "cohere2",
    "command-r",
    "ernie4_5",
    "arcee",
    "olmo",
];

/// A tiny model of `architecture`, as a converter would write it.
pub(crate) fn tiny_gguf(architecture: &str, spec: &ModelSpec) -> GgufBuilder {
    let mut gguf = GgufBuilder::default();
    let key = |name: &str| format!("{architecture}.{name}");
    let eps = match spec.norms.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    // RoPE is left to the tests about it, but for one that rotates a part.
    let rotary_dim = match spec.ropes[0].rotary_dim() {
        0 => spec.heads().head_dim,
        rotary_dim => rotary_dim,
    };
    gguf.text("general.architecture", architecture)
        .text("general.type", "model")
        .u32(&key("block_count"), spec.layers.len() as u32)
        .u32(&key("context_length"), spec.max_positions as u32)
        .u32(&key("embedding_length"), spec.hidden as u32)
        .u32(
            &key("feed_forward_length"),
            spec.layers[0].intermediate() as u32,
        )
        .u32(&key("attention.head_count"), spec.heads().q_heads as u32)
        .u32(
            &key("attention.head_count_kv"),
            spec.heads().kv_heads as u32,
        )
        .u32(&key("attention.key_length"), spec.heads().head_dim as u32)
        .u32(&key("attention.value_length"), spec.heads().head_dim as u32)
        .f32(&key(eps), spec.norm_eps)
        .u32(&key("rope.dimension_count"), rotary_dim as u32)
        .f32(&key("rope.freq_base"), 10_000.0)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "default")
        .set("tokenizer.ggml.tokens", texts(&["a", "b", "c"]))
        .u32("tokenizer.ggml.eos_token_id", 2)
        .text("tokenizer.chat_template", "{{ messages }}");
    for name in TensorName::all(spec) {
        let mut values = tiny::values(name, spec);
        let shape = name.shape(spec);
        if let TensorName::Layer(_, tensor) = name
            && INTERLEAVED.contains(&architecture)
        {
            match tensor {
                LayerTensor::Q | LayerTensor::QBias => {
                    values = permute(&values, spec.heads().q_heads, shape[0], rotary_dim);
                }
                LayerTensor::K | LayerTensor::KBias => {
                    values = permute(&values, spec.heads().kv_heads, shape[0], rotary_dim);
                }
                _ => {}
            }
        }
        if spec.norms.from_one && name.is_norm() {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        gguf.f32_tensor(&gguf_name(name), &shape, &values);
    }
    gguf
}

/// Opens what the builder builds, through a file.
pub(crate) fn open(gguf: &GgufBuilder) -> Result<LoadedModel, ModelError> {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, gguf.build()).expect("write the model");
    // The map outlives the directory entry.
    LoadedModel::open(&ModelFiles::Gguf(path))
}

/// Why the model is refused, without the path in front.
pub(crate) fn refusal(gguf: &GgufBuilder) -> String {
    match open(gguf).expect_err("should be refused") {
        ModelError::Refused { path, reason } => {
            assert_eq!(path.file_name(), Path::new("tiny.gguf").file_name());
            reason.to_string()
        }
        other => panic!("{other}"),
    }
}

#[test]
fn every_architecture_gives_its_shapes_and_its_weights_in_half_split_order() {
    let families = [
        ("llama", tiny::family("llama")),
        ("qwen2", tiny::family("qwen2")),
        ("qwen3", tiny::family("qwen3")),
    ];
    for (architecture, family) in families {
        for tied in [false, true] {
            let spec = tiny::spec(family, tied);
            let model = open(&tiny_gguf(architecture, &spec)).expect("a valid model");
            assert_eq!(model.family, family);
            tiny::assert_weights(&model, &spec);
            assert_eq!(model.name, "tiny");
            assert_eq!(model.end_ids, [2]);
            assert_eq!(model.chat_template.as_deref(), Some("{{ messages }}"));
            assert_eq!(model.max_context(), 512);
            assert_eq!(
                (
                    model.spec.ropes[0].inv_freq.len(),
                    model.spec.ropes[0].scale
                ),
                (8, 1.0)
            );
            assert!((model.spec.ropes[0].inv_freq[4] - 0.01).abs() < 1e-9);
        }
    }
}

#[test]
fn a_llama_with_biases_has_them_put_in_order_too() {
    let mut spec = tiny::spec(tiny::family("llama"), false);
    for layer in &mut spec.layers {
        layer.attention_mut().qkv_bias = true;
    }
    let model = open(&tiny_gguf("llama", &spec)).expect("a valid model");
    tiny::assert_weights(&model, &spec);
}

#[test]
fn every_tensor_type_loads() {
    let spec = tiny::spec(tiny::family("llama"), true);
    let mut gguf = tiny_gguf("llama", &spec);
    let embedding = &mut gguf.tensors[0];
    // 40 rows of 32 elements: one block of Q8_0 a row, each with scale 1 and codes -1.
    embedding.type_id = GgmlType::Q8_0.id();
    embedding.data = [vec![0x00, 0x3C], vec![0xFF; 32]].concat().repeat(40);
    let model = open(&gguf).expect("a valid model");
    let values = ebb_kernels::model::WeightSource::load(&model.weights(), TensorName::Embedding);
    assert!(
        values
            .expect("it loads")
            .iter()
            .all(|value| value.to_f32() == -1.0)
    );
}

#[test]
fn rope_scaling_comes_from_keys_or_from_the_factors_tensor() {
    let spec = tiny::spec(tiny::family("llama"), true);
    let frequencies = |change: &dyn Fn(&mut GgufBuilder)| {
        let mut gguf = tiny_gguf("llama", &spec);
        change(&mut gguf);
        let model = open(&gguf).expect("a valid model");
        (
            model.spec.ropes[0].inv_freq.clone(),
            model.spec.ropes[0].scale,
            model.max_context(),
        )
    };
    let (plain, ..) = frequencies(&|_| {});
    let (zero, ..) = frequencies(&|gguf| {
        gguf.text("llama.rope.scaling.type", "none")
            .f32("llama.rope.scaling.factor", 0.0);
    });
    assert_eq!(plain, zero);
    let halved: Vec<f32> = plain.iter().map(|freq| freq / 2.0).collect();
    let (linear, ..) = frequencies(&|gguf| {
        gguf.text("llama.rope.scaling.type", "linear")
            .f32("llama.rope.scaling.factor", 2.0);
    });
    assert_eq!(linear, halved);
    let (old_linear, ..) = frequencies(&|gguf| {
        gguf.f32("llama.rope.scale_linear", 2.0);
    });
    assert_eq!(old_linear, halved);

    let factors = [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0];
    let (scaled, ..) = frequencies(&|gguf| {
        gguf.f32_tensor("rope_freqs.weight", &[8], &factors);
    });
    for ((scaled, plain), factor) in scaled.iter().zip(&plain).zip(factors) {
        assert!((scaled * factor / plain - 1.0).abs() < 1e-6);
    }

    let (yarn, scale, context) = frequencies(&|gguf| {
        gguf.text("llama.rope.scaling.type", "yarn")
            .f32("llama.rope.scaling.factor", 4.0)
            .u32("llama.rope.scaling.original_context_length", 512);
    });
    assert_eq!(
        (yarn[0], yarn[7]),
        (plain[0], plain[7] / 4.0),
        "ends are kept and divided"
    );
    assert!((scale - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
    assert_eq!(context, 2048);
    let yarn_with = |key: &'static str, value| {
        let (_, scale, _) = frequencies(&|gguf| {
            gguf.text("llama.rope.scaling.type", "yarn")
                .f32("llama.rope.scaling.factor", 4.0)
                .f32(&format!("llama.rope.scaling.{key}"), value);
        });
        scale
    };
    // Its multiplier by itself, which 1 leaves as it is, or what another one leaves of it.
    assert_eq!(yarn_with("yarn_attn_factor", 1.0), scale);
    assert_eq!(yarn_with("yarn_attn_factor", 1.5), 1.5);
    assert_eq!(yarn_with("yarn_log_multiplier", 0.0), scale);
    assert_eq!(yarn_with("yarn_log_multiplier", 1.0), 1.0);
    for (key, value, expected) in [
        ("yarn_attn_factor", -1.0, "a number above 0"),
        ("yarn_beta_fast", 1.0, "more than yarn_beta_slow, 1"),
        ("yarn_beta_slow", 0.0, "a number above 0"),
        ("yarn_log_multiplier", -1.0, "a number from 0"),
    ] {
        let mut gguf = tiny_gguf("llama", &spec);
        gguf.text("llama.rope.scaling.type", "yarn")
            .f32("llama.rope.scaling.factor", 4.0)
            .f32(&format!("llama.rope.scaling.{key}"), value);
        let wanted = format!("`llama.rope.scaling.{key}` is {value}; expected {expected}");
        assert_eq!(refusal(&gguf), wanted);
    }
}

#[test]
fn a_sliding_window_is_that_of_all_layers() {
    let spec = tiny::spec(tiny::family("llama"), true);
    let mut gguf = tiny_gguf("llama", &spec);
    gguf.u32("llama.attention.sliding_window", 128);
    let windows = |model: &LoadedModel| -> Vec<Option<usize>> {
        let layers = model.spec.layers.iter();
        layers.map(|layer| layer.attention()?.window).collect()
    };
    let mut model = open(&gguf).expect("a valid model");
    assert_eq!(model.max_context(), 512);
    assert!(windows(&model).iter().all(|window| *window == Some(128)));
    assert!(model.notes.is_empty());

    // A device that computes none sees all of what fits a window.
    model.limit_to_windows("a toaster");
    assert_eq!(model.max_context(), 128);
    assert!(windows(&model).iter().all(Option::is_none));
    let note = &model.notes[0];
    assert!(
        note.contains("128 of the model's 512 tokens, because a toaster"),
        "{note}"
    );

    gguf.u32("llama.attention.sliding_window", 512);
    let mut model = open(&gguf).expect("a valid model");
    assert!(windows(&model).iter().all(Option::is_none));
    model.limit_to_windows("a toaster");
    assert!(model.notes.is_empty() && model.max_context() == 512);
}

#[test]
fn recommended_sampling_is_read() {
    let spec = tiny::spec(tiny::family("qwen3"), true);
    let mut gguf = tiny_gguf("qwen3", &spec);
    gguf.f32("general.sampling.temp", 0.6)
        .set("general.sampling.top_k", Value::I32(20))
        .f32("general.sampling.top_p", 0.95);
    let model = open(&gguf).expect("a valid model");
    let expected = GenerationDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        ..GenerationDefaults::default()
    };
    assert_eq!(model.generation, expected);
    gguf.f32("general.sampling.top_p", 1.5);
    assert_eq!(
        refusal(&gguf),
        "metadata `general.sampling.top_p` is 1.5; expected a number above 0, at most 1"
    );
}

#[test]
fn a_tensor_that_is_not_finite_is_refused_when_loaded() {
    let spec = tiny::spec(tiny::family("llama"), true);
    let mut gguf = tiny_gguf("llama", &spec);
    let last = gguf
        .tensors
        .iter_mut()
        .find(|tensor| tensor.name == "output_norm.weight");
    last.expect("it is there").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let model = open(&gguf).expect("the values are not looked at yet");
    let error = ebb_kernels::model::WeightSource::load(&model.weights(), TensorName::FinalNorm);
    let sentence = error.expect_err("NaN").to_string();
    assert!(sentence.contains("`output_norm.weight` holds a value that is not finite"));
}

#[test]
fn the_content_hash_tells_models_apart_but_not_their_weights() {
    let spec = tiny::spec(tiny::family("llama"), true);
    let gguf = tiny_gguf("llama", &spec);
    let hash = |gguf: &GgufBuilder| open(gguf).expect("a valid model").content_hash;
    let full = |gguf: &GgufBuilder| open(gguf).expect("a valid model").weights_sha256();
    let mut other_weights = gguf.clone();
    other_weights.tensors[0].data[0] ^= 1;
    assert_eq!(hash(&gguf), hash(&other_weights));
    assert_ne!(full(&gguf), full(&other_weights));
    let mut other_config = gguf.clone();
    other_config.f32("llama.rope.freq_base", 20_000.0);
    assert_ne!(hash(&gguf), hash(&other_config));
    assert_eq!(hash(&gguf).len(), 64);
}

#[test]
fn olmo2_has_its_norms_behind_and_whole() {
    let spec = tiny::spec(tiny::family("olmo2"), false);
    let model = open(&tiny_gguf("olmo2", &spec)).expect("a valid model");
    assert_eq!(model.family, tiny::family("olmo2"));
    tiny::assert_weights(&model, &spec);
}

#[test]
fn smollm3_lacks_rope_in_every_fourth_layer() {
    let mut spec = tiny::spec(tiny::family("smollm3"), true);
    spec.layers = vec![spec.layers[0].clone(); 5];
    spec.layers[3].attention_mut().rope = None;
    let model = open(&tiny_gguf("smollm3", &spec)).expect("a valid model");
    tiny::assert_weights(&model, &spec);
}

/// Stores some tensors of each layer as one, as Phi-3's files have them.
fn fuse(gguf: &mut GgufBuilder, spec: &ModelSpec, name: &str, parts: &[LayerTensor]) {
    for layer in 0..spec.layers.len() {
        let parts = parts.iter().map(|part| TensorName::Layer(layer, *part));
        let parts: Vec<_> = parts.collect();
        let names: Vec<_> = parts.iter().map(|part| gguf_name(*part)).collect();
        gguf.tensors.retain(|tensor| !names.contains(&tensor.name));
        let values: Vec<f32> = parts
            .iter()
            .flat_map(|part| tiny::values(*part, spec))
            .collect();
        let shape = [values.len() / spec.hidden, spec.hidden];
        gguf.f32_tensor(&format!("blk.{layer}.{name}"), &shape, &values);
    }
}

#[test]
fn phi3_has_fused_tensors_and_factors_for_short_and_long_contexts() {
    use LayerTensor as L;
    let spec = tiny::spec(tiny::family("phi3"), false);
    let mut gguf = tiny_gguf("phi3", &spec);
    fuse(&mut gguf, &spec, "attn_qkv.weight", &[L::Q, L::K, L::V]);
    fuse(&mut gguf, &spec, "ffn_up.weight", &[L::Gate, L::Up]);
    let plain = open(&gguf).expect("a valid model");
    tiny::assert_weights(&plain, &spec);
    assert_eq!(plain.spec.ropes[0].inv_freq.len(), 8);

    // Half of each head rotates, by LongRoPE.
    gguf.u32("phi3.rope.dimension_count", 8)
        .u32("phi3.rope.scaling.original_context_length", 64)
        .f32("phi3.rope.scaling.attn_factor", 1.25)
        .f32_tensor("rope_factors_short.weight", &[4], &[1.0; 4])
        .f32_tensor("rope_factors_long.weight", &[4], &[1.0, 2.0, 4.0, 8.0]);
    let model = open(&gguf).expect("a valid model");
    let rope = &model.spec.ropes[0];
    assert_eq!((rope.rotary_dim(), rope.scale), (8, 1.25));
    assert_eq!(rope.frequencies(64), rope.inv_freq);
    let ratio = rope.frequencies(64)[3] / rope.frequencies(65)[3];
    assert!((ratio - 8.0).abs() < 1e-5, "{ratio}");
    gguf.f32_tensor("rope_factors_short.weight", &[5], &[1.0; 5]);
    assert!(open(&gguf).is_err());
}

#[test]
fn granite_has_multipliers() {
    let mut spec = tiny::spec(tiny::family("granite"), true);
    spec.embedding_multiplier = 12.0;
    spec.residual_multiplier = 0.22;
    spec.logit_multiplier = 1.0 / 8.0;
    for layer in &mut spec.layers {
        layer.attention_mut().scale = 0.015625;
    }
    let mut gguf = tiny_gguf("granite", &spec);
    gguf.f32("granite.embedding_scale", 12.0)
        .f32("granite.residual_scale", 0.22)
        .f32("granite.logit_scale", 8.0)
        .f32("granite.attention.scale", 0.015625);
    let model = open(&gguf).expect("a valid model");
    assert_eq!(model.family, tiny::family("granite"));
    tiny::assert_weights(&model, &spec);
    gguf.set("granite.rope.scaling.finetuned", Value::Bool(false));
    assert!(refusal(&gguf).contains("`granite.rope.scaling.finetuned`"));
}

#[test]
fn glm4_rotates_a_part_of_each_head_and_has_four_norms() {
    use LayerTensor as L;
    let mut spec = tiny::spec(tiny::family("glm4"), false);
    spec.ropes = vec![Rope::new(vec![1.0; 4], 1.0)];
    for layer in &mut spec.layers {
        layer.attention_mut().qkv_bias = true;
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
    }
    let mut gguf = tiny_gguf("glm4", &spec);
    fuse(&mut gguf, &spec, "ffn_up.weight", &[L::Gate, L::Up]);
    let model = open(&gguf).expect("a valid model");
    assert_eq!(model.spec.ropes[0].rotary_dim(), 8);
    tiny::assert_weights(&model, &spec);
    // LongRoPE is Phi-3's.
    gguf.f32_tensor("rope_factors_long.weight", &[4], &[2.0; 4]);
    assert_eq!(
        refusal(&gguf),
        "tensor `rope_factors_long.weight` is LongRoPE's, which is not computed for glm4"
    );
}

#[test]
fn cohere2_has_layer_norms_and_rope_in_layers_with_windows_alone() {
    let mut spec = tiny::spec(tiny::family("cohere2"), true);
    spec.norms.kind = NormKind::Layer;
    spec.logit_multiplier = 0.25;
    spec.layers = vec![spec.layers[0].clone(); 5];
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.mlp_norm = NormPlace::Shared;
        let attention = layer.attention_mut();
        match index {
            3 => attention.rope = None,
            _ => attention.window = Some(96),
        }
    }
    let mut gguf = tiny_gguf("cohere2", &spec);
    gguf.f32("cohere2.logit_scale", 0.25)
        .u32("cohere2.attention.sliding_window", 96)
        .text("cohere2.rope.scaling.type", "none");
    let model = open(&gguf).expect("a valid model");
    tiny::assert_weights(&model, &spec);
    for key in ["cohere2.logit_scale", "cohere2.attention.sliding_window"] {
        let missing = format!("`{key}` is missing");
        let mut without = gguf.clone();
        assert_eq!(refusal(without.remove(key)), missing);
        let mut zero = gguf.clone();
        match key.ends_with("scale") {
            true => zero.f32(key, 0.0),
            false => zero.u32(key, 0),
        };
        assert_eq!(refusal(&zero), missing);
    }
}

/// What Gemma 2 and 3 have in common.
fn gemma(family: &str) -> ModelSpec {
    let mut spec = tiny::spec(tiny::family(family), true);
    spec.norms.from_one = true;
    // The root of 32 in bf16, as in transformers.
    spec.embedding_multiplier = 5.65625;
    for layer in &mut spec.layers {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        layer.mlp = Mlp::Dense {
            intermediate: layer.intermediate(),
            activation: Activation::GeluTanh,
        };
    }
    spec
}

#[test]
fn gemma2_has_caps_and_a_window_in_every_other_layer() {
    let mut spec = gemma("gemma2");
    spec.logit_soft_cap = Some(20.0);
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.attention_mut().soft_cap = Some(50.0);
        layer.attention_mut().window = (index % 2 == 0).then_some(96);
    }
    let mut gguf = tiny_gguf("gemma2", &spec);
    gguf.f32("gemma2.final_logit_softcapping", 20.0)
        .u32("gemma2.attention.sliding_window", 96);
    let model = open(&gguf).expect("a valid model");
    tiny::assert_weights(&model, &spec);
    gguf.u32("gemma2.attention.sliding_window_pattern", 0);
    assert_eq!(
        refusal(&gguf),
        "`gemma2.attention.sliding_window_pattern` is 0; expected a number of layers above 0"
    );
    // The 27B model, which has 46 layers, scales queries by its width.
    spec.layers = vec![spec.layers[0].clone(); 46];
    let model = open(&tiny_gguf("gemma2", &spec)).expect("a valid model");
    assert_eq!(model.spec.attention(45).scale, 8f32.sqrt().recip());
}

#[test]
fn gemma3_has_norms_of_heads_and_two_ropes() {
    let mut spec = gemma("gemma3_text");
    spec.layers = vec![spec.layers[0].clone(); 7];
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut();
        attention.qk_norm = QkNorm::PerHead;
        attention.window = (index != 5).then_some(96);
        attention.rope = Some(usize::from(index != 5));
    }
    spec.ropes = vec![Rope::default(); 2];
    let mut gguf = tiny_gguf("gemma3", &spec);
    gguf.u32("gemma3.attention.sliding_window", 96)
        .f32("gemma3.rope.freq_base", 1e6)
        .text("gemma3.rope.scaling.type", "linear")
        .f32("gemma3.rope.scaling.factor", 8.0);
    let model = open(&gguf).expect("a valid model");
    tiny::assert_weights(&model, &spec);
    let firsts: Vec<_> = model
        .spec
        .ropes
        .iter()
        .map(|rope| rope.inv_freq[0])
        .collect();
    assert_eq!(firsts, [0.125, 1.0]);
    let last = model.spec.ropes[1].inv_freq[7];
    assert!((last / 10_000f32.powf(-7.0 / 8.0) - 1.0).abs() < 1e-6);
}
