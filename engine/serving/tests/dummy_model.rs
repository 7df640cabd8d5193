//! A model of random weights, from a config.json alone, is served.

use ebb_models::model::LoadFormat;
use ebb_serving::EngineConfig;
use ebb_serving::core::{Prompt, Request, StreamEvent};
use ebb_serving::sampling::SamplingOptions;
use serde_json::json;

/// A directory with nothing but the configuration of a tiny model.
fn config_only() -> tempfile::TempDir {
    let config = json!({
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

#[test]
fn an_engine_serves_it() {
    let dir = config_only();
    let engine = ebb_serving::start(EngineConfig {
        load_format: LoadFormat::Dummy,
        threads: 1,
        kv_mode: Some(ebb_scheduler::Mode::PreemptOnly),
        ..EngineConfig::new(dir.path().to_str().expect("UTF-8"), 1 << 20)
    })
    .expect("it starts");
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
        let mut tokens = 0;
        while let Some(event) = stream.next().await {
            if let StreamEvent::Delta { token_ids, .. } = event.expect("an answer") {
                tokens += token_ids.len();
            }
        }
        tokens
    });
    assert_eq!(tokens, 5);
}
