//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::common::{Common, TokenId};
use super::error::{Spelling, shape};
use crate::client_memory::ClientMemoryFull;
use crate::core::{Prompt, RequestError};
use crate::front_end::Engine;
use crate::http::json;
use crate::http::messages::{Message, Rendering};
use crate::http::values::{Asked, Object};
use crate::http::{Api, Problem, object};

/// A text or chat messages.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokenize {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Object<Message>>>,
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
    chat_template: Asked,
    tools: Asked,
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// Token ids.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Detokenize {
    model: Option<String>,
    tokens: Option<Vec<TokenId>>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

impl Tokenize {
    /// The prompt, where its errors are spelled, and whether special tokens are added.
    fn prompt(self, rendering: Rendering) -> Result<(Prompt, Spelling, bool), Problem> {
        for (asked, param, what) in [
            (
                &self.chat_template,
                "chat_template",
                "templates of requests are",
            ),
            (&self.tools, "tools", "tools are"),
        ] {
            asked.refuse(param, what, &[])?;
        }
        let spelling = |name| Common::default().spelling(name, "max_tokens", "logprobs");
        match (self.prompt, self.messages) {
            (Some(text), None) => {
                let add_special = self.add_special_tokens.unwrap_or(true);
                Ok((Prompt::Text(text), spelling("prompt"), add_special))
            }
            (None, Some(messages)) => {
                if self.add_special_tokens == Some(true) {
                    let what = "special tokens beside those of the template are";
                    return Err(Problem::unsupported("add_special_tokens", what));
                }
                let messages = messages.into_iter().map(|Object(message)| message);
                let chat = rendering.of(messages.collect(), "messages")?;
                Ok((Prompt::Chat(chat), spelling("messages"), false))
            }
            _ => Err(Problem::invalid("prompt", "send either prompt or messages")),
        }
    }
}

/// `POST /tokenize`.
pub(super) async fn tokenize<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let tokens = tokens(api, request).await;
    tokens.unwrap_or_else(|problem| shape(&problem))
}

async fn tokens<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let read = |bytes: &[u8]| {
        let body: Tokenize = json::object(bytes)?;
        Ok((body, json::object::<Rendering>(bytes)?))
    };
    let ((body, rendering), memory) = received.read(read).await?;
    let engine = api.engine_for(body.model.as_deref())?.clone();
    let strings = body.return_token_strs.unwrap_or(false);
    let (prompt, spelling, add_special) = body.prompt(rendering)?;
    let tokens = engine.tokenize(prompt, add_special).await;
    let tokens = tokens.map_err(|error| Problem::of(&error, |field| Some(spelling.path(field))))?;
    if let Some(memory) = &memory {
        // The ids, their texts, and the object made of both.
        const TEXT_BYTES: usize = 64;
        let each = size_of::<u32>() + 11 + if strings { TEXT_BYTES } else { 0 };
        memory.grow(each * tokens.len()).map_err(full)?;
    }
    let spelled = |&id: &u32| String::from_utf8_lossy(engine.token_bytes(id)).into_owned();
    let token_strs = strings.then(|| tokens.iter().map(spelled).collect());
    let tokens = Tokens {
        count: tokens.len(),
        max_model_len: engine.model().max_context,
        tokens,
        token_strs,
    };
    Ok(object(&tokens))
}

fn full(full: ClientMemoryFull) -> Problem {
    Problem::of(&RequestError::ClientMemory(full), |_| None)
}

/// `POST /detokenize`.
pub(super) async fn detokenize<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let text = text(api, request).await;
    text.unwrap_or_else(|problem| shape(&problem))
}

async fn text<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let (body, memory) = received.read(json::object::<Detokenize>).await?;
    let engine = api.engine_for(body.model.as_deref())?.clone();
    let missing = || Problem::invalid("tokens", "it is missing; send a list of token ids");
    let tokens = body.tokens.ok_or_else(missing)?;
    let tokens: Vec<u32> = tokens.into_iter().map(|TokenId(id)| id).collect();
    let vocab = engine.model().vocab;
    if let Some(i) = tokens.iter().position(|&id| id as usize >= vocab) {
        let why = format!(
            "{} is not a token; the vocabulary ends at {}",
            tokens[i],
            vocab - 1
        );
        return Err(Problem::invalid(format!("tokens[{i}]"), why));
    }
    let prompt = engine.detokenize(tokens, false).await;
    let prompt = prompt.map_err(|error| Problem::of(&error, |_| None))?;
    if let Some(memory) = &memory {
        // The text, and the object made of it.
        memory.grow(2 * prompt.len()).map_err(full)?;
    }
    Ok(object(&Text { prompt }))
}
