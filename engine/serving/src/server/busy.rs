//! Marks a connection as busy while it has a call, up to the last byte of the answer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use axum::{BoxError, Router};
use http_body::{Frame, SizeHint};
use tonic::codegen::Service;

use super::connections::{Key, Running};

/// What a port answers, for one connection.
#[derive(Clone)]
pub(super) struct Busy {
    router: Router,
    key: Arc<Key>,
}

impl Busy {
    pub(super) fn new(router: Router, key: Arc<Key>) -> Self {
        Self { router, key }
    }
}

impl<B> Service<Request<B>> for Busy
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let running = self.key.begin();
        let answer = self.router.call(request.map(Body::new));
        Box::pin(async move {
            let body = |body| Answer {
                body,
                _running: running,
            };
            Ok(answer.await?.map(body))
        })
    }
}

/// The body of an answer.
pub(super) struct Answer {
    body: Body,
    _running: Running,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
