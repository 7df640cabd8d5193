//! Models of several kinds of layers under memory pressure: what has pages shrinks, nobody is
//! preempted, and every request is answered whole. The golden models have too few records a block
//! to shrink, so these have each of their layers twice.

use ebb_scheduler::Mode;
use ebb_serving::EngineConfig;
use ebb_serving::core::{EngineHandle, Prompt, Request, StreamEvent};
use ebb_serving::sampling::SamplingOptions;
use serde_json::{Value, json};

use super::served::tokenizer;
use super::{device, golden, ids, write};

const ANSWER: u32 = 100;
const CONTEXT: u32 = 512;
/// Sequences that run at once, and requests.
const RUNNING: usize = 8;
const REQUESTS: usize = 24;

/// Lists that have an entry for each layer.
const OF_EACH_LAYER: [&str; 3] = [
    "layer_types",
    "mlp_layer_types",
    "num_attention_heads_per_layer",
];

/// A golden model, and behind its layers the same ones again.
fn twice(name: &str) -> Value {
    let mut golden = golden(name);
    let config = golden["config"].as_object_mut().expect("a configuration");
    let layers = config["num_hidden_layers"].as_u64().expect("a number");
    config.insert("num_hidden_layers".into(), json!(2 * layers));
    for key in OF_EACH_LAYER {
        if let Some(Value::Array(all)) = config.get_mut(key) {
            all.extend(all.clone());
        }
    }
    if let Some(Value::Object(own)) = config.get_mut("per_layer_config") {
        let again = own.iter().map(|(layer, sizes)| {
            let layer: u64 = layer.parse().expect("a number");
            ((layer + layers).to_string(), sizes.clone())
        });
        let again: Vec<_> = again.collect();
        own.extend(again);
    }
    let tensors = golden["tensors"].as_object_mut().expect("tensors");
    let again = tensors.iter().filter_map(|(name, shape)| {
        let (before, rest) = name.split_once("layers.")?;
        let (layer, rest) = rest.split_once('.')?;
        let layer: u64 = layer.parse().ok()?;
        Some((
            format!("{before}layers.{}.{rest}", layer + layers),
            shape.clone(),
        ))
    });
    let again: Vec<_> = again.collect();
    tensors.extend(again);
    golden
}

async fn ask(engine: &EngineHandle, prompt: Vec<u32>) -> usize {
    let params = SamplingOptions {
        temperature: 0.0,
        max_tokens: Some(ANSWER),
        ignore_eos: true,
        ..SamplingOptions::default()
    };
    let request = Request::new(Prompt::Tokens(prompt), params);
    let mut stream = engine.generate(request).await.expect("accepted");
    let mut tokens = 0;
    while let Some(event) = stream.next().await {
        if let StreamEvent::Delta { token_ids, .. } = event.expect("an answer") {
            tokens += token_ids.len();
        }
    }
    tokens
}

fn check(name: &str) {
    let golden = twice(name);
    let dir = tempfile::tempdir().expect("a directory");
    write(&golden, dir.path());
    let vocab = golden["config"]["vocab_size"].as_u64().expect("a number");
    let words = tokenizer(vocab).to_string();
    std::fs::write(dir.path().join("tokenizer.json"), words).expect("it writes");
    let files = ebb_models::model::ModelFiles::Directory(dir.path().to_owned());
    let model = ebb_models::model::LoadedModel::open(&files).expect("a valid checkpoint");
    let geometry = model.spec.kv_geometry();
    assert!(geometry.records() >= 8, "{name}: {geometry:?}");
    let state = (model.spec.state_floats() * size_of::<f32>()) as u64;
    // Eight sequences of up to four blocks each want 32 at 16 bit.
    let bytes = 14 * geometry.block_bytes() as u64 + (RUNNING as u64 + 2) * state;
    let config = EngineConfig {
        threads: 2,
        device: device(),
        kv_mode: Some(Mode::Progressive),
        max_running: RUNNING,
        max_step_tokens: 96,
        max_context: Some(CONTEXT as usize),
        ..EngineConfig::new(dir.path().to_str().expect("UTF-8"), bytes)
    };
    let engine = ebb_serving::start(config).expect("it starts");
    let prompts = golden["prompts"].as_array().expect("prompts");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let asked = (0..REQUESTS).map(|request| {
            // The two long ones, each time with another first token.
            let mut prompt = ids(&prompts[2 + request % 2]["ids"]);
            prompt[0] = 3 + request as u32;
            let engine = engine.clone();
            tokio::spawn(async move { ask(&engine, prompt).await })
        });
        let asked: Vec<_> = asked.collect();
        for answer in asked {
            assert_eq!(answer.await.expect("no panic"), ANSWER as usize, "{name}");
        }
    });
    let state = engine.state();
    assert_eq!(state.preemptions, 0, "{name}");
    assert!(state.kv.shrinks_live > 0, "{name}: {:?}", state.kv);
    println!("{name}: {} blocks shrank", state.kv.shrinks_live);
}

macro_rules! shrinking {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

shrinking!(gemma3_text gemma4_text gpt_oss laguna qwen3_5_text);
