//! A chat template.

use std::time::{Duration, SystemTime};

use ebb_models::tokenizer::{ChatMessage, ChatTemplate, TemplateTokens};

use crate::known_stack::on_known_stack;
use crate::sentence::assert_sentence;

/// Bytes that a short conversation may be rendered to.
const OUTPUT_BYTES_MAX: usize = 2 << 20;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return;
    };
    let source = source.to_owned();
    on_known_stack(move || check(&source));
}

/// Parses a template and renders a conversation. On a thread with a known stack.
pub(super) fn check(source: &str) {
    let tokens = TemplateTokens {
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
        ..TemplateTokens::default()
    };
    let template = match ChatTemplate::new(source, tokens) {
        Ok(template) => template,
        Err(error) => return assert_sentence(&error),
    };
    let message = |role: &str, content: &str| ChatMessage {
        role: role.to_owned(),
        content: content.to_owned(),
    };
    let messages = [
        message("system", "Be brief."),
        message("user", "Grüße, 世界! <|im_end|>"),
        message("assistant", "{{ 1 }}"),
        message("user", ""),
    ];
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    match template.render(&messages, true, now) {
        Ok(text) => {
            assert!(text.len() <= OUTPUT_BYTES_MAX, "{} bytes", text.len());
            let again = template.render(&messages, true, now).expect("as before");
            assert!(again == text, "it renders differently the second time");
        }
        // It may be the template's own sentence.
        Err(error) => assert!(!error.to_string().trim().is_empty()),
    }
}
