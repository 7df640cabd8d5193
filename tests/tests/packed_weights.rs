//! Packed weights of a real model against the same weights expanded to bf16, through the engine's
//! own path, on the CPU or on the device that `EBB_TEST_DEVICE` names.

use std::path::{Path, PathBuf};

use ebb_block_manager::BlockManager;
use ebb_lab::eval::{self, Rows, Sequence};
use ebb_models::Opened;
use ebb_serving::device::{BackendOptions, Device, StepSizes};
use ebb_tests::real_model::default_model;

/// The most that the mean Kullback-Leibler divergence may be, in nats a token.
const KL_MAX: f64 = 0.002;
/// Tokens fed at once: prompts go through other products than single tokens.
const CHUNK: usize = 96;
/// Tokens fed one by one behind them.
const SINGLE: usize = 32;

fn sequence(opened: &Opened, expand_weights: bool) -> Sequence {
    let choice = std::env::var("EBB_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let choice = choice.parse().expect("EBB_TEST_DEVICE is a device");
    let pool = ebb_serving::pool(&opened.model, 64 << 20, false).expect("the pool fits");
    let options = BackendOptions {
        device: Device::open(choice).expect("the device opens"),
        steps: StepSizes {
            rows: 256,
            seqs: 1,
            states: 1,
            context: 512,
            logit_rows: CHUNK,
            decode_rows: 1,
            batch_invariant: false,
        },
        expand_weights,
        ..BackendOptions::cpu(2)
    };
    let backend = options
        .start(&opened.model, pool.frames)
        .expect("the weights load");
    let told = backend.weight_bytes();
    let is_packed = told.iter().any(|(format, _)| format != "bf16");
    assert_eq!(is_packed, !expand_weights, "{told:?}");
    Sequence::new(backend, BlockManager::new(pool).expect("the pool is valid"))
}

/// Log-probabilities of the next token, at every place of a text.
fn log_probabilities(opened: &Opened, tokens: &[u32], expand_weights: bool) -> Vec<Vec<f64>> {
    let vocab = opened.model.spec.vocab;
    let mut sequence = sequence(opened, expand_weights);
    let mut rows = Vec::new();
    let mut take = |logits: &[f32]| {
        for row in logits.chunks_exact(vocab) {
            let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|l| f64::from(l - top).exp()).sum();
            let log_sum = f64::from(top) + sum.ln();
            rows.push(row.iter().map(|l| f64::from(*l) - log_sum).collect());
        }
    };
    take(sequence.feed(&tokens[..CHUNK], Rows::All).expect("it runs"));
    for token in &tokens[CHUNK..] {
        take(sequence.feed(&[*token], Rows::Last).expect("it runs"));
    }
    rows
}

/// Mean KL of chunks and of single tokens, in nats, and the share of places with the same best
/// token.
fn divergence(model: &Path) -> [f64; 3] {
    let opened = ebb_models::open(model.to_str().expect("a UTF-8 path"), None);
    let opened = opened.expect("the model opens");
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/wikitext2-test-head.txt");
    let text = eval::read_text(&text).expect("the text is there");
    let tokens = opened.tokenizer.encode(&text, false, true);
    let tokens = tokens.expect("it encodes");
    let tokens = &tokens[..CHUNK + SINGLE];
    let exact = log_probabilities(&opened, tokens, true);
    let packed = log_probabilities(&opened, tokens, false);
    assert_eq!((exact.len(), packed.len()), (tokens.len(), tokens.len()));
    let kl =
        |p: &[f64], q: &[f64]| -> f64 { p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum() };
    let all: Vec<f64> = exact.iter().zip(&packed).map(|(p, q)| kl(p, q)).collect();
    let mean = |kls: &[f64]| kls.iter().sum::<f64>() / kls.len() as f64;
    let best = |row: &Vec<f64>| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    let same = exact
        .iter()
        .zip(&packed)
        .filter(|(p, q)| best(p) == best(q));
    let same = same.count() as f64 / exact.len() as f64;
    [mean(&all[..CHUNK]), mean(&all[CHUNK..]), same]
}

fn check(model: &Path) {
    let [chunks, single, same] = divergence(model);
    println!(
        "{}: KL {chunks:.2e}, {single:.2e}; same best {same:.3}",
        model.display()
    );
    assert!(chunks > 0.0 && chunks <= KL_MAX, "of a chunk: {chunks}");
    assert!(single > 0.0 && single <= KL_MAX, "token by token: {single}");
    assert!(
        same >= 0.95,
        "the best token is the same in {same} of places"
    );
}

#[test]
fn the_default_model_packed_is_the_model_expanded() {
    check(&default_model());
}

/// Q4_K and Q6_K tensors beside each other.
#[test]
#[ignore = "needs EBB_TEST_QWEN_MODEL, the path of qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"]
fn the_larger_model_packed_is_the_model_expanded() {
    let model = std::env::var("EBB_TEST_QWEN_MODEL").expect("EBB_TEST_QWEN_MODEL names the file");
    check(&PathBuf::from(model));
}
