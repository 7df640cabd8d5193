//! Clients: one session, or one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{Semaphore, watch};

use super::Run;
use super::request::Request;
use crate::protocol::Protocol;
use crate::workload::Session;

/// What the clients of a stage share.
pub(super) struct Clients<P> {
    pub(super) run: Arc<Run<P>>,
    pub(super) stage: usize,
    /// One for each request that the server may have.
    pub(super) permits: Semaphore,
    /// No session begins later.
    pub(super) end: Instant,
    pub(super) stopped: watch::Receiver<bool>,
    /// The next session's number, where clients take them in turn.
    pub(super) next: AtomicU64,
    pub(super) unfit: AtomicU64,
}

impl<P: Protocol> Clients<P> {
    /// A client of a closed loop: takes sessions in turn until the stage ends.
    pub(super) async fn one_after_the_other(self: Arc<Self>, begin: Instant) {
        let mut at = begin;
        while at < self.end && !*self.stopped.borrow() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.run.limits.sessions as u64 {
                return;
            }
            match self.plan(number) {
                Some(session) => at = self.converse(session, at).await,
                // Lets others run: there may be many that do not fit.
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// A client of an open loop.
    pub(super) async fn one(self: Arc<Self>, number: u64, at: Instant) {
        if let Some(session) = self.plan(number) {
            self.converse(session, at).await;
        }
    }

    fn plan(&self, number: u64) -> Option<Session> {
        let session = self.run.workload.session(self.stage, number);
        if session.is_none() {
            self.unfit.fetch_add(1, Ordering::Relaxed);
        }
        session
    }

    /// All turns of a session, the first of which is to be sent at `at`; tells when its client has
    /// thought about the last answer.
    async fn converse(&self, session: Session, mut at: Instant) -> Instant {
        let workload = &self.run.workload;
        let mut source = workload.added(&session);
        let mut text = workload.prefix(&session);
        let turns = session.turns.len();
        let mut stopped = self.stopped.clone();
        for (number, turn) in session.turns.iter().enumerate() {
            tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                _ = stopped.wait_for(|yes| *yes) => break,
            }
            text.extend(source.take(turn.added));
            let more = number + 1 < turns;
            let request = Request {
                stage: self.stage,
                session: &session,
                turn: number,
                prompt: if more {
                    text.clone()
                } else {
                    std::mem::take(&mut text)
                },
                intended: at,
            };
            let (record, answer) = self.run.perform(request, &self.permits, &mut stopped).await;
            let ok = record.ok();
            self.run.log.add(record);
            at = Instant::now() + workload.think();
            if !ok {
                break;
            }
            text.extend(answer);
        }
        at
    }
}
