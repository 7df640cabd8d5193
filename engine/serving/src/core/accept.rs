//! A request's way to the engine thread: everything that can refuse it, and the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TrySendError;
use std::time::Instant;

use ebb_scheduler::RequestId;

use super::engine::{Command, Inner, Submission};
use super::request::{Accepted, max_tokens};
use super::shared::{Place, Shared, outcome};
use super::stream::stream;
use super::{Field, GenerateStream, Prompt, Request, RequestError};
use crate::metrics::RequestMeter;
use crate::sampling::SamplingParams;

impl Inner {
    /// Checks a request, tokenises it, and queues it.
    pub(super) async fn submit(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<GenerateStream, RequestError> {
        let arrived = Instant::now();
        let params = request.validate(self.served.info.vocab)?;
        let asked = params
            .max_tokens
            .unwrap_or(self.served.info.max_context as u32);
        let meter = self.recorder.request(arrived, params.n, asked);
        match self.accept(request, params, arrived).await {
            Ok((accepted, place)) => self.hand_over(accepted, place, meter),
            Err(error) => {
                meter.end(Instant::now(), outcome(Some(&error)));
                Err(error)
            }
        }
    }

    /// Tokenises a valid request and takes a place for it.
    async fn accept(
        &self,
        request: Request,
        params: SamplingParams,
        arrived: Instant,
    ) -> Result<(Accepted, Place), RequestError> {
        self.check_open()?;
        let deadline = request.deadline(arrived);
        let prompt = self.tokenize(request.prompt, true).await?;
        let context = self.served.info.max_context;
        let max_tokens = max_tokens(prompt.len(), params.max_tokens, context)?;
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let place = self.shared.take_place(id, request.request_id)?;
        let accepted = Accepted {
            id,
            name: place.name.clone(),
            prompt,
            params: Arc::new(params),
            max_tokens,
            priority: request.priority,
            deadline,
            min_kv_bits: request.min_kv_bits.map_or(0, |bits| bits as u8),
        };
        Ok((accepted, place))
    }

    /// Through the gate to the engine thread, if the scheduler has room.
    fn hand_over(
        self: &Arc<Self>,
        request: Accepted,
        place: Place,
        meter: RequestMeter,
    ) -> Result<GenerateStream, RequestError> {
        let (id, n) = (request.id, request.params.n);
        let weak = Arc::downgrade(self);
        let (sender, reader) = stream(request.deadline, move |why| {
            if let Some(inner) = weak.upgrade() {
                inner.cancel(id, why);
            }
        });
        let submission = Submission {
            request,
            meter,
            sender,
        };
        let mut command = Some(Command::Submit(Box::new(submission)));
        // The command comes back where it is not sent.
        let sent = self.gate.enter(n, || match command.take() {
            Some(it) => self.send(it),
            None => Ok(()),
        });
        let full = self.queue_full();
        let (error, unsent) = match sent {
            Some(Ok(())) => {
                place.keep();
                return Ok(reader);
            }
            None => (full, command),
            Some(Err(TrySendError::Full(it))) => (full, Some(it)),
            Some(Err(TrySendError::Disconnected(it))) => (
                RequestError::Internal("the engine stopped".into()),
                Some(it),
            ),
        };
        if let Some(Command::Submit(submission)) = unsent {
            submission.meter.end(Instant::now(), outcome(Some(&error)));
        }
        Err(error)
    }

    /// Token ids of a prompt as `submit` uses them. `add_special` concerns plain text alone.
    pub(super) async fn tokenize(
        &self,
        prompt: Prompt,
        add_special: bool,
    ) -> Result<Arc<[u32]>, RequestError> {
        // Long texts take milliseconds: too long for the thread that serves other clients.
        const INLINE_BYTES: usize = 16 * 1024;
        let inline = matches!(&prompt, Prompt::Text(text) if text.len() <= INLINE_BYTES)
            || matches!(&prompt, Prompt::Tokens(_));
        if inline {
            return self.tokenize_now(prompt, add_special);
        }
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || shared.tokenize_now(prompt, add_special))
            .await
            .map_err(|e| RequestError::Internal(format!("tokenising failed: {e}")))?
    }
}

impl Shared {
    fn tokenize_now(&self, prompt: Prompt, add_special: bool) -> Result<Arc<[u32]>, RequestError> {
        let ids = match prompt {
            Prompt::Tokens(ids) => {
                let vocab = self.served.info.vocab;
                if let Some(bad) = ids.iter().find(|&&id| id as usize >= vocab) {
                    let message =
                        format!("{bad} is not a token: the vocabulary has {vocab} tokens");
                    return Err(RequestError::invalid(Field::TokenIds, message));
                }
                ids
            }
            Prompt::Text(text) => self.encode(&text, Field::Text, add_special)?,
            Prompt::Chat(messages) => {
                let template = self.served.template.as_ref().ok_or_else(|| {
                    RequestError::invalid(
                        Field::Chat,
                        "this model has no chat template; send text or token_ids instead",
                    )
                })?;
                let text = template
                    .render(&messages, true, std::time::SystemTime::now())
                    .map_err(|e| RequestError::invalid(Field::Chat, e))?;
                // The template writes BOS itself where the model wants one.
                self.encode(&text, Field::Chat, false)?
            }
        };
        Ok(ids.into())
    }

    fn encode(
        &self,
        text: &str,
        field: Field,
        add_special: bool,
    ) -> Result<Vec<u32>, RequestError> {
        // No token stands for this many bytes: such texts are refused before they cost time.
        let context = self.served.info.max_context;
        if text.len() > context.saturating_mul(64) {
            let message = format!(
                "{} bytes of text cannot fit a context of {context} tokens",
                text.len()
            );
            return Err(RequestError::invalid(field, message));
        }
        self.served
            .tokenizer
            .encode(text, add_special, true)
            .map_err(|e| RequestError::invalid(field, e))
    }
}
