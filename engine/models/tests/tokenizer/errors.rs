//! Vocabularies that contradict themselves or need what is not supported: each is refused by a
//! sentence that names the field, and none panics.

use ebb_models::model::gguf::{GgufTokenizer, TokenType};
use ebb_models::tokenizer::{Tokenizer, TokenizerConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::files;

/// A byte-level vocabulary of the 256 bytes and one merge.
fn byte_level() -> GgufTokenizer {
    let bytes = (0..256u32).filter_map(|b| match b {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(b),
        _ => None,
    });
    let rest = (0x100..0x144).filter_map(char::from_u32);
    let mut tokens: Vec<String> = bytes.chain(rest).map(String::from).collect();
    tokens.push("ab".to_owned());
    GgufTokenizer {
        tokens,
        merges: Some(vec!["a b".to_owned()]),
        ..files::no_tokenizer()
    }
}

fn sentencepiece() -> GgufTokenizer {
    GgufTokenizer {
        model: "llama".to_owned(),
        tokens: vec!["<unk>".to_owned(), "▁a".to_owned()],
        token_types: Some(vec![TokenType::Unknown, TokenType::Normal]),
        scores: Some(vec![0.0, -1.0]),
        unknown: Some(0),
        ..files::no_tokenizer()
    }
}

fn refused(vocab: GgufTokenizer, words: &[&str]) {
    let sentence = Tokenizer::from_gguf(vocab)
        .expect_err("refused")
        .to_string();
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
}

#[test]
fn the_small_vocabularies_work() {
    let tokenizer = Tokenizer::from_gguf(byte_level()).expect("a vocabulary");
    assert_eq!(tokenizer.encode("ab", true, true).expect("encodes"), [256]);
    assert_eq!(tokenizer.decode(&[256, 256, 9999], true), "abab");
    let tokenizer = Tokenizer::from_gguf(sentencepiece()).expect("a vocabulary");
    assert_eq!(tokenizer.encode("xa", true, true).expect("encodes"), [0]);
}

#[test]
fn unknown_kinds_are_named() {
    let change = |f: fn(&mut GgufTokenizer)| {
        let mut vocab = byte_level();
        f(&mut vocab);
        vocab
    };
    refused(
        change(|v| v.model = "bert".into()),
        &["tokenizer.ggml.model", "\"bert\"", "gpt2, llama"],
    );
    refused(
        change(|v| v.pre = Some("tekken".into())),
        &["tokenizer.ggml.pre", "\"tekken\"", "smollm"],
    );
    refused(
        change(|v| v.merges = Some(vec!["ab".into()])),
        &["tokenizer.ggml.merges", "entry 0", "\"ab\""],
    );
    refused(
        change(|v| v.merges = Some(vec!["a x".into(), "a zz".into()])),
        &["tokenizer.ggml.merges", "vocabulary"],
    );
    refused(
        change(|v| v.token_types = Some(vec![TokenType::Normal])),
        &["tokenizer.ggml.token_type", "1 entries for 257 tokens"],
    );
    refused(
        change(|v| v.add_bos = Some(true)),
        &["tokenizer.ggml.add_bos_token", "bos_token_id"],
    );
    refused(
        change(|v| v.add_eos = Some(true)),
        &["tokenizer.ggml.add_eos_token", "eos_token_id"],
    );
}

#[test]
fn incomplete_sentencepiece_vocabularies_are_named() {
    let change = |f: fn(&mut GgufTokenizer)| {
        let mut vocab = sentencepiece();
        f(&mut vocab);
        vocab
    };
    refused(
        change(|v| v.scores = None),
        &["tokenizer.ggml.scores", "0 entries for 2 tokens"],
    );
    refused(
        change(|v| v.scores = Some(vec![0.0, f32::NAN])),
        &["tokenizer.ggml.scores", "entry 1"],
    );
    refused(
        change(|v| v.unknown = None),
        &["tokenizer.ggml.tokens", "byte"],
    );
    refused(
        change(|v| v.token_types = Some(vec![TokenType::Unknown, TokenType::Byte])),
        &["tokenizer.ggml.tokens", "entry 1", "<0xNN>"],
    );
}

fn json() -> Value {
    serde_json::from_str(&files::golden("tokenizer/llama2_tokenizer.json")).expect("JSON")
}

fn load(json: &Value) -> Result<Tokenizer, String> {
    Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), &TokenizerConfig::default())
        .map_err(|e| e.to_string())
}

#[test]
fn unsupported_parts_of_a_tokenizer_json_are_named() {
    let refused = |pointer: &str, value: Value, words: &[&str]| {
        let mut json = json();
        *json.pointer_mut(pointer).expect(pointer) = value;
        let sentence = load(&json).expect_err(pointer);
        for word in words {
            assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
        }
    };
    refused(
        "/model/type",
        json!("WordPiece"),
        &["model.type", "WordPiece", "BPE"],
    );
    refused("/model/dropout", json!(0.1), &["model.dropout", "0.1"]);
    refused(
        "/model/continuing_subword_prefix",
        json!("##"),
        &["continuing_subword_prefix", "##"],
    );
    refused(
        "/model/unk_token",
        json!("<missing>"),
        &["unk_token", "<missing>"],
    );
    refused(
        "/model/merges/0",
        json!("only-one-part"),
        &["tokenizer.json"],
    );
    refused(
        "/model/vocab/a",
        json!(4_000_000_000u32),
        &["model.vocab", "4000000000"],
    );
    refused(
        "/decoder",
        json!({"type": "WordPiece"}),
        &["decoder", "WordPiece", "ByteLevel"],
    );
    refused(
        "/added_tokens/0/id",
        json!(5),
        &["added_tokens", "\"<unk>\"", "5"],
    );
    refused(
        "/normalizer",
        json!({"type": "Imaginary"}),
        &["tokenizer.json"],
    );
    let nothing = Tokenizer::from_tokenizer_json(b"{}", &TokenizerConfig::default());
    assert!(
        nothing
            .expect_err("no model")
            .to_string()
            .contains("tokenizer.json")
    );
}

#[test]
fn truncation_and_padding_are_left_out() {
    let mut json = json();
    json["truncation"] =
        json!({"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<unk>", "pad_to_multiple_of": null});
    let text = "Hello world, this is longer than three tokens.";
    let ids = load(&json)
        .expect("loads")
        .encode(text, true, true)
        .expect("encodes");
    assert!(ids.len() > 3 && !ids.contains(&0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// One part of the file replaced by nonsense: an error or a tokenizer, never a panic.
    #[test]
    fn damaged_files_do_not_panic(
        pointer in prop::sample::select(vec![
            "/model", "/model/vocab", "/model/merges", "/model/merges/3", "/model/vocab/e",
            "/model/unk_token", "/model/byte_fallback", "/normalizer", "/normalizer/normalizers/0",
            "/decoder", "/decoder/decoders/0", "/post_processor", "/post_processor/single",
            "/post_processor/special_tokens", "/added_tokens", "/added_tokens/1",
            "/added_tokens/1/content", "/added_tokens/1/id",
        ]),
        value in prop::sample::select(vec![
            json!(null), json!(-1), json!(7), json!(""), json!("▁"), json!([]), json!({}),
            json!(["a", "b"]), json!([["a", "b"]]), json!({"type": "Sequence"}),
            json!({"type": "ByteLevel"}), json!({"type": "Prepend", "prepend": ""}),
            json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
            json!({"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Isolated",
                "invert": false}),
        ]),
        text in ".{0,40}",
    ) {
        let mut json = json();
        if let Some(part) = json.pointer_mut(pointer) {
            *part = value;
        }
        if let Ok(tokenizer) = load(&json)
            && let Ok(ids) = tokenizer.encode(&text, true, true)
        {
            tokenizer.decode(&ids, true);
        }
    }

    #[test]
    fn damaged_bytes_do_not_panic(at in 0usize..14_000, byte in any::<u8>()) {
        let mut bytes = files::golden("tokenizer/llama2_tokenizer.json").into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = Tokenizer::from_tokenizer_json(&bytes, &TokenizerConfig::default());
    }
}
