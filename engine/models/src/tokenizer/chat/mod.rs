//! Chat messages to the text a model was trained to continue, by the model's own Jinja template.
//!
//! Templates are written for Python's jinja2 as Hugging Face's `apply_chat_template` sets it up:
//! block tags swallow their newline and indentation, `tojson` is `json.dumps`, values are Python's.
//! They come out of model files, so what a rendering does and holds is bounded, and it reaches
//! nothing but its arguments.

mod clock;
mod content;
mod continued;
mod error;
mod host;
mod jinja;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use error::ChatError;
pub use host::RenderHost;

use crate::stack::with_known_stack;

/// The longest template accepted, in bytes; the longest known ones have some 20,000.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or what else the model's template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// The message as templates take it.
    pub fn to_json(&self) -> Value {
        json!({"role": self.role, "content": self.content})
    }
}

/// The special tokens that templates write, by their text. A template can ask whether one that
/// the model does not have is defined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// `bos_token` in the template.
    pub bos: Option<String>,
    /// `eos_token` in the template.
    pub eos: Option<String>,
    /// `unk_token` in the template.
    pub unk: Option<String>,
    /// `sep_token` in the template.
    pub sep: Option<String>,
    /// `pad_token` in the template.
    pub pad: Option<String>,
    /// `cls_token` in the template.
    pub cls: Option<String>,
    /// `mask_token` in the template.
    pub mask: Option<String>,
    /// `additional_special_tokens` in the template.
    pub additional: Vec<String>,
}

impl TemplateTokens {
    fn arguments(&self) -> Vec<(&'static str, Value)> {
        let named = [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("unk_token", &self.unk),
            ("sep_token", &self.sep),
            ("pad_token", &self.pad),
            ("cls_token", &self.cls),
            ("mask_token", &self.mask),
        ];
        let had = named
            .into_iter()
            .filter_map(|(name, token)| Some((name, json!(token.as_ref()?))));
        let more = (!self.additional.is_empty())
            .then(|| ("additional_special_tokens", json!(self.additional)));
        had.chain(more).collect()
    }
}

/// A conversation, with all that a template may be given beside it.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Objects with `role`, `content` (a text, null or a list of parts) and what else the template
    /// knows: `tool_calls`, `reasoning_content`, …
    pub messages: &'a [Value],
    /// Descriptions of the functions that the model may call.
    pub tools: Option<&'a Value>,
    /// Documents that the model may read.
    pub documents: Option<&'a Value>,
    /// Whether the text ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Whether the text ends where the last message does, so that the model goes on with it; then
    /// there is no generation prompt.
    pub continue_final_message: bool,
    /// Variables of this template alone, which come before all others but `messages`.
    pub kwargs: Option<&'a Map<String, Value>>,
    /// What templates that mention the date take it for, in UTC.
    pub now: SystemTime,
}

/// A model's chat template, parsed.
pub struct ChatTemplate {
    parsed: Result<Parsed, ChatError>,
    tokens: TemplateTokens,
}

struct Parsed {
    default: Template,
    /// The one for conversations with tools, where it is another.
    tool_use: Option<Template>,
}

struct Template {
    parsed: jinja::Template,
    /// It goes through lists of parts, and writes nothing of a text.
    wants_parts: bool,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`ChatError::Template`] when it is too long or is not Jinja.
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<Self, ChatError> {
        Self::with_tool_use(source, None, tokens)
    }

    /// Parses a template, and the one that takes its place for conversations with tools.
    ///
    /// # Errors
    /// [`ChatError::Template`] when one of them is too long or is not Jinja.
    pub fn with_tool_use(
        default: &str,
        tool_use: Option<&str>,
        tokens: TemplateTokens,
    ) -> Result<Self, ChatError> {
        let parsed = Parsed {
            default: parse(default, &tokens)?,
            tool_use: tool_use.map(|text| parse(text, &tokens)).transpose()?,
        };
        Ok(Self {
            parsed: Ok(parsed),
            tokens,
        })
    }

    /// Stands for a template that cannot be used: each rendering fails with the reason.
    pub fn unusable(reason: ChatError) -> Self {
        Self {
            parsed: Err(reason),
            tokens: TemplateTokens::default(),
        }
    }

    /// Why the template cannot be used, if it cannot.
    pub fn problem(&self) -> Option<&ChatError> {
        self.parsed.as_ref().err()
    }

    /// The text of a conversation of plain messages. `add_generation_prompt` ends it with the
    /// beginning of an answer. `now` is what templates that mention the date take it for, in UTC.
    ///
    /// # Errors
    /// [`ChatError`] when the template refuses the conversation, fails, or exceeds its bounds.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        now: SystemTime,
    ) -> Result<String, ChatError> {
        let messages: Vec<Value> = messages.iter().map(ChatMessage::to_json).collect();
        self.render_conversation(&Conversation {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt,
            continue_final_message: false,
            kwargs: None,
            now,
        })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_conversation(&self, given: &Conversation<'_>) -> Result<String, ChatError> {
        self.render_for(given, None)
    }

    /// The same, for a host who is asked while it goes on.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`ChatError::CalledOff`]; [`ChatError::TooMuchMemory`] also
    /// when the host has no more.
    pub fn render_while(
        &self,
        given: &Conversation<'_>,
        host: Arc<dyn RenderHost>,
    ) -> Result<String, ChatError> {
        self.render_for(given, Some(host))
    }

    fn render_for(
        &self,
        given: &Conversation<'_>,
        host: Option<Arc<dyn RenderHost>>,
    ) -> Result<String, ChatError> {
        let parsed = self.parsed.as_ref().map_err(Clone::clone)?;
        let continued = given.continue_final_message;
        let template = match &parsed.tool_use {
            Some(template) if given.tools.is_some_and(|tools| !tools.is_null()) => template,
            _ => &parsed.default,
        };
        let mut messages = Cow::Borrowed(given.messages);
        if template.wants_parts {
            messages = Cow::Owned(content::put_into_parts(&messages));
        }
        if continued {
            continued::put_tag(messages.to_mut())?;
        }
        let given = Conversation {
            messages: &messages,
            ..*given
        };
        let text = with_known_stack(|| render(&template.parsed, &self.tokens, &given, host))
            .map_err(no_thread)?
            .map_err(ChatError::of_rendering)?;
        match continued {
            true => continued::cut_at_tag(text),
            false => Ok(text),
        }
    }
}

fn parse(source: &str, tokens: &TemplateTokens) -> Result<Template, ChatError> {
    if source.len() > TEMPLATE_BYTES_MAX {
        let problem = format!(
            "it is {} bytes long; at most {TEMPLATE_BYTES_MAX} are supported",
            source.len()
        );
        return Err(ChatError::Template(problem));
    }
    let parse = || {
        jinja::parse(source).map(|parsed| Template {
            wants_parts: content::wants_parts(&parsed, tokens),
            parsed,
        })
    };
    with_known_stack(parse)
        .map_err(no_thread)?
        .map_err(ChatError::of_parsing)
}

/// The template's own text of a conversation, on this thread's stack.
fn render(
    template: &jinja::Template,
    tokens: &TemplateTokens,
    given: &Conversation<'_>,
    host: Option<Arc<dyn RenderHost>>,
) -> Result<String, jinja::Fail> {
    let prompt = Value::Bool(given.add_generation_prompt && !given.continue_final_message);
    let tokens = tokens.arguments();
    let mut variables: Vec<(&str, &Value)> = tokens.iter().map(|(n, v)| (*n, v)).collect();
    variables.push(("tools", given.tools.unwrap_or(&Value::Null)));
    variables.push(("documents", given.documents.unwrap_or(&Value::Null)));
    variables.push(("add_generation_prompt", &prompt));
    let kwargs = given.kwargs.into_iter().flatten();
    variables.extend(kwargs.map(|(name, value)| (name.as_str(), value)));
    let input = jinja::Input {
        variables,
        messages: given.messages,
        now: given.now,
        host,
    };
    jinja::render(template, &input)
}

fn no_thread(error: std::io::Error) -> ChatError {
    ChatError::Failed(format!("there is no thread to run it: {error}"))
}
