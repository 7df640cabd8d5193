//! `POST /v1/responses`: text in, text out, and nothing is stored.

use std::collections::BTreeMap;
use std::fmt;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::choice::EbbBits;
use super::common::Common;
use super::error::shape;
use super::logprobs::{ChatLogprobs, ChatToken};
use crate::core::{FinishReason, KvBits, Prompt, StreamEvent};
use crate::front_end::{Engine, new_name};
use crate::http::answers::{Answers, content_bytes};
use crate::http::events::{Writer, named, respond};
use crate::http::json;
use crate::http::messages::{Content, Message, conversation};
use crate::http::values::{Asked, Object, Typed, Whole};
use crate::http::{Api, Problem, now, object};

/// What `include` calls log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Entries of `metadata`; OpenAI's limit.
const METADATA_MAX: usize = 16;

/// The fields of this route alone; of the others it has those that say how tokens are chosen.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fields {
    input: Option<Input>,
    instructions: Option<String>,
    max_output_tokens: Option<Whole>,
    top_logprobs: Option<Whole>,
    include: Option<Vec<String>>,
    metadata: Option<BTreeMap<String, String>>,
    text: Option<Object<TextConfig>>,
    background: Asked,
    conversation: Asked,
    previous_response_id: Asked,
    prompt: Asked,
    reasoning: Option<Object<Reasoning>>,
    tools: Asked,
    tool_choice: Asked,
    truncation: Asked,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TextConfig {
    format: Option<Object<Typed>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reasoning {
    effort: Asked,
    summary: Asked,
}

/// A text, or items.
#[derive(Debug)]
enum Input {
    Text(String),
    Items(Vec<Object<Item>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<Content>,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of items")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Input, E> {
                Ok(Input::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Input, E> {
                Ok(Input::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Input, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Input::Items(items))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

impl Fields {
    /// Refuses what Ebb does not have.
    fn check_supported(&self) -> Result<(), Problem> {
        let stored = "stored responses are";
        for (asked, param, what, harmless) in [
            (
                &self.background,
                "background",
                "answers in the background are",
                &[][..],
            ),
            (&self.conversation, "conversation", stored, &[]),
            (
                &self.previous_response_id,
                "previous_response_id",
                stored,
                &[],
            ),
            (&self.prompt, "prompt", "stored prompts are", &[]),
            (&self.tools, "tools", "tools are", &[]),
            (
                &self.tool_choice,
                "tool_choice",
                "tools are",
                &["none", "auto"],
            ),
            (
                &self.truncation,
                "truncation",
                "cutting inputs is",
                &["disabled"],
            ),
        ] {
            asked.refuse(param, what, harmless)?;
        }
        if let Some(Object(reasoning)) = &self.reasoning {
            let what = "reasoning fields are";
            reasoning
                .effort
                .refuse("reasoning.effort", what, &["none"])?;
            reasoning.summary.refuse("reasoning.summary", what, &[])?;
        }
        let format = self
            .text
            .as_ref()
            .and_then(|Object(text)| text.format.as_ref());
        let format = format.and_then(|Object(format)| format.r#type.as_deref());
        if format.is_some_and(|format| format != "text") {
            return Err(Problem::unsupported(
                "text.format",
                "formats other than text are",
            ));
        }
        if self
            .metadata
            .as_ref()
            .is_some_and(|metadata| metadata.len() > METADATA_MAX)
        {
            let why = format!("it has more than {METADATA_MAX} entries; send fewer");
            return Err(Problem::invalid("metadata", why));
        }
        Ok(())
    }

    /// The conversation that the input and the instructions are.
    fn prompt(&mut self) -> Result<Prompt, Problem> {
        let missing = || Problem::invalid("input", "it is missing; send a text or messages");
        let input = self.input.take().ok_or_else(missing)?;
        let mut messages = match input {
            Input::Text(text) => vec![Message::new("user", Content(text))],
            Input::Items(items) => {
                let message = |(i, Object(item)): (usize, Object<Item>)| {
                    let at = |field: &str| format!("input[{i}]{field}");
                    if item.r#type.is_some_and(|kind| kind != "message") {
                        let what = "items other than messages are";
                        return Err(Problem::unsupported(at(".type"), what));
                    }
                    let missing = || Problem::invalid(at(".role"), "it is missing; send one");
                    let role = item.role.ok_or_else(missing)?;
                    Ok(Message::new(&role, item.content.unwrap_or_default()))
                };
                let items = items.into_iter().enumerate().map(message);
                items.collect::<Result<Vec<_>, _>>()?
            }
        };
        if messages.is_empty() {
            return Err(Problem::invalid(
                "input",
                "it is empty; send at least one message",
            ));
        }
        if let Some(instructions) = &self.instructions {
            let system = Message::new("system", Content(instructions.clone()));
            messages.insert(0, system);
        }
        Ok(Prompt::Chat(conversation(messages, "input")?.into()))
    }
}

/// Answers a call.
pub(super) async fn create<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let response = answer(api, request).await;
    response.unwrap_or_else(|problem| shape(&problem))
}

async fn answer<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let read = |bytes: &[u8]| Ok((json::object(bytes)?, json::object(bytes)?));
    let ((mut common, mut own), memory): ((Common, Fields), _) = received.read(read).await?;
    let engine = api.engine_for(common.model.as_deref())?.clone();
    common.check_supported()?;
    own.check_supported()?;
    if common.n()? != 1 {
        return Err(Problem::unsupported("n", "more than one response is"));
    }
    let spelling = common.spelling("input", "max_output_tokens", "top_logprobs");
    let most = ("max_output_tokens", own.max_output_tokens);
    let mut sampling = common.sampling(engine.default_sampling(), most)?;
    sampling.prompt_logprobs = None;
    let asked = own.include.iter().flatten().any(|name| name == LOGPROBS);
    let top = own
        .top_logprobs
        .map(|top| top.get("top_logprobs", "at least 0"));
    let top = top.transpose()?;
    sampling.logprobs = asked.then(|| top.unwrap_or(0));
    let facts = json!({
        "id": new_name("resp_"),
        "object": "response",
        "created_at": now(),
        "model": common.model.clone().unwrap_or_else(|| engine.model().name.clone()),
        "instructions": own.instructions,
        "max_output_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": top.unwrap_or(0),
        "metadata": own.metadata.clone().unwrap_or_default(),
        "background": false,
        "error": null,
        "parallel_tool_calls": false,
        "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null},
        "store": false,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
    });
    let request = common.request(own.prompt()?, sampling)?;
    let answers = Answers::submit(&engine, vec![request], memory.as_ref()).await;
    let refused = |error| Problem::of(&error, |field| Some(spelling.path(field)));
    let mut answers = answers.map_err(|(_, error)| refused(error))?;
    // The body is used up; the answer has an account of its own.
    if let Some(memory) = &memory {
        memory.clear();
    }
    let mut said = Said::new(engine, facts, asked);
    if common.streams() {
        return Ok(respond(answers, Stream { said, sequence: 0 }, memory));
    }
    while let Some((_, event)) = answers.next().await {
        let event = event.map_err(refused)?;
        if let Some(memory) = &memory {
            let full = |full| refused(crate::core::RequestError::ClientMemory(full));
            // What is kept, and the object made of it.
            memory.grow(2 * content_bytes(&event)).map_err(full)?;
        }
        said.hear(event);
    }
    Ok(object(&said.response()))
}

/// A response as far as it has been generated.
struct Said<E> {
    engine: E,
    /// The fields that do not change.
    facts: Value,
    item: String,
    logprobs: bool,
    text: String,
    likely: Vec<ChatToken>,
    prompt_tokens: usize,
    cached_tokens: usize,
    output_tokens: usize,
    /// That JSON takes for what has been said.
    bytes: usize,
    end: Option<(FinishReason, KvBits)>,
}

impl<E: Engine> Said<E> {
    fn new(engine: E, facts: Value, logprobs: bool) -> Self {
        Self {
            engine,
            facts,
            item: new_name("msg_"),
            logprobs,
            text: String::new(),
            likely: Vec::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            bytes: 0,
            end: None,
        }
    }

    /// Takes in an event; what it adds to the text comes back.
    fn hear(&mut self, event: StreamEvent) -> Option<(String, Vec<ChatToken>)> {
        self.bytes += content_bytes(&event);
        match event {
            StreamEvent::Started {
                prompt_tokens,
                cached_tokens,
                ..
            } => {
                (self.prompt_tokens, self.cached_tokens) = (prompt_tokens, cached_tokens);
                None
            }
            StreamEvent::Delta {
                text,
                token_ids,
                logprobs,
                ..
            } => {
                self.output_tokens += token_ids.len();
                self.text.push_str(&text);
                let likely = ChatLogprobs::of(&self.engine, &logprobs).content;
                self.likely.extend(likely.iter().cloned());
                let more = !text.is_empty() || !likely.is_empty();
                more.then_some((text, likely))
            }
            StreamEvent::Finished { end, .. } => {
                self.end = Some((end.reason, end.kv_bits));
                None
            }
        }
    }

    fn status(&self) -> &'static str {
        match self.end {
            None => "in_progress",
            Some((FinishReason::Stop, _)) => "completed",
            Some((FinishReason::Length, _)) => "incomplete",
        }
    }

    fn part(&self) -> Value {
        let likely: &[ChatToken] = if self.logprobs { &self.likely } else { &[] };
        json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": likely})
    }

    fn message(&self, content: &[Value]) -> Value {
        json!({"id": self.item, "type": "message", "role": "assistant", "status": self.status(),
               "content": content})
    }

    /// The whole object; its output comes with its end.
    fn response(&self) -> Value {
        let mut response = self.facts.clone();
        response["status"] = self.status().into();
        response["incomplete_details"] = Value::Null;
        response["output"] = json!([]);
        response["usage"] = Value::Null;
        let Some((reason, bits)) = self.end else {
            return response;
        };
        if reason == FinishReason::Length {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = json!([self.message(&[self.part()])]);
        response["usage"] = json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.output_tokens,
        });
        response["ebb"] = json!(EbbBits::from(bits));
        response
    }
}

/// A response in pieces.
struct Stream<E> {
    said: Said<E>,
    /// Number of the next event.
    sequence: u64,
}

#[derive(Serialize)]
struct TextDelta<'a> {
    r#type: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: u32,
    content_index: u32,
    delta: &'a str,
    logprobs: &'a [ChatToken],
}

impl<E: Engine> Stream<E> {
    /// An event of that name with these fields.
    fn event(&mut self, name: &str, mut fields: Value) -> Event {
        fields["type"] = name.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(name, &fields)
    }

    /// The same about the one part of the text.
    fn part_event(&mut self, name: &str, mut fields: Value) -> Event {
        fields["item_id"] = self.said.item.as_str().into();
        fields["output_index"] = 0.into();
        fields["content_index"] = 0.into();
        self.event(name, fields)
    }

    fn begin(&mut self, out: &mut Vec<Event>) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.said.response();
            out.push(self.event(name, json!({"response": response})));
        }
        let item = self.said.message(&[]);
        let added = json!({"output_index": 0, "item": item});
        out.push(self.event("response.output_item.added", added));
        let part = self.said.part();
        out.push(self.part_event("response.content_part.added", json!({"part": part})));
    }

    fn end(&mut self, out: &mut Vec<Event>) {
        let part = self.said.part();
        let text = json!({"text": part["text"], "logprobs": part["logprobs"]});
        out.push(self.part_event("response.output_text.done", text));
        let item = self.said.message(std::slice::from_ref(&part));
        out.push(self.part_event("response.content_part.done", json!({"part": part})));
        let done = json!({"output_index": 0, "item": item});
        out.push(self.event("response.output_item.done", done));
        let response = self.said.response();
        let name = match self.said.status() {
            "completed" => "response.completed",
            _ => "response.incomplete",
        };
        out.push(self.event(name, json!({"response": response})));
    }
}

impl<E: Engine> Writer for Stream<E> {
    fn write(&mut self, _: usize, event: StreamEvent, out: &mut Vec<Event>) {
        let (begins, ends) = (
            matches!(event, StreamEvent::Started { .. }),
            matches!(event, StreamEvent::Finished { .. }),
        );
        let more = self.said.hear(event);
        if begins {
            self.begin(out);
        }
        if let Some((text, likely)) = more {
            let name = "response.output_text.delta";
            let delta = TextDelta {
                r#type: name,
                sequence_number: self.sequence,
                item_id: &self.said.item,
                output_index: 0,
                content_index: 0,
                delta: &text,
                logprobs: &likely,
            };
            out.push(named(name, &delta));
            self.sequence += 1;
        }
        if ends {
            self.end(out);
        }
    }

    fn bytes(&self, _: usize, event: &StreamEvent) -> usize {
        // The end repeats the whole text in four events, as values and as JSON.
        let repeated = match event {
            StreamEvent::Finished { .. } => 8 * self.said.bytes,
            _ => 0,
        };
        repeated + content_bytes(event)
    }

    fn retains(&self) -> bool {
        true
    }

    fn finish(&mut self, _: &mut Vec<Event>) {}

    fn fail(&mut self, problem: &Problem, out: &mut Vec<Event>) {
        let mut response = self.said.response();
        response["status"] = "failed".into();
        response["error"] = json!({"code": "server_error", "message": problem.message});
        let name = "response.failed";
        let failed = json!({"type": name, "sequence_number": self.sequence, "response": response});
        out.push(named(name, &failed));
    }
}
