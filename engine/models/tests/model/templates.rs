//! The chat template that a directory comes with, and the tokens that it writes.

use std::path::Path;
use std::time::UNIX_EPOCH;

use ebb_models::tokenizer::{ChatError, ChatMessage, Conversation};
use ebb_models::{OpenError, Opened};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::HfBuilder;
use crate::tiny;

/// A tiny model with a tokenizer of six tokens, and these files.
fn directory(files: &[(&'static str, Value)]) -> HfBuilder {
    let family = tiny::family("llama");
    let mut builder = HfBuilder::new(family, &tiny::spec(family, true), Dtype::BF16);
    let added = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let tokenizer = json!({
        "added_tokens": [added(2, "<s>"), added(3, "</s>"), added(4, "<u>"), added(5, "<p>")],
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                     "use_regex": true },
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1 }, "merges": [] },
    });
    builder.file("tokenizer.json", &tokenizer.to_string());
    for (name, contents) in files {
        let text = contents
            .as_str()
            .map_or_else(|| contents.to_string(), str::to_owned);
        builder.file(name, &text);
    }
    builder
}

fn open(dir: &Path) -> Result<Opened, OpenError> {
    ebb_models::open(dir.to_str().expect("a path in UTF-8"), None)
}

fn opened(files: &[(&'static str, Value)]) -> Opened {
    let (_keep, dir) = directory(files).directory();
    open(&dir).expect("a valid model")
}

fn chat(opened: &Opened) -> Result<String, ChatError> {
    let message = ChatMessage {
        role: "user".to_owned(),
        content: "q".to_owned(),
    };
    let template = opened.template.as_ref().expect("a template");
    template.render(&[message], false, UNIX_EPOCH)
}

fn rendered(files: &[(&'static str, Value)]) -> String {
    chat(&opened(files)).expect("a text")
}

#[test]
fn templates_have_the_special_tokens_of_either_file() {
    const ALL: &str = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}|\
                       {{ sep_token }}|{{ cls_token }}|{{ mask_token is defined }}|\
                       {{ additional_special_tokens }}";
    let config = json!({
        "chat_template": ALL, "bos_token": "<s>", "unk_token": { "content": "<u>" },
        "pad_token": "<p>", "cls_token": null, "sep_token": "</s>",
        "additional_special_tokens": ["<u>", { "content": "<p>" }],
    });
    assert_eq!(
        rendered(&[("tokenizer_config.json", config)]),
        "<s>||<u>|<p>|</s>||False|['<u>', '<p>']"
    );
    // Only named by the map.
    let map = json!({ "bos_token": "<s>", "eos_token": { "content": "</s>", "lstrip": false },
                      "additional_special_tokens": ["<p>"] });
    let alone = json!({ "chat_template": ALL });
    let files = [
        ("tokenizer_config.json", alone),
        ("special_tokens_map.json", map.clone()),
    ];
    assert_eq!(rendered(&files), "<s>|</s>|||||False|['<p>']");
    assert_eq!(opened(&files).tokenizer.special().eos, Some(3));
    // The map comes before an old configuration, and counts for nothing beside a new one.
    for (new, expected) in [(false, "<s>|</s>|"), (true, "<u>||")] {
        let mut config = json!({ "chat_template": "{{ bos_token }}|{{ eos_token }}|",
                                 "bos_token": "<u>" });
        if new {
            config["added_tokens_decoder"] = json!({});
        }
        let files = [
            ("tokenizer_config.json", config),
            ("special_tokens_map.json", map.clone()),
        ];
        assert_eq!(rendered(&files), expected);
    }
}

#[test]
fn templates_read_as_jinja2_reads_them() {
    for (template, expected) in [
        (
            "{% if tools is iterable and tools|length %}t{% endif %}{{ messages[0].role }}",
            "user",
        ),
        (
            "{% for m in messages %}\r\n[{{ m.role }}]\r\n{{ m.content }}\r\n{% endfor %}\r\n\
             END\r\n",
            "[user]\nq\nEND",
        ),
    ] {
        let config = json!({ "chat_template": template });
        assert_eq!(rendered(&[("tokenizer_config.json", config)]), expected);
    }
}

#[test]
fn a_template_that_cannot_be_compiled_refuses_chats_alone() {
    let config = json!({ "chat_template": "fine\n{% for %}" });
    let mut opened = opened(&[("tokenizer_config.json", config)]);
    let template = opened.template.as_ref().expect("one that says why");
    assert!(matches!(template.problem(), Some(ChatError::Template(_))));
    let sentence = chat(&opened).expect_err("no text").to_string();
    assert!(sentence.contains("cannot be used: line 2"), "{sentence}");
    assert_eq!(
        opened.tokenizer.encode("ab", false, true).expect("ids"),
        [0, 1]
    );

    // Another in its place.
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("own.jinja");
    let sentence = opened
        .use_chat_template(&file)
        .expect_err("no file")
        .to_string();
    assert!(sentence.contains("own.jinja"), "{sentence}");
    std::fs::write(&file, "{{ x").expect("written");
    let sentence = opened
        .use_chat_template(&file)
        .expect_err("no template")
        .to_string();
    assert!(
        sentence.contains("--chat-template") && sentence.contains("line 1"),
        "{sentence}"
    );
    std::fs::write(&file, "{{ messages[0].content }}!").expect("written");
    opened.use_chat_template(&file).expect("a template");
    assert_eq!(chat(&opened).as_deref(), Ok("q!"));
}

#[test]
fn conversations_with_tools_have_their_own_template() {
    let tools = json!([{ "type": "function" }]);
    let both = |opened: &Opened| {
        let template = opened.template.as_ref().expect("a template");
        [None, Some(&Value::Null), Some(&tools)].map(|tools| {
            let given = Conversation {
                messages: &[],
                tools,
                documents: None,
                add_generation_prompt: false,
                continue_final_message: false,
                kwargs: None,
                now: UNIX_EPOCH,
            };
            template.render_conversation(&given).expect("a text")
        })
    };
    let named = json!({ "chat_template": [{ "name": "tool_use", "template": "with" },
                                          { "name": "default", "template": "without" }] });
    let config = ("tokenizer_config.json", named);
    assert_eq!(
        both(&opened(std::slice::from_ref(&config))),
        ["without", "without", "with"]
    );
    // Files take the place of all of them.
    let file = ("chat_template.jinja", json!("file"));
    assert_eq!(
        both(&opened(&[config.clone(), file.clone()])),
        ["file", "file", "file"]
    );
    let (_keep, dir) = directory(&[config, file]).directory();
    let more = dir.join("additional_chat_templates");
    std::fs::create_dir(&more).expect("created");
    std::fs::write(more.join("tool_use.jinja"), "file with").expect("written");
    std::fs::write(more.join("notes.txt"), "{{").expect("written");
    assert_eq!(
        both(&open(&dir).expect("a model")),
        ["file", "file", "file with"]
    );
}
