//! Checkpoints of models with recurrent layers, by hand: which row of the model is which of a file.

use ebb_kernels::bf16;
use ebb_kernels::model::{
    LayerTensor as L, Mixer, ModelSpec, RecurrentSpec, ShortConvSpec, TensorName, WeightSource,
};
use ebb_models::model::LoadedModel;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::{HfBuilder, Stored};

/// Two key heads of two value heads each; a layer of the delta rule, then one of attention.
fn config(model_type: &str, class: &str) -> Value {
    json!({
        "architectures": [class], "model_type": model_type, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "intermediate_size": 24, "vocab_size": 32, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "full_attention_interval": 2, "hidden_act": "silu",
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "eos_token_id": 2,
        "tie_word_embeddings": false, "partial_rotary_factor": 0.5
    })
}

/// Row `r` of a tensor, counted through, is `r` everywhere.
fn rows(name: &str, shape: &[usize]) -> Stored {
    let width = shape[shape.len() - 1];
    let count: usize = shape.iter().product();
    let values = (0..count).flat_map(|i| bf16::from_f32((i / width) as f32).to_le_bytes());
    Stored(name.into(), Dtype::BF16, shape.to_vec(), values.collect())
}

/// What all of them have, the MLPs apart.
fn common(prefix: &str) -> Vec<Stored> {
    let mut all = vec![
        rows(&format!("{prefix}embed_tokens.weight"), &[32, 16]),
        rows(&format!("{prefix}norm.weight"), &[16]),
        rows("lm_head.weight", &[32, 16]),
    ];
    for layer in 0..2 {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            all.push(rows(
                &format!("{prefix}layers.{layer}.{norm}.weight"),
                &[16],
            ));
        }
    }
    for (name, shape) in [
        ("0.linear_attn.A_log", &[4][..]),
        ("0.linear_attn.dt_bias", &[4]),
        ("0.linear_attn.conv1d.weight", &[32, 1, 4]),
        ("0.linear_attn.norm.weight", &[5]),
        ("0.linear_attn.out_proj.weight", &[16, 20]),
        ("1.self_attn.q_proj.weight", &[32, 16]),
        ("1.self_attn.k_proj.weight", &[8, 16]),
        ("1.self_attn.v_proj.weight", &[8, 16]),
        ("1.self_attn.o_proj.weight", &[16, 16]),
        ("1.self_attn.q_norm.weight", &[8]),
        ("1.self_attn.k_norm.weight", &[8]),
    ] {
        all.push(rows(&format!("{prefix}layers.{name}"), shape));
    }
    all
}

fn dense(prefix: &str) -> Vec<Stored> {
    let mut all = Vec::new();
    for layer in 0..2 {
        for (part, shape) in [("gate", [24, 16]), ("up", [24, 16]), ("down", [16, 24])] {
            let name = format!("{prefix}layers.{layer}.mlp.{part}_proj.weight");
            all.push(rows(&name, &shape));
        }
    }
    all
}

fn open(config: Value, tensors: Vec<Stored>) -> LoadedModel {
    let builder = HfBuilder {
        config,
        files: vec![("tokenizer.json", "{}".into())],
        tensors,
        shards: 1,
    };
    builder.open().expect("a valid checkpoint")
}

/// Which rows of the file a tensor's rows are.
fn found(model: &LoadedModel, layer: usize, tensor: L) -> Vec<usize> {
    let name = TensorName::Layer(layer, tensor);
    let width = *name.shape(&model.spec).last().expect("a width");
    let values = model.weights().load(name).expect("it is there");
    let rows = values.chunks_exact(width);
    rows.map(|row| row[0].to_f32() as usize).collect()
}

fn of(groups: [std::ops::Range<usize>; 2]) -> Vec<usize> {
    groups.into_iter().flatten().collect()
}

#[test]
fn rows_of_qwen3_next_lie_by_key_head_and_by_query_head() {
    let mut config = config("qwen3_next", "Qwen3NextForCausalLM");
    for (key, value) in [
        ("num_experts", 4),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 6),
        ("shared_expert_intermediate_size", 7),
    ] {
        config[key] = json!(value);
    }
    config["mlp_only_layers"] = json!([0, 1]);
    let prefix = "model.";
    let mut tensors = common(prefix);
    tensors.extend(dense(prefix));
    tensors.push(rows(
        "model.layers.0.linear_attn.in_proj_qkvz.weight",
        &[52, 16],
    ));
    tensors.push(rows(
        "model.layers.0.linear_attn.in_proj_ba.weight",
        &[8, 16],
    ));
    // What predicts further tokens is left alone.
    tensors.push(rows("mtp.layers.0.mlp.gate.weight", &[3, 16]));
    let model = open(config, tensors);
    // A key head has 3 + 3 + 10 + 10 rows, and 2 + 2.
    for (tensor, want) in [
        (L::DeltaQ, of([0..3, 26..29])),
        (L::DeltaK, of([3..6, 29..32])),
        (L::DeltaV, of([6..16, 32..42])),
        (L::DeltaZ, of([16..26, 42..52])),
        (L::DeltaB, of([0..2, 4..6])),
        (L::DeltaA, of([2..4, 6..8])),
        (L::DeltaConv, (0..32).collect()),
    ] {
        assert_eq!(found(&model, 0, tensor), want, "{tensor:?}");
    }
    assert_eq!(found(&model, 1, L::Q), of([0..8, 16..24]));
    assert_eq!(found(&model, 1, L::OutputGate), of([8..16, 24..32]));
    // Some rows of a tensor are those rows of the whole.
    let mut some = [bf16::ZERO; 5 * 16];
    let name = TensorName::Layer(0, L::DeltaV);
    model.weights().read_rows(name, 8, &mut some).expect("rows");
    let firsts = some.chunks_exact(16).map(|row| row[0].to_f32());
    assert_eq!(firsts.collect::<Vec<_>>(), [14.0, 15.0, 32.0, 33.0, 34.0]);
}

#[test]
fn qwen3_5_with_images_and_experts_in_one_tensor_is_its_language_model() {
    let mut text = config("qwen3_5_moe_text", "");
    text.as_object_mut()
        .expect("an object")
        .remove("architectures");
    text.as_object_mut()
        .expect("an object")
        .remove("intermediate_size");
    text["num_experts"] = json!(4);
    text["num_experts_per_tok"] = json!(2);
    text["moe_intermediate_size"] = json!(6);
    text["shared_expert_intermediate_size"] = json!(7);
    let config = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
        "text_config": text, "vision_config": { "depth": 1 }, "tie_word_embeddings": false
    });
    let prefix = "model.language_model.";
    let mut tensors = common(prefix);
    for (name, shape) in [
        ("0.linear_attn.in_proj_qkv.weight", &[32, 16][..]),
        ("0.linear_attn.in_proj_z.weight", &[20, 16]),
        ("0.linear_attn.in_proj_b.weight", &[4, 16]),
        ("0.linear_attn.in_proj_a.weight", &[4, 16]),
    ] {
        tensors.push(rows(&format!("{prefix}layers.{name}"), shape));
    }
    for layer in 0..2 {
        for (name, shape) in [
            ("gate.weight", &[4, 16][..]),
            ("experts.gate_up_proj", &[4, 12, 16]),
            ("experts.down_proj", &[4, 16, 6]),
            ("shared_expert.gate_proj.weight", &[7, 16]),
            ("shared_expert.up_proj.weight", &[7, 16]),
            ("shared_expert.down_proj.weight", &[16, 7]),
            ("shared_expert_gate.weight", &[1, 16]),
        ] {
            tensors.push(rows(&format!("{prefix}layers.{layer}.mlp.{name}"), shape));
        }
    }
    tensors.push(rows("model.visual.blocks.0.norm1.weight", &[8]));
    tensors.push(rows("mtp.fc.weight", &[16, 32]));
    let model = open(config, tensors);
    assert_eq!(found(&model, 0, L::DeltaQ), (0..6).collect::<Vec<_>>());
    assert_eq!(found(&model, 0, L::DeltaV), (12..32).collect::<Vec<_>>());
    let gates = found(&model, 1, L::ExpertGate);
    assert_eq!(gates[..8], [0, 1, 2, 3, 4, 5, 12, 13]);
    assert_eq!(found(&model, 1, L::ExpertUp)[..7], [6, 7, 8, 9, 10, 11, 18]);
    assert_eq!(found(&model, 1, L::ExpertDown).len(), 64);
    let experts = model.spec.layers[0].experts().expect("experts");
    assert!(experts.routing.renormalised && experts.shared.is_some_and(|s| s.gated));
}

#[test]
fn lfm2_has_convolutions_where_it_says_so() {
    let config = |fields: Value| {
        let mut config = config("lfm2", "Lfm2ForCausalLM");
        let object = config.as_object_mut().expect("an object");
        object.retain(|key, _| !key.starts_with("linear") && !key.starts_with("partial"));
        object.extend(fields.as_object().expect("an object").clone());
        config
    };
    let tensors = |has_bias: bool, width: usize| {
        let mut all = vec![
            rows("model.embed_tokens.weight", &[32, 16]),
            rows("model.embedding_norm.weight", &[16]),
            rows("lm_head.weight", &[32, 16]),
        ];
        for layer in 0..2 {
            for (part, shape) in [
                ("operator_norm", &[16][..]),
                ("ffn_norm", &[16]),
                ("feed_forward.w1", &[width, 16]),
                ("feed_forward.w3", &[width, 16]),
                ("feed_forward.w2", &[16, width]),
            ] {
                all.push(rows(&format!("model.layers.{layer}.{part}.weight"), shape));
            }
        }
        for (name, shape) in [
            ("0.conv.in_proj.weight", &[48, 16][..]),
            ("0.conv.conv.weight", &[16, 1, 3]),
            ("0.conv.out_proj.weight", &[16, 16]),
            ("1.self_attn.q_proj.weight", &[16, 16]),
            ("1.self_attn.k_proj.weight", &[8, 16]),
            ("1.self_attn.v_proj.weight", &[8, 16]),
            ("1.self_attn.out_proj.weight", &[16, 16]),
            ("1.self_attn.q_layernorm.weight", &[8]),
            ("1.self_attn.k_layernorm.weight", &[8]),
        ] {
            all.push(rows(&format!("model.layers.{name}"), shape));
        }
        let biases = [("in_proj", 48), ("conv", 16), ("out_proj", 16)];
        for (part, len) in biases.into_iter().filter(|_| has_bias) {
            all.push(rows(&format!("model.layers.0.conv.{part}.bias"), &[len]));
        }
        all
    };
    let conv = |spec: &ModelSpec| match &spec.layers[0].mixer {
        Mixer::Recurrent(RecurrentSpec::ShortConv(conv)) => *conv,
        other => panic!("{other:?}"),
    };
    // 2/3 of 24, in whole 8; without an adjustment as it is.
    let fields = json!({
        "layer_types": ["conv", "full_attention"], "block_multiple_of": 12, "conv_bias": true
    });
    let model = open(config(fields), tensors(true, 24));
    let with_bias = ShortConvSpec {
        taps: 3,
        bias: true,
    };
    assert_eq!(conv(&model.spec), with_bias);
    assert_eq!(found(&model, 0, L::ConvIn), (0..48).collect::<Vec<_>>());
    let fields = json!({ "full_attn_idxs": [1], "block_auto_adjust_ff_dim": false });
    let model = open(config(fields), tensors(false, 24));
    assert!(!conv(&model.spec).bias);
    assert_eq!(model.spec.layers[0].intermediate(), 24);
    assert_eq!(model.spec.norm_eps, 1e-5);
    // Without a multiplier it is not rounded to whole multiples either: 2/3 of 24.
    let fields = json!({ "full_attn_idxs": [1], "block_ffn_dim_multiplier": null });
    let model = open(config(fields), tensors(false, 16));
    assert_eq!(model.spec.layers[0].intermediate(), 16);
}

#[test]
fn recurrences_that_cannot_be_are_refused() {
    let sentence = |fields: Value| {
        let mut config = config("qwen3_5_text", "Qwen3_5ForCausalLM");
        let object = config.as_object_mut().expect("an object");
        object.extend(fields.as_object().expect("an object").clone());
        let builder = HfBuilder {
            config,
            files: vec![("tokenizer.json", "{}".into())],
            tensors: vec![rows("model.norm.weight", &[16])],
            shards: 1,
        };
        builder.refusal().1
    };
    let heads = sentence(json!({ "linear_num_value_heads": 3 }));
    assert!(
        heads.contains("3 value heads cannot share 2 key heads"),
        "{heads}"
    );
    let taps = sentence(json!({ "linear_conv_kernel_dim": 9 }));
    assert!(taps.contains("a convolution over 9 tokens"), "{taps}");
    let none = sentence(json!({ "layer_types": ["linear_attention", "linear_attention"] }));
    assert!(none.contains("no attention"), "{none}");
    let kinds = sentence(json!({ "layer_types": ["linear_attention", "mamba"] }));
    assert!(
        kinds.contains("mamba") && kinds.contains("full_attention, linear_attention"),
        "{kinds}"
    );
    let gate = sentence(json!({ "attn_output_gate": false }));
    assert!(gate.ends_with("supported: true"), "{gate}");
    let act = sentence(json!({ "hidden_act": "gelu_pytorch_tanh" }));
    assert!(act.ends_with("supported: silu"), "{act}");
    let huge = sentence(json!({ "linear_key_head_dim": 1u64 << 40 }));
    assert!(huge.contains("more than this engine supports"), "{huge}");
}
