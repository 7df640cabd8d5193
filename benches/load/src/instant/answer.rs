//! An answer, one message a token.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ebb_proto::v1;
use ebb_proto::v1::generate_response::Event;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::Status;

use super::Stall;

/// Messages of an answer. Between two of them it always pauses, if for no time, so that each goes
/// out by itself as those of a real server do, and not many in one frame.
pub(super) struct Answer {
    prompt: u32,
    tokens: u32,
    /// Messages sent: one at the start, one a token, one at the end.
    sent: u32,
    gap: Duration,
    stall: Stall,
    sleep: Option<Pin<Box<Sleep>>>,
    paused: bool,
    _place: OwnedSemaphorePermit,
}

impl Answer {
    pub(super) fn new(
        prompt: u32,
        tokens: u32,
        gap: Duration,
        stall: Stall,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            prompt,
            tokens,
            sent: 0,
            gap,
            stall,
            sleep: None,
            paused: false,
            _place: place,
        }
    }

    /// The message after those sent.
    fn message(&self) -> Option<v1::GenerateResponse> {
        let event = match self.sent {
            0 => Event::Started(v1::Started {
                prompt_tokens: self.prompt,
                ..Default::default()
            }),
            n if n <= self.tokens => Event::Delta(v1::Delta {
                text: " word".into(),
                token_ids: vec![n],
                ..Default::default()
            }),
            n if n == self.tokens + 1 => Event::Finished(v1::Finished {
                reason: v1::FinishReason::Length as i32,
                completion_tokens: self.tokens,
                lowest_kv_bits: 16,
                mean_kv_bits: 16.0,
                ..Default::default()
            }),
            _ => return None,
        };
        Some(v1::GenerateResponse { event: Some(event) })
    }

    /// How long the next message waits.
    fn wait(&self) -> Duration {
        let stalled = self.stall.end();
        let stalled = stalled.map(|end| end.saturating_duration_since(Instant::now()));
        stalled.unwrap_or_default().max(self.gap)
    }
}

impl Stream for Answer {
    type Item = Result<v1::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if !this.paused {
            this.paused = true;
            match this.wait() {
                Duration::ZERO => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                wait => this.sleep = Some(Box::pin(tokio::time::sleep(wait))),
            }
        }
        if let Some(sleep) = &mut this.sleep {
            ready!(sleep.as_mut().poll(context));
            this.sleep = None;
        }
        this.paused = false;
        let message = this.message();
        this.sent += 1;
        Poll::Ready(message.map(Ok))
    }
}
