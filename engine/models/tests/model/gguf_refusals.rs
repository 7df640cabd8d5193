//! GGUF models that are whole but not supported, or whose parts contradict each other.

use crate::gguf_builder::{GgufBuilder, Value};
use crate::gguf_families::{refusal, tiny_gguf};
use crate::tiny;

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let spec = tiny::spec(tiny::family("llama"), false);
    let refused = |change: &dyn Fn(&mut GgufBuilder)| {
        let mut gguf = tiny_gguf("llama", &spec);
        change(&mut gguf);
        refusal(&gguf)
    };
    let text = |key: &'static str, value: &'static str| {
        refused(&|gguf| {
            gguf.text(key, value);
        })
    };
    let number = |key: &'static str, value| {
        refused(&|gguf| {
            gguf.u32(key, value);
        })
    };
    assert_eq!(
        text("general.architecture", "mamba"),
        "`general.architecture` is \"mamba\", which is not supported; \
         supported: afmoe, apertus, arcee, command-r, cohere2, cohere2moe, dots1, ernie4_5, \
         ernie4_5-moe, exaone4, exaone-moe, gemma, gemma2, gemma3, gemma4, chatglm, glm4, \
         glm4moe, gpt-oss, granite, granite_swa, granitemoe, granitehybrid, hunyuan-dense, \
         hunyuan-moe, hy_v3, lfm2, lfm2moe, llama (also for Mistral and Mixtral), llama4, \
         mellum, minimax-m2, mistral3, nemotron, nemotron_h, nemotron_h_moe, olmo, olmo2, \
         olmoe, phi2, phi3, phimoe, qwen2, qwen2moe, qwen3, qwen35moe, qwen35, qwen3moe, \
         qwen3next, qwen3vlmoe, qwen3vl, seed_oss, smollm3, stablelm, starcoder2"
    );
    assert_eq!(
        text("general.type", "adapter"),
        "`general.type` is \"adapter\", which is not supported; supported: model"
    );
    assert!(number("split.count", 3).contains("--merge"));
    assert_eq!(
        number("llama.expert_count", 8),
        "tensor `blk.0.ffn_gate_exps.weight` is missing; the file is incomplete or its \
         configuration wrong"
    );
    assert!(number("llama.logit_scale", 2).starts_with("`llama.logit_scale` is 2, which is not"));
    assert_eq!(
        text("llama.rope.scaling.type", "longrope"),
        "`llama.rope.scaling.type` is \"longrope\", which is not supported; \
         supported: none, linear, yarn, and Llama 3's factors in rope_freqs.weight"
    );
    assert_eq!(
        number("llama.rope.scaling.yarn_beta_fast", 16),
        "`llama.rope.scaling.yarn_beta_fast` is 16, which is not supported; supported: 32, but \
         for the scaling yarn"
    );
    assert!(number("llama.rope.dimension_count", 8).contains("the head dimension, 16"));
    assert!(number("llama.attention.value_length", 32).contains("the head dimension, 16"));
    let differing = refused(&|gguf| {
        gguf.set("llama.attention.head_count_kv", Value::I32s(vec![2, 1]));
    });
    assert!(
        differing.contains("the same value for every layer"),
        "{differing}"
    );
    assert_eq!(
        refused(&|gguf| {
            gguf.f32_tensor("blk.0.attn_output.bias", &[32], &[0.0; 32]);
        }),
        "tensor `blk.0.attn_output.bias` is not part of a supported model \
         (Llama, Mistral, Qwen2, Qwen3)"
    );
}

#[test]
fn contradictions_between_configuration_and_tensors_are_found_when_opening() {
    let spec = tiny::spec(tiny::family("llama"), false);
    let refused = |change: &dyn Fn(&mut GgufBuilder)| {
        let mut gguf = tiny_gguf("llama", &spec);
        change(&mut gguf);
        refusal(&gguf)
    };
    assert_eq!(
        refused(&|gguf| {
            gguf.u32("llama.feed_forward_length", 65);
        }),
        "tensor `blk.0.ffn_gate.weight` has shape [64, 32]; the configuration calls for [65, 32]"
    );
    assert_eq!(
        refused(&|gguf| {
            gguf.u32("llama.block_count", 3);
        }),
        "tensor `blk.2.attn_norm.weight` is missing; the file is incomplete or its \
         configuration wrong"
    );
    assert!(
        refused(&|gguf| {
            gguf.u32("llama.block_count", 1);
        })
        .starts_with("tensor `blk.1."),
        "layers beyond the count are not ignored"
    );
    assert_eq!(
        refused(&|gguf| {
            gguf.remove("llama.context_length");
        }),
        "metadata `llama.context_length` is missing; the model needs it"
    );
    for (key, value) in [
        ("llama.block_count", 0),
        ("llama.block_count", u32::MAX),
        ("llama.embedding_length", u32::MAX),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 12),
        ("llama.attention.key_length", u32::MAX),
        ("llama.context_length", 0),
        ("llama.context_length", u32::MAX),
        ("llama.vocab_size", 41),
    ] {
        let sentence = refused(&|gguf| {
            gguf.u32(key, value)
                .remove("llama.rope.dimension_count")
                .remove("llama.attention.value_length");
        });
        assert!(sentence.len() < 200, "{key} = {value}: {sentence}");
    }
    assert!(
        refused(&|gguf| {
            gguf.set(
                "tokenizer.ggml.tokens",
                Value::Texts(vec!["x".to_owned(); 41]),
            );
        })
        .contains("at most 40"),
    );
}
