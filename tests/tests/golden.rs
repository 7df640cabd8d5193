//! Golden data of an independent implementation, reproduced through the engine's own path, on the
//! CPU or on the device that `EBB_TEST_DEVICE` names (as `--device` does).

use std::path::Path;

use ebb_block_manager::BlockManager;
use ebb_lab::eval::{self, Rows, Sequence};
use ebb_models::Opened;
use ebb_models::tokenizer::ChatMessage;
use ebb_serving::EngineConfig;
use ebb_serving::core::{EngineHandle, FinishReason, Prompt, Request, StreamEvent};
use ebb_serving::device::{BackendOptions, Device, StepSizes};
use ebb_tests::real_model::default_model;
use serde_json::Value;

/// Below this margin between the best two logits, rounding may choose either.
const MARGIN: f64 = 0.05;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden(name: &str) -> Value {
    serde_json::from_str(&read(&format!("golden/{name}"))).expect("golden data is JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list of ids");
    ids.iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().expect("a list of numbers");
    numbers
        .iter()
        .map(|n| n.as_f64().expect("a number"))
        .collect()
}

fn open(model: &Path) -> Opened {
    ebb_models::open(model.to_str().expect("a UTF-8 path"), None).expect("the model opens")
}

fn device() -> Device {
    let choice = std::env::var("EBB_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let choice = choice.parse().expect("EBB_TEST_DEVICE is a device");
    Device::open(choice).expect("the device opens")
}

/// How far logits and log-probabilities may be off. A GPU rounds activations to bf16, the golden
/// data does not.
fn tolerance(device: &Device) -> f64 {
    match device {
        Device::Cpu => 0.05,
        Device::Cuda(_) => 0.25,
    }
}

fn sequence(opened: &Opened, kv_bytes: u64) -> Sequence {
    let pool = ebb_serving::pool(&opened.model, kv_bytes, false).expect("the pool fits");
    let options = BackendOptions {
        device: device(),
        steps: StepSizes {
            rows: 1024,
            seqs: 1,
            states: 1,
            context: 2048,
            logit_rows: 128,
            decode_rows: 1,
            batch_invariant: false,
        },
        expand_weights: true,
        ..BackendOptions::cpu(2)
    };
    let backend = options
        .start(&opened.model, pool.frames)
        .expect("the weights load");
    Sequence::new(backend, BlockManager::new(pool).expect("the pool is valid"))
}

/// Feeds each golden prompt and continuation; checks logits, greedy ids and log-probabilities.
fn check_greedy(model: &Path, golden_file: &str) {
    let opened = open(model);
    let mut sequence = sequence(&opened, 256 << 20);
    let tolerance = tolerance(&device());
    let vocab = opened.model.spec.vocab;
    let golden = golden(golden_file);
    let cases = golden["weights_bf16_rounded_fp32_compute"]
        .as_array()
        .expect("cases");
    for case in cases {
        let prompt = ids(&case["prompt_ids"]);
        let text = case["prompt"].as_str().expect("a prompt");
        let encoded = opened
            .tokenizer
            .encode(text, false, true)
            .expect("it encodes");
        assert_eq!(encoded, prompt, "tokens of {text:?}");

        sequence.reset();
        let mut logits = sequence
            .feed(&prompt, Rows::Last)
            .expect("it runs")
            .to_vec();
        for top in case["first_step_top5"].as_array().expect("top 5") {
            let (id, expected) = (top[0].as_u64().unwrap() as usize, top[1].as_f64().unwrap());
            let found = f64::from(logits[id]);
            assert!(
                (found - expected).abs() < tolerance,
                "{text:?}: logit of {id} is {found}, golden {expected}"
            );
        }
        let margins = numbers(&case["top1_minus_top2_per_step"]);
        let logprobs = numbers(&case["logprob_per_step"]);
        let expected = ids(&case["generated_ids"]);
        let mut compared = 0;
        for ((&token, &margin), &logprob) in expected.iter().zip(&margins).zip(&logprobs) {
            let best = (0..vocab).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
            if margin < MARGIN {
                break;
            }
            assert_eq!(best, Some(token as usize), "{text:?}: step {compared}");
            let found = eval::log_prob(&logits, token);
            assert!(
                (found - logprob).abs() < tolerance,
                "{text:?}: step {compared}: log-probability {found}, golden {logprob}"
            );
            compared += 1;
            logits = sequence
                .feed(&[token], Rows::Last)
                .expect("it runs")
                .to_vec();
        }
        eprintln!("{text:?}: {compared} of {} steps compared", expected.len());
        assert!(
            compared >= expected.len().min(8),
            "too few steps compared: {compared}"
        );
    }
}

#[test]
fn smollm2_greedy_ids_logits_and_logprobs() {
    check_greedy(&default_model(), "smollm2-135m-instruct.json");
}

#[test]
#[ignore = "needs the 1.1 GB model: set EBB_TEST_QWEN_MODEL to \
            qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"]
fn qwen2_greedy_ids_logits_and_logprobs() {
    let model = std::env::var_os("EBB_TEST_QWEN_MODEL").expect("EBB_TEST_QWEN_MODEL is set");
    check_greedy(Path::new(&model), "qwen2.5-coder-1.5b-instruct.json");
}

#[test]
fn smollm2_perplexity_on_wikitext() {
    let opened = open(&default_model());
    let mut sequence = sequence(&opened, 64 << 20);
    let golden = golden("ppl_smollm2.json");
    let text = read("data/wikitext2-test-head.txt");
    let tokens = opened
        .tokenizer
        .encode(&text, false, false)
        .expect("it encodes");
    assert_eq!(tokens[..1024], ids(&golden["first_window_ids"])[..]);
    let report =
        eval::perplexity(&mut sequence, &tokens, 1024, 8, &mut |_, _| {}).expect("it runs");
    let expected = golden["ppl"].as_f64().expect("a number");
    eprintln!("perplexity {} (golden {expected})", report.ppl);
    assert!(
        (report.ppl / expected - 1.0).abs() < 1e-3,
        "perplexity {}, golden {expected}",
        report.ppl
    );
    let windows = numbers(&golden["mean_nll_per_window"]);
    for (found, expected) in report.mean_nll_per_window.iter().zip(windows) {
        assert!(
            (found - expected).abs() < 5e-3,
            "{found}, golden {expected}"
        );
    }
}

fn engine(max_running: usize) -> EngineHandle {
    ebb_serving::start(EngineConfig {
        device: device(),
        batch_invariant: true,
        max_running,
        max_waiting: 64,
        max_step_tokens: 256,
        threads: 2,
        expand_weights: true,
        ..EngineConfig::new(default_model().to_str().expect("a UTF-8 path"), 512 << 20)
    })
    .expect("the engine starts")
}

/// Greedy token ids and the reason for the end.
async fn generate(
    engine: &EngineHandle,
    prompt: Prompt,
    max_tokens: u32,
    ignore_eos: bool,
) -> (Vec<u32>, FinishReason) {
    let mut options = engine.default_sampling();
    options.temperature = 0.0;
    options.max_tokens = Some(max_tokens);
    options.ignore_eos = ignore_eos;
    let request = Request::new(prompt, options);
    let mut stream = engine.generate(request).await.expect("it is accepted");
    let mut tokens = Vec::new();
    while let Some(event) = stream.next().await {
        match event.expect("it runs") {
            StreamEvent::Delta { token_ids, .. } => tokens.extend(token_ids),
            StreamEvent::Finished { end, .. } => return (tokens, end.reason),
            StreamEvent::Started { .. } => {}
        }
    }
    panic!("the stream ended without a reason");
}

#[tokio::test]
async fn a_chat_through_the_engine_gives_the_golden_answer() {
    let engine = engine(4);
    let golden = golden("smollm2-135m-instruct.json");
    let cases = golden["weights_bf16_rounded_fp32_compute"]
        .as_array()
        .expect("cases");
    let case = cases
        .iter()
        .find(|c| c["kind"] == "chat")
        .expect("a chat case");
    let message = ChatMessage {
        role: "user".into(),
        content: "What is the capital of Japan? Answer in one sentence.".into(),
    };
    let (tokens, reason) = generate(&engine, Prompt::Chat(vec![message].into()), 64, false).await;
    assert_eq!(tokens, ids(&case["generated_ids"]));
    assert_eq!(reason, FinishReason::Stop);
}

/// Prompts of 3 to 300 tokens, some sharing a first block.
fn prompts() -> Vec<Vec<u32>> {
    let text = read("data/wikitext2-test-head.txt");
    let opened = open(&default_model());
    let tokens = opened
        .tokenizer
        .encode(&text[..20_000], false, false)
        .expect("it encodes");
    (0..32usize)
        .map(|i| {
            let length = 3 + (i * 37) % 298;
            let start = if i % 4 == 0 { 0 } else { i * 61 };
            tokens[start..start + length].to_vec()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_in_a_mixed_batch_of_32_equal_those_given_alone() {
    let engine = engine(32);
    let prompts = prompts();
    // Together: prefills chunked beside decodes, prefixes shared.
    let together: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let (engine, prompt) = (engine.clone(), Prompt::Tokens(prompt.clone()));
            tokio::spawn(async move { generate(&engine, prompt, 24, true).await.0 })
        })
        .collect();
    let mut batched = Vec::new();
    for task in together {
        batched.push(task.await.expect("it runs"));
    }
    for (i, (prompt, batched)) in prompts.into_iter().zip(batched).enumerate() {
        let (alone, _) = generate(&engine, Prompt::Tokens(prompt), 24, true).await;
        assert_eq!(
            alone, batched,
            "request {i} depends on who shares its batch"
        );
    }
    // The last step's state is published just after its last event.
    let drained = async {
        while {
            let s = engine.state();
            (s.running, s.waiting, s.kv_bytes_live) != (0, 0, 0)
        } {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), drained)
        .await
        .expect("nothing stays behind");
}
