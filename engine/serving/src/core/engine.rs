//! The way to the engine thread, and its end.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

use ebb_scheduler::RequestId;
use parking_lot::{Mutex, RwLock};

use super::RequestError;
use super::request::Accepted;
use super::shared::Shared;
use super::stream::StreamSender;
use super::text_queue::TextQueue;
use crate::metrics::RequestMeter;

/// What the engine thread is told. Cancellations travel beside it ([`Inner::take_cancelled`]) so
/// that a full channel cannot hold them up.
pub(super) enum Command {
    Submit(Box<Submission>),
    /// Something beside the channel changed: look.
    Wake,
}

/// An accepted request on its way to the engine thread.
pub(super) struct Submission {
    pub(super) request: Accepted,
    pub(super) meter: RequestMeter,
    pub(super) sender: StreamSender,
}

/// Threads that tokenise and render templates, at most.
const TEXT_THREADS: usize = 4;
/// How long closing waits for the engine thread to let go of its backend.
const LETTING_GO: Duration = Duration::from_secs(10);
/// The same when requests have waited for a step for [`STEPS_LATE`] already: the thread sits in its
/// backend, and nothing says that it will ever come back.
const LETTING_GO_LATE: Duration = Duration::from_millis(500);
const STEPS_LATE: Duration = Duration::from_secs(5);

/// The async side: what both see, and the way to the engine thread, which ends when the last of
/// these is gone, or one is closed.
pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    /// Where texts become tokens and tokens texts.
    pub(super) texts: TextQueue,
    /// Until this is closed.
    commands: RwLock<Option<SyncSender<Command>>>,
    /// Closed when the engine thread has dropped its backend.
    ended: Mutex<Receiver<Infallible>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Deref for Inner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Inner {
    pub(super) fn new(
        shared: Arc<Shared>,
        commands: SyncSender<Command>,
        ended: Receiver<Infallible>,
    ) -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            texts: TextQueue::new(
                threads.min(TEXT_THREADS),
                shared.served.client_memory.clone(),
            ),
            shared,
            commands: RwLock::new(Some(commands)),
            ended: Mutex::new(ended),
        }
    }

    /// Ends the engine thread and waits for it: a process that ends while another thread frees a
    /// device's memory may crash in the driver.
    pub(super) fn close(&self) {
        let is_first = self.commands.write().take().is_some();
        let is_late = self.is_hung() || self.step_age() > STEPS_LATE;
        let wait = match (is_first, is_late) {
            (true, false) => LETTING_GO,
            (true, true) => LETTING_GO_LATE,
            // It was waited for before.
            (false, _) => Duration::ZERO,
        };
        let ended = self.ended.lock().recv_timeout(wait);
        if is_first && matches!(ended, Err(RecvTimeoutError::Timeout)) {
            let seconds = wait.as_secs_f64();
            tracing::warn!("the backend did not stop within {seconds} s; exiting anyway");
        }
    }

    pub(super) fn send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        match &*self.commands.read() {
            Some(commands) => commands.try_send(command),
            None => Err(TrySendError::Disconnected(command)),
        }
    }

    pub(super) fn cancel(&self, id: RequestId, why: RequestError) {
        self.cancelled.lock().push((id, why));
        // A full channel means the thread is awake anyway.
        let _ = self.send(Command::Wake);
    }

    pub(super) fn abort(&self, name: &str) -> bool {
        let id = self.names.lock().get(name).copied();
        if let Some(id) = id {
            self.cancel(id, RequestError::Aborted);
        }
        id.is_some()
    }

    pub(super) async fn drain(&self, grace: Duration) {
        self.accepting.store(false, Ordering::Release);
        let deadline = tokio::time::Instant::now() + grace;
        loop {
            let notified = self.idle.notified();
            if self.live.load(Ordering::Acquire) == 0 || !self.alive() {
                return;
            }
            if tokio::time::timeout_at(deadline, notified).await.is_err() {
                break;
            }
        }
        let rest: Vec<RequestId> = self.names.lock().values().copied().collect();
        for id in rest {
            self.cancel(id, RequestError::ShuttingDown);
        }
        // One step at most: cancellations take effect between steps.
        let _ = tokio::time::timeout(Duration::from_secs(2), async {
            while self.live.load(Ordering::Acquire) > 0 && self.alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}
