//! A request's body on its way in: its bytes are counted, it has to arrive in time, and over gRPC
//! it has to be messages.
//!
//! tonic answers INTERNAL to those that are not, which is for our own faults alone.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;

use crate::client_memory::ClientMemory;
use crate::front_end::CallMemory;

/// How messages of a port are counted and awaited.
#[derive(Clone)]
pub(super) struct Messages {
    pub(super) memory: ClientMemory,
    /// Time for a message to arrive.
    pub(super) time: Duration,
    /// Messages that did not.
    pub(super) late: Arc<AtomicU64>,
}

/// What a body is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Bytes, which the HTTP front ends read.
    Bytes,
    /// gRPC messages.
    Messages {
        /// Whether there may be many, with pauses between them.
        streams: bool,
    },
}

/// The body of a request.
pub(super) struct Incoming<B> {
    body: B,
    memory: CallMemory,
    progress: Progress,
    content: Content,
    /// Whether the end was told.
    ended: bool,
    timer: Pin<Box<Sleep>>,
    time: Duration,
    late: Arc<AtomicU64>,
}

impl<B> Incoming<B> {
    pub(super) fn new(body: B, messages: &Messages, memory: CallMemory, content: Content) -> Self {
        Self {
            body,
            memory,
            progress: Progress::default(),
            content,
            ended: false,
            timer: Box::pin(tokio::time::sleep(messages.time)),
            time: messages.time,
            late: messages.late.clone(),
        }
    }

    fn check_time(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.is_between_messages() {
            return Poll::Pending;
        }
        ready!(self.timer.as_mut().poll(cx));
        self.late.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Status::deadline_exceeded(format!(
            "the call's message did not arrive within {} s; send it whole, and at once",
            self.time.as_secs_f32()
        )))
    }

    /// Whether the next message may take its time.
    fn is_between_messages(&self) -> bool {
        self.content == Content::Messages { streams: true } && !self.progress.midway()
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if self.is_between_messages() {
            self.timer.as_mut().reset(Instant::now() + self.time);
        }
        if self.content != Content::Bytes {
            self.progress.pass(bytes)?;
        }
        let full = |full: crate::client_memory::ClientMemoryFull| {
            Status::resource_exhausted(full.to_string())
        };
        self.memory.grow(bytes.len()).map_err(full)
    }

    /// Whether the body may end here.
    fn end(&mut self) -> Result<(), Status> {
        self.ended = true;
        if self.content == Content::Bytes {
            return Ok(());
        }
        if self.progress.midway() {
            return Err(Status::invalid_argument(
                "the call ended in the middle of a message; send the message whole",
            ));
        }
        let streams = self.content == Content::Messages { streams: true };
        if !streams && self.progress.messages == 0 {
            return Err(Status::invalid_argument(
                "the call has no message; send one, which may be empty",
            ));
        }
        Ok(())
    }
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for Incoming<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let late = ready!(self.check_time(cx));
            return Poll::Ready(Some(Err(late.into())));
        };
        let Some(frame) = frame else {
            return Poll::Ready(match self.ended {
                true => None,
                false => self.end().err().map(|status| Err(status.into())),
            });
        };
        let frame = frame.map_err(Into::into);
        Poll::Ready(Some(frame.and_then(|frame| {
            if let Some(bytes) = frame.data_ref() {
                self.received(bytes)?;
            }
            Ok(frame)
        })))
    }

    fn is_end_stream(&self) -> bool {
        match self.content {
            Content::Bytes => self.body.is_end_stream(),
            // The end is told by a poll: one that is empty from the start may be a mistake.
            Content::Messages { .. } => self.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Where in its messages a gRPC body is: each has a flag, four bytes of length, and that many.
#[derive(Default)]
struct Progress {
    header: [u8; 5],
    /// Bytes of the header that have come.
    headed: usize,
    /// Bytes of the message that have not.
    rest: usize,
    /// Messages that are complete.
    messages: u64,
}

impl Progress {
    /// Goes on by `bytes`, up to a flag that is wrong.
    fn pass(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            if self.headed < self.header.len() {
                self.header[self.headed] = bytes[0];
                self.headed += 1;
                bytes = &bytes[1..];
                let [flag, length @ ..] = self.header;
                if flag != 0 {
                    return Err(Status::invalid_argument(format!(
                        "a message begins with the byte {flag}; this server takes messages that \
                         are not compressed, which begin with 0"
                    )));
                }
                if self.headed == self.header.len() {
                    self.rest = u32::from_be_bytes(length) as usize;
                }
            } else {
                let now = self.rest.min(bytes.len());
                self.rest -= now;
                bytes = &bytes[now..];
            }
            if self.headed == self.header.len() && self.rest == 0 {
                self.headed = 0;
                self.messages += 1;
            }
        }
        Ok(())
    }

    /// Whether a message has begun and not ended.
    fn midway(&self) -> bool {
        self.headed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_however_they_are_cut() {
        let bytes = [&[0, 0, 0, 0, 3, 1, 2, 3][..], &[0; 5], &[0, 0, 0, 0, 1, 9]].concat();
        let ends = [8, 13, 19];
        for size in 1..=bytes.len() {
            let mut progress = Progress::default();
            let mut at = 0;
            for part in bytes.chunks(size) {
                progress.pass(part).expect("no flag is wrong");
                at += part.len();
                assert_eq!(progress.midway(), !ends.contains(&at), "{size} {at}");
            }
            assert_eq!(progress.messages, 3);
        }
    }

    #[test]
    fn flags_are_refused_wherever_they_come() {
        for flag in [1, 2, 255] {
            let sound = [0, 0, 0, 0, 1, 9];
            let mut progress = Progress::default();
            assert!(progress.pass(&[flag]).is_err());
            let mut progress = Progress::default();
            assert!(
                progress
                    .pass(&[&sound[..], &[flag, 0, 0, 0, 0]].concat())
                    .is_err()
            );
        }
    }
}
