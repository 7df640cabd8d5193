//! A model of random weights, from a config.json alone, is served.

use ebb_kernels::weight_formats::Quantisation;
use ebb_models::model::LoadFormat;
use ebb_serving::EngineConfig;
use ebb_serving::core::{Prompt, Request, StreamEvent};
use ebb_serving::sampling::SamplingOptions;
use serde_json::{Value, json};

/// A directory with nothing but the configuration of a tiny model, quantised like this.
fn config_only(quantization: Value) -> tempfile::TempDir {
    let config = json!({
        "quantization_config": quantization,
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
        "vocab_size": 40, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    });
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
    dir
}

fn config(dir: &tempfile::TempDir) -> EngineConfig {
    EngineConfig {
        load_format: LoadFormat::Dummy,
        threads: 1,
        kv_mode: Some(ebb_scheduler::Mode::PreemptOnly),
        ..EngineConfig::new(dir.path().to_str().expect("UTF-8"), 1 << 20)
    }
}

/// Five tokens of a greedy answer.
fn answer(config: EngineConfig) -> Vec<u32> {
    let engine = ebb_serving::start(config).expect("it starts");
    let params = SamplingOptions {
        temperature: 0.0,
        max_tokens: Some(5),
        ignore_eos: true,
        ..SamplingOptions::default()
    };
    let request = Request::new(Prompt::Tokens(vec![1, 2, 3]), params);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let tokens = runtime.block_on(async {
        let mut stream = engine.generate(request).await.expect("accepted");
        let mut tokens = Vec::new();
        while let Some(event) = stream.next().await {
            if let StreamEvent::Delta { token_ids, .. } = event.expect("an answer") {
                tokens.extend_from_slice(&token_ids);
            }
        }
        tokens
    });
    assert_eq!(tokens.len(), 5);
    tokens
}

#[test]
fn an_engine_serves_it() {
    answer(config(&config_only(Value::Null)));
}

/// Packed or expanded, weights are the same, up to how a device rounds.
#[test]
fn quantised_shapes_are_served_packed_and_exact() {
    let dir = config_only(json!({ "quant_method": "fp8", "weight_block_size": [16, 16] }));
    for expand_weights in [false, true] {
        let config = EngineConfig {
            expand_weights,
            ..config(&dir)
        };
        answer(config);
    }
}

#[test]
fn plain_weights_are_quantised_and_quantised_ones_are_not() {
    let plain = config_only(Value::Null);
    for quantization in [Quantisation::Fp8, Quantisation::Int4] {
        let config = EngineConfig {
            quantization: Some(quantization),
            ..config(&plain)
        };
        answer(config);
    }
    let packed = config_only(json!({ "quant_method": "awq", "bits": 4, "group_size": 16 }));
    let refused = ebb_serving::start(EngineConfig {
        quantization: Some(Quantisation::Int4),
        ..config(&packed)
    });
    assert_eq!(
        refused.err().expect("refused").to_string(),
        "--quantization int4: the weights of this model are quantised already; leave it out"
    );
}
