//! `POST /v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use serde::{Deserialize, Serialize};

use super::choice::{Ending, Head};
use super::common::{Common, UsageIn};
use super::error::{body, shape};
use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::usage::Usage;
use crate::core::{Prompt, StreamEvent};
use crate::front_end::Engine;
use crate::http::answers::{Answer, Answers, Choice};
use crate::http::events::{Writer, json as data, respond};
use crate::http::json;
use crate::http::messages::{Message, Rendering};
use crate::http::values::{Asked, Object, Whole};
use crate::http::{Api, Problem, object};

/// The fields of chat alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chat {
    messages: Option<Vec<Object<Message>>>,
    max_completion_tokens: Option<Whole>,
    logprobs: Option<bool>,
    top_logprobs: Option<Whole>,
    modalities: Option<Vec<String>>,
    chat_template: Asked,
    documents: Asked,
    tools: Asked,
    tool_choice: Asked,
    functions: Asked,
    function_call: Asked,
    reasoning: Asked,
    reasoning_effort: Asked,
    thinking: Asked,
    web_search_options: Asked,
    echo: Asked,
}

impl Chat {
    /// Refuses what Ebb does not have.
    fn check_supported(&self) -> Result<(), Problem> {
        let (tools, reasoning) = ("tools are", "reasoning fields are");
        for (asked, param, what) in [
            (
                &self.chat_template,
                "chat_template",
                "templates of requests are",
            ),
            (&self.documents, "documents", "documents are"),
            (&self.tools, "tools", tools),
            (&self.tool_choice, "tool_choice", tools),
            (&self.functions, "functions", tools),
            (&self.function_call, "function_call", tools),
            (&self.reasoning, "reasoning", reasoning),
            (&self.reasoning_effort, "reasoning_effort", reasoning),
            (&self.thinking, "thinking", reasoning),
            (
                &self.web_search_options,
                "web_search_options",
                "web search is",
            ),
            (&self.echo, "echo", "echo of chats is"),
        ] {
            asked.refuse(param, what, &["none"])?;
        }
        let modalities = self.modalities.iter().flatten();
        if modalities.into_iter().any(|modality| modality != "text") {
            return Err(Problem::unsupported(
                "modalities",
                "modalities other than text are",
            ));
        }
        Ok(())
    }

    /// Likeliest tokens to report, if any are.
    fn logprobs(&self) -> Result<Option<u32>, Problem> {
        let top = self
            .top_logprobs
            .map(|top| top.get("top_logprobs", "at least 0"));
        match (self.logprobs.unwrap_or(false), top.transpose()?) {
            (false, Some(1..)) => {
                let why = "it is for answers with log-probabilities; set logprobs to true";
                Err(Problem::invalid("top_logprobs", why))
            }
            (false, _) => Ok(None),
            (true, top) => Ok(Some(top.unwrap_or(0))),
        }
    }
}

/// What an answer's shape depends on.
#[derive(Clone)]
struct Wishes {
    n: u32,
    usage_in: UsageIn,
    logprobs: bool,
    prompt_logprobs: bool,
    /// The prompt's, where token ids are to be told.
    prompt_ids: Option<Vec<u32>>,
    /// Those that the request asked for.
    stop_token_ids: Vec<u32>,
}

/// Answers a call.
pub(super) async fn create<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let response = answer(api, request).await;
    response.unwrap_or_else(|problem| shape(&problem))
}

async fn answer<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let read = |bytes: &[u8]| {
        let (common, chat): (Common, Chat) = (json::object(bytes)?, json::object(bytes)?);
        Ok((common, chat, json::object::<Rendering>(bytes)?))
    };
    let ((mut common, chat, rendering), memory) = received.read(read).await?;
    let engine = api.engine_for(common.model.as_deref())?.clone();
    common.check_supported()?;
    chat.check_supported()?;

    let (max_name, max_tokens) = match chat.max_completion_tokens {
        Some(most) => ("max_completion_tokens", Some(most)),
        None => ("max_tokens", common.max_tokens),
    };
    let logprobs = chat.logprobs()?;
    let spelling = common.spelling("messages", max_name, "top_logprobs");
    let mut sampling = common.sampling(engine.default_sampling(), (max_name, max_tokens))?;
    sampling.logprobs = logprobs;
    let messages = chat.messages.ok_or_else(|| {
        Problem::invalid(
            "messages",
            "it is missing; send a list of at least one message",
        )
    })?;
    let messages = messages.into_iter().map(|Object(message)| message);
    let mut prompt = Prompt::Chat(rendering.of(messages.collect(), "messages")?);

    let refused = |error| Problem::of(&error, |field| Some(spelling.path(field)));
    let mut prompt_ids = None;
    if common.return_token_ids == Some(true) {
        let ids = engine.tokenize(prompt, true).await.map_err(refused)?;
        prompt = Prompt::Tokens(ids.clone());
        prompt_ids = Some(ids);
    }
    let wishes = Wishes {
        n: sampling.n,
        usage_in: common.usage_in()?,
        logprobs: logprobs.is_some(),
        prompt_logprobs: sampling.prompt_logprobs.is_some(),
        prompt_ids,
        stop_token_ids: common.stop_token_ids(),
    };
    let streams = common.streams();
    if streams && wishes.prompt_logprobs {
        let why = "a stream does not tell them; set stream to false, or leave it out";
        return Err(Problem::invalid("prompt_logprobs", why));
    }
    let request = common.request(prompt, sampling)?;
    let answers = Answers::submit(&engine, vec![request], memory.as_ref()).await;
    let answers = answers.map_err(|(_, error)| refused(error))?;
    // The body is used up; the answer has an account of its own.
    if let Some(memory) = &memory {
        memory.clear();
    }
    let model = common.model.take();
    if streams {
        let head = Head::new(&engine, "chatcmpl-", "chat.completion.chunk", model);
        return Ok(respond(answers, Stream::new(engine, head, wishes), memory));
    }
    let head = Head::new(&engine, "chatcmpl-", "chat.completion", model);
    let answers = answers.collect(1, wishes.n, memory.as_ref()).await;
    let answers = answers.map_err(refused)?;
    let whole = Completion::of(&engine, head, wishes, answers);
    Ok(object(&whole))
}

/// An answer in one object.
#[derive(Serialize)]
struct Completion {
    #[serde(flatten)]
    head: Head,
    choices: Vec<WholeChoice>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct WholeChoice {
    index: usize,
    message: Said,
    logprobs: Option<ChatLogprobs>,
    #[serde(flatten)]
    ending: Ending,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct Said {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

impl Completion {
    fn of<E: Engine>(engine: &E, head: Head, wishes: Wishes, answers: Vec<Answer>) -> Self {
        let usage = Usage::of(&answers);
        let (mut choices, mut prompt_logprobs) = (Vec::new(), None);
        for answer in answers {
            if wishes.prompt_logprobs {
                prompt_logprobs = Some(PromptLogprobs::of(engine, &answer.prompt_logprobs));
            }
            for (index, choice) in answer.choices.into_iter().enumerate() {
                choices.push(WholeChoice::of(engine, index, choice, &wishes));
            }
        }
        Self {
            head,
            choices,
            usage,
            prompt_logprobs,
            prompt_token_ids: wishes.prompt_ids,
        }
    }
}

impl WholeChoice {
    fn of<E: Engine>(engine: &E, index: usize, choice: Choice, wishes: &Wishes) -> Self {
        let logprobs = wishes.logprobs;
        let ending = choice
            .end
            .map(|end| Ending::new(end, &wishes.stop_token_ids));
        Self {
            index,
            message: Said {
                role: "assistant",
                content: choice.text,
                refusal: None,
            },
            logprobs: logprobs.then(|| ChatLogprobs::of(engine, &choice.logprobs)),
            ending: ending.unwrap_or_default(),
            token_ids: wishes.prompt_ids.is_some().then_some(choice.token_ids),
        }
    }
}

/// An answer in pieces.
struct Stream<E> {
    engine: E,
    head: Head,
    wishes: Wishes,
    usage: Usage,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [ChunkChoice<'a>],
    /// Absent where the client wants none, null until the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Default, Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    #[serde(flatten)]
    ending: Ending,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl<E: Engine> Stream<E> {
    fn new(engine: E, head: Head, wishes: Wishes) -> Self {
        Self {
            engine,
            head,
            wishes,
            usage: Usage::default(),
        }
    }

    fn chunk(&self, choice: ChunkChoice<'_>, prompt_token_ids: Option<&[u32]>) -> Event {
        let usage = match self.wishes.usage_in {
            UsageIn::Nothing => None,
            UsageIn::Last => Some(None),
            UsageIn::All => Some(Some(self.usage)),
        };
        data(&Chunk {
            head: &self.head,
            choices: &[choice],
            usage,
            prompt_token_ids,
        })
    }
}

impl<E: Engine> Writer for Stream<E> {
    fn write(&mut self, _: usize, event: StreamEvent, out: &mut Vec<Event>) {
        match event {
            StreamEvent::Started {
                prompt_tokens,
                cached_tokens,
                ..
            } => {
                self.usage.prompt(prompt_tokens, cached_tokens);
                for index in 0..self.wishes.n {
                    let choice = ChunkChoice {
                        index,
                        delta: Delta {
                            role: Some("assistant"),
                            content: Some(""),
                        },
                        ..ChunkChoice::default()
                    };
                    let ids = self.wishes.prompt_ids.as_deref().filter(|_| index == 0);
                    out.push(self.chunk(choice, ids));
                }
            }
            StreamEvent::Delta {
                choice,
                text,
                token_ids,
                logprobs,
            } => {
                self.usage.completion(token_ids.len());
                let ids = self.wishes.prompt_ids.is_some();
                if text.is_empty() && !self.wishes.logprobs && !ids {
                    return;
                }
                let likely = || ChatLogprobs::of(&self.engine, &logprobs);
                let choice = ChunkChoice {
                    index: choice,
                    delta: Delta {
                        role: None,
                        content: Some(&text),
                    },
                    logprobs: self.wishes.logprobs.then(likely),
                    token_ids: ids.then_some(token_ids),
                    ..ChunkChoice::default()
                };
                out.push(self.chunk(choice, None));
            }
            StreamEvent::Finished { choice, end } => {
                let choice = ChunkChoice {
                    index: choice,
                    ending: Ending::new(end, &self.wishes.stop_token_ids),
                    ..ChunkChoice::default()
                };
                out.push(self.chunk(choice, None));
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        if self.wishes.usage_in != UsageIn::Nothing {
            out.push(data(&Chunk {
                head: &self.head,
                choices: &[],
                usage: Some(Some(self.usage)),
                prompt_token_ids: None,
            }));
        }
        out.push(Event::default().data("[DONE]"));
    }

    fn fail(&mut self, problem: &Problem, out: &mut Vec<Event>) {
        out.push(data(&body(problem)));
        out.push(Event::default().data("[DONE]"));
    }
}
