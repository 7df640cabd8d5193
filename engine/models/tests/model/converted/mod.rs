//! Golden models' shapes as Hugging Face checkpoints and as the GGUF files that llama.cpp makes of
//! them: the same spec, and the same tensors.

mod checkpoint;
mod experts;
mod gemma4;
mod hybrids;
mod llama4;
mod llama_cpp;

use std::path::Path;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor as L, ModelSpec, TensorName, WeightSource};
use ebb_models::model::gguf::GgmlType;
use ebb_models::model::{LoadedModel, ModelFiles};
use serde_json::json;

use crate::dequant::vectors;
use crate::gguf_builder::{GgufBuilder, Value};
use crate::gguf_families::{open, refusal};
use crate::packed::assert_packed;
use checkpoint::Checkpoint;
use llama_cpp::convert;

/// What a vector is whose rounded values, and what they leave, are two rows.
fn sums(halves: &[bf16]) -> Vec<f32> {
    let (rounded, rest) = halves.split_at(halves.len() / 2);
    let pairs = rounded.iter().zip(rest);
    pairs.map(|(a, b)| a.to_f32() + b.to_f32()).collect()
}

/// Asserts that both are the same model.
fn assert_same(gguf: &LoadedModel, hf: &LoadedModel) {
    assert_eq!(gguf.spec, hf.spec);
    let (ours, theirs) = (gguf.weights(), hf.weights());
    for name in TensorName::all(&hf.spec) {
        let (found, expected) = (ours.load(name), theirs.load(name));
        let (found, expected) = (found.expect("a tensor"), expected.expect("a tensor"));
        match name {
            // Files have the exponential.
            TensorName::Layer(_, L::DeltaDecay | L::MambaDecay) => {
                let pairs = sums(&found).into_iter().zip(sums(&expected));
                for (found, expected) in pairs {
                    let error = (found - expected).abs();
                    assert!(error < 1e-5, "{name}: {found} for {expected}");
                }
            }
            _ => assert!(found == expected, "{name} differs"),
        }
    }
}

/// Asserts that a checkpoint is the same model as a GGUF file of an architecture, which it gives.
fn check(checkpoint: &Checkpoint, architecture: &'static str) -> GgufBuilder {
    let gguf = convert(checkpoint, architecture);
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf
}

#[test]
fn gpt_oss_has_sinks_biases_and_windows_in_every_other_layer() {
    let checkpoint = Checkpoint::golden("gpt_oss", json!({}), &[]);
    let mut gguf = check(&checkpoint, "gpt-oss");
    // The same by an explicit interval, and without what other converters leave out.
    gguf.u32("gpt-oss.attention.sliding_window_pattern", 2)
        .remove("gpt-oss.rope.scaling.yarn_beta_fast")
        .remove("gpt-oss.rope.scaling.yarn_beta_slow");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf.remove("gpt-oss.attention.sliding_window");
    assert_eq!(
        refusal(&gguf),
        "`gpt-oss.attention.sliding_window` is missing"
    );
}

#[test]
fn hunyuan_moe_says_how_wide_either_kind_of_expert_is() {
    let plain = json!({
        "attention_bias": false, "moe_topk": 2,
        "rope_parameters": { "rope_type": "default", "rope_theta": 20000.0 },
    });
    let mut checkpoint = Checkpoint::golden("hunyuan_v1_moe", plain, &[]);
    checkpoint
        .tensors
        .retain(|name, _| !name.ends_with(".bias"));
    let mut gguf = convert(&checkpoint, "hunyuan-moe");
    gguf.u32("hunyuan-moe.expert_feed_forward_length", 128)
        .u32("hunyuan-moe.expert_shared_feed_forward_length", 128)
        .u32("hunyuan-moe.expert_shared_count", 1);
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf.u32("hunyuan-moe.expert_shared_count", 2);
    assert!(refusal(&gguf).starts_with("`hunyuan-moe.expert_shared_count` is 2"));
}

#[test]
fn apertus_has_its_numbers_in_the_metadata() {
    let plain = json!({
        "attention_bias": false,
        "rope_parameters": { "rope_type": "default", "rope_theta": 20000.0 },
    });
    let mut checkpoint = Checkpoint::golden("apertus", plain, &[]);
    checkpoint
        .tensors
        .retain(|name, _| !name.ends_with(".bias"));
    let mut gguf = check(&checkpoint, "apertus");
    gguf.set("xielu.beta", Value::F32s(vec![0.5; 3]));
    assert_eq!(
        refusal(&gguf),
        "`xielu.beta` is 3 numbers; expected a finite one for each of 4 layers"
    );
    gguf.remove("xielu.beta");
    assert!(refusal(&gguf).starts_with("`xielu.beta` is 0 numbers"));
}

#[test]
fn the_language_model_of_qwen3_vl_moe_is_qwen3_moe() {
    let checkpoint = Checkpoint::golden("qwen3_moe", json!({}), &[]);
    let mut gguf = convert(&checkpoint, "qwen3vlmoe");
    gguf.set(
        "qwen3vlmoe.rope.dimension_sections",
        Value::I32s(vec![24, 20, 20, 0]),
    )
    .u32("qwen3vlmoe.n_deepstack_layers", 3);
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    let model = open(&gguf).expect("a valid file");
    assert_eq!(model.family.to_string(), "qwen3_vl_moe_text");
    assert_same(&model, &hf);
}

#[test]
fn qwen3_next_has_rows_by_kind() {
    let checkpoint = Checkpoint::with_delta_rule("qwen3_next");
    let mut gguf = check(&checkpoint, "qwen3next");
    // Older files have them as they lie in the checkpoint.
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    gguf.tensors.retain(|tensor| {
        let mut parts = ["attn_qkv", "attn_gate"].into_iter();
        !parts.any(|part| tensor.name.contains(part))
    });
    for layer in 0..3 {
        let name = format!("model.layers.{layer}.linear_attn.in_proj_qkvz.weight");
        let values = &checkpoint.tensors[&name].values;
        gguf.f32_tensor(&format!("blk.{layer}.ssm_in.weight"), &[512, 64], values);
    }
    assert_same(&open(&gguf).expect("a valid file"), &hf);
}

#[test]
fn qwen3_5_has_value_heads_in_turn() {
    check(&Checkpoint::with_delta_rule("qwen3_5_text"), "qwen35");
}

#[test]
fn qwen3_5_moe_has_value_heads_in_turn_and_no_dense_layer() {
    let mut checkpoint = Checkpoint::with_delta_rule("qwen3_5_moe_text");
    let config = checkpoint.config.as_object_mut().expect("an object");
    config.remove("intermediate_size");
    check(&checkpoint, "qwen35moe");
}

#[test]
fn layers_without_attention_may_be_listed_and_further_ones_predict() {
    let checkpoint = Checkpoint::with_delta_rule("qwen3_5_text");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    let mut gguf = convert(&checkpoint, "qwen35");
    gguf.u32("qwen35.block_count", 5)
        .u32("qwen35.nextn_predict_layers", 1)
        .u32("qwen35.full_attention_interval", 2)
        .set(
            "qwen35.attention.recurrent_layers",
            Value::I32s(vec![1, 1, 1, 0, 0]),
        )
        .f32_tensor("blk.4.attn_norm.weight", &[64], &[1.0; 64])
        .f32_tensor("blk.4.nextn.enorm.weight", &[64], &[1.0; 64]);
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf.remove("qwen35.attention.recurrent_layers");
    assert_eq!(
        refusal(&gguf),
        "tensor `blk.1.attn_q.weight` is missing; the file is incomplete or its configuration \
         wrong"
    );
    let list = Value::I32s(vec![1, 1, 1, 0]);
    gguf.set("qwen35.attention.recurrent_layers", list);
    assert_eq!(
        refusal(&gguf),
        "`qwen35.attention.recurrent_layers` is 4 long; expected one element for each of 5 layers"
    );
}

#[test]
fn what_the_delta_rule_cannot_be_is_refused() {
    let checkpoint = Checkpoint::with_delta_rule("qwen3_5_text");
    let refused = |change: &dyn Fn(&mut GgufBuilder)| {
        let mut gguf = convert(&checkpoint, "qwen35");
        change(&mut gguf);
        refusal(&gguf)
    };
    assert_eq!(
        refused(&|gguf| {
            gguf.u32("qwen35.ssm.inner_size", 191);
        }),
        "`qwen35.ssm.inner_size` is 191; expected a multiple of ssm.time_step_rank, 6"
    );
    assert_eq!(
        refused(&|gguf| {
            gguf.remove("qwen35.ssm.state_size");
        }),
        "metadata `qwen35.ssm.state_size` is missing; the model needs it"
    );
    let sections = Value::I32s(vec![2, 2, 2, 2]);
    assert_eq!(
        refused(&|gguf| {
            gguf.set("qwen35.rope.dimension_sections", sections.clone());
        }),
        "`qwen35.rope.dimension_sections` is 2 in the fourth place, which is not supported; \
         supported: 0 in the fourth place"
    );
    assert_eq!(
        refused(&|gguf| {
            gguf.u32("qwen35.full_attention_interval", 0);
        }),
        "`qwen35.full_attention_interval` is 0; expected a number of layers above 0"
    );
    // Rates of decay are above 0, and files have them below.
    let mut gguf = convert(&checkpoint, "qwen35");
    let mut tensors = gguf.tensors.iter_mut();
    let decays = tensors.find(|tensor| tensor.name == "blk.1.ssm_a");
    let decays = decays.expect("it is there");
    decays.data[..4].copy_from_slice(&0.5f32.to_le_bytes());
    let model = open(&gguf).expect("the values are not looked at");
    let error = model.weights().load(TensorName::Layer(1, L::DeltaDecay));
    let sentence = error.expect_err("it grows").to_string();
    assert!(
        sentence
            .ends_with("`blk.1.ssm_a` is 0.5; expected numbers below 0, minus the rates of decay"),
        "{sentence}"
    );
}

#[test]
fn lfm2_has_convolutions_where_there_are_no_heads_of_keys() {
    let checkpoint = Checkpoint::with_convolutions();
    let mut gguf = check(&checkpoint, "lfm2");
    let heads = Value::I32s(vec![0, 2, 0, 1]);
    gguf.set("lfm2.attention.head_count_kv", heads);
    let sentence = refusal(&gguf);
    assert!(
        sentence.ends_with("supported: the same value for every layer"),
        "{sentence}"
    );
    gguf.set("lfm2.attention.head_count_kv", Value::I32s(vec![0, 2]));
    let sentence = refusal(&gguf);
    assert!(
        sentence.ends_with("is 2 numbers; expected one number for each of 4 layers"),
        "{sentence}"
    );
    gguf.set("lfm2.attention.head_count_kv", Value::I32s(vec![0; 4]));
    let sentence = refusal(&gguf);
    assert!(sentence.contains("no attention"), "{sentence}");
}

#[test]
fn exaone_4_has_rope_in_layers_with_windows_alone_if_there_are_any() {
    let checkpoint = Checkpoint::golden("exaone4", json!({}), &[]);
    let mut gguf = check(&checkpoint, "exaone4");
    // One layer of four sees everything where the file does not say which.
    let rope_of = |gguf: &GgufBuilder| -> Vec<bool> {
        let spec = open(gguf).expect("a valid file").spec;
        spec.attentions().map(|(_, a)| a.rope.is_some()).collect()
    };
    assert_eq!(rope_of(&gguf), [true, false, true, false]);
    gguf.remove("exaone4.attention.sliding_window_pattern");
    assert_eq!(rope_of(&gguf), [true, true, true, false]);
    let none = json!({ "sliding_window": null, "layer_types": vec!["full_attention"; 4] });
    let checkpoint = Checkpoint::golden("exaone4", none, &[]);
    gguf.remove("exaone4.attention.sliding_window");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    // Those of EXAONE 4.5 may predict further tokens.
    gguf.u32("exaone4.block_count", 5)
        .u32("exaone4.nextn_predict_layers", 1)
        .f32_tensor("blk.4.nextn.enorm.weight", &[64], &[1.0; 64]);
    assert_same(&open(&gguf).expect("a valid file"), &hf);
}

#[test]
fn glm_has_queries_keys_and_values_apart_or_together() {
    let config = json!({ "head_dim": 16 });
    let narrow: [(&str, &[usize]); 7] = [
        ("q_proj.weight", &[64, 64]),
        ("q_proj.bias", &[64]),
        ("k_proj.weight", &[32, 64]),
        ("k_proj.bias", &[32]),
        ("v_proj.weight", &[32, 64]),
        ("v_proj.bias", &[32]),
        ("o_proj.weight", &[64, 64]),
    ];
    let checkpoint = Checkpoint::golden("glm", config, &narrow);
    let mut gguf = check(&checkpoint, "chatglm");
    for layer in 0..4 {
        for kind in ["weight", "bias"] {
            let mut all = Vec::new();
            for part in ["q", "k", "v"] {
                let hf = format!("model.layers.{layer}.self_attn.{part}_proj.{kind}");
                all.extend_from_slice(&checkpoint.tensors[&hf].values);
                let name = format!("blk.{layer}.attn_{part}.{kind}");
                gguf.tensors.retain(|tensor| tensor.name != name);
            }
            let shape: &[usize] = if kind == "weight" { &[128, 64] } else { &[128] };
            gguf.f32_tensor(&format!("blk.{layer}.attn_qkv.{kind}"), shape, &all);
        }
    }
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    // Biases in blocks of 32 values begin where one does.
    let bias = gguf
        .tensors
        .iter_mut()
        .find(|t| t.name == "blk.0.attn_qkv.bias");
    let bias = bias.expect("it is there");
    bias.type_id = GgmlType::Q8_0.id();
    bias.data = [vec![0x00, 0x3C], vec![0xFF; 32]].concat().repeat(4);
    let model = open(&gguf).expect("a valid file");
    let values = model.weights().load(TensorName::Layer(0, L::VBias));
    assert_eq!(values.expect("it loads"), vec![bf16::NEG_ONE; 32]);
}

#[test]
fn lfm2_with_biases_of_convolutions() {
    let mut checkpoint = Checkpoint::with_convolutions();
    checkpoint.config["conv_bias"] = json!(true);
    for layer in [0, 2] {
        for (part, len) in [("in_proj", 192), ("conv", 64), ("out_proj", 64)] {
            checkpoint.add(&format!("model.layers.{layer}.conv.{part}.bias"), &[len]);
        }
    }
    check(&checkpoint, "lfm2");
}

#[test]
fn phimoe_is_what_hugging_face_has() {
    let checkpoint = Checkpoint::golden("phimoe", json!({}), &[]);
    let mut gguf = check(&checkpoint, "phimoe");
    gguf.f32_tensor("output.bias", &[320], &[0.0; 320]);
    assert!(refusal(&gguf).starts_with("tensor `output.bias` is not part of a supported model"));
}

#[test]
fn olmo_3_is_of_olmo_2s_architecture() {
    let scaled = json!({
        "full_attention": {
            "rope_theta": 500_000.0, "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "attention_factor": 1.25, "original_max_position_embeddings": 512
        },
        "sliding_attention": { "rope_theta": 500_000.0, "rope_type": "default" }
    });
    let checkpoint = Checkpoint::golden("olmo3", json!({ "rope_parameters": scaled }), &[]);
    let mut gguf = check(&checkpoint, "olmo2");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    // Older files have no list, and one base for all.
    gguf.remove("olmo2.attention.sliding_window_pattern")
        .remove("olmo2.rope.freq_base_swa");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
}

#[test]
fn mixtral_and_mistral_are_of_llamas_architecture() {
    let checkpoint = Checkpoint::golden("mixtral", json!({}), &[]);
    check(&checkpoint, "llama");
    // Converters do not write windows: a model sees everything.
    for name in ["mistral", "ministral"] {
        let config = json!({ "sliding_window": null, "layer_types": vec!["full_attention"; 4] });
        let checkpoint = Checkpoint::golden(name, config, &[]);
        check(&checkpoint, "llama");
    }
}

#[test]
fn mistral_3_is_mistral_without_windows() {
    let rope = json!({
        "rope_theta": 1e6, "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 256
    });
    let config = json!({ "sliding_window": null, "rope_parameters": rope });
    let checkpoint = Checkpoint::golden("mistral", config, &[]);
    let mut gguf = check(&checkpoint, "mistral3");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_eq!(hf.spec.ropes[0].scale, 1.0);
    assert!(open(&gguf).expect("a valid file").notes.is_empty());
    // Queries do not grow in the first 256 tokens.
    gguf.f32("mistral3.attention.temperature_scale", 0.1);
    let model = open(&gguf).expect("a valid file");
    assert_eq!(model.max_context(), 256);
    assert_eq!(
        model.notes,
        [
            "the context is limited to 256 of the model's 4096 tokens, because queries that grow \
             with their positions (`attention.temperature_scale`) are not computed"
        ]
    );
    gguf.remove("mistral3.rope.scaling.original_context_length");
    let sentence = refusal(&gguf);
    assert!(
        sentence.contains("original_context_length` is missing"),
        "{sentence}"
    );
}

/// `data/gguf_architectures.py` writes them, with the package of llama.cpp's converters.
#[test]
fn files_of_another_writer_are_read_whole() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus/gguf");
    for (name, family) in [
        ("exaone-moe", "exaone_moe"),
        ("gemma4", "gemma4_text"),
        ("gpt-oss", "gpt_oss"),
        ("granitehybrid", "granitemoehybrid"),
        ("lfm2", "lfm2"),
        ("llama4", "llama4_text"),
        ("mistral3", "mistral"),
        ("nemotron_h", "nemotron_h"),
        ("nemotron_h_moe", "nemotron_h"),
        ("olmo3", "olmo2"),
        ("phimoe", "phimoe"),
        ("qwen35", "qwen3_5_text"),
        ("qwen35moe", "qwen3_5_moe_text"),
        ("qwen3next", "qwen3_next"),
    ] {
        let path = Path::new(folder).join(format!("of-{name}"));
        let model = LoadedModel::open(&ModelFiles::Gguf(path)).expect(name);
        assert_eq!(model.family.name, family);
        let windows = model.spec.attentions().filter(|(_, a)| a.window.is_some());
        let expected = match name {
            "gemma4" => 2,
            "exaone-moe" | "gpt-oss" | "olmo3" => 1,
            "llama4" => 3,
            _ => 0,
        };
        assert_eq!(windows.count(), expected, "{name}");
        for tensor in TensorName::all(&model.spec) {
            model.weights().load(tensor).expect(name);
        }
    }
}

/// A file whose matrices are of a type, no two rows of which are alike.
fn of_type(gguf: &GgufBuilder, kind: GgmlType) -> GgufBuilder {
    let vectors = vectors();
    let (_, encoded, _) = vectors
        .iter()
        .find(|(found, ..)| *found == kind)
        .expect("it");
    let blocks: Vec<_> = encoded.chunks(kind.block_bytes()).collect();
    let mut gguf = gguf.clone();
    for (at, tensor) in gguf.tensors.iter_mut().enumerate() {
        let elements = tensor.shape.iter().product::<u64>() as usize;
        let columns = *tensor.shape.last().expect("a size") as usize;
        let is_matrix = tensor.shape.len() > 1 && !tensor.name.ends_with("bias");
        if !is_matrix || !columns.is_multiple_of(kind.block_elements()) {
            continue;
        }
        let block = |index: usize| {
            let mut block = blocks[(at + index) % blocks.len()].to_vec();
            // Scales are at the ends.
            let middle = &mut block[kind.block_bytes() / 2];
            *middle = middle.wrapping_add(index as u8);
            block
        };
        tensor.data = (0..elements / kind.block_elements())
            .flat_map(block)
            .collect();
        tensor.type_id = kind.id();
    }
    gguf
}

/// Asserts that matrices stay packed in whatever order they lie, and stand for the same.
fn check_packed(checkpoint: &Checkpoint, architecture: &'static str, kinds: &[GgmlType]) {
    let plain = convert(checkpoint, architecture);
    for kind in kinds {
        let model = open(&of_type(&plain, *kind)).expect("a valid file");
        let spec: &ModelSpec = &model.spec;
        let is_packed = |name: TensorName| {
            let shape = name.shape(spec);
            let is_whole = shape[shape.len() - 1].is_multiple_of(kind.block_elements());
            let has_other_type = matches!(
                name,
                TensorName::Layer(
                    _,
                    L::DeltaDecay
                        | L::DeltaDecayBias
                        | L::ExpertGateBias
                        | L::ExpertUpBias
                        | L::ExpertDownBias
                )
            );
            shape.len() > 1 && is_whole && !has_other_type
        };
        assert_packed(&model.weights(), spec, is_packed, 0);
    }
}

#[test]
fn matrices_stay_packed() {
    const TYPES: [GgmlType; 3] = [GgmlType::Q8_0, GgmlType::Q4_1, GgmlType::MXFP4];
    let golden = |name| Checkpoint::golden(name, json!({}), &[]);
    check_packed(&golden("gpt_oss"), "gpt-oss", &TYPES);
    check_packed(&golden("mixtral"), "llama", &TYPES);
    let delta = Checkpoint::with_delta_rule;
    check_packed(&delta("qwen3_next"), "qwen3next", &TYPES);
    check_packed(&delta("qwen3_5_text"), "qwen35", &TYPES);
    check_packed(&delta("qwen3_5_moe_text"), "qwen35moe", &TYPES);
    check_packed(&Checkpoint::with_convolutions(), "lfm2", &TYPES);
    check_packed(&llama4::scout(), "llama4", &TYPES);
    check_packed(&hybrids::granite(), "granitehybrid", &TYPES);
    check_packed(&hybrids::nemotron_with_experts(), "nemotron_h_moe", &TYPES);
    // Blocks of 256 weights are of eight value heads.
    let wide = Checkpoint::with_value_heads("qwen3_5_text", 8, 32);
    let of_256 = [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::IQ4_XS];
    check_packed(&wide, "qwen35", &of_256);
}

#[test]
fn groups_of_two_heads_are_expanded() {
    let checkpoint = Checkpoint::with_value_heads("qwen3_5_text", 6, 16);
    let gguf = of_type(&convert(&checkpoint, "qwen35"), GgmlType::Q8_0);
    let weights = open(&gguf).expect("a valid file").weights();
    let is_packed = |part| {
        let format = weights.packed(TensorName::Layer(0, part));
        format.expect("a format or none").is_some()
    };
    assert!(is_packed(L::DeltaV) && !is_packed(L::DeltaOut));
}
