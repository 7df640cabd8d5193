//! Whether a template reads the content of messages as texts or as lists of parts.
//!
//! Most templates write `message.content`. Those of models that also read images often go through
//! a list of parts, `{"type": "text", "text": …}`, and write nothing of a text. Which of the two a
//! template is shows when it renders a message.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::{Conversation, TemplateTokens, jinja, render};

/// What a template is tried with.
const PROBE: &str = "8c5e1f";

/// Whether the template writes contents that are lists of parts, and no texts.
pub(super) fn wants_parts(template: &jinja::Template, tokens: &TemplateTokens) -> bool {
    let writes = |content: Value| {
        let given = Conversation {
            messages: &[json!({"role": "user", "content": content})],
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: None,
            now: UNIX_EPOCH,
        };
        render(template, tokens, &given, None).is_ok_and(|text| text.contains(PROBE))
    };
    !writes(Value::from(PROBE)) && writes(in_parts(PROBE))
}

/// A text as a list of one part.
fn in_parts(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

/// The messages with each text as a list of parts.
pub(super) fn put_into_parts(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(content) = message.get_mut("content")
            && let Some(text) = content.as_str()
        {
            *content = in_parts(text);
        }
    }
    messages
}
