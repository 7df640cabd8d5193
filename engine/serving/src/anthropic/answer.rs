//! What a client hears back: one message, or the events that make one.

use axum::response::sse::Event;
use serde::Serialize;
use serde_json::json;

use super::error::body;
use crate::core::{End, FinishReason, StreamEvent};
use crate::http::Problem;
use crate::http::answers::Answer;
use crate::http::events::{Writer, named};

/// A message of the assistant's.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Message {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    #[serde(flatten)]
    ending: Ending,
    usage: Usage,
}

#[derive(Debug, Clone, Serialize)]
struct Block {
    r#type: &'static str,
    text: String,
}

impl Block {
    fn new(text: String) -> Self {
        Self {
            r#type: "text",
            text,
        }
    }
}

/// Why a message ended; nothing until it has.
#[derive(Debug, Clone, Default, Serialize)]
struct Ending {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ebb: Option<Ebb>,
}

/// Bits of the keys and values that the message was computed from.
#[derive(Debug, Clone, Copy, Serialize)]
struct Ebb {
    lowest_kv_bits: u8,
    mean_kv_bits: f32,
}

impl Ending {
    fn new(end: End) -> Self {
        let stop_reason = match (end.reason, &end.stop_string) {
            (FinishReason::Length, _) => "max_tokens",
            (FinishReason::Stop, Some(_)) => "stop_sequence",
            (FinishReason::Stop, None) => "end_turn",
        };
        Self {
            stop_reason: Some(stop_reason),
            stop_sequence: end.stop_string,
            ebb: Some(Ebb {
                lowest_kv_bits: end.kv_bits.lowest,
                mean_kv_bits: end.kv_bits.mean,
            }),
        }
    }
}

/// Tokens; those of the input without those from the prefix cache.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Usage {
    input_tokens: usize,
    cache_read_input_tokens: usize,
    cache_creation_input_tokens: usize,
    output_tokens: usize,
}

impl Usage {
    fn prompt(prompt_tokens: usize, cached_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens - cached_tokens.min(prompt_tokens),
            cache_read_input_tokens: cached_tokens,
            ..Self::default()
        }
    }
}

impl Message {
    /// Nothing said yet.
    pub(super) fn new(id: String, model: String) -> Self {
        Self {
            id,
            r#type: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            ending: Ending::default(),
            usage: Usage::default(),
        }
    }

    /// All of it said, as the one answer has it.
    pub(super) fn whole(mut self, answers: Vec<Answer>) -> Self {
        for answer in answers {
            self.usage = Usage::prompt(answer.prompt_tokens, answer.cached_tokens);
            self.usage.output_tokens = answer.completion_tokens();
            for choice in answer.choices {
                self.content.push(Block::new(choice.text));
                if let Some(end) = choice.end {
                    self.ending = Ending::new(end);
                }
            }
        }
        self
    }
}

/// A message in pieces.
pub(super) struct Stream {
    message: Message,
}

#[derive(Serialize)]
struct TextDelta<'a> {
    r#type: &'static str,
    index: usize,
    delta: Text<'a>,
}

#[derive(Serialize)]
struct Text<'a> {
    r#type: &'static str,
    text: &'a str,
}

impl Stream {
    pub(super) fn new(message: Message) -> Self {
        Self { message }
    }
}

fn ping() -> Event {
    named("ping", &json!({"type": "ping"}))
}

impl Writer for Stream {
    fn write(&mut self, _: usize, event: StreamEvent, out: &mut Vec<Event>) {
        match event {
            StreamEvent::Started {
                prompt_tokens,
                cached_tokens,
                ..
            } => {
                self.message.usage = Usage::prompt(prompt_tokens, cached_tokens);
                let start = json!({"type": "message_start", "message": &self.message});
                out.push(named("message_start", &start));
                let block = json!({"type": "content_block_start", "index": 0,
                                   "content_block": Block::new(String::new())});
                out.push(named("content_block_start", &block));
                out.push(ping());
            }
            StreamEvent::Delta {
                text, token_ids, ..
            } => {
                self.message.usage.output_tokens += token_ids.len();
                if !text.is_empty() {
                    let delta = TextDelta {
                        r#type: "content_block_delta",
                        index: 0,
                        delta: Text {
                            r#type: "text_delta",
                            text: &text,
                        },
                    };
                    out.push(named("content_block_delta", &delta));
                }
            }
            StreamEvent::Finished { end, .. } => {
                let stop = json!({"type": "content_block_stop", "index": 0});
                out.push(named("content_block_stop", &stop));
                let ending = Ending::new(end);
                let usage = &self.message.usage;
                let delta = json!({"type": "message_delta", "delta": ending, "usage": usage});
                out.push(named("message_delta", &delta));
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        out.push(named("message_stop", &json!({"type": "message_stop"})));
    }

    fn fail(&mut self, problem: &Problem, out: &mut Vec<Event>) {
        out.push(named("error", &body(problem)));
    }

    fn idle(&self) -> Option<Event> {
        Some(ping())
    }
}
