//! The same models behind the engine: sixteen requests at once, prompts cut into chunks, prefixes
//! found in the cache, sequences preempted, blocks trimmed behind windows. Answers are those of the
//! reference all the same.

pub(crate) use ebb_scheduler::Mode;
use ebb_serving::EngineConfig;
use ebb_serving::core::{EngineHandle, Prompt, Request, StreamEvent, TokenLogprobs};
use ebb_serving::device::Device;
use ebb_serving::sampling::SamplingOptions;
use serde_json::{Value, json};

use super::{
    CONTEXT, bound, device, golden, has_experts, ids, is_beyond_bf16, is_refused, margin,
    text_config, wanted, write,
};

/// Tokens of an answer: more than the reference has, so that sequences outgrow what admission sees
/// to.
const ANSWER: usize = 70;
/// Rows of a step: prompts are cut into chunks, and share steps with answers.
const STEP_ROWS: usize = 96;

/// What became of a request.
struct Answer {
    prompt_logprobs: Vec<TokenLogprobs>,
    tokens: Vec<u32>,
}

async fn ask(engine: &EngineHandle, prompt: &[u32], scores: bool) -> Answer {
    let params = SamplingOptions {
        temperature: 0.0,
        max_tokens: Some(ANSWER as u32),
        ignore_eos: true,
        prompt_logprobs: scores.then_some(0),
        ..SamplingOptions::default()
    };
    let request = Request {
        min_kv_bits: Some(16),
        ..Request::new(Prompt::Tokens(prompt.to_vec()), params)
    };
    let mut stream = engine.generate(request).await.expect("accepted");
    let mut answer = Answer {
        prompt_logprobs: Vec::new(),
        tokens: Vec::new(),
    };
    while let Some(event) = stream.next().await {
        match event.expect("an answer") {
            StreamEvent::Started {
                prompt_logprobs, ..
            } => answer.prompt_logprobs = prompt_logprobs,
            StreamEvent::Delta { token_ids, .. } => answer.tokens.extend(token_ids),
            StreamEvent::Finished { .. } => {}
        }
    }
    answer
}

/// A tokenizer of as many words: prompts are token ids.
pub(crate) fn tokenizer(vocab: u64) -> Value {
    let words = (0..vocab).map(|id| (format!("w{id}"), json!(id)));
    let words: serde_json::Map<_, _> = words.collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
    json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": bytes,
        "pre_tokenizer": bytes,
        "model": { "type": "BPE", "vocab": words, "merges": [] },
    })
}

/// Whether the device refuses to serve a checkpoint, by what it does not compute.
fn refuses(dir: &std::path::Path) -> bool {
    let model = ebb_models::model::ModelFiles::Directory(dir.to_owned());
    let model = ebb_models::model::LoadedModel::open(&model).expect("a valid checkpoint");
    let device = device();
    if !is_refused(&device, &model) {
        return false;
    }
    let config = EngineConfig {
        threads: 2,
        device,
        ..EngineConfig::new(dir.to_str().expect("UTF-8"), 64 << 20)
    };
    let refused = ebb_serving::start(config).err().expect("a refusal");
    let refused = refused.to_string();
    assert!(refused.contains("does not compute"), "{refused}");
    true
}

/// An engine over a checkpoint whose KV memory holds so many blocks, and the mode that it is in: a
/// model with fewer than eight records a block cannot shrink, and is not asked to.
fn engine(dir: &std::path::Path, mode: Mode, blocks: u64) -> (EngineHandle, Mode) {
    let model = ebb_models::model::ModelFiles::Directory(dir.to_owned());
    let model = ebb_models::model::LoadedModel::open(&model).expect("a valid checkpoint");
    let block = model.spec.kv_geometry().block_bytes() as u64;
    let state = (model.spec.state_floats() * size_of::<f32>()) as u64;
    let records = model.spec.kv_geometry().records();
    // Where few records make a block, what shrinking keeps free is much of a GPU's.
    let is_gpu = matches!(device(), Device::Cuda(_));
    let blocks = match mode {
        Mode::Progressive if is_gpu && (8..16).contains(&records) => blocks + 3,
        _ => blocks,
    };
    // States of sequences take at most half of the memory, and those that are kept for prefixes two
    // slots or a fifth of the rest.
    let max_running = if state > 0 { 8 } else { 16 };
    let (of_blocks, of_running) = (blocks * block, max_running as u64 * state);
    let least = if state > 0 { 8 * block } else { 0 };
    let rest = (of_blocks + 2 * state).max(if state > 0 { of_blocks * 5 / 4 } else { 0 });
    let bytes = (of_running + rest).max(least);
    let config = EngineConfig {
        threads: 2,
        device: device(),
        kv_mode: Some(mode),
        max_running,
        max_step_tokens: STEP_ROWS,
        max_context: Some(CONTEXT + ANSWER),
        ..EngineConfig::new(dir.to_str().expect("UTF-8"), bytes)
    };
    if mode == Mode::PreemptOnly || records >= 8 {
        return (ebb_serving::start(config).expect("it starts"), mode);
    }
    let refused = ebb_serving::start(config.clone()).err().expect("too small");
    assert!(
        refused.to_string().contains("too small to be shrunk"),
        "{refused}"
    );
    let config = EngineConfig {
        kv_mode: None,
        ..config
    };
    (
        ebb_serving::start(config).expect("it starts"),
        Mode::PreemptOnly,
    )
}

/// Requests ask for 16 bits: where blocks shrink these do not, and memory is promised to them.
pub(crate) fn check(name: &str, mode: Mode) {
    let golden = golden(name);
    let dir = tempfile::tempdir().expect("a directory");
    write(&golden, dir.path());
    let vocab = text_config(&golden)["vocab_size"]
        .as_u64()
        .expect("a number");
    std::fs::write(
        dir.path().join("tokenizer.json"),
        tokenizer(vocab).to_string(),
    )
    .expect("it writes");
    if refuses(dir.path()) {
        return;
    }
    // Two of the longest sequences at 16 bit.
    let (engine, mode) = engine(dir.path(), mode, 7);
    let prompts = golden["prompts"].as_array().expect("prompts");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        // Each prompt four times at once; the first of them is scored.
        let all = (0..4).flat_map(|round| prompts.iter().map(move |prompt| (round, prompt)));
        let asked = all.map(|(round, prompt)| {
            let engine = engine.clone();
            let tokens = ids(&prompt["ids"]);
            let answer = tokio::spawn(async move { ask(&engine, &tokens, round == 0).await });
            (prompt, answer)
        });
        let asked: Vec<_> = asked.collect();
        for (prompt, answer) in asked {
            compare(&golden, prompt, &answer.await.expect("no panic"));
        }
        for prompt in prompts {
            let answer = ask(&engine, &ids(&prompt["ids"]), false).await;
            compare(&golden, prompt, &answer);
        }
        // And again, from what the cache has of it.
        let last = &prompts[prompts.len() - 1];
        let before = engine.state().prefix_hits;
        let answer = ask(&engine, &ids(&last["ids"]), false).await;
        compare(&golden, last, &answer);
        let found = engine.state().prefix_hits - before;
        assert!(found >= 128, "{name}: {found} tokens found in the cache");
    });
    let state = engine.state();
    match mode {
        Mode::PreemptOnly => assert!(state.preemptions > 0, "{name}: {state:?}"),
        Mode::Progressive | Mode::Static => assert_eq!(state.preemptions, 0, "{name}"),
    }
}

fn compare(golden: &Value, prompt: &Value, answer: &Answer) {
    let name = golden["architecture"].as_str().expect("a name");
    if is_beyond_bf16(name, &device()) {
        assert_eq!(answer.tokens.len(), ANSWER, "{name}");
        return;
    }
    let tokens = ids(&prompt["ids"]);
    let reference = wanted(prompt);
    let wanted = reference["logprobs"].as_array().expect("log-probabilities");
    let distances = answer.prompt_logprobs.iter().zip(wanted);
    let distances = distances
        .map(|(got, wanted)| (f64::from(got.logprob) - wanted.as_f64().expect("a number")).abs());
    let mean = distances.sum::<f64>() / wanted.len() as f64;
    // On a GPU one decision of a router moves a short prompt too far.
    let is_steady = matches!(device(), Device::Cpu) || !has_experts(golden);
    assert!(
        mean < bound(&device(), golden) || !is_steady,
        "{name}: off by {mean} on average"
    );
    let least = margin(golden);
    let greedy = reference["greedy_and_margin"].as_array().expect("tokens");
    let sure = greedy
        .iter()
        .take_while(|step| step[1].as_f64().is_some_and(|margin| margin >= least));
    let sure: Vec<u32> = sure
        .map(|step| step[0].as_u64().expect("a token") as u32)
        .collect();
    let given = &answer.tokens[..sure.len()];
    assert_eq!(given, sure, "{name}, {} tokens", tokens.len());
}
