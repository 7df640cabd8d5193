//! Gemma 4, whose layers differ in more than whether they have a window.

use serde_json::{Value as Json, json};

use super::checkpoint::changed;
use super::{Checkpoint, check};
use crate::gguf_builder::Value;
use crate::gguf_families::{open, refusal};
use ebb_kernels::model::Mlp;

#[test]
fn heads_have_two_widths_and_two_ropes() {
    let checkpoint = Checkpoint::golden("gemma4_text", json!({}), &[]);
    let mut gguf = check(&checkpoint, "gemma4");
    let spec = open(&gguf).expect("a valid file").spec;
    assert_eq!(spec.ropes[0].inv_freq[64..], [0.0; 192]);
    gguf.u32("gemma4.rope.dimension_count_swa", 32);
    assert_eq!(
        refusal(&gguf),
        "`gemma4.rope.dimension_count_swa` is 32, which is not supported; supported: 64"
    );
    gguf.u32("gemma4.rope.dimension_count_swa", 64)
        .u32("gemma4.attention.value_length_swa", 32);
    assert!(refusal(&gguf).starts_with("`gemma4.attention.value_length_swa` is 32"));
    gguf.u32("gemma4.attention.value_length_swa", 64)
        .u32("gemma4.expert_count", 128);
    assert_eq!(
        refusal(&gguf),
        "`gemma4.expert_count` is 128, which is not supported; supported: 0"
    );
    gguf.remove("gemma4.expert_count")
        .remove("gemma4.attention.sliding_window");
    assert_eq!(
        refusal(&gguf),
        "`gemma4.attention.sliding_window` is missing"
    );
    gguf.u32("gemma4.attention.sliding_window", 96)
        .tensors
        .retain(|tensor| tensor.name != "rope_freqs.weight");
    assert!(refusal(&gguf).starts_with("tensor `rope_freqs.weight` is missing"));
}

/// Keys and values of their own in the first two layers alone, and wide MLPs in the last two.
fn shared(config: Json) -> Checkpoint {
    let whole = json!({ "use_double_wide_mlp": true, "final_logit_softcapping": 30.0 });
    let whole = changed(whole, config);
    let wide: [(&str, &[usize]); 6] = [
        ("layers.2.mlp.gate_proj.weight", &[256, 64]),
        ("layers.2.mlp.up_proj.weight", &[256, 64]),
        ("layers.2.mlp.down_proj.weight", &[64, 256]),
        ("layers.3.mlp.gate_proj.weight", &[256, 64]),
        ("layers.3.mlp.up_proj.weight", &[256, 64]),
        ("layers.3.mlp.down_proj.weight", &[64, 256]),
    ];
    Checkpoint::golden("gemma4_text__shared", whole, &wide)
}

#[test]
fn layers_share_keys_and_have_inputs_of_their_own() {
    let mut checkpoint = shared(json!({}));
    let mut gguf = check(&checkpoint, "gemma4");
    let spec = open(&gguf).expect("a valid file").spec;
    let width = |layer: usize| match spec.layers[layer].mlp {
        Mlp::Dense { intermediate, .. } => intermediate,
        _ => panic!("a dense layer"),
    };
    assert_eq!([0, 1, 2, 3].map(width), [128, 128, 256, 256]);
    assert_eq!(spec.attention(3).kv_from, Some(1));
    // Checkpoints may have what no layer reads, and files have it, too.
    checkpoint.add("model.layers.2.self_attn.k_proj.weight", &[128, 64]);
    checkpoint.add("model.layers.2.self_attn.v_proj.weight", &[128, 64]);
    checkpoint.add("model.layers.2.self_attn.k_norm.weight", &[64]);
    check(&checkpoint, "gemma4");
    gguf.u32("gemma4.attention.shared_kv_layers", 4);
    assert_eq!(
        refusal(&gguf),
        "`gemma4.attention.shared_kv_layers` is 4; expected layers of each kind before those that \
         share"
    );
    gguf.u32("gemma4.attention.shared_kv_layers", 2).set(
        "gemma4.feed_forward_length",
        Value::I32s(vec![128, 128, 256]),
    );
    assert_eq!(
        refusal(&gguf),
        "`gemma4.feed_forward_length` is a list of 3 numbers; expected a number from 0 for each \
         of 4 layers"
    );
}

#[test]
fn values_may_be_keys_of_fewer_heads() {
    let config = json!({
        "attention_k_eq_v": true, "num_global_key_value_heads": 1, "global_head_dim": 512,
        "per_layer_config": {
            "1": { "head_dim": 512, "num_key_value_heads": 1 },
            "3": { "head_dim": 512, "num_key_value_heads": 1 }
        }
    });
    let narrow: [(&str, &[usize]); 2] = [
        ("layers.1.self_attn.k_proj.weight", &[512, 64]),
        ("layers.3.self_attn.k_proj.weight", &[512, 64]),
    ];
    let checkpoint = Checkpoint::golden("gemma4_text", config, &narrow)
        .without("layers.1.self_attn.v_proj")
        .without("layers.3.self_attn.v_proj");
    let gguf = check(&checkpoint, "gemma4");
    let spec = open(&gguf).expect("a valid file").spec;
    let kv_heads: Vec<_> = spec.attentions().map(|(_, a)| a.kv_heads).collect();
    assert_eq!(kv_heads, [2, 1, 2, 1]);
}
