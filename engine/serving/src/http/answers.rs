//! What the engine answers to one call: events of one or several requests, or all of it at once.

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};

use crate::core::{End, GenerateStream, Request, RequestError, StreamEvent, TokenLogprobs};
use crate::front_end::{CallMemory, Engine};

/// An event of one of a call's requests, which has that index.
type Indexed = (usize, Result<StreamEvent, RequestError>);

/// The answers to a call's requests. Dropping them aborts what has not ended.
pub(crate) struct Answers {
    events: SelectAll<BoxStream<'static, Indexed>>,
    /// The call's account, which pays for its tokens.
    account: Option<CallMemory>,
}

impl Answers {
    /// Submits all requests of a call or none. Their tokens are charged to its account.
    ///
    /// # Errors
    /// Why the request of that index was refused.
    pub(crate) async fn submit<E: Engine>(
        engine: &E,
        requests: Vec<Request>,
        account: Option<&CallMemory>,
    ) -> Result<Self, (usize, RequestError)> {
        // At once: the first must not answer for long while the last are still being tokenised.
        let submitted = requests.into_iter().enumerate().map(async |(i, request)| {
            let stream = engine.generate(request).await.map_err(|error| (i, error))?;
            if let Some(account) = account {
                account.charge_prompt(&stream);
            }
            Ok(indexed(i, stream))
        });
        Ok(Self {
            events: select_all(try_join_all(submitted).await?),
            account: account.cloned(),
        })
    }

    /// The next event of any request; none after the last of all.
    pub(crate) async fn next(&mut self) -> Option<Indexed> {
        let next = self.events.next().await;
        if let (Some((_, Ok(event))), Some(account)) = (&next, &self.account) {
            account.charge(event);
        }
        next
    }

    /// All of it, for `prompts` requests of `n` choices each. `memory` counts it, and the JSON that
    /// will be made of it.
    ///
    /// # Errors
    /// What ended the first request that had no complete answer.
    pub(crate) async fn collect(
        mut self,
        prompts: usize,
        n: u32,
        memory: Option<&CallMemory>,
    ) -> Result<Vec<Answer>, RequestError> {
        let mut answers = vec![Answer::new(n); prompts];
        while let Some((i, event)) = self.next().await {
            let event = event?;
            if let Some(memory) = memory {
                memory.grow(content_bytes(&event))?;
            }
            answers[i].add(event);
        }
        Ok(answers)
    }
}

/// Bytes that an event takes as an object of its own, at most.
pub(crate) fn json_bytes(event: &StreamEvent) -> usize {
    const FRAME: usize = 1024;
    FRAME + content_bytes(event)
}

/// Bytes of JSON for what an event says, with the values that it is written from, at most.
pub(crate) fn content_bytes(event: &StreamEvent) -> usize {
    match event {
        StreamEvent::Started {
            prompt_logprobs, ..
        } => logprobs_bytes(prompt_logprobs),
        StreamEvent::Delta {
            text,
            token_ids,
            logprobs,
            ..
        } => text_bytes(text) + ids_bytes(token_ids) + logprobs_bytes(logprobs),
        StreamEvent::Finished { end, .. } => end.stop_string.as_deref().map_or(0, text_bytes),
    }
}

/// The same of a text, which may be all control characters: six bytes for each.
pub(crate) fn text_bytes(text: &str) -> usize {
    6 * text.len()
}

/// The same of token ids: the longest has ten digits.
pub(crate) fn ids_bytes(ids: &[u32]) -> usize {
    11 * ids.len()
}

/// The same of log-probabilities: a token's text, its bytes and its number, as values and as JSON.
pub(crate) fn logprobs_bytes(logprobs: &[TokenLogprobs]) -> usize {
    const EACH: usize = 256;
    EACH * logprobs.iter().map(|l| 1 + l.top.len()).sum::<usize>()
}

fn indexed(i: usize, stream: GenerateStream) -> BoxStream<'static, Indexed> {
    let next = move |mut stream: GenerateStream| async move {
        let event = stream.next().await?;
        Some(((i, event), stream))
    };
    unfold(stream, next).boxed()
}

/// A complete answer to one prompt.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    pub(crate) choices: Vec<Choice>,
}

/// One of its choices.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) token_ids: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) end: Option<End>,
}

impl Answer {
    fn new(n: u32) -> Self {
        Self {
            prompt_tokens: 0,
            cached_tokens: 0,
            prompt_logprobs: Vec::new(),
            choices: vec![Choice::default(); n as usize],
        }
    }

    fn add(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Started {
                prompt_tokens,
                cached_tokens,
                prompt_logprobs,
            } => {
                self.prompt_tokens = prompt_tokens;
                self.cached_tokens = cached_tokens;
                self.prompt_logprobs = prompt_logprobs;
            }
            StreamEvent::Delta {
                choice,
                text,
                token_ids,
                logprobs,
            } => {
                let choice = &mut self.choices[choice as usize];
                choice.text.push_str(&text);
                choice.token_ids.extend(token_ids);
                choice.logprobs.extend(logprobs);
            }
            StreamEvent::Finished { choice, end } => {
                self.choices[choice as usize].end = Some(end);
            }
        }
    }

    /// Tokens of all choices.
    pub(crate) fn completion_tokens(&self) -> usize {
        self.choices.iter().map(|c| c.token_ids.len()).sum()
    }
}
