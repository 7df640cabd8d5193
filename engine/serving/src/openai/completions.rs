//! `POST /v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use serde::{Deserialize, Serialize};

use super::choice::{Ending, Head};
use super::common::{Common, UsageIn};
use super::error::{Spelling, body, shape};
use super::logprobs::{PromptLogprobs, TextLogprobs};
use super::prompts::Prompts;
use super::usage::Usage;
use crate::core::{End, Field, Prompt, RequestError, StreamEvent, TokenLogprobs};
use crate::front_end::Engine;
use crate::http::answers::{
    Answer, Answers, Choice, ids_bytes, json_bytes, logprobs_bytes, text_bytes,
};
use crate::http::events::{Writer, json as data, respond};
use crate::http::json;
use crate::http::values::{Asked, Whole};
use crate::http::{Api, Problem, object};

/// Tokens of an answer whose request does not say; OpenAI's.
const MAX_TOKENS: u32 = 16;

/// The fields of completions alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Completions {
    prompt: Option<Prompts>,
    echo: Option<bool>,
    logprobs: Option<Whole>,
    best_of: Option<Whole>,
    add_special_tokens: Option<bool>,
    suffix: Asked,
}

/// What an answer's shape depends on.
struct Wishes {
    n: u32,
    usage_in: UsageIn,
    echo: bool,
    /// The prompt alone is wanted: the one token that is generated is not told.
    nothing_new: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    token_ids: bool,
    /// Those that the request asked for.
    stop_token_ids: Vec<u32>,
}

impl Wishes {
    /// Bytes that JSON takes for a prompt, which every choice repeats.
    fn prompt_bytes(&self, echo: &Echo, logprobs: &[TokenLogprobs]) -> usize {
        let one = text_bytes(&echo.text) + ids_bytes(&echo.ids) + logprobs_bytes(logprobs);
        self.n as usize * one
    }

    /// Whether the answer's shape needs the prompts as token ids.
    fn need_ids(&self) -> bool {
        self.token_ids || self.echo && self.logprobs
    }
}

/// A prompt as far as the answer repeats it.
#[derive(Default)]
struct Echo {
    text: String,
    ids: Vec<u32>,
}

/// Answers a call.
pub(super) async fn create<E: Engine>(State(api): State<Api<E>>, request: Request) -> Response {
    let response = answer(api, request).await;
    response.unwrap_or_else(|problem| shape(&problem))
}

async fn answer<E: Engine>(api: Api<E>, request: Request) -> Result<Response, Problem> {
    let received = json::receive(request, api.max_body_bytes).await?;
    let read = |bytes: &[u8]| Ok((json::object(bytes)?, json::object(bytes)?));
    let ((mut common, own), memory): ((Common, Completions), _) = received.read(read).await?;
    let engine = api.engine_for(common.model.as_deref())?.clone();
    common.check_supported()?;
    own.suffix
        .refuse("suffix", "filling in before a suffix is", &[])?;

    let n = common.n()?;
    if own.best_of.is_some_and(|Whole(best)| best != i64::from(n)) {
        let why = "it must be n, or left out: every choice is told";
        return Err(Problem::invalid("best_of", why));
    }
    let logprobs = own.logprobs.map(|top| top.get("logprobs", "at least 0"));
    let logprobs = logprobs.transpose()?;
    let echo = own.echo.unwrap_or(false);
    let nothing_new = echo && common.max_tokens == Some(Whole(0));
    let spelling = common.spelling("prompt", "max_tokens", "logprobs");
    let wishes = Wishes {
        n,
        usage_in: common.usage_in()?,
        echo,
        nothing_new,
        logprobs: logprobs.is_some(),
        prompt_logprobs: common.prompt_logprobs.is_some(),
        token_ids: common.return_token_ids == Some(true),
        stop_token_ids: common.stop_token_ids(),
    };
    if common.streams() && wishes.prompt_logprobs {
        let why = "a stream does not tell them; set stream to false, or leave it out";
        return Err(Problem::invalid("prompt_logprobs", why));
    }
    let max_tokens = match nothing_new {
        true => Some(Whole(1)),
        false => common.max_tokens,
    };
    let mut sampling = common.sampling(engine.default_sampling(), ("max_tokens", max_tokens))?;
    sampling.logprobs = logprobs;
    if echo && sampling.prompt_logprobs.is_none() {
        sampling.prompt_logprobs = logprobs;
    }

    let missing = || Problem::invalid("prompt", "it is missing; send a text or token ids");
    let Prompts { prompts, single } = own.prompt.ok_or_else(missing)?;
    // Once, before there is a copy for every prompt.
    let vocab = engine.model().vocab;
    let checked = common.request(Prompt::Tokens(Vec::new()), sampling.clone())?;
    let checked = checked.validate(vocab);
    checked.map_err(|error| refused(&spelling, &error))?;
    let add_special = own.add_special_tokens.unwrap_or(true);
    let (mut requests, mut echoes) = (Vec::new(), Vec::new());
    for (i, prompt) in prompts.into_iter().enumerate() {
        let spelling = indexed(spelling, single, i);
        let repeated = repeat(&engine, prompt, &wishes, add_special).await;
        let (prompt, echo) = repeated.map_err(|error| refused(&spelling, &error))?;
        echoes.push(echo);
        let mut request = common.request(prompt, sampling.clone())?;
        request.max_tokens_default = Some(MAX_TOKENS.max(request.sampling.min_tokens));
        requests.push(request);
    }
    let count = requests.len();
    let answers = Answers::submit(&engine, requests, memory.as_ref()).await;
    let answers = answers.map_err(|(i, error)| refused(&indexed(spelling, single, i), &error))?;
    // The body is used up; the answer has an account of its own.
    if let Some(memory) = &memory {
        memory.clear();
    }
    let streams = common.streams();
    let head = Head::new(&engine, "cmpl-", "text_completion", common.model.take());
    if streams {
        let writer = Stream::new(engine, head, wishes, echoes);
        return Ok(respond(answers, writer, memory));
    }
    let answers = answers.collect(count, n, memory.as_ref()).await;
    let answers = answers.map_err(|error| refused(&spelling, &error))?;
    if let Some(memory) = &memory {
        // Every choice has the prompt once more.
        let prompts = answers.iter().zip(&echoes);
        let bytes =
            prompts.map(|(answer, echo)| wishes.prompt_bytes(echo, &answer.prompt_logprobs));
        let full = memory.grow(bytes.sum());
        full.map_err(|full| refused(&spelling, &full.into()))?;
    }
    let whole = Completion::of(&engine, head, &wishes, echoes, answers);
    Ok(object(&whole))
}

fn indexed(spelling: Spelling, single: bool, i: usize) -> Spelling {
    Spelling {
        index: (!single).then_some(i),
        ..spelling
    }
}

fn refused(spelling: &Spelling, error: &RequestError) -> Problem {
    Problem::of(error, |field| Some(spelling.path(field)))
}

/// The prompt as it is submitted, and what of it the answer repeats.
async fn repeat<E: Engine>(
    engine: &E,
    prompt: Prompt,
    wishes: &Wishes,
    add_special: bool,
) -> Result<(Prompt, Echo), RequestError> {
    let mut echo = Echo::default();
    match prompt {
        Prompt::Tokens(ids) => {
            if wishes.echo {
                let vocab = engine.model().vocab;
                if let Some(i) = ids.iter().position(|&id| id as usize >= vocab) {
                    let why = format!("{} is not a token; the vocabulary has {vocab}", ids[i]);
                    return Err(RequestError::invalid(Field::TokenId(i), why));
                }
                echo.text = engine.detokenize(ids.clone(), false).await?;
            }
            if wishes.need_ids() {
                echo.ids = ids.clone();
            }
            Ok((Prompt::Tokens(ids), echo))
        }
        Prompt::Text(text) => {
            if wishes.echo {
                echo.text = text.clone();
            }
            if !wishes.need_ids() && add_special {
                return Ok((Prompt::Text(text), echo));
            }
            let ids = engine.tokenize(Prompt::Text(text), add_special).await?;
            if wishes.need_ids() {
                echo.ids = ids.clone();
            }
            Ok((Prompt::Tokens(ids), echo))
        }
        chat @ Prompt::Chat(_) => Ok((chat, echo)),
    }
}

/// An answer in one object.
#[derive(Serialize)]
struct Completion {
    #[serde(flatten)]
    head: Head,
    choices: Vec<OneChoice>,
    usage: Usage,
}

/// A choice, whole or a piece of it.
#[derive(Default, Serialize)]
struct OneChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    #[serde(flatten)]
    ending: Ending,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl Completion {
    fn of<E: Engine>(
        engine: &E,
        head: Head,
        wishes: &Wishes,
        echoes: Vec<Echo>,
        mut answers: Vec<Answer>,
    ) -> Self {
        if wishes.nothing_new {
            for choice in answers.iter_mut().flat_map(|answer| &mut answer.choices) {
                choice.text.clear();
                choice.token_ids.clear();
                choice.logprobs.clear();
            }
        }
        let usage = Usage::of(&answers);
        let mut choices = Vec::new();
        for (answer, echo) in answers.into_iter().zip(&echoes) {
            for choice in answer.choices {
                let prompt = (echo, &answer.prompt_logprobs[..]);
                let one = OneChoice::of(engine, choices.len(), choice, prompt, wishes);
                choices.push(one);
            }
        }
        Self {
            head,
            choices,
            usage,
        }
    }
}

impl OneChoice {
    fn of<E: Engine>(
        engine: &E,
        index: usize,
        choice: Choice,
        (echo, prompt_logprobs): (&Echo, &[TokenLogprobs]),
        wishes: &Wishes,
    ) -> Self {
        let logprobs = wishes.logprobs.then(|| {
            let (mut all, mut offset) = (TextLogprobs::default(), 0);
            if wishes.echo {
                let first = echo.ids.first().copied();
                all.prompt(engine, &mut offset, first, prompt_logprobs);
            }
            all.extend(engine, &mut offset, &choice.logprobs);
            all
        });
        let asked = wishes.prompt_logprobs;
        Self {
            index,
            text: format!(
                "{}{}",
                if wishes.echo { &echo.text } else { "" },
                choice.text
            ),
            logprobs,
            ending: choice.end.map(|end| wishes.ending(end)).unwrap_or_default(),
            prompt_logprobs: asked.then(|| PromptLogprobs::of(engine, prompt_logprobs)),
            prompt_token_ids: wishes.token_ids.then(|| echo.ids.clone()),
            token_ids: wishes.token_ids.then_some(choice.token_ids),
        }
    }
}

impl Wishes {
    fn ending(&self, end: End) -> Ending {
        let end = match self.nothing_new {
            true => End {
                reason: crate::core::FinishReason::Length,
                stop_string: None,
                stop_token: None,
                ..end
            },
            false => end,
        };
        Ending::new(end, &self.stop_token_ids)
    }
}

/// An answer in pieces.
struct Stream<E> {
    engine: E,
    head: Head,
    wishes: Wishes,
    echoes: Vec<Echo>,
    usage: Usage,
    /// Characters told of each choice.
    offsets: Vec<usize>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [OneChoice],
    /// Absent where the client wants none, null until the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

impl<E: Engine> Stream<E> {
    fn new(engine: E, head: Head, wishes: Wishes, echoes: Vec<Echo>) -> Self {
        Self {
            offsets: vec![0; echoes.len() * wishes.n as usize],
            engine,
            head,
            wishes,
            echoes,
            usage: Usage::default(),
        }
    }

    fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.wishes.n as usize + choice as usize
    }

    fn chunk(&self, choice: OneChoice) -> Event {
        let usage = match self.wishes.usage_in {
            UsageIn::Nothing => None,
            UsageIn::Last => Some(None),
            UsageIn::All => Some(Some(self.usage)),
        };
        data(&Chunk {
            head: &self.head,
            choices: &[choice],
            usage,
        })
    }

    /// The prompt, at the beginning of each of its choices.
    fn repeat(&mut self, prompt: usize, logprobs: &[TokenLogprobs], out: &mut Vec<Event>) {
        if !self.wishes.echo && !self.wishes.token_ids {
            return;
        }
        for choice in 0..self.wishes.n {
            let index = self.index(prompt, choice);
            let echo = &self.echoes[prompt];
            let likely = || {
                let (mut all, offset) = (TextLogprobs::default(), &mut self.offsets[index]);
                let first = echo.ids.first().copied();
                all.prompt(&self.engine, offset, first, logprobs);
                all
            };
            let choice = OneChoice {
                index,
                logprobs: (self.wishes.echo && self.wishes.logprobs).then(likely),
                text: match self.wishes.echo {
                    true => echo.text.clone(),
                    false => String::new(),
                },
                prompt_token_ids: self.wishes.token_ids.then(|| echo.ids.clone()),
                token_ids: self.wishes.token_ids.then(Vec::new),
                ..OneChoice::default()
            };
            out.push(self.chunk(choice));
        }
    }
}

impl<E: Engine> Writer for Stream<E> {
    fn write(&mut self, prompt: usize, event: StreamEvent, out: &mut Vec<Event>) {
        match event {
            StreamEvent::Started {
                prompt_tokens,
                cached_tokens,
                prompt_logprobs,
            } => {
                self.usage.prompt(prompt_tokens, cached_tokens);
                self.repeat(prompt, &prompt_logprobs, out);
            }
            StreamEvent::Delta { .. } if self.wishes.nothing_new => {}
            StreamEvent::Delta {
                choice,
                text,
                token_ids,
                logprobs,
            } => {
                self.usage.completion(token_ids.len());
                if text.is_empty() && !self.wishes.logprobs && !self.wishes.token_ids {
                    return;
                }
                let index = self.index(prompt, choice);
                let likely = || {
                    let mut all = TextLogprobs::default();
                    all.extend(&self.engine, &mut self.offsets[index], &logprobs);
                    all
                };
                let choice = OneChoice {
                    index,
                    logprobs: self.wishes.logprobs.then(likely),
                    text,
                    token_ids: self.wishes.token_ids.then_some(token_ids),
                    ..OneChoice::default()
                };
                out.push(self.chunk(choice));
            }
            StreamEvent::Finished { choice, end } => {
                let choice = OneChoice {
                    index: self.index(prompt, choice),
                    ending: self.wishes.ending(end),
                    ..OneChoice::default()
                };
                out.push(self.chunk(choice));
            }
        }
    }

    fn bytes(&self, prompt: usize, event: &StreamEvent) -> usize {
        let repeated = match event {
            StreamEvent::Started {
                prompt_logprobs, ..
            } => self
                .wishes
                .prompt_bytes(&self.echoes[prompt], prompt_logprobs),
            _ => 0,
        };
        repeated + json_bytes(event)
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        if self.wishes.usage_in != UsageIn::Nothing {
            out.push(data(&Chunk {
                head: &self.head,
                choices: &[],
                usage: Some(Some(self.usage)),
            }));
        }
        out.push(Event::default().data("[DONE]"));
    }

    fn fail(&mut self, problem: &Problem, out: &mut Vec<Event>) {
        out.push(data(&body(problem)));
        out.push(Event::default().data("[DONE]"));
    }
}
