//! SentencePiece vocabularies against SentencePiece itself (tests/golden/tokenizer/record_spm.py).

use ebb_models::model::gguf::{GgufTokenizer, TokenType};
use ebb_models::tokenizer::{Tokenizer, TokenizerConfig};
use serde::Deserialize;

use crate::files;

#[derive(Deserialize)]
struct Recorded {
    add_space_prefix: bool,
    unknown: u32,
    bos: u32,
    eos: u32,
    /// Text, score, and type as GGUF numbers them.
    pieces: Vec<(String, f32, u8)>,
    examples: Vec<Example>,
}

#[derive(Deserialize)]
struct Example {
    text: String,
    ids: Vec<u32>,
    decoded: Option<String>,
}

fn recorded(name: &str) -> (GgufTokenizer, Vec<Example>) {
    let recorded: Recorded =
        serde_json::from_str(&files::golden(name)).expect("a recorded vocabulary");
    let kinds = [
        TokenType::Normal,
        TokenType::Unknown,
        TokenType::Control,
        TokenType::UserDefined,
        TokenType::Unused,
        TokenType::Byte,
    ];
    let types = recorded.pieces.iter().map(|p| kinds[usize::from(p.2) - 1]);
    let vocab = GgufTokenizer {
        model: "llama".to_owned(),
        token_types: Some(types.collect()),
        scores: Some(recorded.pieces.iter().map(|p| p.1).collect()),
        tokens: recorded.pieces.into_iter().map(|p| p.0).collect(),
        bos: Some(recorded.bos),
        eos: Some(recorded.eos),
        unknown: Some(recorded.unknown),
        add_space_prefix: Some(recorded.add_space_prefix),
        ..files::no_tokenizer()
    };
    (vocab, recorded.examples)
}

fn check(name: &str) -> Tokenizer {
    let (vocab, examples) = recorded(name);
    let tokenizer = Tokenizer::from_gguf(vocab).expect("a vocabulary");
    assert!(examples.len() > 200);
    for Example { text, ids, decoded } in examples {
        let encoded = tokenizer.encode(&text, false, false).expect("encodes");
        assert_eq!(encoded, ids, "{text:?}");
        if let Some(decoded) = decoded {
            assert_eq!(tokenizer.decode(&ids, false), decoded, "{text:?}");
        }
    }
    tokenizer
}

#[test]
fn byte_fallback_and_a_space_before_the_text() {
    let tokenizer = check("tokenizer/spm_bytes.json");
    // Llama 2's convention, when the file does not say: BOS before a text.
    let with_bos = tokenizer.encode("Hello", true, true).expect("encodes");
    let without = tokenizer.encode("Hello", false, true).expect("encodes");
    assert_eq!(with_bos[0], 1);
    assert_eq!(with_bos[1..], without);
    assert_eq!(tokenizer.decode(&with_bos, true), "Hello");
    assert_eq!(tokenizer.decode(&with_bos, false), "<s> Hello");
    // Special tokens in the text, and a space before what follows each (as llama.cpp has it).
    let turn = tokenizer
        .encode("<s>Hello</s>", false, true)
        .expect("encodes");
    assert_eq!(turn.first(), Some(&1));
    assert_eq!(turn.last(), Some(&2));
    assert_eq!(turn[1..turn.len() - 1], without);
    let literal = tokenizer.encode("</s>", false, false).expect("encodes");
    assert!(!literal.contains(&2));
    assert_eq!(tokenizer.token_bytes(3), Some(&[0u8][..]));
}

#[test]
fn unknown_tokens_unused_pieces_and_symbols_of_the_user() {
    let tokenizer = check("tokenizer/spm_unknown.json");
    let call = tokenizer.encode("a<tool>b", false, false).expect("encodes");
    let symbol = tokenizer.token_id("<tool>").expect("the symbol");
    assert!(call.contains(&symbol));
    assert_eq!(tokenizer.decode(&call, true), "a<tool>b");
    assert!(!tokenizer.is_special(symbol));
}

#[test]
fn the_converted_tokenizer_json_gives_what_its_library_gives() {
    #[derive(Deserialize)]
    struct Expected {
        examples: Vec<files::Example>,
    }
    let json = files::golden("tokenizer/llama2_tokenizer.json");
    let config = TokenizerConfig {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..TokenizerConfig::default()
    };
    let tokenizer = Tokenizer::from_tokenizer_json(json.as_bytes(), &config).expect("a tokenizer");
    assert_eq!(tokenizer.special().bos, Some(1));
    assert_eq!(tokenizer.special().eos, Some(2));
    let expected: Expected =
        serde_json::from_str(&files::golden("tokenizer/llama2_expected.json")).expect("examples");
    assert!(expected.examples.len() >= 100);
    for example in expected.examples {
        let ids = tokenizer
            .encode(&example.text, true, true)
            .expect("encodes");
        assert_eq!(ids, example.ids, "{:?}", example.text);
        assert_eq!(tokenizer.decode(&ids, false), example.decoded);
    }
    // The same model from GGUF metadata.
    let (vocab, examples) = recorded("tokenizer/spm_bytes.json");
    let rebuilt = Tokenizer::from_gguf(vocab).expect("a vocabulary");
    for Example { text, .. } in examples {
        assert_eq!(
            rebuilt.encode(&text, true, true).expect("encodes"),
            tokenizer.encode(&text, true, true).expect("encodes"),
            "{text:?}"
        );
    }
}

/// As `tokenizers` decodes: an added token is spelt like any other.
#[test]
fn metaspace_in_an_added_token_is_a_space() {
    let mut json: serde_json::Value =
        serde_json::from_str(&files::golden("tokenizer/llama2_tokenizer.json")).expect("JSON");
    let plain =
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), &TokenizerConfig::default())
            .expect("a tokenizer");
    let next = plain.vocab_size() as u32;
    let added = json["added_tokens"].as_array_mut().expect("a list");
    for (content, special, id) in [("▁<PRE>", true, next), ("▁▁▁", false, next + 1)] {
        added.push(
            serde_json::json!({ "id": id, "content": content, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": special }),
        );
    }
    let tokenizer =
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), &TokenizerConfig::default())
            .expect("a tokenizer");
    let [a, b] = ["a", "b"].map(|text| tokenizer.token_id(text).expect("a letter"));
    assert_eq!(tokenizer.decode(&[next], false), "<PRE>");
    assert_eq!(tokenizer.decode(&[next], true), "");
    assert_eq!(tokenizer.decode(&[a, next + 1, b], true), "a   b");
}

/// Recorded with Hugging Face's tokenizers (tests/golden/tokenizer/record_unigram.py).
#[test]
fn a_unigram_model_gives_what_its_library_gives() {
    #[derive(Deserialize)]
    struct Recorded {
        tokenizer: serde_json::Value,
        examples: Vec<Example>,
    }
    let recorded: Recorded =
        serde_json::from_str(&files::golden("tokenizer/unigram.json")).expect("examples");
    let json = recorded.tokenizer.to_string();
    let tokenizer = Tokenizer::from_tokenizer_json(json.as_bytes(), &TokenizerConfig::default())
        .expect("a tokenizer");
    let mut decoded = 0;
    for example in recorded.examples {
        let text = &example.text;
        assert_eq!(
            tokenizer.encode(text, true, true).expect("encodes"),
            example.ids,
            "{text:?}"
        );
        if let Some(expected) = example.decoded {
            assert_eq!(tokenizer.decode(&example.ids, true), expected, "{text:?}");
            decoded += 1;
        }
    }
    assert!(decoded > 50);
}

/// The library would panic, or not come to an end.
#[test]
fn damaged_unigram_models_are_refused() {
    let recorded: serde_json::Value =
        serde_json::from_str(&files::golden("tokenizer/unigram.json")).expect("examples");
    for (pointer, value) in [
        ("/model/vocab", serde_json::json!([])),
        ("/model/vocab", serde_json::json!(null)),
        ("/model/vocab/3", serde_json::json!(["a"])),
        ("/model/vocab/3/1", serde_json::json!("1")),
        ("/model/unk_id", serde_json::json!(100_000)),
        ("/model/unk_id", serde_json::json!(-1)),
    ] {
        let mut json = recorded["tokenizer"].clone();
        *json.pointer_mut(pointer).expect(pointer) = value;
        let bytes = json.to_string();
        Tokenizer::from_tokenizer_json(bytes.as_bytes(), &TokenizerConfig::default())
            .expect_err(pointer);
    }
    let mut json = recorded["tokenizer"].clone();
    json["model"]["vocab"][3] = serde_json::json!(["", 1e308]);
    let tokenizer =
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), &TokenizerConfig::default())
            .expect("an empty token harms nobody");
    let ids = tokenizer.encode("the end", true, true).expect("encodes");
    assert!(!ids.contains(&3));
}

/// As the same model's tokenizer.json, which has no newlines inside of tokens.
#[test]
fn ranked_merges_over_spaces_are_read_from_gguf() {
    let mut json: serde_json::Value =
        serde_json::from_str(&files::golden("tokenizer/llama2_tokenizer.json")).expect("JSON");
    json["normalizer"] = serde_json::json!(
        { "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    json["decoder"]["decoders"]
        .as_array_mut()
        .expect("decoders")
        .pop();
    let config = TokenizerConfig::default();
    let expected =
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), &config).expect("a tokenizer");
    let vocab = json["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocab.len()];
    for (text, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize] = text.clone();
    }
    let merge = |merge: &serde_json::Value| match merge {
        serde_json::Value::String(merge) => merge.clone(),
        pair => format!(
            "{} {}",
            pair[0].as_str().unwrap(),
            pair[1].as_str().unwrap()
        ),
    };
    let kind = |(id, text): (usize, &String)| match (id, text.starts_with("<0x")) {
        (0, _) => TokenType::Unknown,
        (1 | 2, _) => TokenType::Control,
        (_, true) => TokenType::Byte,
        _ => TokenType::Normal,
    };
    let merges = json["model"]["merges"].as_array().expect("merges");
    let rebuilt = Tokenizer::from_gguf(GgufTokenizer {
        model: "gemma4".to_owned(),
        token_types: Some(tokens.iter().enumerate().map(kind).collect()),
        merges: Some(merges.iter().map(merge).collect()),
        bos: Some(1),
        tokens,
        ..files::no_tokenizer()
    })
    .expect("a vocabulary");
    let (_, examples) = recorded("tokenizer/spm_bytes.json");
    assert!(examples.len() > 50);
    let encode =
        |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, false, true).expect("encodes");
    for Example { text, .. } in examples {
        // Newlines are apart from what is between them.
        let lines = text.split_inclusive('\n').flat_map(|line| {
            let (line, newline) = line.split_at(line.trim_end_matches('\n').len());
            [encode(&expected, line), encode(&expected, newline)]
        });
        let lines = match text.contains("\n\n") {
            true => continue,
            false => lines.collect::<Vec<_>>().concat(),
        };
        let ids = encode(&rebuilt, &text);
        assert_eq!(ids, lines, "{text:?}");
        assert_eq!(rebuilt.decode(&ids, false), expected.decode(&ids, false));
    }
    let ids = rebuilt.encode("a\n\nb", true, true).expect("encodes");
    let parts = ["a", "\n\n", "b"].map(|part| encode(&expected, part));
    assert_eq!(ids, [vec![1], parts.concat()].concat());
}
