//! The channel from the engine thread to one reader: bounded in bytes, merging what the reader has
//! not fetched yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{RequestError, StreamEvent};

/// Bytes of events that one stream may hold for a reader that does not fetch them. With the
/// server's own buffers behind it (encoding, HTTP/2 and socket: at most 112 KiB) a slow reader
/// holds at most 256 KiB.
pub const STREAM_LIMIT_BYTES: usize = 144 * 1024;

/// A waiting delta of this size takes no more. An event leaves the account whole when it is
/// fetched, so it must stay small beside the limit.
const MERGED_BYTES: usize = 8 * 1024;

#[derive(Default)]
struct State {
    events: VecDeque<StreamEvent>,
    bytes: usize,
    error: Option<RequestError>,
    /// The engine will send no more.
    closed: bool,
    /// The reader is gone.
    dropped: bool,
}

struct Shared {
    state: Mutex<State>,
    readable: Notify,
}

/// The engine's end.
pub(crate) struct StreamSender(Arc<Shared>);

/// What a reader does that gives up: the request ends for this reason.
type GiveUp = Box<dyn FnOnce(RequestError) + Send>;

/// The reader's end. Dropping it aborts the request.
pub struct GenerateStream {
    shared: Arc<Shared>,
    deadline: Option<Instant>,
    give_up: Option<GiveUp>,
}

/// How long after its deadline a request may still be ended by the engine, which does so between
/// two steps. Then its reader does not wait any more.
const ENGINE_ENDS_IT: Duration = Duration::from_millis(100);

/// Why an event could not be delivered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// Nobody reads any more.
    Gone,
    /// More than [`STREAM_LIMIT_BYTES`] would be waiting.
    Full,
}

/// A connected pair. `give_up` runs when the reader goes away before the end of the stream, or when
/// the engine has not ended it at `deadline`.
pub(crate) fn stream(
    deadline: Option<Instant>,
    give_up: impl FnOnce(RequestError) + Send + 'static,
) -> (StreamSender, GenerateStream) {
    let shared = Arc::new(Shared {
        state: Mutex::default(),
        readable: Notify::new(),
    });
    (
        StreamSender(shared.clone()),
        GenerateStream {
            shared,
            deadline,
            give_up: Some(Box::new(give_up)),
        },
    )
}

impl StreamSender {
    /// Appends an event; a delta merges into the last waiting one of the same choice.
    pub(crate) fn send(&self, event: StreamEvent) -> Result<(), SendError> {
        let mut state = self.0.state.lock();
        if state.dropped {
            return Err(SendError::Gone);
        }
        let weight = event.weight();
        if state.bytes + weight > STREAM_LIMIT_BYTES && !state.events.is_empty() {
            return Err(SendError::Full);
        }
        match merge(state.events.back_mut(), event) {
            // Merged: the waiting event grew by what the new one held, less its fixed part.
            None => state.bytes += weight - 64,
            Some(event) => {
                state.bytes += weight;
                state.events.push_back(event);
            }
        }
        drop(state);
        self.0.readable.notify_one();
        Ok(())
    }

    /// Ends the stream: what waits can still be read, then the error if there is one.
    pub(crate) fn close(&self, error: Option<RequestError>) {
        let mut state = self.0.state.lock();
        if !state.closed {
            state.closed = true;
            state.error = error;
        }
        drop(state);
        self.0.readable.notify_one();
    }
}

impl Drop for StreamSender {
    /// An engine that dies must not leave readers waiting.
    fn drop(&mut self) {
        self.close(Some(RequestError::Internal("the engine stopped".into())));
    }
}

/// Merges `event` into `last` when both are deltas of the same choice; gives it back otherwise.
fn merge(last: Option<&mut StreamEvent>, event: StreamEvent) -> Option<StreamEvent> {
    match (last, event) {
        (
            Some(StreamEvent::Delta {
                choice,
                text,
                token_ids,
                logprobs,
            }),
            StreamEvent::Delta {
                choice: c,
                text: t,
                token_ids: ids,
                logprobs: l,
            },
        ) if *choice == c
            && text.len() + 4 * token_ids.len() + 16 * logprobs.len() < MERGED_BYTES =>
        {
            text.push_str(&t);
            token_ids.extend(ids);
            logprobs.extend(l);
            None
        }
        (_, event) => Some(event),
    }
}

impl GenerateStream {
    /// The next event, an error that ended the request, or `None` at the end.
    pub async fn next(&mut self) -> Option<Result<StreamEvent, RequestError>> {
        loop {
            {
                let mut state = self.shared.state.lock();
                if let Some(event) = state.events.pop_front() {
                    state.bytes -= event.weight().min(state.bytes);
                    return Some(Ok(event));
                }
                if state.closed {
                    self.give_up = None;
                    return state.error.take().map(Err);
                }
            }
            let readable = self.shared.readable.notified();
            let Some(deadline) = self.deadline else {
                readable.await;
                continue;
            };
            let until = tokio::time::Instant::from_std(deadline + ENGINE_ENDS_IT);
            if tokio::time::timeout_at(until, readable).await.is_err() {
                return self.miss_deadline().map(Err);
            }
        }
    }

    /// The engine sits in a step: the reader leaves without it.
    fn miss_deadline(&mut self) -> Option<RequestError> {
        self.deadline = None;
        let mut state = self.shared.state.lock();
        (state.dropped, state.closed) = (true, true);
        drop(state);
        let give_up = self.give_up.take()?;
        give_up(RequestError::DeadlineExceeded);
        Some(RequestError::DeadlineExceeded)
    }
}

impl Drop for GenerateStream {
    fn drop(&mut self) {
        self.shared.state.lock().dropped = true;
        if let Some(give_up) = self.give_up.take() {
            give_up(RequestError::Aborted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(choice: u32, text: &str) -> StreamEvent {
        StreamEvent::Delta {
            choice,
            text: text.into(),
            token_ids: vec![7],
            logprobs: vec![],
        }
    }

    #[tokio::test]
    async fn unread_deltas_of_a_choice_merge_and_order_is_kept() {
        let (tx, mut rx) = stream(None, |_| {});
        for event in [delta(0, "a"), delta(0, "b"), delta(1, "x"), delta(0, "c")] {
            tx.send(event).unwrap();
        }
        tx.close(None);
        let mut seen = Vec::new();
        while let Some(event) = rx.next().await {
            let StreamEvent::Delta {
                choice,
                text,
                token_ids,
                ..
            } = event.unwrap()
            else {
                panic!("not a delta")
            };
            seen.push((choice, text, token_ids.len()));
        }
        assert_eq!(
            seen,
            [(0, "ab".into(), 2), (1, "x".into(), 1), (0, "c".into(), 1)]
        );
    }

    #[tokio::test]
    async fn a_reader_that_never_reads_holds_at_most_the_limit() {
        let (tx, mut rx) = stream(None, |_| {});
        let piece = "y".repeat(1000);
        let mut sent = 0;
        while tx.send(delta(0, &piece)).is_ok() {
            sent += 1;
            assert!(sent < 1000, "the stream took more than its limit");
        }
        assert!(sent * 1000 <= STREAM_LIMIT_BYTES && sent > 100, "{sent}");
        // Reading makes room again.
        assert!(rx.next().await.is_some());
        assert_eq!(tx.send(delta(0, &piece)), Ok(()));
    }

    #[test]
    fn dropping_the_reader_aborts_unless_the_stream_ended() {
        let aborted = Arc::new(Mutex::new(0));
        let count = aborted.clone();
        let (tx, rx) = stream(None, move |_| *count.lock() += 1);
        drop(rx);
        assert_eq!(*aborted.lock(), 1);
        assert_eq!(tx.send(delta(0, "a")), Err(SendError::Gone));
    }

    #[tokio::test]
    async fn a_vanished_engine_is_an_error_not_a_hang() {
        let (tx, mut rx) = stream(None, |_| {});
        drop(tx);
        assert!(matches!(
            rx.next().await,
            Some(Err(RequestError::Internal(_)))
        ));
        assert!(rx.next().await.is_none());
    }
}
