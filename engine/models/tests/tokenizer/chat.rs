//! Chat templates against what Jinja2 makes of them (tests/golden/chat/record.py).

use std::time::{Duration, UNIX_EPOCH};

use ebb_models::tokenizer::{ChatError, ChatMessage, ChatTemplate, Conversation, TemplateTokens};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files;

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

/// One conversation under one template: its text, or why there is none.
#[derive(Deserialize)]
struct Case {
    template: String,
    conversation: String,
    messages: Vec<Turn>,
    add_generation_prompt: bool,
    text: Option<String>,
    refused: Option<String>,
}

/// 2024-07-26 12:30 UTC, when the answers were recorded.
fn now() -> std::time::SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_721_997_000)
}

fn template(source: &str) -> Result<ChatTemplate, ChatError> {
    let tokens = TemplateTokens {
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
        ..TemplateTokens::default()
    };
    ChatTemplate::new(source, tokens)
}

fn user(content: &str) -> Vec<ChatMessage> {
    let role = "user".to_owned();
    let content = content.to_owned();
    vec![ChatMessage { role, content }]
}

/// Renders every recorded conversation of the templates that `source` knows.
fn check(source: impl Fn(&str) -> Option<String>) -> usize {
    let cases: Vec<Case> =
        serde_json::from_str(&files::golden("chat/expected.json")).expect("recorded cases");
    let mut checked = 0;
    for case in cases {
        let Some(source) = source(&case.template) else {
            continue;
        };
        checked += 1;
        let title = format!("{}, {}", case.template, case.conversation);
        let template = template(&source).unwrap_or_else(|e| panic!("{title}: {e}"));
        let into_message = |Turn { role, content }| ChatMessage { role, content };
        let messages: Vec<_> = case.messages.into_iter().map(into_message).collect();
        let rendered = template.render(&messages, case.add_generation_prompt, now());
        match (case.text, case.refused) {
            (Some(text), _) => assert_eq!(rendered.as_deref(), Ok(&*text), "{title}"),
            (None, Some(why)) => assert_eq!(rendered, Err(ChatError::Refused(why)), "{title}"),
            (None, None) => assert!(matches!(rendered, Err(ChatError::Failed(_))), "{title}"),
        }
    }
    checked
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let checked = check(|name| {
        name.ends_with(".jinja")
            .then(|| files::golden(&format!("chat/{name}")))
    });
    assert_eq!(checked, 140);
}

#[test]
fn smollm2_renders_and_tokenises_as_recorded() {
    let metadata = files::smollm2_metadata();
    let source = metadata.chat_template.as_deref().expect("a chat template");
    assert_eq!(
        check(|name| (name == "gguf:smollm2").then(|| source.to_owned())),
        20
    );

    let template = ChatTemplate::new(source, TemplateTokens::default()).expect("a template");
    let recorded: serde_json::Value =
        serde_json::from_str(&files::golden("smollm2-135m-instruct.json")).expect("JSON");
    let recorded = &recorded["weights_fp32_dequant"][2];
    let question = user(recorded["messages"][0]["content"].as_str().expect("a text"));
    let prompt = template.render(&question, true, now()).expect("a prompt");
    assert_eq!(recorded["prompt"], prompt);
    let ids = files::smollm2().encode(&prompt, true, true).expect("ids");
    assert_eq!(recorded["prompt_ids"], serde_json::json!(ids));
}

#[test]
#[ignore = "needs the 1.1 GB Qwen2.5-Coder file: set EBB_TEST_QWEN_MODEL (part of --full)"]
fn qwen_renders_as_recorded() {
    let source = files::qwen_metadata()
        .chat_template
        .expect("a chat template");
    let checked = check(|name| (name == "gguf:qwen2.5-coder").then(|| source.clone()));
    assert_eq!(checked, 20);
}

#[test]
fn what_is_no_template_is_refused_with_its_line() {
    let error = template("fine\n{% for x in %}").expect_err("a syntax error");
    let sentence = error.to_string();
    assert!(
        sentence.contains("chat template cannot be used") && sentence.contains("line 2"),
        "{sentence}"
    );
    let error = template(&"x".repeat(2 << 20)).expect_err("too long");
    assert!(error.to_string().contains("1048576"), "{error}");
    let nested = "{% if true %}".repeat(50_000);
    assert!(matches!(template(&nested), Err(ChatError::Template(_))));
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    assert!(matches!(template(&deep), Err(ChatError::Template(_))));
}

#[test]
fn a_template_cannot_run_or_write_for_ever() {
    let hello = user("hello");
    let render = |source: &str| {
        template(source)
            .expect("parses")
            .render(&hello, true, now())
    };

    let nested = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
    assert_eq!(render(nested), Err(ChatError::TooManySteps));
    let long = "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}";
    assert_eq!(render(long), Err(ChatError::TooLong));
    let recursive = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    assert!(matches!(render(recursive), Err(ChatError::Failed(_))));
    let unknown = "{{ messages[0].content.shout() }}";
    let error = render(unknown).expect_err("no such method").to_string();
    assert!(
        error.contains("line 1") && error.contains("shout"),
        "{error}"
    );
    let file = "{% include '/etc/passwd' %}";
    assert!(matches!(render(file), Err(ChatError::Failed(_))));
}

#[test]
fn a_long_conversation_is_within_the_bounds() {
    let source = files::golden("chat/qwen3.jinja");
    let template = template(&source).expect("parses");
    let mut messages = Vec::new();
    for i in 0..2_000 {
        let role = if i % 2 == 0 { "user" } else { "assistant" }.to_owned();
        let content = "word ".repeat(100);
        messages.push(ChatMessage { role, content });
    }
    let text = template.render(&messages, true, now()).expect("a text");
    assert!(text.len() > 1_000_000);
}

#[test]
fn a_long_message_is_within_the_bounds() {
    let words = "word ".repeat(2_000_000);
    for name in [
        "chatml",
        "llama-3",
        "llama-3.2",
        "mistral",
        "qwen2.5",
        "qwen3",
    ] {
        let source = files::golden(&format!("chat/{name}.jinja"));
        let template = template(&source).expect("parses");
        let text = template.render(&user(&words), true, now());
        let bytes = text.unwrap_or_else(|e| panic!("{name}: {e}")).len();
        assert!(bytes >= words.trim().len(), "{name}");
    }
}

#[test]
fn a_model_without_a_template_says_what_to_do() {
    let sentence = ChatError::Missing.to_string();
    assert!(
        sentence.contains("no chat template") && sentence.contains("prompt"),
        "{sentence}"
    );
}

#[test]
fn what_cannot_be_written_as_json_is_refused() {
    let hello = user("hello");
    let render = |source: &str| {
        template(source)
            .expect("parses")
            .render(&hello, true, now())
    };
    for source in [
        "{{ missing | tojson }}",
        "{{ messages | tojson(indent=9999) }}",
    ] {
        let result = render(source);
        assert!(
            matches!(result, Err(ChatError::Failed(_))),
            "{source}: {result:?}"
        );
    }
}

/// A small template and what jinja2 makes of it (tests/golden/chat/snippets.py).
#[derive(Deserialize)]
struct Snippet {
    topic: String,
    template: String,
    /// Nothing where it raises.
    text: Option<String>,
}

#[derive(Deserialize)]
struct Snippets {
    arguments: serde_json::Map<String, serde_json::Value>,
    snippets: Vec<Snippet>,
}

#[test]
fn snippets_mean_what_they_mean_to_jinja2() {
    let recorded: Snippets =
        serde_json::from_str(&files::golden("chat/snippets.json")).expect("recorded snippets");
    assert!(recorded.snippets.len() > 600);
    let mut wrong = Vec::new();
    for snippet in recorded.snippets {
        let template = ChatTemplate::new(&snippet.template, TemplateTokens::default());
        let rendered = template.and_then(|template| {
            template.render_conversation(&Conversation {
                messages: &[],
                tools: None,
                documents: None,
                add_generation_prompt: false,
                continue_final_message: false,
                kwargs: Some(&recorded.arguments),
                now: now(),
            })
        });
        if rendered.as_ref().ok() != snippet.text.as_ref() {
            let (topic, template, text) = (snippet.topic, snippet.template, snippet.text);
            wrong.push(format!(
                "{topic}: {template:?}\n  jinja2 {text:?}\n  here   {rendered:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_that_a_conversation_has_reaches_the_template() {
    let source = "{% for m in messages %}{{ m.content if m.content is string else \
                  m.content|map(attribute='text')|join if m.content else 'nothing' }};\
                  {{ m.reasoning_content }};{{ m.tool_calls|tojson if m.tool_calls }};{% endfor %}\
                  {{ tools|tojson }}|{{ documents[0].title }}|{{ enable_thinking }}|{{ bos_token }}\
                  |{{ add_generation_prompt }}";
    let messages = [
        serde_json::json!({"role": "user", "content": [{"type": "text", "text": "a"},
                                                        {"type": "text", "text": "b"}]}),
        serde_json::json!({"role": "assistant", "content": null, "reasoning_content": "r",
                           "tool_calls": [{"z": 1, "a": 2}]}),
    ];
    let tools = serde_json::json!([{"type": "function", "function": {"name": "f"}}]);
    let documents = serde_json::json!([{"title": "t"}]);
    let kwargs = serde_json::json!({"enable_thinking": false, "bos_token": "<other>",
                                    "messages": "not these"});
    let given = Conversation {
        messages: &messages,
        tools: Some(&tools),
        documents: Some(&documents),
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: kwargs.as_object(),
        now: now(),
    };
    let text = template(source)
        .expect("parses")
        .render_conversation(&given);
    let expected = "ab;;;nothing;r;[{\"z\": 1, \"a\": 2}];[{\"type\": \"function\", \"function\": \
                    {\"name\": \"f\"}}]|t|False|<other>|True";
    assert_eq!(text.as_deref(), Ok(expected));
}

#[test]
fn long_inputs_have_room_in_every_golden_template() {
    let long = user(&"é".repeat(300_000));
    let many: Vec<ChatMessage> = (0..2001)
        .map(|i| ChatMessage {
            role: ["user", "assistant"][i % 2].to_owned(),
            content: format!("message {i}"),
        })
        .collect();
    for name in [
        "chatml",
        "llama-3",
        "llama-3.2",
        "mistral",
        "qwen2.5",
        "qwen3",
    ] {
        let source = files::golden(&format!("chat/{name}.jinja"));
        let template = template(&source).expect("parses");
        for messages in [&long, &many] {
            let text = template.render(messages, true, now());
            assert!(text.is_ok(), "{name}: {text:?}");
        }
    }
}

/// The text of messages, with the last of them to be continued or not.
fn rendered(source: &str, messages: &[Value], continued: bool) -> Result<String, ChatError> {
    template(source)?.render_conversation(&Conversation {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: continued,
        kwargs: None,
        now: now(),
    })
}

const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
fn a_last_message_can_be_continued() {
    let begun = |text: &str| {
        [
            json!({"role": "user", "content": "CONTINUE_FINAL_MESSAGE_TAG or not"}),
            json!({"role": "assistant", "content": text}),
        ]
    };
    let start = "<user>CONTINUE_FINAL_MESSAGE_TAG or not</><assistant>";
    let trims = TURNS.replace("m.content }}", "m.content|trim }}");
    let trims_right = TURNS.replace("m.content }}", "m.content.rstrip() }}");
    for (source, text, expected) in [
        (TURNS, " It is", " It is"),
        (TURNS, "It is ", "It is "),
        (TURNS, "", ""),
        (&*trims, "It is \n", "It is"),
        (&*trims, " It is", "It is"),
        (&*trims_right, " It is ", " It is"),
    ] {
        let expected = format!("{start}{expected}");
        let rendered = rendered(source, &begun(text), true);
        assert_eq!(rendered.as_deref(), Ok(&*expected), "{source} {text:?}");
    }
    // The last text among parts, and what has none.
    let parts = json!([{"type": "image"}, {"type": "text", "text": "It"}, {"type": "image"}]);
    let last = [json!({"role": "assistant", "content": parts})];
    let by_parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}\
                    {% endfor %}";
    assert_eq!(rendered(by_parts, &last, true).as_deref(), Ok("[][It"));
    for (source, content) in [
        (TURNS, json!(null)),
        (TURNS, json!([])),
        ("nothing of it", json!("It")),
    ] {
        let last = [json!({"role": "assistant", "content": content})];
        let failed = rendered(source, &last, true);
        assert!(matches!(failed, Err(ChatError::Failed(_))), "{source}");
    }
    assert!(rendered(TURNS, &[], true).is_err());
}

#[test]
fn templates_that_go_through_parts_are_given_parts() {
    // As LLaVA, SmolVLM and Pixtral have it: of a text they write nothing.
    let by_parts = "{% for m in messages %}<{{ m['role'] }}>{% for p in m['content'] \
                    | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}\
                    {% endfor %}";
    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                {% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}";
    let text = [json!({"role": "user", "content": "hi"})];
    let parts = [json!({"role": "user", "content": [{"type": "text", "text": "hi"}]})];
    assert_eq!(rendered(by_parts, &text, false).as_deref(), Ok("<user>hi"));
    assert_eq!(rendered(by_parts, &parts, false).as_deref(), Ok("<user>hi"));
    assert_eq!(rendered(both, &text, false).as_deref(), Ok("hi"));
    assert_eq!(rendered(both, &parts, false).as_deref(), Ok("(hi)"));
    assert_eq!(rendered(by_parts, &text, true).as_deref(), Ok("<user>hi"));
    // What is rendered with the messages is there when the template is tried, too.
    let needy = "{{ bos_token + '' }}{% if tools is not none %}{{ tools|tojson }}{% endif %}";
    let needy = format!("{needy}{by_parts}");
    assert_eq!(rendered(&needy, &text, false).as_deref(), Ok("<s><user>hi"));
}
