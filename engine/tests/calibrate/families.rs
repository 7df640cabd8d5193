//! `ebb calibrate` and `ebb eval` on tiny models of several kinds of layers.

use serde_json::{Value, json};

use crate::bench::Bench;

/// Floors of 6 bits on average, found by measuring, and a text scored with them.
fn check(name: &str, change: fn(&mut Value)) {
    let bench = Bench::of(change);
    let budget = "--budget 6 --formats int8,int4,int2";
    bench.good(&format!("calibrate --text text.txt {budget} --out m.json"));
    assert_eq!(bench.profile("m.json")["method"]["name"], "measured");
    let (bits, kl) = bench.eval("profile:m.json");
    assert!(bits <= 6.0 && bits > 4.0, "{name}: {bits}");
    let (least, worst) = bench.eval("k=int2,v=int2");
    assert!(
        least < bits && kl > 0.0 && worst > kl,
        "{name}: {kl} at {bits}, {worst} at {least}"
    );
}

#[test]
fn windows_and_sinks_as_of_gpt_oss() {
    check("gpt-oss", |config| {
        config["architectures"] = json!(["GptOssForCausalLM"]);
        config["model_type"] = "gpt_oss".into();
        config["layer_types"] = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        config["sliding_window"] = 200.into();
        config["num_local_experts"] = 4.into();
        config["num_experts_per_tok"] = 2.into();
        config["tie_word_embeddings"] = false.into();
    });
}

#[test]
fn windows_as_of_gemma_3() {
    check("Gemma 3", |config| {
        config["architectures"] = json!(["Gemma3ForCausalLM"]);
        config["model_type"] = "gemma3_text".into();
        config["layer_types"] = json!(["sliding_attention", "sliding_attention", "full_attention"]);
        config["sliding_window"] = 200.into();
    });
}

#[test]
fn heads_of_two_widths_as_of_gemma_4() {
    check("Gemma 4", |config| {
        config["architectures"] = json!(["Gemma4ForCausalLM"]);
        config["model_type"] = "gemma4_text".into();
        config["layer_types"] = json!(["sliding_attention", "sliding_attention", "full_attention"]);
        config["sliding_window"] = 200.into();
        config["global_head_dim"] = 128.into();
        config["hidden_size_per_layer_input"] = 16.into();
        config["vocab_size_per_layer_input"] = 300.into();
    });
}

#[test]
fn recurrent_layers_as_of_qwen3_5() {
    check("Qwen3.5", |config| {
        config["architectures"] = json!(["Qwen3_5ForCausalLM"]);
        config["model_type"] = "qwen3_5_text".into();
        config["num_hidden_layers"] = 4.into();
        config["layer_types"] = json!([
            "linear_attention",
            "full_attention",
            "linear_attention",
            "full_attention"
        ]);
        for (key, value) in [
            ("linear_num_key_heads", 2),
            ("linear_num_value_heads", 4),
            ("linear_key_head_dim", 32),
            ("linear_value_head_dim", 32),
            ("linear_conv_kernel_dim", 4),
        ] {
            config[key] = value.into();
        }
    });
}
