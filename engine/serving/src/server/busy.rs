//! What a port answers on one connection: marks it as busy while it has a call, up to the last byte
//! of the answer, and counts what the call makes the server hold.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use axum::{BoxError, Router};
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tonic::codegen::Service;

use super::connections::{Key, Running};
use super::incoming::{Content, Incoming, Messages};
use super::transport::{Port, Protocol};
use super::unread::{Part, Unread};
use crate::client_memory::{ClientMemory, Held};
use crate::front_end::CallMemory;

/// What a port answers, for one connection.
#[derive(Clone)]
pub(super) struct Busy {
    router: Router,
    key: Arc<Key>,
    /// What its calls are counted in; none where they are small.
    messages: Option<Messages>,
    unread: Unread,
    protocol: Protocol,
    open: Option<Arc<watch::Sender<()>>>,
}

impl Busy {
    pub(super) fn new(router: Router, key: Arc<Key>, port: &Port, unread: Unread) -> Self {
        Self {
            router,
            key,
            messages: port.messages.clone(),
            unread,
            protocol: port.protocol,
            open: port.open.clone(),
        }
    }
}

impl<B> Service<Request<B>> for Busy
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Health and reflection need no key and may never end: such calls keep no place.
        let running = match request.uri().path().starts_with("/grpc.") {
            true => {
                self.key.call_in_passing();
                None
            }
            false => Some(self.key.begin()),
        };
        let open = self.open.as_ref().map(|open| open.subscribe());
        let memory = self.messages.as_ref().map(|m| CallMemory::new(&m.memory));
        let answer = match (&self.messages, &memory) {
            (Some(messages), Some(memory)) => {
                let streams = request.uri().path().contains("ServerReflection");
                let content = match self.protocol {
                    Protocol::Grpc => Content::Messages { streams },
                    Protocol::Http1 => Content::Bytes,
                };
                let mut request = request
                    .map(|body| Body::new(Incoming::new(body, messages, memory.clone(), content)));
                request.extensions_mut().insert(memory.clone());
                self.router.call(request)
            }
            _ => self.router.call(request.map(Body::new)),
        };
        let memory_and_time = |m: &Messages| (m.memory.clone(), self.unread.clone());
        let counted = self.messages.as_ref().map(memory_and_time);
        Box::pin(async move {
            let body = |body| Answer {
                body,
                counted,
                _memory: memory,
                _running: running,
                _open: open,
            };
            Ok(answer.await?.map(body))
        })
    }
}

/// The body of an answer.
pub(super) struct Answer {
    body: Body,
    counted: Option<(ClientMemory, Unread)>,
    _memory: Option<CallMemory>,
    _running: Option<Running>,
    _open: Option<watch::Receiver<()>>,
}

/// A part of an answer, counted until HTTP/2 has sent it.
struct Unsent {
    bytes: Bytes,
    _held: Held,
    _part: Option<Part>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn count(memory: &ClientMemory, unread: &Unread, bytes: Bytes) -> Bytes {
    let mut held = memory.hold_nothing();
    // What is about to be sent is not refused: what made it was counted before it was made.
    held.grow_anyway(bytes.len());
    Bytes::from_owner(Unsent {
        _part: unread.add(bytes.len(), Instant::now()),
        bytes,
        _held: held,
    })
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match (frame, &self.counted) {
            (Some(Ok(frame)), Some((memory, unread))) => {
                Some(Ok(frame.map_data(|bytes| count(memory, unread, bytes))))
            }
            (other, _) => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
