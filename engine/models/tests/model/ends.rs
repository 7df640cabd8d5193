//! Tokens that begin and end texts, and files as transformers leaves them, in a whole directory.
//! The expected ids are those of transformers 4.57 on the same files.

use std::path::Path;

use ebb_kernels::model::TensorName;
use ebb_models::{OpenError, Opened, open};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::HfBuilder;
use crate::tiny;

/// Letters are the ids 0 to 25, the tokens of `added` follow.
fn tokenizer_json(added: &[&str]) -> Value {
    let vocab: serde_json::Map<String, Value> = ('a'..='z')
        .zip(0..)
        .map(|(c, id)| (c.to_string(), json!(id)))
        .collect();
    let added: Vec<Value> = added
        .iter()
        .zip(26..)
        .map(|(content, id)| {
            json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true })
        })
        .collect();
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
}

const ADDED: [&str; 4] = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"];
const BOS: u32 = 26;
const EOS: u32 = 27;
const IM_END: u32 = 29;

/// A tiny Llama with 40 rows and that tokenizer.
fn llama(tokenizer_config: Value) -> HfBuilder {
    let spec = tiny::spec(tiny::family("llama"), true);
    let mut files = HfBuilder::new(tiny::family("llama"), &spec, Dtype::BF16);
    files.file("tokenizer.json", &tokenizer_json(&ADDED).to_string());
    files.file("tokenizer_config.json", &tokenizer_config.to_string());
    files
}

fn path(dir: &Path) -> String {
    dir.to_str().expect("a plain path").to_owned()
}

fn opened(files: &HfBuilder) -> Opened {
    let (_keep, dir) = files.directory();
    open(&path(&dir), None).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(dir: &Path) -> String {
    match open(&path(dir), None) {
        Ok(_) => panic!("{} should be refused", dir.display()),
        Err(error @ (OpenError::Model(_) | OpenError::TokenizerFile { .. })) => error.to_string(),
        Err(error) => panic!("{error}"),
    }
}

fn plain(fields: Value) -> Value {
    let mut config = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    config
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    config
}

#[test]
fn an_end_that_only_the_tokenizer_or_the_generation_names_ends_an_answer() {
    for (config, eos, generation, expected) in [
        (
            json!(27),
            plain(json!({ "eos_token": "<|im_end|>" })),
            None,
            vec![27, 29],
        ),
        (
            json!(null),
            plain(json!({ "eos_token": { "content": "<|im_end|>" } })),
            None,
            vec![29],
        ),
        (json!(27), plain(json!({})), Some(json!(3)), vec![3, 27]),
        (
            json!([27]),
            plain(json!({ "eos_token": "</s>" })),
            Some(json!([30, 29])),
            vec![27, 29, 30],
        ),
        // Named by nothing but the list of added tokens.
        (
            json!(null),
            plain(json!({ "eos_token": "<end>", "added_tokens_decoder": {
                "31": { "content": "<far>", "special": false },
                "30": { "content": "<end>", "special": true },
            } })),
            None,
            vec![30],
        ),
        // LlamaTokenizer's own name for it, and no name for none.
        (json!(null), json!({}), None, vec![27]),
        (json!(null), json!({ "eos_token": null }), None, vec![]),
        // No token of the vocabulary.
        (
            json!(27),
            plain(json!({ "eos_token": "<nix>" })),
            None,
            vec![27],
        ),
    ] {
        let mut files = llama(eos.clone());
        files.config["eos_token_id"] = config;
        if let Some(ids) = generation {
            files.file(
                "generation_config.json",
                &json!({ "eos_token_id": ids }).to_string(),
            );
        }
        let found: Vec<u32> = opened(&files).model.end_ids;
        assert_eq!(found, expected, "{eos}");
    }
}

#[test]
fn special_tokens_map_names_tokens_where_no_decoder_does() {
    let map = json!({ "bos_token": "<s>", "eos_token": { "content": "<|im_end|>" } }).to_string();
    let mut files = llama(plain(json!({ "eos_token": "</s>" })));
    files.file("special_tokens_map.json", &map);
    let found = opened(&files);
    let special = found.tokenizer.special();
    assert_eq!((special.bos, special.eos), (Some(BOS), Some(IM_END)));
    assert_eq!(found.model.end_ids, [2, IM_END]);

    let mut files = llama(plain(
        json!({ "eos_token": "</s>", "added_tokens_decoder": {} }),
    ));
    files.file("special_tokens_map.json", &map);
    let special = opened(&files).tokenizer.special();
    assert_eq!((special.bos, special.eos), (None, Some(EOS)));
}

#[test]
fn bos_and_eos_are_added_as_the_tokenizer_class_does() {
    let with_processor = || {
        let mut json = tokenizer_json(&ADDED);
        json["post_processor"] = json!({ "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } },
                       { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } },
                     { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [BOS], "tokens": ["<s>"] } } });
        json.to_string()
    };
    let encode = |class: Option<&str>, bos: Option<bool>, eos: Option<bool>, processor: bool| {
        let names = json!({ "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": class,
            "add_bos_token": bos, "add_eos_token": eos });
        let mut files = llama(names);
        if processor {
            files.file("tokenizer.json", &with_processor());
        }
        opened(&files)
            .tokenizer
            .encode("hi", true, true)
            .expect("encodes")
    };
    let hi = [7, 8];
    let after_bos = [BOS, 7, 8];
    for class in [
        Some("LlamaTokenizerFast"),
        Some("LlamaTokenizer"),
        Some("GemmaTokenizer"),
        None,
    ] {
        for processor in [false, true] {
            assert_eq!(encode(class, None, None, processor), after_bos, "{class:?}");
            assert_eq!(encode(class, Some(true), Some(false), processor), after_bos);
            assert_eq!(encode(class, Some(false), None, processor), hi);
            assert_eq!(encode(class, None, Some(true), processor), [BOS, 7, 8, EOS]);
            assert_eq!(
                encode(class, Some(false), Some(true), processor),
                [7, 8, EOS]
            );
        }
    }
    for class in [
        Some("PreTrainedTokenizerFast"),
        Some("GPT2Tokenizer"),
        Some("Qwen2Tokenizer"),
    ] {
        for flags in [(None, None), (Some(true), Some(true)), (Some(false), None)] {
            assert_eq!(encode(class, flags.0, flags.1, false), hi, "{class:?}");
            assert_eq!(
                encode(class, flags.0, flags.1, true),
                after_bos,
                "{class:?}"
            );
        }
    }
    let neox = Some("GPTNeoXTokenizerFast");
    for processor in [false, true] {
        assert_eq!(encode(neox, None, None, processor), hi);
        assert_eq!(encode(neox, Some(true), None, processor), after_bos);
    }
}

#[test]
fn tokens_that_stand_only_beside_the_tokenizer_are_added() {
    let decoder = json!({ "added_tokens_decoder": {
        "26": { "content": "<s>", "special": false },
        "35": { "content": "<far>", "special": false },
        "30": { "content": "<new>", "special": true },
    } });
    let tokenizer = opened(&llama(plain(decoder))).tokenizer;
    let ids = tokenizer
        .encode("a<new><far>b<s>", false, true)
        .expect("encodes");
    assert_eq!(ids, [0, 30, 31, 1, 26]);
    // What is said beside the file counts: `<s>` is no special token now.
    assert_eq!(tokenizer.decode(&ids, true), "a<far>b<s>");

    let mut files = llama(plain(json!({})));
    files.file("added_tokens.json", r#"{ "<zzz>": 30 }"#);
    let ids = opened(&files)
        .tokenizer
        .encode("a<zzz>", false, true)
        .expect("encodes");
    assert_eq!(ids, [0, 30]);
}

#[test]
fn unsorted_added_tokens_are_numbered_as_the_library_does() {
    let mut json = tokenizer_json(&ADDED);
    json["added_tokens"]
        .as_array_mut()
        .expect("a list")
        .reverse();
    let mut files = llama(plain(json!({ "eos_token": "</s>" })));
    files.file("tokenizer.json", &json.to_string());
    let found = opened(&files);
    let text = "<s></s><|im_start|><|im_end|>";
    let ids = found.tokenizer.encode(text, false, true).expect("encodes");
    assert_eq!(ids, [29, 28, 27, 26]);
    assert_eq!(found.tokenizer.decode(&ids, false), text);
    assert_eq!(found.model.end_ids, [2, 28]);
}

#[test]
fn numbers_that_only_python_knows_are_read_where_nothing_depends_on_them() {
    let mut files = llama(plain(json!({})));
    files.file(
        "tokenizer_config.json",
        r#"{"model_max_length": Infinity, "eos_token": "</s>"}"#,
    );
    files.file(
        "generation_config.json",
        r#"{"x": NaN, "top_k": -1, "top_p": 1.0, "min_p": null}"#,
    );
    let (_keep, dir) = files.directory();
    let config = files.config.to_string();
    let with = |field: &str| format!("{},{field}}}", &config[..config.len() - 1]);
    let write = |text: &str| std::fs::write(dir.join("config.json"), text).expect("write it");
    write(&with(r#""other_limit": [0.0, -Infinity, Infinity]"#));
    let found = open(&path(&dir), None)
        .unwrap_or_else(|error| panic!("{error}"))
        .model;
    assert_eq!(
        (found.generation.top_k, found.generation.top_p),
        (Some(0), Some(1.0))
    );
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    write(&with(r#""partial_rotary_factor": Infinity"#));
    let sentence = refusal(&dir);
    assert!(
        sentence.ends_with("`partial_rotary_factor` is \"Infinity\"; expected a number"),
        "{sentence}"
    );
}

#[test]
fn a_tied_model_may_be_stored_as_its_output_projection() {
    for shards in [1, 3] {
        let spec = tiny::spec(tiny::family("llama"), true);
        let mut files = HfBuilder::new(tiny::family("llama"), &spec, Dtype::F16);
        files.shards = shards;
        files.tensors[0].0 = "lm_head.weight".to_owned();
        tiny::assert_weights(&files.open().expect("a valid model"), &spec);
        // Where it is not tied, both are needed.
        files.config["tie_word_embeddings"] = json!(false);
        let (_, sentence) = files.refusal();
        assert!(
            sentence.contains("`model.embed_tokens.weight` is missing"),
            "{sentence}"
        );
    }
    assert_eq!(
        crate::hf_builder::hf_name(TensorName::LmHead),
        "lm_head.weight"
    );
}

#[test]
fn a_git_lfs_pointer_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\n\
                   oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n\
                   size 12345\n";
    for file in [
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "tokenizer_config.json",
    ] {
        let (_keep, dir) = llama(json!({})).directory();
        std::fs::write(dir.join(file), pointer).expect("write it");
        let sentence = refusal(&dir);
        for word in [file, "Git LFS pointer", "git lfs pull"] {
            assert!(sentence.contains(word), "{sentence}");
        }
    }
    let keep = tempfile::TempDir::new().expect("a temporary directory");
    let gguf = keep.path().join("model.gguf");
    std::fs::write(&gguf, pointer).expect("write it");
    assert!(refusal(&gguf).contains("git lfs pull"));
    // A model can do without these.
    let (_keep, dir) = llama(json!({})).directory();
    std::fs::write(dir.join("generation_config.json"), pointer).expect("write it");
    let notes = open(&path(&dir), None)
        .unwrap_or_else(|error| panic!("{error}"))
        .model
        .notes;
    assert!(notes[0].contains("git lfs pull"), "{notes:?}");
}

/// A context of any length has room for what a tokenizer drops.
#[test]
fn text_has_a_bound_only_where_none_of_it_vanishes() {
    let bound = |change: &dyn Fn(&mut Value)| {
        let mut json = tokenizer_json(&ADDED);
        change(&mut json);
        let mut files = llama(plain(json!({})));
        files.file("tokenizer.json", &json.to_string());
        opened(&files).tokenizer.text_bytes_per_token()
    };
    let bytes = |json: &mut Value| {
        let vocab = json["model"]["vocab"]
            .as_object_mut()
            .expect("a vocabulary");
        // GPT-2's alphabet of bytes.
        let printed = |code: &u32| !matches!(code, 0x7f..=0xa0 | 0xad);
        for (id, code) in (0x21..0x144u32).filter(printed).enumerate() {
            let char = char::from_u32(code).expect("a character").to_string();
            vocab.entry(char).or_insert(json!(100 + id));
        }
        let added = json["added_tokens"].as_array_mut().expect("a list");
        added.clear();
    };
    // Characters outside of a to z have no token.
    assert_eq!(bound(&|_| ()), None);
    assert_eq!(bound(&bytes), Some(1));
    let stripping = |json: &mut Value| {
        bytes(json);
        json["added_tokens"] = json!([{ "id": 900, "content": "<end>", "single_word": false,
            "lstrip": false, "rstrip": true, "normalized": false, "special": true }]);
    };
    assert_eq!(bound(&stripping), None);
}
