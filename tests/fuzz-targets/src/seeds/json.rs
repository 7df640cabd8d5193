//! Files of JSON: tokenizers, profiles, logs.

use serde_json::{Map, Value, json};

type Inputs = Vec<(String, Vec<u8>)>;

/// How GPT-4 and its followers cut a text.
const GPT_4: &str = concat!(
    r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
);

/// A byte-level vocabulary of a few tokens.
fn tokenizer() -> Value {
    let words = [
        "a", "b", "ab", "c", "Ġ", "l", "o", "e", "H", "!", "d", "n", "t", "'",
    ];
    let vocab: Map<String, Value> = words
        .iter()
        .zip(0..)
        .map(|(word, id)| ((*word).to_owned(), json!(id)))
        .collect();
    let added = |id: usize, text: &str| {
        json!({
            "id": id, "content": text, "special": true, "normalized": false, "lstrip": false,
            "rstrip": false, "single_word": false,
        })
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added(words.len(), "<s>"), added(words.len() + 1, "</s>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"], "unk_token": null},
    })
}

/// What hubs answer, with a byte in front that says what is wanted.
pub(super) fn listings() -> Inputs {
    let listing = |wanted: u8, names: &[&str]| {
        let files: Vec<Value> = names
            .iter()
            .map(|name| json!({"rfilename": name}))
            .collect();
        let answer = json!({"sha": "0123456789abcdef".repeat(3)[..40], "siblings": files});
        [&[wanted], answer.to_string().as_bytes()].concat()
    };
    let directory = [
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00001.safetensors",
    ];
    let split = [
        "Q4_K_M/x-00001-of-00002.gguf",
        "Q4_K_M/x-00002-of-00002.gguf",
    ];
    let inputs = [
        ("directory", listing(0, &directory)),
        (
            "one-gguf",
            listing(0, &["config.json", "x-Q8_0.gguf", "mmproj-x.gguf"]),
        ),
        ("split", listing(1, &split)),
        ("part", listing(2, &["x-00002-of-00002.gguf", "y.gguf"])),
        (
            "elsewhere",
            listing(0, &["../x.gguf", "/x.gguf", "a/../../x.gguf", "x\0.gguf"]),
        ),
        ("deep", [&[0u8][..], &b"[".repeat(2000)].concat()),
    ];
    inputs
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .to_vec()
}

pub(super) fn tokenizers() -> Inputs {
    let mut inputs = Inputs::new();
    let mut add = |name: &str, path: &str, value: Value| {
        let mut file = tokenizer();
        if let Some(at) = file.pointer_mut(path) {
            *at = value;
        }
        inputs.push((name.to_owned(), file.to_string().into_bytes()));
    };
    let replace = |pattern: Value, content: &str| {
        let kind = "Replace";
        json!({"type": kind, "pattern": pattern, "content": content})
    };
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let pre = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
    let split = |pattern: &str| {
        json!({
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false,
        })
    };
    add("byte-level", "", tokenizer());
    add("pairs", "/model/merges", json!([["a", "b"]]));
    add(
        "nfc",
        "/normalizer",
        sequence(vec![json!({"type": "NFC"}), json!({"type": "NFKC"})]),
    );
    add(
        "prepend",
        "/normalizer",
        sequence(vec![
            json!({"type": "Prepend", "prepend": "▁"}),
            replace(json!({"String": " "}), "▁"),
        ]),
    );
    add(
        "strip",
        "/normalizer",
        sequence(vec![
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            json!({"type": "StripAccents"}),
            json!({"type": "Lowercase"}),
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
               "strip_accents": null, "lowercase": true}),
            json!({"type": "ByteLevel"}),
        ]),
    );
    add(
        "doubling",
        "/normalizer",
        sequence(vec![replace(json!({"String": "a"}), "aa"); 40]),
    );
    add(
        "regex",
        "/normalizer",
        replace(json!({"Regex": "(a+)+$"}), "x"),
    );
    add(
        "charsmap",
        "/normalizer",
        json!({
            "type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYmMAZGUA",
        }),
    );
    add(
        "charsmap-damaged",
        "/normalizer",
        json!({
            "type": "Precompiled", "precompiled_charsmap": "////",
        }),
    );
    add(
        "split",
        "/pre_tokenizer",
        pre(vec![
            split(GPT_4),
            json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}),
        ]),
    );
    add("backtracking", "/pre_tokenizer", split("(a|aa)+$"));
    add("lookbehind", "/pre_tokenizer", split(r"(?<=a)b|(a)\1"));
    add("empty-match", "/pre_tokenizer", split(""));
    add(
        "digits",
        "/pre_tokenizer",
        pre(vec![
            json!({"type": "Digits", "individual_digits": true}),
            json!({"type": "Punctuation", "behavior": "Contiguous"}),
            json!({"type": "Whitespace"}),
            json!({"type": "WhitespaceSplit"}),
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "UnicodeScripts"}),
            json!({"type": "CharDelimiterSplit", "delimiter": "x"}),
        ]),
    );
    add(
        "metaspace",
        "/pre_tokenizer",
        json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false,
        }),
    );
    add(
        "template",
        "/post_processor",
        json!({
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [14], "tokens": ["<s>"]}},
        }),
    );
    add(
        "bert",
        "/post_processor",
        json!({
            "type": "BertProcessing", "sep": ["</s>", 15], "cls": ["<s>", 14],
        }),
    );
    add(
        "roberta",
        "/post_processor",
        json!({
            "type": "RobertaProcessing", "sep": ["</s>", 15], "cls": ["<s>", 14],
            "trim_offsets": true, "add_prefix_space": false,
        }),
    );
    add(
        "decoder",
        "/decoder",
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]}),
    );
    add(
        "unigram",
        "/model",
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}),
    );
    add("wordpiece", "/model/type", json!("WordPiece"));
    add("dropout", "/model/dropout", json!(0.1));
    add("unknown-token", "/model/unk_token", json!("<none>"));
    add("merge-of-nothing", "/model/merges", json!(["x y"]));
    add("merge-without-space", "/model/merges", json!(["ab"]));
    add("same-id", "/model/vocab", json!({"a": 0, "b": 0, "ab": 1}));
    add(
        "large-id",
        "/model/vocab",
        json!({"a": 0, "b": 4_000_000_000u32}),
    );
    add(
        "hole",
        "/model/vocab",
        json!({"a": 0, "b": 1, "ab": 3_000_000}),
    );
    add("added-twice", "/added_tokens/1/content", json!("<s>"));
    add("added-empty", "/added_tokens/1/content", json!(""));
    add("added-far", "/added_tokens/1/id", json!(u32::MAX));
    add(
        "added-long",
        "/added_tokens/1/content",
        json!("x".repeat(5000)),
    );
    add("added-stripping", "/added_tokens/1/lstrip", json!(true));
    let fallback = json!({"type": "BPE", "byte_fallback": true, "fuse_unk": true,
        "unk_token": "<unk>", "vocab": {"<unk>": 0, "<0x61>": 1}, "merges": []});
    add("fallback", "/model", fallback);
    let deep = format!("{{\"normalizer\":{}", "[".repeat(10_000));
    inputs.push(("deep".to_owned(), deep.into_bytes()));
    inputs.push(("empty".to_owned(), Vec::new()));
    inputs.push(("nothing".to_owned(), b"{}".to_vec()));
    inputs
}

fn profile() -> Value {
    json!({
        "ebb_profile": 2,
        "model": {"name": "m", "config": "c", "weights": "w"},
        "layers": 2, "kv_heads": 1, "head_dim": 64,
        "method": {"name": "pmkvq", "samples": 8, "ctx": 512, "position_stride": 4, "text": "t"},
        "protect": "int8",
        "rotate_v": false,
        "budget_bits": 9.0,
        "floors": {"k": ["int4", "f16"], "v": ["int8", "f16"]},
        "sensitivities": {"k": {"int8": [1e-6, 0.5]}, "v": {"int8": [0.0, 1.0]}},
        "schedule": [
            {"page": "layer0.v", "to": "int8", "loss": 1.2e-7},
            {"page": "layer0.k", "to": "int8"},
            {"page": "layer0.k", "to": "int4", "loss": 3.1e-5},
        ],
    })
}

pub(super) fn profiles() -> Inputs {
    let mut inputs = Inputs::new();
    let mut add = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut file = profile();
        change(&mut file);
        inputs.push((name.to_owned(), file.to_string().into_bytes()));
    };
    add("sound", &|_| {});
    add("layers", &|file| file["layers"] = json!(u64::MAX));
    add("heads", &|file| file["kv_heads"] = json!(u64::MAX));
    add("many-heads", &|file| file["kv_heads"] = json!(16_777_214));
    add("head", &|file| file["head_dim"] = json!(1u64 << 62));
    add("no-layers", &|file| file["layers"] = json!(0));
    add("recent", &|file| {
        file["recent"] = json!({"group": 32, "ratios": {"k": [0.2, 0.3], "v": [0.1, 0.0]}});
    });
    add("endless-recent", &|file| {
        file["recent"] = json!({
            "group": 1_000_000_000_000u64, "ratios": {"k": [0.999_999_999, 1.0], "v": [0.1, 0.0]},
        });
    });
    add("negative-recent", &|file| {
        file["recent"] = json!({"ratios": {"k": [-0.2, 0.2], "v": [0.1, 0.0]}});
    });
    add("scales", &|file| {
        file["key_scales"] = json!({
            "format": "int4t", "alpha": [0.5, 0.5], "heads": 1,
            "scales": [vec![1.0; 32], vec![0.9; 32]],
        });
    });
    add("short-scales", &|file| {
        file["key_scales"] = json!({
            "format": "int4t", "alpha": [0.5], "heads": u64::MAX, "scales": [[1.0], []],
        });
    });
    add("upwards", &|file| file["schedule"][2]["to"] = json!("f16"));
    add("no-page", &|file| {
        file["schedule"][0]["page"] = json!("layer18446744073709551616.k")
    });
    add("version", &|file| file["ebb_profile"] = json!(1));
    add("future", &|file| file["ebb_profile"] = json!(u64::MAX));
    add("unknown", &|file| file["more"] = json!(1));
    add("negative", &|file| {
        file["sensitivities"]["k"]["int8"] = json!([-1.0, 0.0])
    });
    inputs.push((
        "deep".to_owned(),
        format!("{{\"layers\":{}", "[".repeat(4000)).into_bytes(),
    ));
    inputs.push(("empty".to_owned(), Vec::new()));
    inputs
}

fn header() -> Value {
    json!({
        "ebb_trajectories": 1,
        "model": {"name": "fuzz", "config": "c", "weights": "w"},
        "device": "cpu", "exact": true, "rotate_v": false,
        "positions": [["int8", "f16"], ["int4", "int8"]],
    })
}

fn trajectory() -> Value {
    let sampling = ebb_serving::sampling::SamplingOptions::default();
    json!({
        "request": "a", "choice": 0, "end": "stop",
        "prompt": vec![1; 200], "sampling": sampling, "tokens": [4, 5, 6], "logprobs": [],
        "cached": 128, "cached_bits": 16, "earlier": 0, "exchanged": false,
        "steps": [[72, 1], [1, 2]], "moves": [[200, 0, 1], [201, 0, 2]],
    })
}

pub(super) fn logs() -> Inputs {
    let mut inputs = Inputs::new();
    let mut add = |name: &str, lines: &[Value]| {
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        inputs.push((name.to_owned(), (lines.join("\n") + "\n").into_bytes()));
    };
    let with = |field: &str, value: Value| {
        let mut it = trajectory();
        it[field] = value;
        it
    };
    add("sound", &[header(), trajectory(), trajectory()]);
    add(
        "endless-steps",
        &[header(), with("steps", json!([[u32::MAX, u32::MAX]]))],
    );
    add("lost", &[header(), with("earlier", json!(3)), trajectory()]);
    add(
        "lost-early",
        &[header(), with("steps", json!([])), trajectory()],
    );
    add("no-answer", &[header(), with("tokens", json!([]))]);
    add("no-prompt", &[header(), with("prompt", json!([]))]);
    add("unknown-token", &[header(), with("prompt", json!([300]))]);
    add(
        "level",
        &[header(), with("moves", json!([[200, 0, 65_535]]))],
    );
    add(
        "early-move",
        &[header(), with("moves", json!([[1, u32::MAX, 1]]))],
    );
    add("no-step", &[header(), with("steps", json!([[0, 5]]))]);
    let mut other = header();
    other["model"]["weights"] = json!("other");
    add("other-model", &[other]);
    let mut future = header();
    future["ebb_trajectories"] = json!(u64::MAX);
    add("future", &[future]);
    let mut levels = header();
    levels["positions"] = json!([["no-format"], []]);
    add("levels", &[levels, trajectory()]);
    let half = format!("{}\n{}", header(), &trajectory().to_string()[..100]);
    inputs.push(("half-a-line".to_owned(), half.into_bytes()));
    let bytes = [header().to_string().as_bytes(), b"\n\xff\xfe\0\n\n  \n"].concat();
    inputs.push(("no-text".to_owned(), bytes));
    inputs.push(("empty".to_owned(), Vec::new()));
    inputs
}
