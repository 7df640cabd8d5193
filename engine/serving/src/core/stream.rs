//! The channel from the engine thread to one reader: bounded in bytes, merging what the reader has
//! not fetched yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::answer::EVENT_BYTES;
use super::{RequestError, StreamEvent};
use crate::client_memory::{ClientMemory, ClientMemoryFull, Held};

/// Bytes of events that one stream may hold for a reader that does not fetch them. With the
/// server's own buffers behind it (encoding, HTTP/2 and socket: at most 112 KiB) a slow reader
/// holds at most 256 KiB. Log-probabilities of a prompt come as one event, whatever their size, and
/// count against the clients' memory alone.
pub const STREAM_LIMIT_BYTES: usize = 144 * 1024;

/// A waiting delta of this size takes no more. An event leaves the account whole when it is
/// fetched, so it must stay small beside the limit.
const MERGED_BYTES: usize = 8 * 1024;

/// Of these, bytes that every stream may hold even when clients have used up their memory.
const PROMISED_BYTES: usize = 16 * 1024;

struct State {
    events: VecDeque<StreamEvent>,
    bytes: usize,
    /// The same, on the clients' account.
    held: Held,
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
    /// Of the prompt, once it is known.
    prompt_tokens: usize,
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

/// A connected pair that counts what waits in it. `give_up` runs when the reader goes away before
/// the end of the stream, or when the engine has not ended it at `deadline`.
pub(crate) fn stream(
    memory: &ClientMemory,
    deadline: Option<Instant>,
    give_up: impl FnOnce(RequestError) + Send + 'static,
) -> (StreamSender, GenerateStream) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            events: VecDeque::new(),
            bytes: 0,
            held: memory.hold_nothing(),
            error: None,
            closed: false,
            dropped: false,
        }),
        readable: Notify::new(),
    });
    (
        StreamSender(shared.clone()),
        GenerateStream {
            shared,
            deadline,
            prompt_tokens: 0,
            give_up: Some(Box::new(give_up)),
        },
    )
}

impl StreamSender {
    /// Counts `bytes` of the request itself, until its reader is gone.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), ClientMemoryFull> {
        self.0.state.lock().held.grow(bytes)
    }

    /// Appends an event; a delta merges into the last waiting one of the same choice.
    pub(crate) fn send(&self, event: StreamEvent) -> Result<(), SendError> {
        self.send_held(event, 0)
    }

    /// The same of an event for which `held` bytes are [held](Self::hold) already.
    pub(crate) fn send_held(&self, event: StreamEvent, held: usize) -> Result<(), SendError> {
        let mut state = self.0.state.lock();
        if state.dropped {
            return Err(SendError::Gone);
        }
        let weight = event.weight();
        if state.bytes + weight > STREAM_LIMIT_BYTES && !state.events.is_empty() {
            return Err(SendError::Full);
        }
        let more = weight.saturating_sub(held);
        if state.bytes + more <= PROMISED_BYTES {
            state.held.grow_anyway(more);
        } else if state.held.grow(more).is_err() {
            return Err(SendError::Full);
        }
        state.bytes += weight;
        match merge(state.events.back_mut(), event) {
            // Merged: the waiting event grew by what the new one held, less its fixed part.
            None => {
                state.bytes -= EVENT_BYTES;
                state.held.shrink(EVENT_BYTES);
            }
            Some(event) => state.events.push_back(event),
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
    let waiting = last.as_ref().map_or(0, |last| last.weight());
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
        ) if *choice == c && waiting < MERGED_BYTES => {
            text.push_str(&t);
            token_ids.extend(ids);
            logprobs.extend(l);
            None
        }
        (_, event) => Some(event),
    }
}

impl GenerateStream {
    /// The same of a prompt of so many tokens.
    pub(crate) fn of_prompt(mut self, tokens: usize) -> Self {
        self.prompt_tokens = tokens;
        self
    }

    /// Tokens of the accepted prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The next event, an error that ended the request, or `None` at the end.
    pub async fn next(&mut self) -> Option<Result<StreamEvent, RequestError>> {
        loop {
            {
                let mut state = self.shared.state.lock();
                if let Some(event) = state.events.pop_front() {
                    let weight = event.weight().min(state.bytes);
                    state.bytes -= weight;
                    state.held.shrink(weight);
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
        let mut state = self.shared.state.lock();
        state.dropped = true;
        state.events.clear();
        state.held.clear();
        drop(state);
        if let Some(give_up) = self.give_up.take() {
            give_up(RequestError::Aborted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TokenLogprobs;
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
        let (tx, mut rx) = stream(&ClientMemory::unlimited(), None, |_| {});
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
        let (tx, mut rx) = stream(&ClientMemory::unlimited(), None, |_| {});
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

    #[tokio::test]
    async fn log_probabilities_count_as_what_they_take() {
        let top: Vec<_> = (0..20).map(|id| (id, -1.0)).collect();
        let one = TokenLogprobs {
            token: 1,
            logprob: -1.0,
            top: top.clone(),
        };
        let event = || StreamEvent::Delta {
            choice: 0,
            text: "a".into(),
            token_ids: vec![7],
            logprobs: vec![one.clone()],
        };
        let real = size_of::<TokenLogprobs>() + size_of_val(&top[..]);
        let (tx, mut rx) = stream(&ClientMemory::unlimited(), None, |_| {});
        let sent = std::iter::from_fn(|| tx.send(event()).ok()).count();
        assert!(sent * real <= STREAM_LIMIT_BYTES && sent > 100, "{sent}");
        // And no message made of them is large.
        drop(tx);
        while let Some(Ok(event)) = rx.next().await {
            assert!(event.weight() < 2 * MERGED_BYTES, "{}", event.weight());
        }
    }

    #[tokio::test]
    async fn streams_share_the_clients_memory_beyond_a_promised_part() {
        let memory = ClientMemory::new(64 * 1024);
        let piece = "y".repeat(1000);
        let fill = |tx: &StreamSender| {
            let pieces = std::iter::from_fn(|| tx.send(delta(0, &piece)).ok());
            1000 * pieces.count()
        };
        let (first, mut reader) = stream(&memory, None, |_| {});
        let (second, other) = stream(&memory, None, |_| {});
        assert!((50_000..66_000).contains(&fill(&first)));
        assert!((10_000..17_000).contains(&fill(&second)));
        assert!(memory.hold(1).is_err());
        drop(other);
        assert_eq!(second.send(delta(0, "a")), Err(SendError::Gone));
        drop(first);
        while reader.next().await.is_some() {}
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn dropping_the_reader_aborts_unless_the_stream_ended() {
        let aborted = Arc::new(Mutex::new(0));
        let count = aborted.clone();
        let (tx, rx) = stream(&ClientMemory::unlimited(), None, move |_| {
            *count.lock() += 1
        });
        drop(rx);
        assert_eq!(*aborted.lock(), 1);
        assert_eq!(tx.send(delta(0, "a")), Err(SendError::Gone));
    }

    #[tokio::test]
    async fn a_vanished_engine_is_an_error_not_a_hang() {
        let (tx, mut rx) = stream(&ClientMemory::unlimited(), None, |_| {});
        drop(tx);
        assert!(matches!(
            rx.next().await,
            Some(Err(RequestError::Internal(_)))
        ));
        assert!(rx.next().await.is_none());
    }
}
