//! How long vocabularies take to rebuild and texts to encode. Run when the machine is quiet:
//! `cargo test --release -p ebb-models --test tokenizer speed -- --ignored --nocapture`

use std::time::Instant;

use ebb_models::model::gguf::GgufTokenizer;
use ebb_models::tokenizer::Tokenizer;

use crate::files;

fn measure(name: &str, vocab: GgufTokenizer) {
    let tokens = vocab.tokens.len();
    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(vocab).expect("a vocabulary");
    let seconds = start.elapsed().as_secs_f64();
    println!("{name}: {tokens} tokens rebuilt in {seconds:.3} s");
    assert!(seconds < 1.0 || cfg!(debug_assertions), "{seconds} s");

    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/wikitext2-test-head.txt"
    );
    let text = std::fs::read_to_string(path).expect("the text");
    for pass in ["first", "second"] {
        let start = Instant::now();
        let ids = tokenizer.encode(&text, true, true).expect("encodes");
        let seconds = start.elapsed().as_secs_f64();
        let rate = text.len() as f64 / seconds / 1e6;
        println!("{name}: {} tokens, {rate:.1} MB/s, {pass} pass", ids.len());
    }
}

#[test]
#[ignore = "a measurement, meaningful in release on a quiet machine"]
fn default_model() {
    measure("SmolLM2", files::smollm2_metadata().clone());
}

#[test]
#[ignore = "a measurement; needs the 1.1 GB Qwen2.5-Coder file: set EBB_TEST_QWEN_MODEL"]
fn large_vocabulary() {
    measure("Qwen2.5", files::qwen_metadata());
}
