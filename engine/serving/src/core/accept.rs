//! A request's way to the engine thread: everything that can refuse it, and the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TrySendError;
use std::time::Instant;

use ebb_models::tokenizer::{ChatMessage, Conversation};
use ebb_scheduler::RequestId;

use super::engine::{Command, Inner, Submission};
use super::rendering::Rendering;
use super::request::{Accepted, max_tokens};
use super::shared::{Place, Shared, outcome};
use super::stream::stream;
use super::text_queue::Wanted;
use super::work_bytes::{normalizing_bytes, work_bytes};
use super::{Field, GenerateStream, Prompt, Request, RequestError};
use crate::client_memory::Held;
use crate::metrics::RequestMeter;
use crate::sampling::SamplingParams;

impl Inner {
    /// Checks a request, tokenises it, and queues it.
    pub(super) async fn submit(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<GenerateStream, RequestError> {
        let arrived = Instant::now();
        let info = &self.served.info;
        let params = request.validate(info.vocab)?;
        params.check_ends(&info.eos_token_ids, info.vocab)?;
        let asked = params
            .max_tokens
            .or(request.max_tokens_default)
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
        let tokenizing = self.tokenize(request.prompt, true);
        let prompt = match deadline {
            Some(at) => tokio::time::timeout_at(at.into(), tokenizing)
                .await
                .map_err(|_| RequestError::DeadlineExceeded)??,
            None => tokenizing.await?,
        };
        let context = self.served.info.max_context;
        let max_tokens = max_tokens(
            prompt.len(),
            params.max_tokens,
            request.max_tokens_default,
            context,
        )?;
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
        let memory = &self.served.client_memory;
        let (sender, reader) = stream(memory, request.deadline, move |why| {
            if let Some(inner) = weak.upgrade() {
                inner.cancel(id, why);
            }
        });
        let reader = reader.of_prompt(request.prompt.len());
        // The prompt stays until the request ends, which may be after a long wait.
        if let Err(full) = sender.hold(size_of_val(&request.prompt[..])) {
            let error = full.into();
            meter.end(Instant::now(), outcome(Some(&error)));
            return Err(error);
        }
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
        // Longer texts take milliseconds: too long for the thread that serves other clients.
        const INLINE_BYTES: usize = 1024;
        let shared = self.shared.clone();
        let (size, work) = match prompt {
            Prompt::Tokens(ids) => return shared.check_ids(ids, Field::TokenIds),
            Prompt::Text(ref text) => {
                shared.check_length(text, Field::Text)?;
                (text.len(), shared.work_bytes(text))
            }
            Prompt::Chat(ref chat) => {
                let arguments = serde_json::to_string(&chat.template_arguments);
                let messages = chat.messages.iter();
                let bytes = messages.map(|m| m.role.len() + m.content.len());
                let bytes = bytes.sum::<usize>() + arguments.map_or(0, |text| text.len());
                (bytes, RENDER_COPIES * bytes)
            }
        };
        if size <= INLINE_BYTES && matches!(prompt, Prompt::Text(_)) {
            let mut held = self.served.client_memory.hold(work)?;
            return shared.tokenize_now(prompt, add_special, (&mut held, work), &Wanted::always());
        }
        let run = move |held: &mut Held, wanted: &Wanted| {
            shared.tokenize_now(prompt, add_special, (held, work), wanted)
        };
        self.texts.run(size, work, run).await
    }

    /// Text of token ids.
    pub(super) async fn detokenize(
        &self,
        ids: Vec<u32>,
        skip: bool,
    ) -> Result<String, RequestError> {
        // The bytes, the text checked, and the copy that is given out.
        const COPIES: usize = 3;
        let shared = self.shared.clone();
        let size = size_of_val(&ids[..]);
        let run = move |held: &mut Held, wanted: &Wanted| {
            let tokenizer = &shared.served.tokenizer;
            held.grow(COPIES.saturating_mul(tokenizer.decoded_bytes(&ids, skip)))?;
            let text = tokenizer.decode_while(&ids, skip, &|| !wanted.is_over());
            text.ok_or(RequestError::Aborted)
        };
        self.texts.run(size, 0, run).await
    }
}

/// Copies of a conversation beside what its rendering asks for: those given to the template, and
/// the text.
const RENDER_COPIES: usize = 4;

impl Shared {
    /// Bytes that tokenising a text takes if normalising replaces its spaces alone, or normalising.
    fn work_bytes(&self, text: &str) -> usize {
        let tokenizer = &self.served.tokenizer;
        let normalizing = normalizing_bytes(tokenizer.normalized_bytes(text));
        normalizing.max(work_bytes(tokenizer.encoding_size(text)))
    }

    /// Refuses texts that cannot fit, before they cost time and memory.
    fn check_length(&self, text: &str, field: Field) -> Result<(), RequestError> {
        let context = self.served.info.max_context;
        // Some tokenizers drop spaces or characters, of which any number may fit.
        let Some(per_token) = self.text_bytes_per_token else {
            return Ok(());
        };
        let most = context.saturating_mul(per_token);
        if text.len() <= most {
            return Ok(());
        }
        let message = format!(
            "{} bytes of text cannot fit a context of {context} tokens, of which none has more \
             than {per_token} bytes; send at most {most}",
            text.len(),
        );
        Err(RequestError::invalid(field, message))
    }

    /// Ids from a client, or from a tokenizer: some have more tokens than their model.
    fn check_ids(&self, ids: Vec<u32>, field: Field) -> Result<Arc<[u32]>, RequestError> {
        let vocab = self.served.info.vocab;
        if let Some(bad) = ids.iter().find(|&&id| id as usize >= vocab) {
            let message = format!("{bad} is not a token: the model has {vocab} tokens");
            return Err(RequestError::invalid(field, message));
        }
        Ok(ids.into())
    }

    /// Tokenises as long as that is `wanted`; `held` has the `work` of a text already.
    fn tokenize_now(
        &self,
        prompt: Prompt,
        add_special: bool,
        (held, work): (&mut Held, usize),
        wanted: &Wanted,
    ) -> Result<Arc<[u32]>, RequestError> {
        // What it takes is known once it is normalised.
        let encode = |text: &str, field, add_special, held: &mut Held, taken: usize| {
            let tokenizer = &self.served.tokenizer;
            let mut full = None;
            let may_take = |size| {
                let more = work_bytes(size).saturating_sub(taken);
                full = held.grow(more).err();
                full.is_none()
            };
            let wanted = || !wanted.is_over();
            let ids = tokenizer.encode_while(text, add_special, true, &wanted, may_take);
            match full {
                Some(full) => Err(RequestError::ClientMemory(full)),
                None => ids.map_err(|e| RequestError::invalid(field, e)),
            }
        };
        let (ids, field) = match prompt {
            Prompt::Tokens(ids) => return self.check_ids(ids, Field::TokenIds),
            Prompt::Text(text) => {
                let ids = encode(&text, Field::Text, add_special, held, work)?;
                (ids, Field::Text)
            }
            Prompt::Chat(chat) => {
                let template = self.served.template.as_ref().ok_or_else(|| {
                    RequestError::invalid(
                        Field::Chat,
                        "this model has no chat template; send text or token_ids instead",
                    )
                })?;
                let messages = chat.messages.iter().map(ChatMessage::to_json);
                let conversation = Conversation {
                    messages: &messages.collect::<Vec<_>>(),
                    tools: None,
                    documents: None,
                    add_generation_prompt: chat.add_generation_prompt,
                    continue_final_message: chat.continue_final_message,
                    kwargs: Some(&chat.template_arguments),
                    now: std::time::SystemTime::now(),
                };
                let memory = self.served.client_memory.hold_nothing();
                let host = Arc::new(Rendering::new(wanted.clone(), memory));
                let text = template.render_while(&conversation, host.clone());
                let text = text.map_err(|e| match host.refusal() {
                    Some(full) => RequestError::ClientMemory(full),
                    None => RequestError::invalid(Field::Chat, e),
                })?;
                drop((host, chat));
                self.check_length(&text, Field::Chat)?;
                let work = self.work_bytes(&text);
                held.grow(work)?;
                // The template writes BOS itself where the model wants one.
                let ids = encode(&text, Field::Chat, false, held, work)?;
                (ids, Field::Chat)
            }
        };
        self.check_ids(ids, field)
    }
}
