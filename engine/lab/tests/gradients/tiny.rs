//! Tiny models of random weights, from a config.json alone.

use serde_json::{Value, json};

/// A directory that is a model with `--load-format dummy`: bytes are tokens.
pub(crate) fn model(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 96,
        "vocab_size": 300, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    });
    change(&mut config);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
    dir
}

pub(crate) fn llama(_: &mut Value) {}

pub(crate) fn llama3_scaled(config: &mut Value) {
    config["tie_word_embeddings"] = false.into();
    config["rope_theta"] = 500_000.0.into();
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
}

pub(crate) fn yarn(config: &mut Value) {
    config["rope_scaling"] = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
    });
}

pub(crate) fn qwen2(config: &mut Value) {
    config["architectures"] = json!(["Qwen2ForCausalLM"]);
    config["model_type"] = "qwen2".into();
}

pub(crate) fn qwen3(config: &mut Value) {
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    config["model_type"] = "qwen3".into();
}
