//! A small byte-level vocabulary under each pre-tokenizer, against Hugging Face's tokenizers and
//! llama.cpp (tests/golden/tokenizer/record_bpe.py).

use std::collections::BTreeMap;

use ebb_models::model::gguf::{GgufTokenizer, TokenType};
use ebb_models::tokenizer::{Tokenizer, TokenizerConfig};
use serde::Deserialize;
use serde_json::Value;

use crate::files;

#[derive(Deserialize)]
struct Recorded {
    tokens: Vec<String>,
    types: Vec<u8>,
    merges: Vec<String>,
    /// A text, and its ids under the name of each pre-tokenizer.
    cases: Vec<BTreeMap<String, Value>>,
}

fn recorded() -> Recorded {
    serde_json::from_str(&files::golden("tokenizer/bpe.json")).expect("a recorded vocabulary")
}

fn tokenizer(recorded: &Recorded, pre: &str) -> Tokenizer {
    let kind = |&code: &u8| match code {
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        _ => TokenType::Normal,
    };
    Tokenizer::from_gguf(GgufTokenizer {
        pre: Some(pre.to_owned()),
        tokens: recorded.tokens.clone(),
        token_types: Some(recorded.types.iter().map(kind).collect()),
        merges: Some(recorded.merges.clone()),
        bos: Some(0),
        eos: Some(1),
        ..files::no_tokenizer()
    })
    .expect("a vocabulary")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

#[test]
fn every_pre_tokenizer_gives_the_recorded_ids() {
    let recorded = recorded();
    assert!(recorded.cases.len() >= 120);
    for pre in ["smollm", "qwen2", "llama-bpe", "default"] {
        let tokenizer = tokenizer(&recorded, pre);
        for case in &recorded.cases {
            let text = case["text"].as_str().expect("a text");
            let found = tokenizer.encode(text, false, true).expect("encodes");
            assert_eq!(found, ids(&case[pre]), "{pre}: {text:?}");
            // Qwen's composes characters, so those texts come back composed.
            if pre != "qwen2" {
                assert_eq!(tokenizer.decode(&found, false), text);
            }
        }
    }
}

#[test]
fn a_file_without_a_pre_tokenizer_means_the_default() {
    let recorded = recorded();
    let named = tokenizer(&recorded, "default");
    let unnamed = Tokenizer::from_gguf(GgufTokenizer {
        tokens: recorded.tokens.clone(),
        merges: Some(recorded.merges.clone()),
        ..files::no_tokenizer()
    })
    .expect("a vocabulary");
    let text = "x=1;y=2 don't 12345";
    assert_eq!(
        named.encode(text, true, false).expect("encodes"),
        unnamed.encode(text, true, false).expect("encodes"),
    );
}

#[test]
fn bos_comes_first_where_the_model_expects_it() {
    let recorded = recorded();
    for (pre, expected) in [("llama-bpe", Some(&0)), ("smollm", None), ("qwen2", None)] {
        let tokenizer = tokenizer(&recorded, pre);
        let ids = tokenizer.encode("", true, true).expect("encodes");
        assert_eq!(ids.first(), expected, "{pre}");
    }
}

#[test]
fn the_tokenizer_json_gives_the_same() {
    let recorded = recorded();
    let json = files::golden("tokenizer/llama3_tokenizer.json");
    let config = TokenizerConfig {
        bos_token: Some("<|begin|>".to_owned()),
        ..TokenizerConfig::default()
    };
    let from_json = Tokenizer::from_tokenizer_json(json.as_bytes(), &config).expect("a tokenizer");
    let rebuilt = tokenizer(&recorded, "llama-bpe");
    assert_eq!(from_json.vocab_size(), rebuilt.vocab_size());
    assert_eq!(from_json.special().bos, Some(0));
    for id in 0..rebuilt.vocab_size() as u32 {
        assert_eq!(from_json.token_bytes(id), rebuilt.token_bytes(id), "{id}");
        assert_eq!(from_json.is_special(id), rebuilt.is_special(id), "{id}");
    }
    for case in &recorded.cases {
        let text = case["text"].as_str().expect("a text");
        for parse_special in [true, false] {
            let found = from_json
                .encode(text, true, parse_special)
                .expect("encodes");
            let same = rebuilt.encode(text, true, parse_special).expect("encodes");
            assert_eq!(found, same, "{text:?}");
            assert_eq!(
                found[0], 0,
                "the template puts the first token before the text"
            );
        }
    }
}
