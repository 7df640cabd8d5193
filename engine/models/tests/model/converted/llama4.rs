//! Llama 4, of which files do not say what all published models have in common.

use ebb_kernels::model::QkNorm;
use serde_json::{Value as Json, json};

use super::check;
use super::checkpoint::{Checkpoint, changed};
use crate::gguf_families::{open, refusal};

/// As published, but for sizes: two chunks, of which queries grow in the second.
fn published(changes: Json, shapes: &[(&str, &[usize])]) -> Checkpoint {
    let config = json!({
        "attention_chunk_size": 8192, "floor_scale": 8192, "max_position_embeddings": 16384
    });
    Checkpoint::golden("llama4_text", changed(config, changes), shapes)
}

/// With norms of heads, and experts in every other layer.
pub(super) fn scout() -> Checkpoint {
    published(json!({}), &[])
}

#[test]
fn llama_4_has_chunks_and_experts_beside_a_shared_one() {
    let mut gguf = check(&scout(), "llama4");
    let spec = open(&gguf).expect("a valid file").spec;
    let chunks: Vec<_> = spec
        .attentions()
        .map(|(_, a)| (a.window, a.chunked))
        .collect();
    let chunk = (Some(8192), true);
    assert_eq!(chunks, [chunk, chunk, chunk, (None, false)]);
    // What converters write of models without chunks.
    gguf.u32("llama4.attention.sliding_window", 0);
    assert_eq!(
        refusal(&gguf),
        "`llama4.attention.sliding_window` is 0, which is not supported; supported: 8192"
    );
    gguf.u32("llama4.attention.sliding_window", 8192)
        .u32("llama4.attention.sliding_window_pattern", 4);
    assert_eq!(open(&gguf).expect("a valid file").spec, spec);
    gguf.u32("llama4.attention.sliding_window_pattern", 2);
    assert_eq!(
        refusal(&gguf),
        "`llama4.attention.sliding_window_pattern` is 2, which is not supported; supported: 4"
    );
    gguf.u32("llama4.attention.sliding_window_pattern", 4)
        .u32("llama4.interleave_moe_layer_step", 1);
    let sentence = refusal(&gguf);
    assert!(sentence.starts_with("tensor `blk.0.ffn_"), "{sentence}");
    assert!(sentence.contains("` is missing; "), "{sentence}");
    gguf.u32("llama4.interleave_moe_layer_step", 0);
    assert_eq!(
        refusal(&gguf),
        "`llama4.interleave_moe_layer_step` is 0; expected a number of layers above 0"
    );
}

#[test]
fn llama_4_of_128_experts_has_no_norms_of_heads() {
    let experts: [(&str, &[usize]); 3] = [
        ("router.weight", &[128, 64]),
        ("experts.gate_up_proj", &[128, 64, 128]),
        ("experts.down_proj", &[128, 64, 64]),
    ];
    let changes = json!({ "num_local_experts": 128, "use_qk_norm": false });
    let gguf = check(&published(changes, &experts), "llama4");
    let spec = open(&gguf).expect("a valid file").spec;
    assert!(spec.attentions().all(|(_, a)| a.qk_norm == QkNorm::None));
}

#[test]
fn a_context_of_one_chunk_has_none() {
    let checkpoint = published(json!({ "max_position_embeddings": 8192 }), &[]);
    let gguf = check(&checkpoint, "llama4");
    let spec = open(&gguf).expect("a valid file").spec;
    assert!(
        spec.attentions()
            .all(|(_, a)| a.window.is_none() && !a.chunked)
    );
}
