//! Between the messages of `ebb.v1` and the engine's own types.

use std::time::Duration;

use ebb_models::tokenizer::ChatMessage;
use ebb_proto::v1;

use super::sampling::sampling;
use super::status::CallError;
use crate::core::{
    EngineState, FinishReason, ModelInfo, Prompt, Request, StreamEvent, TokenLogprobs,
};
use crate::front_end::new_name;
use crate::kv_state::KvState;
use crate::sampling::SamplingOptions;

/// Prompt tokens whose log-probabilities go into one message.
const LOGPROBS_PER_MESSAGE: usize = 128;

/// A request as the engine takes it, for a model with these defaults; the engine checks its fields.
/// An empty `request_id` is replaced by a name of the server's own.
///
/// # Errors
/// [`CallError::Call`] when it has no prompt.
pub fn request(
    message: v1::GenerateRequest,
    defaults: SamplingOptions,
) -> Result<Request, CallError> {
    let v1::GenerateRequest {
        request_id,
        prompt,
        sampling: params,
        priority,
        timeout_ms,
        min_kv_bits,
    } = message;
    let prompt = match prompt {
        Some(v1::generate_request::Prompt::Text(text)) => Prompt::Text(text),
        Some(v1::generate_request::Prompt::TokenIds(ids)) => Prompt::Tokens(ids.ids),
        Some(v1::generate_request::Prompt::Chat(chat)) => Prompt::Chat(messages(chat).into()),
        None => {
            let message = "set one of text, token_ids or chat";
            return Err(CallError::call("prompt", message));
        }
    };
    let request_id = if request_id.is_empty() {
        new_name("ebb-")
    } else {
        request_id
    };
    Ok(Request {
        request_id,
        prompt,
        sampling: sampling(params.unwrap_or_default(), defaults),
        priority,
        timeout: timeout_ms.map(Duration::from_millis),
        call_timeout: None,
        min_kv_bits,
        max_tokens_default: None,
    })
}

/// The prompt that a Tokenize call asks about.
///
/// # Errors
/// [`CallError::Call`] when it has none.
pub(super) fn tokenize_prompt(
    input: Option<v1::tokenize_request::Input>,
) -> Result<Prompt, CallError> {
    match input {
        Some(v1::tokenize_request::Input::Text(text)) => Ok(Prompt::Text(text)),
        Some(v1::tokenize_request::Input::Chat(chat)) => Ok(Prompt::Chat(messages(chat).into())),
        None => Err(CallError::call("input", "set one of text or chat")),
    }
}

fn messages(chat: v1::ChatMessages) -> Vec<ChatMessage> {
    let messages = chat.messages.into_iter();
    messages
        .map(|m| ChatMessage {
            role: m.role,
            content: m.content,
        })
        .collect()
}

/// The messages that carry one event; more than one only for long prompt log-probabilities.
pub fn responses(event: StreamEvent, request_id: &str) -> Vec<v1::GenerateResponse> {
    use v1::generate_response::Event;
    let response = |event| v1::GenerateResponse { event: Some(event) };
    match event {
        StreamEvent::Started {
            prompt_tokens,
            cached_tokens,
            prompt_logprobs,
        } => {
            let mut all = vec![response(Event::Started(v1::Started {
                request_id: request_id.to_owned(),
                prompt_tokens: saturate(prompt_tokens),
                cached_tokens: saturate(cached_tokens),
            }))];
            all.extend(prompt_logprobs.chunks(LOGPROBS_PER_MESSAGE).map(|part| {
                let tokens = part.iter().map(logprobs).collect();
                response(Event::PromptLogprobs(v1::PromptLogprobs { tokens }))
            }));
            all
        }
        StreamEvent::Delta {
            choice,
            text,
            token_ids,
            logprobs: l,
        } => {
            let logprobs = l.iter().map(logprobs).collect();
            vec![response(Event::Delta(v1::Delta {
                choice,
                text,
                token_ids,
                logprobs,
            }))]
        }
        StreamEvent::Finished { choice, end } => {
            vec![response(Event::Finished(v1::Finished {
                choice,
                reason: match end.reason {
                    FinishReason::Stop => v1::FinishReason::Stop,
                    FinishReason::Length => v1::FinishReason::Length,
                } as i32,
                stop_string: end.stop_string,
                stop_token_id: end.stop_token,
                completion_tokens: saturate(end.completion_tokens),
                lowest_kv_bits: end.kv_bits.lowest.into(),
                mean_kv_bits: end.kv_bits.mean,
            }))]
        }
    }
}

fn logprobs(l: &TokenLogprobs) -> v1::TokenLogprobs {
    let top = l
        .top
        .iter()
        .map(|&(token_id, logprob)| v1::TopLogprob { token_id, logprob });
    v1::TokenLogprobs {
        token_id: l.token,
        logprob: l.logprob,
        top: top.collect(),
    }
}

/// The reply to GetModelInfo.
pub(super) fn model_info(model: &ModelInfo) -> v1::GetModelInfoResponse {
    v1::GetModelInfoResponse {
        name: model.name.clone(),
        description: model.description.clone(),
        max_context: saturate(model.max_context),
        vocab_size: saturate(model.vocab),
        eos_token_ids: model.eos_token_ids.clone(),
        has_chat_template: model.has_chat_template,
        kv_bytes_per_token: model.kv_bytes_per_token,
    }
}

/// The reply to GetServerInfo.
pub(super) fn server_info(
    model: &ModelInfo,
    state: &EngineState,
    uptime: Duration,
    limits: v1::ServerLimits,
) -> v1::GetServerInfoResponse {
    v1::GetServerInfoResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: uptime.as_secs_f64(),
        accepting: state.accepting,
        running: saturate(state.running),
        waiting: saturate(state.waiting),
        kv_cache: Some(v1::KvCacheInfo {
            bytes_total: state.kv_bytes_total,
            bytes_live: state.kv_bytes_live,
            bytes_cached: state.kv_bytes_cached,
            prefix_query_tokens: state.prefix_queries,
            prefix_hit_tokens: state.prefix_hits,
        }),
        steps: state.steps,
        preemptions: state.preemptions,
        limits: Some(v1::ServerLimits {
            // Fewer than asked for where states of more do not fit in memory.
            max_running: saturate(model.max_running),
            ..limits
        }),
        device: model.device.clone(),
        kv_precision: Some(kv_precision(&state.kv)),
    }
}

fn kv_precision(kv: &KvState) -> v1::KvPrecision {
    let formats = kv.formats.iter().map(|f| v1::KvFormatUse {
        format: f.format.to_owned(),
        pages: f.pages,
        bytes: f.bytes,
    });
    v1::KvPrecision {
        mode: kv.mode.to_owned(),
        floor_bits: kv.floor_bits,
        stored_bits: kv.stored_bits,
        formats: formats.collect(),
        schedule_steps: kv.level_changes,
        schedule_steps_mean: kv.level_changes_mean,
        schedule_steps_max: kv.level_changes_max,
        running_bits: kv.running_bits,
        running_bits_lowest: kv.running_bits_lowest.into(),
        shrinks_live: kv.shrinks_live,
        shrinks_cached: kv.shrinks_cached,
        shrink_failures: kv.shrink_failures,
        shrunk_bytes: kv.shrunk_bytes,
        preemptions_avoided: kv.preemptions_avoided,
        promised_bytes: kv.promised_bytes,
    }
}

/// Counts that no real machine lets overflow.
fn saturate(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
