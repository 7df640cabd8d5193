//! What a client asks for: as a front end fills it, and as the engine accepted it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ebb_models::tokenizer::ChatMessage;
use ebb_scheduler::{Millis, RequestId};
use serde_json::{Map, Value};

use super::{Field, RequestError};
use crate::sampling::{Param, ParamError, SamplingOptions, SamplingParams};

/// Bytes that a request's name may have.
const REQUEST_ID_BYTES: usize = 256;

/// The text to continue.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Plain text; the tokenizer's own special tokens (such as BOS) are added.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Chat),
}

/// A conversation, and how the model's chat template renders it.
#[derive(Debug, Clone)]
pub struct Chat {
    /// What was said, in order.
    pub messages: Vec<ChatMessage>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Whether it ends where the last message does, so that the model goes on with that one; then
    /// there is no beginning of an answer.
    pub continue_final_message: bool,
    /// Variables for the template alone, such as `enable_thinking`.
    pub template_arguments: Map<String, Value>,
}

impl From<Vec<ChatMessage>> for Chat {
    fn from(messages: Vec<ChatMessage>) -> Self {
        Self {
            messages,
            add_generation_prompt: true,
            continue_final_message: false,
            template_arguments: Map::new(),
        }
    }
}

impl Prompt {
    /// Checks what can be known before it is tokenised.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] with the field.
    pub fn validate(&self) -> Result<(), RequestError> {
        let Self::Chat(Chat { messages, .. }) = self else {
            return Ok(());
        };
        if messages.is_empty() {
            let message = "it is empty; send at least one message";
            return Err(RequestError::invalid(Field::ChatMessages, message));
        }
        match messages.iter().position(|m| m.role.is_empty()) {
            Some(i) => Err(RequestError::invalid(
                Field::ChatRole(i),
                "it is empty; use system, user or assistant",
            )),
            None => Ok(()),
        }
    }
}

/// One request to generate text. Front ends fill it and leave its rules to [`Self::validate`].
#[derive(Debug, Clone)]
pub struct Request {
    /// The client's own name for it, used by `Abort` and in logs; made up when empty.
    pub request_id: String,
    /// The text to continue.
    pub prompt: Prompt,
    /// How to choose tokens and when to stop.
    pub sampling: SamplingOptions,
    /// Lower is more urgent; 0 is usual.
    pub priority: i32,
    /// Time from now after which the request is ended with [`RequestError::DeadlineExceeded`].
    pub timeout: Option<Duration>,
    /// The same as the connection tells it, which may be over already.
    pub call_timeout: Option<Duration>,
    /// Lowest nominal bits of keys and values that the answer may be computed from: 16, 8, 4 or 2.
    pub min_kv_bits: Option<u32>,
    /// Tokens to generate at most where `sampling` does not say, or fewer if the context has room
    /// for fewer; `None`: as many as it has room for.
    pub max_tokens_default: Option<u32>,
}

impl Request {
    /// A request with a name of the engine's, of usual priority, without other wishes.
    pub fn new(prompt: Prompt, sampling: SamplingOptions) -> Self {
        Self {
            request_id: String::new(),
            prompt,
            sampling,
            priority: 0,
            timeout: None,
            call_timeout: None,
            min_kv_bits: None,
            max_tokens_default: None,
        }
    }

    /// Checks every field as far as it can be before the prompt is tokenised, for a model with
    /// `vocab` logits. What the engine may rely on comes back.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] with the first field that is wrong.
    pub fn validate(&self, vocab: usize) -> Result<SamplingParams, RequestError> {
        let id = &self.request_id;
        if id.len() > REQUEST_ID_BYTES || id.chars().any(char::is_control) {
            return Err(RequestError::invalid(
                Field::RequestId,
                format!("it must have at most {REQUEST_ID_BYTES} bytes and no control characters"),
            ));
        }
        self.prompt.validate()?;
        if self.timeout == Some(Duration::ZERO) {
            return Err(RequestError::invalid(
                Field::Timeout,
                "it must be at least 1; leave it out for no limit",
            ));
        }
        if let Some(bits) = self.min_kv_bits
            && !matches!(bits, 2 | 4 | 8 | 16)
        {
            return Err(RequestError::invalid(
                Field::MinKvBits,
                format!("it is {bits}; it must be 16, 8, 4 or 2, or left out"),
            ));
        }
        Ok(self.sampling.clone().validate(vocab)?)
    }

    /// When the request is given up that arrived then: whichever limit is reached first.
    pub fn deadline(&self, arrived: Instant) -> Option<Instant> {
        earlier(self.timeout, self.call_timeout).map(|t| arrived + t)
    }
}

impl From<ParamError> for RequestError {
    fn from(error: ParamError) -> Self {
        let why = format!("it is {}; it must be {}", error.value, error.allowed);
        Self::invalid(Field::Sampling(error.field), why)
    }
}

/// The earlier of two optional limits.
fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A request that passed every check, from here to its last event.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) id: RequestId,
    /// The client's name for it, or one made up.
    pub(super) name: String,
    pub(super) prompt: Arc<[u32]>,
    pub(super) params: Arc<SamplingParams>,
    /// Tokens to generate at most, for each choice: those asked for, or those that the context has
    /// room for.
    pub(super) max_tokens: u32,
    pub(super) priority: i32,
    pub(super) deadline: Option<Instant>,
    /// 0 for no wish.
    pub(super) min_kv_bits: u8,
}

impl Accepted {
    /// What the scheduler hears of it, in milliseconds since `epoch`.
    pub(super) fn arrival(&self, epoch: Instant) -> ebb_scheduler::Request {
        let millis = |at: Instant| Millis(at.saturating_duration_since(epoch).as_millis() as u64);
        ebb_scheduler::Request {
            id: self.id,
            prompt: self.prompt.clone(),
            max_tokens: self.max_tokens,
            n: self.params.n,
            priority: self.priority,
            deadline: self.deadline.map(millis),
            prompt_logprobs: self.params.prompt_logprobs.is_some(),
            min_kv_bits: self.min_kv_bits,
        }
    }
}

/// The number of tokens to generate at most, behind a prompt of so many tokens.
///
/// # Errors
/// [`RequestError::Invalid`] when the context does not hold both.
pub(super) fn max_tokens(
    prompt: usize,
    asked: Option<u32>,
    default: Option<u32>,
    context: usize,
) -> Result<u32, RequestError> {
    if prompt == 0 {
        let message = "it is empty; send at least one token";
        return Err(RequestError::invalid(Field::Prompt, message));
    }
    if prompt >= context {
        return Err(RequestError::invalid(
            Field::Prompt,
            format!(
                "it has {prompt} tokens; the context holds {context}, prompt and answer \
                 together"
            ),
        ));
    }
    let room = (context - prompt) as u32;
    match asked {
        Some(wanted) if wanted > room => Err(RequestError::invalid(
            Field::Sampling(Param::MaxTokens),
            format!(
                "{wanted} is more than fits after a prompt of {prompt} tokens in a context of \
                 {context}; at most {room}"
            ),
        )),
        Some(wanted) => Ok(wanted),
        None => Ok(default.map_or(room, |tokens| tokens.min(room))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_limit_counts() {
        let (a, b) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(earlier(Some(a), Some(b)), Some(a));
        assert_eq!(earlier(None, Some(b)), Some(b));
        assert_eq!(earlier(None, None), None);
    }

    #[test]
    fn a_request_without_wishes_is_sound_and_wrong_ones_name_their_field() {
        let chat = |role: &str| {
            let message = ChatMessage {
                role: role.into(),
                content: "hi".into(),
            };
            Prompt::Chat(vec![message].into())
        };
        let base = || Request::new(chat("user"), SamplingOptions::default());
        assert!(base().validate(100).is_ok());
        let field = |request: Request| match request.validate(100) {
            Err(RequestError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let request_id = "x".repeat(REQUEST_ID_BYTES + 1);
        assert_eq!(
            field(Request {
                request_id,
                ..base()
            }),
            Field::RequestId
        );
        let prompt = Prompt::Chat(Vec::new().into());
        assert_eq!(field(Request { prompt, ..base() }), Field::ChatMessages);
        let prompt = chat("");
        assert_eq!(field(Request { prompt, ..base() }), Field::ChatRole(0));
        let timeout = Some(Duration::ZERO);
        assert_eq!(field(Request { timeout, ..base() }), Field::Timeout);
        let min_kv_bits = Some(3);
        assert_eq!(
            field(Request {
                min_kv_bits,
                ..base()
            }),
            Field::MinKvBits
        );
        let sampling = SamplingOptions {
            top_p: 0.0,
            ..SamplingOptions::default()
        };
        let wrong = field(Request { sampling, ..base() });
        assert_eq!(wrong, Field::Sampling(Param::TopP));
        // The connection's limit may be over: that ends the request, but not as a mistake.
        let late = Request {
            call_timeout: Some(Duration::ZERO),
            ..base()
        };
        let now = Instant::now();
        assert!(late.validate(100).is_ok());
        assert_eq!(late.deadline(now), Some(now));
    }
}
