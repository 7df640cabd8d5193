//! The service `ebb.v1.Ebb`.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ebb_proto::v1;
use ebb_proto::v1::ebb_server::Ebb;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::call::Call;
use super::convert;
use super::deadline::grpc_timeout;
use super::responses::{Responses, respond};
use super::status::CallError;
use crate::core::{Field, GenerateStream, RequestError};
use crate::front_end::{CallMemory, Engine};

/// Answers calls with an engine, once there is one.
pub(super) struct EbbService<E> {
    /// Set when the model is loaded.
    pub(super) engine: Arc<OnceLock<E>>,
    pub(super) limits: v1::ServerLimits,
    pub(super) started: Instant,
    /// Every answer that is being sent has a receiver of it.
    pub(super) open: Arc<watch::Sender<()>>,
}

impl<E: Engine> EbbService<E> {
    fn engine(&self) -> Result<&E, Status> {
        let loading =
            || Status::unavailable("the model is still being loaded; try again in a moment");
        self.engine.get().ok_or_else(loading)
    }

    /// Runs a call in a task of its own, so that a panic in it ends this call alone, and counts it.
    async fn unary<T, F>(
        &self,
        method: &'static str,
        run: impl FnOnce(E) -> F,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let engine = self.engine()?;
        let mut call = Call::new(engine.recorder().clone(), method);
        let result = contained(run(engine.clone())).await;
        call.close(result.as_ref());
        result.map(Response::new)
    }
}

/// The result of a call, which may panic.
async fn contained<T, F>(run: F) -> Result<T, Status>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
{
    let bug = || Status::internal("a bug in the server ended this call; see its log");
    let result = crate::front_end::contained(run).await.ok_or_else(bug)?;
    result.map_err(Status::from)
}

/// A call of Generate that has begun: its name, its answer and its account.
type Generating = (String, GenerateStream, Option<CallMemory>);

async fn generate<E: Engine>(
    engine: E,
    mut request: Request<v1::GenerateRequest>,
) -> Result<Generating, CallError> {
    let call_timeout = grpc_timeout(request.metadata())?;
    let memory = CallMemory::of(request.extensions_mut());
    let ids = match &request.get_ref().prompt {
        Some(v1::generate_request::Prompt::TokenIds(ids)) => ids.ids.len(),
        _ => 0,
    };
    grow(&memory, size_of::<u32>() * ids)?;
    let request = convert::request(request.into_inner(), engine.default_sampling())?;
    let request = crate::core::Request {
        call_timeout,
        ..request
    };
    let request_id = request.request_id.clone();
    tracing::debug!(request_id, n = request.sampling.n, "generate");
    let events = engine.generate(request).await?;
    // The message is used up; the answer has an account of its own.
    if let Some(memory) = &memory {
        memory.charge_prompt(&events);
        memory.clear();
    }
    Ok((request_id, events, memory))
}

/// Takes `bytes` more for a call.
fn grow(memory: &Option<CallMemory>, bytes: usize) -> Result<(), RequestError> {
    match memory {
        Some(memory) => Ok(memory.grow(bytes)?),
        None => Ok(()),
    }
}

#[tonic::async_trait]
impl<E: Engine> Ebb for EbbService<E> {
    type GenerateStream = Responses;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let engine = self.engine()?.clone();
        let mut call = Call::new(engine.recorder().clone(), "Generate");
        match contained(generate(engine, request)).await {
            Ok((request_id, events, account)) => Ok(Response::new(respond(
                request_id,
                events,
                account,
                call,
                self.open.subscribe(),
            ))),
            Err(status) => {
                call.close::<()>(Err(&status));
                Err(status)
            }
        }
    }

    async fn abort(
        &self,
        request: Request<v1::AbortRequest>,
    ) -> Result<Response<v1::AbortResponse>, Status> {
        let id = request.into_inner().request_id;
        self.unary("Abort", |engine| async move {
            if id.is_empty() {
                let message = "it is empty; send the name of the request to end";
                return Err(RequestError::invalid(Field::RequestId, message).into());
            }
            Ok(v1::AbortResponse {
                aborted: engine.abort(&id),
            })
        })
        .await
    }

    async fn tokenize(
        &self,
        mut request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        let memory = CallMemory::of(request.extensions_mut());
        let v1::TokenizeRequest {
            input,
            add_special_tokens,
        } = request.into_inner();
        self.unary("Tokenize", move |engine| async move {
            let prompt = convert::tokenize_prompt(input)?;
            let token_ids = engine
                .tokenize(prompt, add_special_tokens.unwrap_or(true))
                .await?;
            grow(&memory, size_of_val(&token_ids[..]))?;
            Ok(v1::TokenizeResponse { token_ids })
        })
        .await
    }

    async fn detokenize(
        &self,
        mut request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let memory = CallMemory::of(request.extensions_mut());
        let v1::DetokenizeRequest {
            token_ids,
            skip_special_tokens,
        } = request.into_inner();
        self.unary("Detokenize", move |engine| async move {
            grow(&memory, size_of_val(&token_ids[..]))?;
            let vocab = engine.model().vocab;
            if let Some((i, id)) = token_ids
                .iter()
                .enumerate()
                .find(|&(_, &id)| id as usize >= vocab)
            {
                let why = format!("{id} is not a token; the vocabulary ends at {}", vocab - 1);
                return Err(RequestError::invalid(Field::TokenId(i), why).into());
            }
            let text = engine
                .detokenize(token_ids, skip_special_tokens.unwrap_or(false))
                .await?;
            // The text, and the message made of it.
            grow(&memory, 2 * text.len())?;
            Ok(v1::DetokenizeResponse { text })
        })
        .await
    }

    async fn get_model_info(
        &self,
        _: Request<v1::GetModelInfoRequest>,
    ) -> Result<Response<v1::GetModelInfoResponse>, Status> {
        self.unary("GetModelInfo", |engine| async move {
            Ok(convert::model_info(engine.model()))
        })
        .await
    }

    async fn get_server_info(
        &self,
        _: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        let (uptime, limits) = (self.started.elapsed(), self.limits);
        self.unary("GetServerInfo", move |engine| async move {
            Ok(convert::server_info(
                engine.model(),
                &engine.state(),
                uptime,
                limits,
            ))
        })
        .await
    }
}
