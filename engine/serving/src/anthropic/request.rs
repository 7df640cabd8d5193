//! What a client asks for.

use serde::Deserialize;

use crate::core::{Chat, Prompt, Request};
use crate::front_end::new_name;
use crate::http::Problem;
use crate::http::messages::{Content, Message, conversation};
use crate::http::values::{Asked, Number, Object, Texts, Typed, Whole};
use crate::sampling::{STOP_STRINGS_MAX, SamplingOptions};

/// The body of both routes; counting looks at what makes the prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Messages {
    pub(super) model: Option<String>,
    messages: Option<Vec<Object<Message>>>,
    system: Option<Content>,
    max_tokens: Option<Whole>,
    stop_sequences: Option<Texts<STOP_STRINGS_MAX>>,
    stream: Option<bool>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    top_k: Option<Whole>,
    /// Ebb's own.
    min_kv_bits: Option<Whole>,
    /// The same; lower is more urgent.
    priority: Option<Whole>,
    tools: Asked,
    tool_choice: Option<Object<Typed>>,
    thinking: Option<Object<Typed>>,
    output_config: Asked,
    output_format: Asked,
    container: Asked,
    mcp_servers: Asked,
    context_management: Asked,
}

impl Messages {
    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Refuses what Ebb does not have.
    fn check_supported(&self) -> Result<(), Problem> {
        for (asked, param, what) in [
            (&self.tools, "tools", "tools are"),
            (
                &self.output_config,
                "output_config",
                "output configurations are",
            ),
            (
                &self.output_format,
                "output_format",
                "structured outputs are",
            ),
            (&self.container, "container", "containers are"),
            (&self.mcp_servers, "mcp_servers", "MCP servers are"),
            (
                &self.context_management,
                "context_management",
                "managing contexts is",
            ),
        ] {
            asked.refuse(param, what, &[])?;
        }
        let kind = |object: &Option<Object<Typed>>| {
            let kind = object
                .as_ref()
                .and_then(|Object(typed)| typed.r#type.clone());
            kind.unwrap_or_default()
        };
        if !matches!(kind(&self.tool_choice).as_str(), "" | "none" | "auto") {
            return Err(Problem::unsupported("tool_choice", "tools are"));
        }
        if !matches!(kind(&self.thinking).as_str(), "" | "disabled") {
            return Err(Problem::unsupported("thinking", "reasoning fields are"));
        }
        Ok(())
    }

    /// The conversation, behind its system prompt.
    pub(super) fn prompt(self) -> Result<Prompt, Problem> {
        self.check_supported()?;
        let missing = || {
            Problem::invalid(
                "messages",
                "it is missing; send a list of at least one message",
            )
        };
        let messages = self.messages.ok_or_else(missing)?;
        let messages: Vec<_> = messages
            .into_iter()
            .map(|Object(message)| message)
            .collect();
        // What the client puts into the model's mouth, which goes on from there.
        let begun = messages.last().is_some_and(Message::is_assistants);
        let mut chat = conversation(messages, "messages")?;
        // Without messages there is nothing to answer, whatever the system prompt says.
        if let Some(system) = self.system.filter(|_| !chat.is_empty()) {
            let system = Message::new("system", system);
            chat.splice(0..0, conversation(vec![system], "system")?);
        }
        Ok(Prompt::Chat(Chat {
            continue_final_message: begun,
            ..chat.into()
        }))
    }

    /// The request for the engine, which checks ranges.
    pub(super) fn request(mut self, defaults: SamplingOptions) -> Result<Request, Problem> {
        let max_tokens = self.max_tokens.ok_or_else(|| {
            Problem::invalid("max_tokens", "it is missing; send a number of at least 1")
        })?;
        let number = |number: Option<Number>, default| number.map_or(default, |Number(x)| x);
        let top_k = self.top_k.map(|k| k.get("top_k", "at least 0"));
        let sampling = SamplingOptions {
            temperature: number(self.temperature, defaults.temperature),
            top_p: number(self.top_p, defaults.top_p),
            top_k: top_k.transpose()?.unwrap_or(defaults.top_k),
            max_tokens: Some(max_tokens.get("max_tokens", "at least 1")?),
            stop: self.stop_sequences.take().unwrap_or_default().texts,
            ..defaults
        };
        let bits = self
            .min_kv_bits
            .map(|bits| bits.get("min_kv_bits", "16, 8, 4 or 2"));
        let priority = self
            .priority
            .map(|p| p.get("priority", "between -2^31 and 2^31 - 1"));
        let request = Request {
            request_id: new_name("ebb-"),
            min_kv_bits: bits.transpose()?,
            priority: priority.transpose()?.unwrap_or(0),
            ..Request::new(Prompt::Chat(Vec::new().into()), sampling)
        };
        Ok(Request {
            prompt: self.prompt()?,
            ..request
        })
    }
}
