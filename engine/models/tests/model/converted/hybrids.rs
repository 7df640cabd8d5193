//! Mamba-2 between layers of attention: Granite 4 H, Bamba and Nemotron-H.

use ebb_kernels::model::{LayerTensor as L, Mixer, Mlp, RecurrentSpec, TensorName, WeightSource};
use serde_json::{Value as Json, json};

use super::checkpoint::{Checkpoint, changed};
use super::experts::NARROW_HEADS;
use super::llama_cpp::{Converter, convert, put_granite};
use super::{assert_same, check, sums};
use crate::gguf_builder::{GgufBuilder, Value};
use crate::gguf_families::{open, refusal};

/// What converters write for the context of any model of theirs that has no RoPE.
const POSITIONS: u32 = 1 << 20;

/// Ends of names of Nemotron-H and Bamba, as in [`super::llama_cpp`].
const NAMES: &[(&str, &str)] = &[
    ("norm", "attn_norm"),
    ("mixer.q_proj", "attn_q"),
    ("mixer.k_proj", "attn_k"),
    ("mixer.v_proj", "attn_v"),
    ("mixer.o_proj", "attn_output"),
    ("mixer.up_proj", "ffn_up"),
    ("mixer.down_proj", "ffn_down"),
    ("mixer.gate", "ffn_gate_inp"),
    ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
    ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    ("pre_ff_layernorm", "ffn_norm"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
];

/// Of Mamba-2 in any of them.
const OF_MAMBA: &[(&str, &str)] = &[
    ("in_proj", "ssm_in"),
    ("conv1d", "ssm_conv1d"),
    ("norm", "ssm_norm"),
    ("out_proj", "ssm_out"),
];

/// Converts a tensor of a layer that only these have, or that they have in another way.
pub(super) fn add(
    converter: &mut Converter<'_>,
    block: &str,
    part: &str,
    shape: &[usize],
    values: &[f32],
) -> bool {
    let config = &converter.checkpoint.config;
    let is_dense = config["num_local_experts"].as_u64().unwrap_or(0) == 0;
    let groups = size(config, &["mamba_n_groups", "n_groups"]);
    let mut of_mamba = ["mamba.", "mixer."].into_iter();
    let of_mamba = of_mamba.find_map(|prefix| part.strip_prefix(prefix));
    let column = [values.len(), 1];
    match (of_mamba, part) {
        (Some("A_log"), _) => {
            let rates: Vec<f32> = values.iter().map(|value| -value.exp()).collect();
            converter.put(&format!("{block}.ssm_a"), &column, &rates);
        }
        (Some("D"), _) => converter.put(&format!("{block}.ssm_d"), &column, values),
        (Some("dt_bias"), _) => converter.put(&format!("{block}.ssm_dt.bias"), shape, values),
        (Some("norm.weight"), _) => {
            let groups = groups.expect("groups") as usize;
            let by_group = [groups, shape[0] / groups];
            converter.put(&format!("{block}.ssm_norm.weight"), &by_group, values);
        }
        (_, "shared_mlp.input_linear.weight") if is_dense => {
            let halves = values.chunks_exact(values.len() / 2);
            for (which, half) in ["gate", "up"].into_iter().zip(halves) {
                let name = format!("{block}.ffn_{which}.weight");
                converter.put(&name, &[shape[0] / 2, shape[1]], half);
            }
        }
        (_, "shared_mlp.output_linear.weight") if is_dense => {
            converter.put(&format!("{block}.ffn_down.weight"), shape, values);
        }
        _ => {
            let (stem, kind) = part.rsplit_once('.').unwrap_or((part, ""));
            if !["weight", "bias"].contains(&kind) {
                return false;
            }
            let of_mamba = of_mamba.and_then(|part| part.rsplit_once('.'));
            let of_mamba = of_mamba.and_then(|(stem, _)| named(OF_MAMBA, stem));
            let Some(name) = of_mamba.or_else(|| named(NAMES, stem)) else {
                return false;
            };
            // Taps are matrices of one row each.
            let squeezed: Vec<usize> = match name {
                "ssm_conv1d" => shape.iter().copied().filter(|size| *size != 1).collect(),
                _ => shape.to_vec(),
            };
            converter.put(&format!("{block}.{name}.{kind}"), &squeezed, values);
        }
    }
    true
}

fn named(names: &[(&str, &'static str)], stem: &str) -> Option<&'static str> {
    let found = names.iter().find(|(hf, _)| *hf == stem);
    found.map(|(_, name)| *name)
}

fn size(config: &Json, fields: &[&str]) -> Option<u32> {
    let size = fields.iter().find_map(|field| config[field].as_u64());
    size.map(|size| size as u32)
}

/// The keys of recurrences, which files without any have, too, and what each layer is.
pub(super) fn put_keys(
    gguf: &mut GgufBuilder,
    checkpoint: &Checkpoint,
    architecture: &str,
    kinds: &[&str],
) {
    let config = &checkpoint.config;
    let key = |name: &str| format!("{architecture}.{name}");
    put_granite(gguf, checkpoint, architecture);
    let heads = size(config, &["mamba_n_heads", "mamba_num_heads"]).expect("heads");
    let width = match size(config, &["mamba_head_dim"]) {
        Some(head_dim) => heads * head_dim,
        None => size(config, &["hidden_size"]).expect("a width") * 2,
    };
    for (fields, name) in [
        (["mamba_d_conv", "conv_kernel"], "ssm.conv_kernel"),
        (["mamba_d_state", "ssm_state_size"], "ssm.state_size"),
        (["mamba_n_groups", "n_groups"], "ssm.group_count"),
        (["vocab_size", "vocab_size"], "vocab_size"),
    ] {
        gguf.u32(&key(name), size(config, &fields).expect(name));
    }
    let rotary_dim = checkpoint.size("hidden_size") / checkpoint.size("num_attention_heads");
    gguf.u32(&key("ssm.time_step_rank"), heads)
        .u32(&key("ssm.inner_size"), width)
        .u32(&key("rope.dimension_count"), rotary_dim as u32);
    let layers = checkpoint.size("num_hidden_layers");
    let indices = config["attn_layer_indices"].as_array();
    let kinds: Vec<&str> = match config["layers_block_type"].as_array() {
        Some(kinds) => kinds
            .iter()
            .map(|kind| kind.as_str().expect("a text"))
            .collect(),
        None => kinds.to_vec(),
    };
    let has_attention = |layer: usize| match indices {
        Some(indices) => indices.contains(&json!(layer)),
        None => kinds[layer] == "full_attention",
    };
    let kv_heads = checkpoint.size("num_key_value_heads") as i32;
    let list = (0..layers).map(|layer| if has_attention(layer) { kv_heads } else { 0 });
    let has_rope = indices.is_some() || (0..layers).all(has_attention);
    gguf.set(&key("attention.head_count_kv"), Value::I32s(list.collect()))
        .set(&key("rope.scaling.finetuned"), Value::Bool(has_rope));
    if !has_rope {
        gguf.u32(&key("context_length"), POSITIONS);
    }
    if architecture.starts_with("nemotron") {
        let head_dim = checkpoint.size("head_dim") as u32;
        let eps = config["layer_norm_epsilon"].as_f64().expect("a number");
        let rows = match architecture {
            "nemotron_h_moe" => checkpoint.size("moe_intermediate_size"),
            _ => checkpoint.size("intermediate_size"),
        };
        let rows_of = |kind: &&str| match *kind {
            "mlp" | "moe" => rows as i32,
            _ => 0,
        };
        let list = kinds.iter().map(rows_of).collect();
        gguf.u32(&key("attention.key_length"), head_dim)
            .u32(&key("attention.value_length"), head_dim)
            .f32(&key("attention.layer_norm_epsilon"), eps as f32)
            .set(&key("feed_forward_length"), Value::I32s(list));
        if architecture == "nemotron_h_moe" {
            gguf.u32(&key("expert_feed_forward_length"), rows as u32);
        }
    }
}

/// Granite 4 H: two groups, and experts beside a shared one.
pub(super) fn granite() -> Checkpoint {
    let config = json!({ "head_dim": 16, "max_position_embeddings": POSITIONS });
    Checkpoint::golden("granitemoehybrid__mamba", config, &NARROW_HEADS)
}

/// Without experts, whose MLPs are called shared ones.
fn dense_granite() -> Checkpoint {
    let mut checkpoint = granite().without("block_sparse_moe");
    let config = checkpoint.config.as_object_mut().expect("an object");
    config.insert("num_local_experts".into(), json!(0));
    checkpoint
}

/// Nemotron-H with other layers in place of some.
fn nemotron(changed: &[(usize, &str)]) -> Checkpoint {
    let mut checkpoint = Checkpoint::golden(
        "nemotron_h",
        json!({ "max_position_embeddings": POSITIONS, "num_hidden_layers": 8 }),
        &[],
    );
    for (layer, kind) in changed {
        checkpoint.config["layers_block_type"][*layer] = json!(kind);
        let prefix = format!("backbone.layers.{layer}.mixer");
        checkpoint = checkpoint.without(&format!("{prefix}."));
        let mut add = |name: &str, shape: &[usize]| {
            checkpoint.add(&format!("{prefix}.{name}"), shape);
        };
        if *kind == "mlp" {
            add("up_proj.weight", &[96, 64]);
            add("down_proj.weight", &[64, 96]);
            continue;
        }
        add("gate.weight", &[8, 64]);
        add("gate.e_score_correction_bias", &[8]);
        add("shared_experts.up_proj.weight", &[48, 64]);
        add("shared_experts.down_proj.weight", &[64, 48]);
        for expert in 0..8 {
            add(&format!("experts.{expert}.up_proj.weight"), &[32, 64]);
            add(&format!("experts.{expert}.down_proj.weight"), &[64, 32]);
        }
    }
    checkpoint
}

/// Nemotron 3: converters take layers to have MLPs or experts, of which files have one kind.
pub(super) fn nemotron_with_experts() -> Checkpoint {
    nemotron(&[(6, "moe")])
}

fn nemotron_without() -> Checkpoint {
    let mut checkpoint = nemotron(&[(1, "mlp"), (4, "mlp")]);
    let config = checkpoint.config.as_object_mut().expect("an object");
    for field in [
        "n_routed_experts",
        "num_experts_per_tok",
        "n_group",
        "topk_group",
    ] {
        config.remove(field);
    }
    config.remove("moe_intermediate_size");
    checkpoint
}

#[test]
fn granite_4_h_has_mamba_2_where_there_are_no_heads_of_keys() {
    let mut gguf = check(&granite(), "granitehybrid");
    let spec = open(&gguf).expect("a valid file").spec;
    assert!(
        spec.attentions()
            .all(|(_, attention)| attention.rope.is_none())
    );
    let dense = check(&dense_granite(), "granitehybrid");
    assert!(
        open(&dense).expect("a valid file").spec.layers[0]
            .experts()
            .is_none()
    );
    gguf.set(
        "granitehybrid.attention.head_count_kv",
        Value::I32s(vec![0; 4]),
    );
    let sentence = refusal(&gguf);
    assert!(sentence.contains("no attention"), "{sentence}");
    gguf.set(
        "granitehybrid.attention.head_count_kv",
        Value::I32s(vec![2; 4]),
    );
    assert!(refusal(&gguf).starts_with("tensor `blk.0.attn_q.weight` is missing"));
}

#[test]
fn granite_4_h_may_have_rope_and_biases() {
    let rope = json!({ "position_embedding_type": "rope", "attention_bias": true });
    let mut checkpoint = granite();
    checkpoint.config = changed(checkpoint.config, rope);
    for (part, len) in [("q", 64), ("k", 32), ("v", 32), ("o", 64)] {
        checkpoint.add(
            &format!("model.layers.1.self_attn.{part}_proj.bias"),
            &[len],
        );
    }
    let mut gguf = convert(&checkpoint, "granitehybrid");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    for says_so in [true, false] {
        match says_so {
            true => gguf.set("granitehybrid.rope.scaling.finetuned", Value::Bool(true)),
            // There is RoPE unless a file says otherwise.
            false => gguf.remove("granitehybrid.rope.scaling.finetuned"),
        };
        assert_same(&open(&gguf).expect("a valid file"), &hf);
    }
}

#[test]
fn granite_4_with_attention_alone_is_of_granites_architectures() {
    let config = json!({ "head_dim": 16 });
    let dense = Checkpoint::golden("granitemoehybrid", config, &NARROW_HEADS);
    let narrow = [("q", 64), ("k", 32), ("v", 32)];
    let mut dense = dense;
    for layer in 0..4 {
        for (part, len) in narrow {
            dense.add(
                &format!("model.layers.{layer}.self_attn.{part}_proj.bias"),
                &[len],
            );
        }
    }
    dense.config["num_experts_per_tok"] = json!(0);
    check(&dense, "granite");
    let config = json!({ "head_dim": 16, "position_embedding_type": "rope" });
    let experts = Checkpoint::golden("granitemoehybrid__experts", config, &NARROW_HEADS);
    let mut gguf = check(&experts, "granitemoe");
    // As converters write them beside what all files of that architecture have.
    gguf.u32("granitemoe.ssm.conv_kernel", 4)
        .u32("granitemoe.ssm.state_size", 256)
        .u32("granitemoe.ssm.group_count", 1)
        .u32("granitemoe.ssm.inner_size", 128)
        .u32("granitemoe.ssm.time_step_rank", 4)
        .set(
            "granitemoe.attention.head_count_kv",
            Value::I32s(vec![2; 4]),
        );
    let hf = experts.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
}

#[test]
fn bamba_is_of_granite_4_hs_architecture_where_all_of_a_head_rotates() {
    let rope = json!({ "rope_theta": 10000.0, "rope_type": "default" });
    let whole = json!({
        "head_dim": 16, "partial_rotary_factor": 1.0, "rope_parameters": rope
    });
    let checkpoint = Checkpoint::golden("bamba", whole, &NARROW_HEADS);
    let mut gguf = check(&checkpoint, "granitehybrid");
    gguf.u32("granitehybrid.rope.dimension_count", 8);
    assert_eq!(
        refusal(&gguf),
        "`granitehybrid.rope.dimension_count` is 8, which is not supported; supported: the head \
         dimension, 16"
    );
}

#[test]
fn nemotron_h_has_layers_of_one_part() {
    let checkpoint = nemotron_without();
    let mut gguf = check(&checkpoint, "nemotron_h");
    let spec = open(&gguf).expect("a valid file").spec;
    let Mixer::Recurrent(RecurrentSpec::Mamba2(mamba)) = spec.layers[0].mixer else {
        panic!("no Mamba-2");
    };
    assert_eq!(mamba.norm_parts, Some(2));
    gguf.set(
        "nemotron_h.feed_forward_length",
        Value::I32s(vec![0, 96, 0, 96, 96, 0, 96, 0]),
    );
    assert_eq!(
        refusal(&gguf),
        "`nemotron_h.feed_forward_length` is 96 in layer 3; expected 0 where there are heads of \
         keys"
    );
    gguf.set("nemotron_h.feed_forward_length", Value::I32s(vec![0, 96]));
    assert_eq!(
        refusal(&gguf),
        "`nemotron_h.feed_forward_length` is a list of 2 numbers; expected a number from 0 for \
         each of 8 layers"
    );
    gguf.u32("nemotron_h.feed_forward_length", 96);
    assert_eq!(
        refusal(&gguf),
        "`nemotron_h.feed_forward_length` is 96; expected a list of 8 numbers, one for each layer"
    );
}

#[test]
fn mlps_of_nemotron_h_may_be_of_several_widths() {
    let mut checkpoint = nemotron_without();
    checkpoint.add("backbone.layers.4.mixer.up_proj.weight", &[32, 64]);
    checkpoint.add("backbone.layers.4.mixer.down_proj.weight", &[64, 32]);
    let mut gguf = convert(&checkpoint, "nemotron_h");
    let widths = vec![0, 96, 0, 0, 32, 0, 96, 0];
    gguf.set(
        "nemotron_h.feed_forward_length",
        Value::I32s(widths.clone()),
    );
    let spec = open(&gguf).expect("a valid file").spec;
    for (layer, width) in spec.layers.iter().zip(widths) {
        assert!(width == 0 || layer.intermediate() == width as usize);
        assert_eq!(layer.mlp != Mlp::None, width > 0);
    }
}

#[test]
fn nemotron_3_has_experts_and_may_predict_further_tokens() {
    let checkpoint = nemotron_with_experts();
    let mut gguf = check(&checkpoint, "nemotron_h_moe");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    // A layer of attention and experts.
    gguf.u32("nemotron_h_moe.block_count", 9)
        .u32("nemotron_h_moe.nextn_predict_layers", 1)
        .set(
            "nemotron_h_moe.attention.head_count_kv",
            Value::I32s(vec![0, 0, 0, 2, 0, 0, 0, 2, 2]),
        )
        .set(
            "nemotron_h_moe.feed_forward_length",
            Value::I32s(vec![0, 32, 0, 0, 32, 0, 32, 0, 32]),
        )
        .f32_tensor("blk.8.attn_norm.weight", &[64], &[1.0; 64])
        .f32_tensor("blk.8.nextn.enorm.weight", &[64], &[1.0; 64]);
    let model = open(&gguf).expect("a valid file");
    assert_eq!(model.family.name, "nemotron_h");
    assert_same(&model, &hf);
    gguf.u32("nemotron_h_moe.moe_latent_size", 16);
    assert_eq!(
        refusal(&gguf),
        "`nemotron_h_moe.moe_latent_size` is 16, which is not supported; supported: 0"
    );
}

#[test]
fn what_mamba_2_cannot_be_is_refused() {
    let refused = |key: &str, value: Option<u32>| {
        let mut gguf = convert(&granite(), "granitehybrid");
        let key = format!("granitehybrid.ssm.{key}");
        match value {
            Some(value) => gguf.u32(&key, value),
            None => gguf.remove(&key),
        };
        refusal(&gguf)
    };
    assert_eq!(
        refused("inner_size", Some(127)),
        "`granitehybrid.ssm.inner_size` is 127; expected a multiple of ssm.time_step_rank, 8"
    );
    assert_eq!(
        refused("time_step_rank", Some(0)),
        "`granitehybrid.ssm.inner_size` is 128; expected a multiple of ssm.time_step_rank, 0"
    );
    assert_eq!(
        refused("group_count", Some(3)),
        "the configuration is impossible: 8 heads of Mamba-2 cannot share the B and C of 3 groups \
         evenly"
    );
    let sentence = refused("group_count", Some(4));
    assert!(
        sentence.starts_with("tensor `blk.0.ssm_in.weight`"),
        "{sentence}"
    );
    for key in ["conv_kernel", "state_size", "group_count"] {
        assert_eq!(
            refused(key, None),
            format!("metadata `granitehybrid.ssm.{key}` is missing; the model needs it")
        );
    }
}

/// Sets the rates of the first layer, which files have below 0.
fn with_rates(rates: &[f32]) -> GgufBuilder {
    let mut gguf = convert(&granite(), "granitehybrid");
    let mut tensors = gguf.tensors.iter_mut();
    let tensor = tensors.find(|tensor| tensor.name == "blk.0.ssm_a");
    let bytes = rates.iter().flat_map(|rate| rate.to_le_bytes());
    tensor.expect("it is there").data = bytes.collect();
    gguf
}

#[test]
fn rates_become_logarithms_of_16_bits() {
    let decay = TensorName::Layer(0, L::MambaDecay);
    // As models begin training, and far beyond what they come to.
    let rates = [-1.0, -2.0, -3.0, -16.0, -1e-3, -1e-30, -1e30, -0.37];
    let model = open(&with_rates(&rates)).expect("a valid file");
    let found = sums(&model.weights().load(decay).expect("it loads"));
    for (rate, found) in rates.iter().zip(found) {
        let expected = f64::from(-*rate).ln();
        let error = (f64::from(found) - expected).abs();
        assert!(error <= expected.abs() / 65536.0, "{found} for {expected}");
    }
    for wrong in [0.0, 0.5, f32::NAN] {
        let mut rates = rates;
        rates[3] = wrong;
        let model = open(&with_rates(&rates)).expect("the values are not looked at");
        let error = model.weights().load(decay).expect_err("it grows");
        assert!(error.to_string().contains("`blk.0.ssm_a`"), "{error}");
    }
}
