//! Tiny GGUF models of dense families whose architectures have files of few peculiarities.

use ebb_kernels::bf16;
use ebb_kernels::model::{
    Activation, Mlp, ModelSpec, NormKind, NormPlace, PlainMlp, QkNorm, Rope, TensorName,
    WeightSource,
};

use crate::gguf_builder::Value;
use crate::gguf_families::{open, refusal, tiny_gguf};
use crate::tiny;

/// A spec with LayerNorm that has biases.
fn layer_norms(spec: &mut ModelSpec) {
    spec.norms.kind = NormKind::Layer;
    spec.norms.bias = true;
}

/// MLPs without gates.
fn plain_mlps(spec: &mut ModelSpec, activation: Activation, bias: bool) {
    for layer in &mut spec.layers {
        layer.mlp = Mlp::Plain(PlainMlp {
            intermediate: layer.intermediate(),
            activation,
            bias,
        });
    }
}

fn biases(spec: &mut ModelSpec) {
    for layer in &mut spec.layers {
        let attention = layer.attention_mut();
        (attention.qkv_bias, attention.o_bias) = (true, true);
    }
}

#[test]
fn architectures_of_dense_families_have_their_weights_in_order() {
    type Change = fn(&mut ModelSpec);
    let families: [(&str, &str, bool, Change); 8] = [
        ("ernie4_5", "ernie4_5", true, |_| {}),
        ("arcee", "arcee", false, |spec| {
            plain_mlps(spec, Activation::Relu2, false);
        }),
        ("nemotron", "nemotron", false, |spec| {
            layer_norms(spec);
            spec.norms.from_one = true;
            spec.ropes = vec![Rope::new(vec![1.0; 4], 1.0)];
            plain_mlps(spec, Activation::Relu2, false);
        }),
        ("starcoder2", "starcoder2", true, |spec| {
            layer_norms(spec);
            biases(spec);
            plain_mlps(spec, Activation::GeluTanh, true);
        }),
        ("phi", "phi2", false, |spec| {
            layer_norms(spec);
            biases(spec);
            spec.ropes = vec![Rope::new(vec![1.0; 4], 1.0)];
            spec.lm_head_bias = true;
            plain_mlps(spec, Activation::GeluTanh, true);
            for layer in &mut spec.layers {
                layer.mlp_norm = NormPlace::Shared;
            }
        }),
        ("hunyuan_v1_dense", "hunyuan-dense", true, |spec| {
            for layer in &mut spec.layers {
                layer.attention_mut().qk_norm = QkNorm::PerHeadBehindRope;
            }
        }),
        ("qwen3_vl_text", "qwen3vl", true, |_| {}),
        ("gemma", "gemma", true, |spec| {
            spec.norms.from_one = true;
            // The root of 32 in bf16, as in transformers.
            spec.embedding_multiplier = 5.65625;
            for layer in &mut spec.layers {
                layer.mlp = Mlp::Dense {
                    intermediate: layer.intermediate(),
                    activation: Activation::GeluTanh,
                };
            }
        }),
    ];
    for (family, architecture, tied, change) in families {
        let family = tiny::family(family);
        let mut spec = tiny::spec(family, tied);
        change(&mut spec);
        let model = open(&tiny_gguf(architecture, &spec)).expect("a valid model");
        assert_eq!(model.family, family);
        assert_eq!(family.gguf_architectures(), [architecture]);
        tiny::assert_weights(&model, &spec);
    }
}

#[test]
fn command_r_has_layer_norms_and_a_scale_of_logits() {
    let mut spec = tiny::spec(tiny::family("cohere"), true);
    spec.norms.kind = NormKind::Layer;
    spec.logit_multiplier = 0.25;
    for layer in &mut spec.layers {
        layer.mlp_norm = NormPlace::Shared;
    }
    let mut gguf = tiny_gguf("command-r", &spec);
    gguf.f32("command-r.logit_scale", 0.25)
        .text("command-r.rope.scaling.type", "none");
    let model = open(&gguf).expect("a valid model");
    tiny::assert_weights(&model, &spec);
}

#[test]
fn seed_oss_has_its_second_norm_under_another_name() {
    let mut spec = tiny::spec(tiny::family("seed_oss"), false);
    for layer in &mut spec.layers {
        layer.attention_mut().qkv_bias = true;
    }
    let mut gguf = tiny_gguf("seed_oss", &spec);
    for tensor in &mut gguf.tensors {
        tensor.name = tensor.name.replace("ffn_norm", "post_attention_norm");
    }
    let model = open(&gguf).expect("a valid model");
    tiny::assert_weights(&model, &spec);
}

#[test]
fn stablelm_has_its_mlp_beside_attention_where_there_is_no_norm_between_them() {
    for is_parallel in [false, true] {
        let mut spec = tiny::spec(tiny::family("stablelm"), false);
        layer_norms(&mut spec);
        spec.ropes = vec![Rope::new(vec![1.0; 2], 1.0)];
        for layer in &mut spec.layers {
            layer.attention_mut().qkv_bias = true;
            if is_parallel {
                layer.mlp_norm = NormPlace::Shared;
            }
        }
        let mut gguf = tiny_gguf("stablelm", &spec);
        gguf.set("stablelm.use_parallel_residual", Value::Bool(true));
        let model = open(&gguf).expect("a valid model");
        assert_eq!(model.spec.ropes[0].rotary_dim(), 4);
        tiny::assert_weights(&model, &spec);
    }
}

#[test]
fn olmo_has_norms_without_weights() {
    let mut spec = tiny::spec(tiny::family("olmo2"), false);
    spec.norms.kind = NormKind::Layer;
    for layer in &mut spec.layers {
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Before, NormPlace::Before);
        layer.attention_mut().qk_norm = QkNorm::None;
    }
    let mut gguf = tiny_gguf("olmo", &spec);
    gguf.tensors.retain(|tensor| !tensor.name.contains("norm"));
    let model = open(&gguf).expect("a valid model");
    assert_eq!(model.family, tiny::family("olmo"));
    let weights = model.weights();
    for name in TensorName::all(&spec) {
        let loaded = weights.load(name).expect("a tensor");
        match name.is_norm() {
            true => assert!(loaded == vec![bf16::ONE; spec.hidden], "{name}"),
            false => {
                let values = tiny::values(name, &spec).into_iter();
                let expected: Vec<bf16> = values.map(bf16::from_f32).collect();
                assert!(loaded == expected, "{name} differs");
            }
        }
    }
    gguf.f32("olmo.attention.clamp_kqv", 8.0);
    assert!(refusal(&gguf).starts_with("`olmo.attention.clamp_kqv` is 8"));
}
