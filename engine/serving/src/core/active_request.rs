//! One live request on the engine thread: from sampled tokens to the events its client reads.

use std::sync::Arc;
use std::time::Instant;

use ebb_kernels::backend::{LogitEdit, SampleRequest};
use ebb_models::tokenizer::{IncrementalDetokenizer, Tokenizer};

use super::engine::Submission;
use super::request::Accepted;
use super::stream::{SendError, StreamSender};
use super::{
    End, FinishReason, KvBits, RequestError, STREAM_LIMIT_BYTES, StreamEvent, TokenLogprobs,
};
use crate::metrics::{Finish, RequestMeter};
use crate::sampling::{SampleError, Sampled, Sampler, SamplerState, StopChecker, random_seed};

/// A request between submission and its last event.
pub(super) struct ActiveRequest {
    pub(super) request: Accepted,
    pub(super) sender: StreamSender,
    pub(super) meter: RequestMeter,
    pub(super) cached_tokens: usize,
    prompt_logprobs: Vec<TokenLogprobs>,
    /// Bytes that these hold of the clients' memory.
    prompt_logprob_bytes: usize,
    /// Why this side is ending it; told to the client when the scheduler confirms.
    pub(super) ending: Option<RequestError>,
    /// Of its random stream.
    pub(super) seed: u64,
    choices: Vec<Choice>,
    started: bool,
    /// Choices that the scheduler still holds.
    held: usize,
}

/// One answer to the prompt.
pub(super) struct Choice {
    sampler: SamplerState,
    detokenizer: IncrementalDetokenizer,
    stop: StopChecker,
    finished: bool,
    /// Index of its sample in the last submitted step that has one for it.
    last_sample: u32,
}

/// What became of a choice in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Advanced {
    /// The token sampled.
    pub(super) token: u32,
    /// Whether the choice is complete with it.
    pub(super) done: bool,
    /// What the model thought of it, where the request asks.
    pub(super) logprob: Option<f32>,
}

impl ActiveRequest {
    pub(super) fn new(submission: Submission, tokenizer: &Arc<Tokenizer>, end_ids: &[u32]) -> Self {
        let Submission {
            request,
            meter,
            sender,
        } = submission;
        let params = &request.params;
        let seed = params.seed.unwrap_or_else(random_seed);
        let first = SamplerState::new(params.clone(), end_ids, &request.prompt, seed);
        let stop = StopChecker::with_hidden(&params.stop, params.include_stop, |stop| {
            tokenizer.names_special(stop)
        });
        let skip_special = params.skip_special_tokens;
        let choices: Vec<Choice> = (0..params.n)
            .map(|choice| Choice {
                sampler: first.sibling(choice),
                detokenizer: IncrementalDetokenizer::continuing(tokenizer.clone(), skip_special),
                stop: stop.clone(),
                finished: false,
                last_sample: 0,
            })
            .collect();
        Self {
            request,
            sender,
            meter,
            cached_tokens: 0,
            prompt_logprobs: Vec::new(),
            prompt_logprob_bytes: 0,
            ending: None,
            held: choices.len(),
            seed,
            choices,
            started: false,
        }
    }

    /// Tells the client that the prompt is in the cache; once.
    pub(super) fn start(&mut self) -> Result<(), RequestError> {
        if self.started {
            return Ok(());
        }
        self.started = true;
        let event = StreamEvent::Started {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached_tokens,
            prompt_logprobs: std::mem::take(&mut self.prompt_logprobs),
        };
        let held = std::mem::take(&mut self.prompt_logprob_bytes);
        self.sender.send_held(event, held).map_err(refused)
    }

    /// Tokens of the prompt that have been scored, from the second on.
    pub(super) fn prompt_scores(&self) -> usize {
        self.prompt_logprobs.len()
    }

    /// Keeps the score of the prompt's next token until [`Self::start`] sends them all.
    pub(super) fn score_prompt(&mut self, score: TokenLogprobs) -> Result<(), RequestError> {
        let bytes = score.weight();
        self.sender.hold(bytes)?;
        self.prompt_logprob_bytes += bytes;
        self.prompt_logprobs.push(score);
        Ok(())
    }

    /// Asks the device to sample `choice`'s next token from the logits of `row`, as sample `index`
    /// of the step. With `last_unknown` the step before has yet to sample the token before it.
    pub(super) fn sample_request(
        &mut self,
        choice: u32,
        row: u32,
        index: u32,
        last_unknown: bool,
        edits: &mut Vec<LogitEdit>,
    ) -> SampleRequest {
        let state = &mut self.choices[choice as usize];
        let also = last_unknown.then_some(state.last_sample);
        state.last_sample = index;
        state.sampler.sample_request(row, also, edits)
    }

    /// The same for another choice that starts from the same row as `first`.
    pub(super) fn sample_request_beside(
        &mut self,
        choice: u32,
        index: u32,
        first: &SampleRequest,
    ) -> SampleRequest {
        let state = &mut self.choices[choice as usize];
        state.last_sample = index;
        state.sampler.sample_request_beside(first)
    }

    /// The sample of the step before that gives `choice`'s last token.
    pub(super) fn last_sample(&self, choice: u32) -> u32 {
        self.choices[choice as usize].last_sample
    }

    /// Samples `choice`'s next token from its row of logits, and tells the client what can be told.
    pub(super) fn sample(
        &mut self,
        choice: u32,
        logits: &mut [f32],
        sampler: &mut Sampler,
        now: Instant,
        kv_bits: KvBits,
    ) -> Result<Advanced, RequestError> {
        let state = &mut self.choices[choice as usize];
        let sampled = sampler
            .sample(logits, &mut state.sampler)
            .map_err(unusable)?;
        self.advance(choice, sampled, now, kv_bits)
    }

    /// Takes the token that the device sampled for `choice`, and tells the client what can be told.
    pub(super) fn take(
        &mut self,
        choice: u32,
        sampled: Result<Sampled, SampleError>,
        now: Instant,
        kv_bits: KvBits,
    ) -> Result<Advanced, RequestError> {
        let sampled = sampled.map_err(unusable)?;
        self.choices[choice as usize].sampler.accept(sampled.token);
        self.advance(choice, sampled, now, kv_bits)
    }

    /// What follows from a token that its sampler has noted.
    fn advance(
        &mut self,
        choice: u32,
        sampled: Sampled,
        now: Instant,
        kv_bits: KvBits,
    ) -> Result<Advanced, RequestError> {
        let Sampled { token, logprobs } = sampled;
        let state = &mut self.choices[choice as usize];
        self.meter.tokens(now, choice, 1);

        let mut text = String::new();
        let stop_token = state.sampler.is_end(token);
        let armed = state.sampler.stops_armed();
        let mut stop = None;
        // A token that ends the answer is not part of its text.
        if !stop_token {
            let mut piece = String::new();
            state.detokenizer.push(token, &mut piece);
            stop = state.stop.push(&piece, armed, &mut text);
            // The client does not see special tokens; its stop strings do.
            if stop.is_none() && state.stop.reads_hidden() {
                let hidden = state.detokenizer.hidden_text(token);
                stop = state.stop.push_hidden(&hidden, armed, &mut text);
            }
        }
        let full = state.sampler.generated() >= self.request.max_tokens;
        let done = stop_token || stop.is_some() || full;
        if done && stop.is_none() {
            let mut rest = String::new();
            state.detokenizer.finish(&mut rest);
            stop = state.stop.push(&rest, armed, &mut text);
        }
        if done && stop.is_none() {
            state.stop.finish(&mut text);
        }
        let logprob = logprobs.as_ref().map(|l| l.logprob);
        let logprobs = logprobs
            .map(|l| TokenLogprobs {
                token,
                logprob: l.logprob,
                top: l.top,
            })
            .into_iter()
            .collect();
        self.sender
            .send(StreamEvent::Delta {
                choice,
                text,
                token_ids: vec![token],
                logprobs,
            })
            .map_err(refused)?;
        if done {
            let reason = if stop_token || stop.is_some() {
                FinishReason::Stop
            } else {
                FinishReason::Length
            };
            let stop_string = stop.map(|s| self.request.params.stop[s.index].clone());
            let stop_token = stop_token.then_some(token);
            self.finish(choice, reason, stop_string, stop_token, kv_bits)?;
        }
        Ok(Advanced {
            token,
            done,
            logprob,
        })
    }

    fn finish(
        &mut self,
        choice: u32,
        reason: FinishReason,
        stop_string: Option<String>,
        stop_token: Option<u32>,
        kv_bits: KvBits,
    ) -> Result<(), RequestError> {
        let state = &mut self.choices[choice as usize];
        state.finished = true;
        let completion_tokens = state.sampler.generated() as usize;
        self.meter
            .choice_finished(choice, reason.into(), kv_bits.mean);
        let end = End {
            reason,
            stop_string,
            stop_token,
            completion_tokens,
            kv_bits,
        };
        let event = StreamEvent::Finished { choice, end };
        self.sender.send(event).map_err(refused)
    }

    /// The scheduler let go of a choice. A choice that wanted no token at all ends here. True with
    /// the last one.
    pub(super) fn released(&mut self, choice: u32, completed: bool, kv_bits: KvBits) -> bool {
        if completed && !self.choices[choice as usize].finished {
            let told = self
                .start()
                .and_then(|()| self.finish(choice, FinishReason::Length, None, None, kv_bits));
            if let Err(error) = told {
                self.ending.get_or_insert(error);
            }
        }
        self.held -= 1;
        self.held == 0
    }

    pub(super) fn choice_finished(&self, choice: u32) -> bool {
        self.choices[choice as usize].finished
    }
}

fn unusable(error: SampleError) -> RequestError {
    RequestError::Internal(error.to_string())
}

/// How a reader that cannot take more ends the request.
fn refused(error: SendError) -> RequestError {
    match error {
        SendError::Gone => RequestError::Aborted,
        SendError::Full => RequestError::SlowReader {
            limit_bytes: STREAM_LIMIT_BYTES,
        },
    }
}

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}
