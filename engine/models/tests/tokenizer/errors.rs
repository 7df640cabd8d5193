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
        change(|v| v.pre = Some("kimi-k2".into())),
        &["tokenizer.ggml.pre", "\"kimi-k2\"", "smollm"],
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

/// The smallest tokenizer.json, with `change`s.
fn json_with(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, String> {
    let mut file = json!({
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    });
    change(&mut file);
    let bytes = file.to_string().into_bytes();
    Tokenizer::from_tokenizer_json(&bytes, &TokenizerConfig::default()).map_err(|e| e.to_string())
}

/// A character table, in base64, that puts so many `a` in place of one: the length of a trie, a
/// double array of 768 units, and a text.
fn charsmap(count: usize) -> String {
    let mut trie = [0_u32; 768];
    let child = 256 ^ u32::from(b'a');
    trie[0] = 256 << 10;
    trie[child as usize] = (child ^ 512) << 10 | 1 << 8 | u32::from(b'a');
    trie[512] = 1 << 31;
    charsmap_of(&trie, &"a".repeat(count))
}

/// A character table in base64.
fn charsmap_of(trie: &[u32], texts: &str) -> String {
    let mut bytes = (4 * trie.len() as u32).to_le_bytes().to_vec();
    bytes.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(texts.bytes());
    bytes.resize(bytes.len().next_multiple_of(3), 0);
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = bytes.as_chunks::<3>().0.iter().flat_map(|&[a, b, c]| {
        let held = u32::from_be_bytes([0, a, b, c]);
        [18, 12, 6, 0].map(|shift| char::from(digits[(held >> shift & 63) as usize]))
    });
    groups.collect()
}

/// Loads the smallest tokenizer.json with these parts in a few seconds.
fn with_rules(normalizer: Value, pre_tokenizer: Value) -> Result<Tokenizer, String> {
    let begun = std::time::Instant::now();
    let tokenizer = json_with(|file| {
        file["normalizer"] = normalizer;
        file["pre_tokenizer"] = pre_tokenizer;
    });
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    tokenizer
}

fn charsmap_rule(table: &str) -> Value {
    json!({"type": "Precompiled", "precompiled_charsmap": table})
}

#[test]
fn character_tables_are_read_in_time() {
    // Each unit is a child of the one place outside of the trie, and leads back there.
    let round: Vec<u32> = (0..255).map(|at| (at ^ 255) << 10 | (at ^ 255)).collect();
    let error = with_rules(charsmap_rule(&charsmap_of(&round, "")), json!(null));
    assert!(error.expect_err("leads outside").contains("damaged"));
    // Keys for each three bytes in a row, which all have one long text.
    let blocks = 512_u32;
    let mut trie = vec![1 << 31; 256 * blocks as usize];
    for at in 256..256 * blocks {
        let (block, byte) = (at / 256, at % 256);
        let child = 256 * (1 + (255 * block + byte) % (blocks - 1));
        if byte > 0 {
            trie[at as usize] = (at ^ child) << 10 | 1 << 8 | byte;
        }
    }
    trie[0] = 256 << 10;
    let table = charsmap_of(&trie, &"a".repeat(900_000));
    let error = with_rules(charsmap_rule(&table), json!(null)).expect_err("a long text");
    assert!(error.contains("more than 64 bytes"), "{error}");
    let table = charsmap_of(&trie, &"a\0".repeat(90_000));
    with_rules(charsmap_rule(&table), json!(null)).expect("short texts");
    let tables = json!({"type": "Sequence", "normalizers": vec![charsmap_rule(&table); 60]});
    let error = with_rules(tables, json!(null)).expect_err("60 tables");
    assert!(error.contains("tables together"), "{error}");
}

#[test]
fn growth_is_followed_through_all_rules() {
    let kind = |kind: &str| json!({"type": kind});
    let all = |kinds: &[&str]| {
        let rules: Vec<Value> = kinds.iter().map(|k| kind(k)).collect();
        json!({"type": "Sequence", "normalizers": rules})
    };
    let metaspace = |replacement: &str| json!({"type": "Metaspace", "replacement": replacement});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false});
    for (normalizer, pre_tokenizer, growth, text, grown) in [
        (kind("NFC"), bytes.clone(), 6, "\u{1d160}", 20),
        (kind("NFD"), json!(null), 3, "\u{390}", 6),
        (kind("NFKC"), json!(null), 11, "\u{fdfa}", 33),
        (kind("NFKD"), metaspace("\u{2581}"), 66, "\u{fdfa}", 42),
        (kind("Lowercase"), json!(null), 2, "\u{23a}", 3),
        (json!(null), metaspace("\u{1f600}"), 8, "a", 5),
        (json!(null), metaspace("\u{2581}"), 6, "a", 4),
        (
            all(&["NFD", "Lowercase", "StripAccents", "NFC"]),
            json!(null),
            3,
            "\u{130}",
            3,
        ),
        (
            all(&["NFKD", "Lowercase", "NFKC"]),
            json!(null),
            11,
            "\u{130}",
            3,
        ),
    ] {
        let rules = format!("{normalizer} {pre_tokenizer}");
        let tokenizer = with_rules(normalizer, pre_tokenizer).expect(&rules);
        assert_eq!(tokenizer.growth(), growth, "{rules}");
        assert!(grown <= growth * text.len());
        let _ = tokenizer.encode(text, true, true);
    }
    let letter = json!({"type": "Replace", "pattern": {"String": "bcd"}, "content": "\u{23a}e"});
    let lower = kind("Lowercase");
    let rules = [
        lower.clone(),
        letter.clone(),
        lower.clone(),
        letter.clone(),
        lower,
    ];
    let between = json!({"type": "Sequence", "normalizers": rules});
    assert_eq!(
        with_rules(between.clone(), json!(null))
            .expect("8")
            .growth(),
        8
    );
    let twice = json!({"type": "Sequence", "normalizers": [between.clone(), letter, between]});
    let error = with_rules(twice, json!(null)).expect_err("64 times");
    assert!(error.contains("16 times"), "{error}");
}

/// The library tells some rules by their fields, and reads lists as fields.
#[test]
fn rules_without_a_type_are_bounded_too() {
    let long = "a".repeat(17);
    let fields = json!({"pattern": {"String": "a"}, "content": long});
    let bert = json!({
        "clean_text": false, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": true,
    });
    let sequence = |rules: Vec<Value>| json!({"type": "Sequence", "normalizers": rules});
    let typed = |kind: &str, mut rule: Value| {
        rule["type"] = json!(kind);
        rule
    };
    for (rule, word) in [
        (fields.clone(), "16 times"),
        (sequence(vec![fields.clone()]), "16 times"),
        (typed("Else", fields), "16 times"),
        (json!({"prepend": long}), "16 times"),
        (json!([{"String": "a"}, long]), "no object"),
        (sequence(vec![json!([long])]), "no object"),
        (json!([[true, true]]), "no object"),
        (sequence(vec![bert.clone(), bert.clone()]), "16 times"),
        (
            sequence(vec![typed("Bert", bert.clone()), bert]),
            "16 times",
        ),
        (
            sequence(vec![json!({"strip_left": true, "strip_right": true}); 65]),
            "64 rules",
        ),
    ] {
        let shown = rule.to_string();
        let error = with_rules(rule, json!(null)).expect_err(&shown);
        assert!(error.contains(word), "{shown:.100}: {error}");
    }
    let error = with_rules(
        json!(null),
        json!(["Metaspace", "\u{1f600}", null, "always"]),
    );
    assert!(error.expect_err("a list").contains("no object"));
}

#[test]
fn long_tokens_of_a_unigram_model_are_refused() {
    let load = |token: String| {
        let read = move || {
            json_with(|file| {
                file["decoder"] = json!({"type": "Metaspace", "replacement": "\u{2581}"});
                file["model"] = json!({
                    "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [token, -1.0]],
                });
            })
            .map(drop)
        };
        let thread = std::thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(read);
        thread.expect("a thread").join().expect("no panic")
    };
    load("a".repeat(256)).expect("256 bytes");
    for bytes in [257, 1 << 20] {
        let error = load("a".repeat(bytes)).expect_err("too long");
        assert!(
            error.starts_with("model.vocab in tokenizer.json"),
            "{error}"
        );
        assert!(error.contains(&format!("{bytes} bytes")), "{error}");
    }
}

#[test]
fn rules_that_make_texts_grow_without_bound_are_refused() {
    let replace = |pattern: Value, content: &str| {
        let kind = "Replace";
        json!({"type": kind, "pattern": pattern, "content": content})
    };
    let string = |text: &str| json!({"String": text});
    let sequence = |rules: Vec<Value>| json!({"type": "Sequence", "normalizers": rules});
    let nested = (0..40).fold(replace(string("a"), "aa"), |rule, _| {
        sequence(vec![rule, replace(string("a"), "aa")])
    });
    for (normalizer, word) in [
        (sequence(vec![replace(string("a"), "aa"); 34]), "16 times"),
        (replace(string("a"), &"a".repeat(17)), "16 times"),
        (replace(string(""), &"a".repeat(16)), "16 times"),
        (replace(json!({"Regex": "x*"}), &"a".repeat(17)), "16 times"),
        (nested, "16 times"),
        (sequence(vec![json!({"type": "ByteLevel"}); 24]), "16 times"),
        (
            json!({"type": "Prepend", "prepend": "a".repeat(16 << 10)}),
            "16 times",
        ),
        (
            sequence(vec![
                replace(string("a"), "aaaa"),
                json!({"type": "Prepend", "prepend": "aaaa"}),
                replace(string("a"), "aaaa"),
            ]),
            "16 times",
        ),
        (
            sequence(vec![json!({"type": "Lowercase"}); 100_000]),
            "64 rules",
        ),
        (
            sequence(vec![json!({"type": "Prepend", "prepend": "a"}); 65]),
            "64 rules",
        ),
        (
            json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)}),
            "1048576 bytes",
        ),
        (replace(string(&"a".repeat(1 << 20)), "b"), "1048576 bytes"),
    ] {
        let error = json_with(|file| file["normalizer"] = normalizer).expect_err(word);
        assert!(error.starts_with("normalizer in tokenizer.json"), "{error}");
        assert!(error.contains(word), "{error}");
    }
    let splits = vec![json!({"type": "Whitespace"}); 65];
    let cut = json!({"type": "Sequence", "pretokenizers": splits});
    let error = json_with(|file| file["pre_tokenizer"] = cut).expect_err("65 rules");
    assert!(
        error.starts_with("pre_tokenizer in tokenizer.json"),
        "{error}"
    );
    // A trie of four bytes, then 300 bytes for one character.
    let table = format!("BAAAAAAAAABh{}", "YWFh".repeat(100));
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": table});
    let error = json_with(|file| file["normalizer"] = precompiled).expect_err("300 bytes");
    assert!(error.contains("more than 64 bytes"), "{error}");
    // Half of it in either part.
    let bytes = sequence(vec![json!({"type": "ByteLevel"}); 2]);
    let error = json_with(|file| {
        file["normalizer"] = bytes;
        file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Metaspace", "replacement": "\u{2581}"},
        ]});
    })
    .expect_err("16 times");
    assert!(
        error.starts_with("pre_tokenizer in tokenizer.json"),
        "{error}"
    );
    // Tables that make 33 bytes of one, and 4 of one three times.
    for (table, count) in [(charsmap(33), 1), (charsmap(4), 3)] {
        let table = json!({"type": "Precompiled", "precompiled_charsmap": table});
        let error = json_with(|file| file["normalizer"] = sequence(vec![table; count]));
        let error = error.expect_err("16 times");
        assert!(error.contains("16 times"), "{error}");
    }
    let table = json!({"type": "Precompiled", "precompiled_charsmap": charsmap(4)});
    let tokenizer = json_with(|file| file["normalizer"] = table).expect("4 bytes");
    assert_eq!(tokenizer.growth(), 4);
    let _ = tokenizer.encode("xax", true, true);
    // What files do have.
    let space = replace(string(" "), "\u{2581}");
    let usual = sequence(vec![
        json!({"type": "Prepend", "prepend": "\u{2581}"}),
        space,
    ]);
    json_with(|file| file["normalizer"] = usual).expect("a space of three bytes");
}

#[test]
fn added_tokens_without_end_are_refused_and_many_load_at_once() {
    let added = |texts: Vec<String>| {
        let tokens = texts.into_iter().zip(3..).map(|(content, id)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        });
        json_with(|file| file["added_tokens"] = tokens.collect())
    };
    let error = added(vec!["a".repeat(1 << 20)]).expect_err("1 MiB");
    assert!(
        error.contains("added_tokens in tokenizer.json has a token of 1048576"),
        "{error}"
    );
    let mut vocab = byte_level();
    vocab.tokens.push("a".repeat(1 << 20));
    let mut types = vec![TokenType::Normal; vocab.tokens.len()];
    types[257] = TokenType::Control;
    vocab.token_types = Some(types);
    refused(vocab, &["tokenizer.ggml.tokens", "1048576 bytes"]);
    let long =
        |count: usize| -> Vec<String> { (0..count).map(|i| format!("{i:_>1024}")).collect() };
    // What the normalizer would make of them counts.
    let begun = std::time::Instant::now();
    let error = json_with(|file| {
        let tokens = long(300).into_iter().zip(3..).map(|(content, id)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": true, "special": true,
            })
        });
        file["added_tokens"] = tokens.collect();
        file["normalizer"] = json!({
            "type": "Replace", "pattern": {"String": "_"}, "content": "_".repeat(16),
        });
    })
    .expect_err("4.7 MiB");
    assert!(error.contains("can turn into 4915200 bytes"), "{error}");
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    let error = added(long(4097)).expect_err("more than 4 MiB");
    assert!(error.contains("at most 4194304"), "{error}");
    let begun = std::time::Instant::now();
    added(long(4096)).expect("4 MiB");
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[test]
fn what_nests_too_deep_is_refused_on_any_stack() {
    let deep = |open: &str, close: &str| {
        let json = format!(
            "{{\"model\": {}{}}}",
            open.repeat(100_000),
            close.repeat(100_000)
        );
        let read = move || Tokenizer::from_tokenizer_json(json.as_bytes(), &Default::default());
        let thread = std::thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(read);
        let error = thread
            .expect("a thread")
            .join()
            .expect("no panic")
            .expect_err("too deep");
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    };
    deep("[", "]");
    deep("{\"a\":", "}");
    for pattern in [
        "(".repeat(8_000),
        format!("{}{}", "(".repeat(8_000), ")".repeat(8_000)),
        format!("{}{}", "(?=".repeat(4_000), ")".repeat(4_000)),
        "[".repeat(8_000),
        "|".repeat(16_000),
        "a{1000}{1000}{1000}".to_owned(),
        "(?=a{1000}{1000}{1000})b".to_owned(),
        "(a*)*(a*)*(a*)*\\1$".to_owned(),
        "(?=(a+)+$)b".to_owned(),
    ] {
        let shown: String = pattern.chars().take(30).collect();
        let split = json!({
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false,
        });
        let begun = std::time::Instant::now();
        let tokenizer = json_with(|file| file["pre_tokenizer"] = split);
        if let Ok(tokenizer) = &tokenizer {
            // Encodes or says that it cannot.
            let _ = tokenizer.encode(&("a".repeat(2000) + "b"), true, true);
        }
        assert!(begun.elapsed().as_secs() < 10, "{shown}: slow");
    }
}
