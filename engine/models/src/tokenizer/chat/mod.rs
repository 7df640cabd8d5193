//! Chat messages to the text a model was trained to continue, by the model's own Jinja template.
//!
//! Templates are written for Python's Jinja2 as Hugging Face's `apply_chat_template` sets it up:
//! block tags swallow their newline and indentation, `tojson` is `json.dumps`, strings have
//! Python's methods. They come out of model files, so a template's instructions and its output
//! are bounded, and it reaches nothing but its arguments.

mod chains;
mod clock;
mod error;
mod json;
mod methods;
mod output;

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, context};
use serde::Serialize;

pub use error::ChatError;
use error::Raised;
use output::Bounded;

use crate::stack::with_known_stack;

/// The longest template accepted, in bytes; the longest known ones have some 20,000.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Template instructions per rendering, and more for each message. A text that an instruction
/// makes costs one more per 64 bytes, so there are more for this many copies of all messages.
const FUEL: u64 = 200_000;
const FUEL_PER_MESSAGE: u64 = 5_000;
const COPIES: usize = 32;
/// Bytes of output per rendering, and more for each byte of the messages.
const OUTPUT_BYTES: usize = 1 << 20;
const OUTPUT_BYTES_PER_BYTE: usize = 4;
/// The template's name in its environment; errors show it with a line number.
const NAME: &str = "chat template";

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or what else the model's template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// The special tokens that templates write, by their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// `bos_token` in the template.
    pub bos: Option<String>,
    /// `eos_token` in the template.
    pub eos: Option<String>,
    /// `unk_token` in the template.
    pub unk: Option<String>,
}

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: TemplateTokens,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`ChatError::Template`] when it is too long or is not Jinja.
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<Self, ChatError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let problem = format!(
                "it is {} bytes long; at most {TEMPLATE_BYTES_MAX} are supported",
                source.len()
            );
            return Err(ChatError::Template(problem));
        }
        chains::check(source)?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| ChatError::Template(error::sentence(&e)))?;
        environment.set_syntax(syntax);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(methods::call);
        environment.set_formatter(write_like_python);
        environment.add_filter("tojson", json::to_json);
        environment.add_filter("length", length);
        environment.add_filter("count", length);
        environment.add_function("raise_exception", raise_exception);
        let source = without_generation_tags(source);
        let parse = || environment.add_template_owned(NAME, source);
        with_known_stack(parse)
            .map_err(no_thread)?
            .map_err(|e| ChatError::Template(error::sentence(&e)))?;
        Ok(Self {
            environment,
            tokens,
        })
    }

    /// The text of a conversation. `add_generation_prompt` ends it with the beginning of an
    /// answer. `now` is what templates that mention the date take it for, in UTC.
    ///
    /// # Errors
    /// [`ChatError`] when the template refuses the conversation, fails, or exceeds its bounds.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        now: SystemTime,
    ) -> Result<String, ChatError> {
        let bytes: usize = messages
            .iter()
            .map(|m| m.role.len() + m.content.len())
            .sum();
        let fuel_of_texts = (COPIES * bytes / 64) as u64;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(
            FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + fuel_of_texts,
        ));
        environment.add_function("strftime_now", move |format: &str| {
            clock::strftime(format, now)
        });
        let mut output = Bounded::new(OUTPUT_BYTES + OUTPUT_BYTES_PER_BYTE * bytes);
        let arguments = context! {
            messages => Serde(messages),
            add_generation_prompt => add_generation_prompt,
            tools => (),
            documents => (),
            ..self.token_arguments()
        };
        let render = || {
            let template = environment.get_template(NAME)?;
            template
                .render_captured_to(arguments, &mut output)
                .map(drop)
        };
        match with_known_stack(render).map_err(no_thread)? {
            Ok(()) => output.into_text().ok_or(ChatError::TooLong),
            Err(_) if output.is_full() => Err(ChatError::TooLong),
            Err(e) => Err(ChatError::of(&e)),
        }
    }

    /// The special tokens that the model has; a template can ask whether the others are defined.
    fn token_arguments(&self) -> Value {
        let named = [
            ("bos_token", &self.tokens.bos),
            ("eos_token", &self.tokens.eos),
            ("unk_token", &self.tokens.unk),
        ];
        let had = named
            .into_iter()
            .filter_map(|(name, token)| Some((name, token.as_deref()?)));
        Value::from_pairs(had)
    }
}

fn no_thread(error: std::io::Error) -> ChatError {
    ChatError::Failed(format!("there is no thread to run it: {error}"))
}

/// Number of characters or elements; 0 of what is not defined, where Jinja's own says so too.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let message = format!("{} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "raised by the template");
    Err(error.with_source(Raised(message.to_owned())))
}

/// Prints truth and nothingness as Python does. Printing a list or a mapping, which would have to
/// look like Python's own, is refused.
fn write_like_python(
    out: &mut minijinja::Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        ValueKind::None => "None",
        kind @ (ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) => {
            let message = format!("a {kind} is printed whole; only text and numbers are supported");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(text).map_err(Error::from)
}

/// `{% generation %}` marks what an assistant said, for training; here it marks nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end) else {
            break;
        };
        let tag = &rest[start + 2..end];
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => tag.replace(name, "if true"),
            "endgeneration" => tag.replace(name, "endif"),
            _ => tag.to_owned(),
        };
        out.push_str(&rest[..start + 2]);
        out.push_str(&replacement);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}
