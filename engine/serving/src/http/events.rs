//! Answers as server-sent events.
//!
//! A task per call takes events from the engine's streams, which are bounded in bytes, and passes
//! them on through a channel of one. When the client goes away the channel closes, the task ends
//! and drops the engine's streams, and that aborts the requests. A panic in the task ends this call
//! alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::sync::mpsc;

use super::Problem;
use super::answers::{Answers, json_bytes};
use crate::client_memory::ClientMemoryFull;
use crate::core::{RequestError, StreamEvent};
use crate::front_end::CallMemory;

/// A client that takes nothing for this long while something waits for it is given up.
const STALL_LIMIT: Duration = Duration::from_secs(120);
/// After so long without an event, one without meaning keeps proxies from closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Tells nginx to pass events on as they come.
const NO_BUFFERING: (HeaderName, HeaderValue) = (
    HeaderName::from_static("x-accel-buffering"),
    HeaderValue::from_static("no"),
);

/// How a front end writes an answer's events.
pub(crate) trait Writer: Send + 'static {
    /// Writes what follows from an event of the request of that index.
    fn write(&mut self, prompt: usize, event: StreamEvent, out: &mut Vec<Event>);

    /// Writes the end of a complete answer.
    fn finish(&mut self, out: &mut Vec<Event>);

    /// Writes that there will be no complete answer.
    fn fail(&mut self, problem: &Problem, out: &mut Vec<Event>);

    /// Bytes that [`Self::write`] takes for this event, at most, until its events are sent.
    fn bytes(&self, _prompt: usize, event: &StreamEvent) -> usize {
        json_bytes(event)
    }

    /// Whether the writer keeps what it is told, for the end.
    fn retains(&self) -> bool {
        false
    }

    /// What is sent when nothing else is, if not a comment.
    fn idle(&self) -> Option<Event> {
        None
    }
}

/// An event with this JSON as its data.
pub(crate) fn json(value: &impl Serialize) -> Event {
    Event::default().data(text(value))
}

/// The same with a name.
pub(crate) fn named(name: &str, value: &impl Serialize) -> Event {
    Event::default().event(name).data(text(value))
}

fn text(value: &impl Serialize) -> String {
    // These are structs of strings, numbers and lists: nothing of that fails.
    serde_json::to_string(value).unwrap_or_default()
}

/// The response that streams `answers` as `writer` writes them. `memory` counts what is written
/// and not sent.
pub(crate) fn respond(
    answers: Answers,
    mut writer: impl Writer,
    memory: Option<CallMemory>,
) -> Response {
    let (tx, rx) = mpsc::channel(1);
    let ended = Arc::new(AtomicBool::new(false));
    let mut bug = Vec::new();
    writer.fail(&Problem::bug(), &mut bug);
    let idle = writer.idle();
    let has_ended = ended.clone();
    tokio::spawn(async move {
        pass_on(answers, &mut writer, memory.as_ref(), &tx).await;
        // Set before `tx` is dropped: whoever sees the channel closed sees why.
        has_ended.store(true, Ordering::Release);
        // Whoever sees the end may call again at once: the call counts no more by then.
        drop(memory);
        drop(tx);
    });
    bug.reverse();
    let events = unfold((rx, ended, bug), |(mut rx, ended, mut bug)| async move {
        let event = match rx.recv().await {
            Some(event) => event,
            None if ended.load(Ordering::Acquire) => return None,
            None => bug.pop()?,
        };
        Some((Ok::<_, Infallible>(event), (rx, ended, bug)))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let keep_alive = match idle {
        Some(event) => keep_alive.event(event),
        None => keep_alive,
    };
    ([NO_BUFFERING], Sse::new(events).keep_alive(keep_alive)).into_response()
}

/// Takes so many bytes.
fn hold(memory: Option<&CallMemory>, bytes: usize) -> Result<(), ClientMemoryFull> {
    match memory {
        Some(memory) => memory.grow_for_answer(bytes),
        None => Ok(()),
    }
}

/// Writes until the answers end, or nobody takes what is written.
async fn pass_on(
    mut answers: Answers,
    writer: &mut impl Writer,
    memory: Option<&CallMemory>,
    tx: &mpsc::Sender<Event>,
) {
    let mut out = Vec::new();
    loop {
        let mut held = 0;
        let next = tokio::select! {
            next = answers.next() => next,
            () = tx.closed() => return,
        };
        let more = match next {
            Some((prompt, Ok(event))) => {
                held = writer.bytes(prompt, &event);
                match hold(memory, held) {
                    Ok(()) => {
                        writer.write(prompt, event, &mut out);
                        true
                    }
                    Err(full) => {
                        let full = RequestError::ClientMemory(full);
                        writer.fail(&Problem::of(&full, |_| None), &mut out);
                        false
                    }
                }
            }
            Some((_, Err(error))) => {
                writer.fail(&Problem::of(&error, |_| None), &mut out);
                false
            }
            None => {
                writer.finish(&mut out);
                false
            }
        };
        for event in out.drain(..) {
            let sent = tokio::time::timeout(STALL_LIMIT, tx.send(event)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        if let Some(memory) = memory.filter(|_| !writer.retains()) {
            memory.shrink(held);
        }
        if !more {
            return;
        }
    }
}
