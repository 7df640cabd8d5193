//! One Generate call's answer on its way from the engine to HTTP/2.
//!
//! A task per call takes events from the engine's stream, which is bounded in bytes, and passes
//! messages on through a channel of one. Whatever the client does, a call therefore holds the
//! engine's bound plus a few messages. When the client goes away the channel closes, the task ends
//! and drops the engine's stream, and that aborts the request. A panic in the task ends this call
//! alone.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use ebb_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tonic::Status;

use super::call::Call;
use super::convert;
use super::status::status;
use crate::core::{GenerateStream, RequestError, STREAM_LIMIT_BYTES};
use crate::front_end::CallMemory;

/// A client that takes nothing for this long while something waits for it is given up.
const STALL_LIMIT: Duration = Duration::from_secs(120);

/// The stream that tonic sends.
pub(super) struct Responses {
    messages: mpsc::Receiver<v1::GenerateResponse>,
    /// How the call ended; set before `messages` closes, unless the task panicked.
    end: Arc<OnceLock<Result<(), Status>>>,
    done: bool,
    /// Gone when HTTP/2 has taken the last message, or given up: how a shutdown knows whom to wait
    /// for.
    _open: watch::Receiver<()>,
}

/// Starts passing on `events`, whose tokens are charged to `account`. `call` is closed when the
/// stream ends; `open` lives as long as the result.
pub(super) fn respond(
    request_id: String,
    events: GenerateStream,
    account: Option<CallMemory>,
    mut call: Call,
    open: watch::Receiver<()>,
) -> Responses {
    let (tx, messages) = mpsc::channel(1);
    let end = Arc::new(OnceLock::new());
    let ended = end.clone();
    tokio::spawn(async move {
        let result = pass_on(request_id, events, account.as_ref(), &tx).await;
        call.close(result.as_ref());
        // Whoever sees the end may call again at once: the call counts no more by then.
        drop(account);
        // Set before `tx` is dropped, so that whoever sees the channel closed sees the reason.
        let _ = ended.set(result);
        drop(tx);
    });
    Responses {
        messages,
        end,
        done: false,
        _open: open,
    }
}

async fn pass_on(
    request_id: String,
    mut events: GenerateStream,
    account: Option<&CallMemory>,
    tx: &mpsc::Sender<v1::GenerateResponse>,
) -> Result<(), Status> {
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = tx.closed() => return Err(status(&RequestError::Aborted)),
        };
        let Some(event) = event else { return Ok(()) };
        let event = event.map_err(|error| status(&error))?;
        // The event, and the messages made of it, until they are sent.
        let held = 2 * event.weight();
        if let Some(account) = account {
            account.charge(&event);
            let full = |full| status(&RequestError::ClientMemory(full));
            account.grow_for_answer(held).map_err(full)?;
        }
        for message in convert::responses(event, &request_id) {
            match tokio::time::timeout(STALL_LIMIT, tx.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(status(&RequestError::Aborted)),
                Err(_) => {
                    return Err(status(&RequestError::SlowReader {
                        limit_bytes: STREAM_LIMIT_BYTES,
                    }));
                }
            }
        }
        if let Some(account) = account {
            account.shrink(held);
        }
    }
}

impl Stream for Responses {
    type Item = Result<v1::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let message = std::task::ready!(self.messages.poll_recv(cx));
        if let Some(message) = message {
            return Poll::Ready(Some(Ok(message)));
        }
        self.done = true;
        let end = self.end.get().cloned();
        let end = end.unwrap_or_else(|| {
            Err(Status::internal(
                "a bug in the server ended this call; see its log",
            ))
        });
        Poll::Ready(end.err().map(Err))
    }
}
