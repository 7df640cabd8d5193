//! Gemma 3 270M, the real one, against a float32 reference (`tests/golden/gemma3_reference.py`),
//! with its weights expanded and packed, on the CPU or on the device that `EBB_TEST_DEVICE` names.

use std::path::Path;

use ebb_block_manager::BlockManager;
use ebb_lab::eval::{Rows, Sequence};
use ebb_models::model::{LoadedModel, ModelFiles};
use ebb_serving::device::{BackendOptions, Device, StepSizes};
use serde_json::Value;

/// Tokens of the longest text.
const CONTEXT: usize = 1024;
/// Below this margin between the best two logits, rounding may choose either.
const MARGIN: f64 = 0.3;

fn log_probability(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
    f64::from(logits[token as usize] - most) - sum.ln()
}

fn best(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.expect("logits") as u32
}

fn sequence(device: &Device, model: &LoadedModel, expand_weights: bool) -> Sequence {
    let pool = ebb_serving::pool(model, 1 << 28, false).expect("a pool");
    let options = BackendOptions {
        device: device.clone(),
        expand_weights,
        steps: StepSizes {
            rows: 128,
            seqs: 1,
            states: 1,
            context: CONTEXT,
            logit_rows: 128,
            decode_rows: 1,
            batch_invariant: false,
        },
        ..BackendOptions::cpu(2)
    };
    let backend = options.start(model, pool.frames).expect("it loads");
    Sequence::new(backend, BlockManager::new(pool).expect("blocks"))
}

fn check(expand_weights: bool) {
    let device = std::env::var("EBB_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let device = Device::open(device.parse().expect("a device")).expect("the device opens");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/gemma3-270m.json");
    let text = std::fs::read_to_string(path).expect("golden data");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let file = std::env::var_os("EBB_TEST_GEMMA_MODEL").expect("EBB_TEST_GEMMA_MODEL is set");
    let mut model = LoadedModel::open(&ModelFiles::Gguf(file.into())).expect("a valid file");
    model.limit_context(CONTEXT);
    let vocab = model.spec.vocab;
    for case in golden.as_array().expect("texts") {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("token ids");
        let mut fed = sequence(&device, &model, expand_weights);
        let mut sum = 0.0;
        for (chunk, first) in ids.chunks(128).zip((0..).step_by(128)) {
            let logits = fed.feed(chunk, Rows::All).expect("it runs");
            let next = ids[first + 1..].iter();
            for (row, token) in logits.chunks_exact(vocab).zip(next) {
                sum += log_probability(row, *token);
            }
        }
        let perplexity = (-sum / (ids.len() - 1) as f64).exp();
        let wanted = case["perplexity"].as_f64().expect("a number");
        let off = perplexity / wanted - 1.0;
        println!(
            "expanded {expand_weights}: {perplexity:.4}, {wanted:.4}: {:+.3} %",
            off * 100.0
        );
        assert!(off.abs() < 0.002, "perplexity {perplexity}, not {wanted}");
        let Some(steps) = case["greedy_and_margin"].as_array() else {
            continue;
        };
        let from = case["greedy_from"].as_u64().expect("a number") as usize;
        let mut fed = sequence(&device, &model, expand_weights);
        let mut last = Vec::new();
        for chunk in ids[..from].chunks(128) {
            last = fed.feed(chunk, Rows::Last).expect("it runs").to_vec();
        }
        let mut same = 0;
        for step in steps {
            let token = step[0].as_u64().expect("a token") as u32;
            let margin = step[1].as_f64().expect("a margin");
            assert!(
                best(&last) == token || margin < MARGIN,
                "after {same} tokens"
            );
            same += 1;
            last = fed.feed(&[token], Rows::Last).expect("it runs").to_vec();
        }
        assert_eq!(same, 24);
    }
}

#[test]
#[ignore = "needs EBB_TEST_GEMMA_MODEL, the path that tests/fetch-gemma.sh prints"]
fn expanded_weights_score_as_the_reference_does() {
    check(true);
}

#[test]
#[ignore = "needs EBB_TEST_GEMMA_MODEL, the path that tests/fetch-gemma.sh prints"]
fn packed_weights_score_as_the_reference_does() {
    check(false);
}
