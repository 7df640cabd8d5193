//! Chat messages as clients write them.

use std::fmt;

use ebb_models::tokenizer::ChatMessage;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Problem;
use super::values::Asked;
use crate::core::Chat;

/// One message.
#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    tool_calls: Asked,
    #[serde(default)]
    function_call: Asked,
}

/// A message's text: one, or the parts that it is made of.
#[derive(Debug, Default)]
pub(crate) struct Content(pub(crate) String);

/// Types of parts that are text; the last two are of the Responses API.
const TEXTS: [&str; 3] = ["text", "input_text", "output_text"];

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

/// A part that is text.
#[derive(Deserialize)]
#[serde(try_from = "Part")]
struct TextPart(String);

impl TryFrom<Part> for TextPart {
    type Error = String;

    fn try_from(part: Part) -> Result<Self, String> {
        if !TEXTS.contains(&part.r#type.as_str()) {
            return Err(format!(
                "parts of type {:?} are not supported; send parts of type \"text\"",
                part.r#type
            ));
        }
        let missing = || "it has no text; send one".to_owned();
        part.text.map(Self).ok_or_else(missing)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
                Ok(Content(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let Some(TextPart(mut all)) = list.next_element()? else {
                    return Ok(Content::default());
                };
                // As vLLM joins them for templates that take texts.
                while let Some(TextPart(text)) = list.next_element()? {
                    all.push('\n');
                    all.push_str(&text);
                }
                Ok(Content(all))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

impl Message {
    /// A message of text.
    pub(crate) fn new(role: &str, content: Content) -> Self {
        Self {
            role: role.to_owned(),
            content: Some(content),
            tool_calls: Asked::Nothing,
            function_call: Asked::Nothing,
        }
    }

    /// Whether the model said it.
    pub(crate) fn is_assistants(&self) -> bool {
        self.role == "assistant"
    }
}

/// How the chat template is to render a conversation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Rendering {
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

impl Rendering {
    /// These messages, to be rendered so. `param` is where they stand in the request.
    ///
    /// # Errors
    /// As [`conversation`]; and when the prompt should end in two ways.
    pub(crate) fn of(self, messages: Vec<Message>, param: &str) -> Result<Chat, Problem> {
        let continue_final_message = self.continue_final_message.unwrap_or(false);
        if continue_final_message && self.add_generation_prompt == Some(true) {
            let why = "a message that is continued has no generation prompt behind it; set only \
                       one of the two";
            return Err(Problem::invalid("continue_final_message", why));
        }
        Ok(Chat {
            messages: conversation(messages, param)?,
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            continue_final_message,
            template_arguments: self.chat_template_kwargs.unwrap_or_default(),
        })
    }
}

/// The conversation as templates take it. `param` is where it stands in the request.
///
/// # Errors
/// When a message has to do with tools.
pub(crate) fn conversation(
    messages: Vec<Message>,
    param: &str,
) -> Result<Vec<ChatMessage>, Problem> {
    let message = |(i, message): (usize, Message)| {
        let at = |field: &str| format!("{param}[{i}].{field}");
        message
            .tool_calls
            .refuse(&at("tool_calls"), "tools are", &[])?;
        message
            .function_call
            .refuse(&at("function_call"), "tools are", &[])?;
        if matches!(message.role.as_str(), "tool" | "function") {
            return Err(Problem::unsupported(at("role"), "answers of tools are"));
        }
        // OpenAI's newer name for it, which few templates know.
        let is_system = message.role == "developer";
        Ok(ChatMessage {
            role: if is_system {
                "system".to_owned()
            } else {
                message.role
            },
            content: message.content.unwrap_or_default().0,
        })
    };
    messages.into_iter().enumerate().map(message).collect()
}
