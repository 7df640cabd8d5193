//! One request, from the time at which it is to be sent to its end.

use std::time::Instant;

use tokio::sync::{Semaphore, watch};

use super::Run;
use crate::protocol::{Answer as _, Ask, Event, Failure, Finished, Pace, Protocol};
use crate::record::{CANCELLED, Class, INCOMPLETE, OK, Record, UNFINISHED};
use crate::workload::Session;

/// What is to be sent.
pub(super) struct Request<'a> {
    pub(super) stage: usize,
    pub(super) session: &'a Session,
    /// Of the session.
    pub(super) turn: usize,
    pub(super) prompt: Vec<u32>,
    pub(super) intended: Instant,
}

/// How a request ended, and what was said about it.
type End = (String, Option<String>);

impl<P: Protocol> Run<P> {
    /// Sends a request and reads its answer; gives up when `stopped` turns true. Returns the
    /// answer's tokens as well.
    pub(super) async fn perform(
        &self,
        request: Request<'_>,
        permits: &Semaphore,
        stopped: &mut watch::Receiver<bool>,
    ) -> (Record, Vec<u32>) {
        let turn = request.session.turns[request.turn];
        let mut record = Record {
            stage: request.stage,
            session: request.session.id,
            turn: request.turn as u32,
            class: request.session.class,
            outcome: String::new(),
            message: None,
            intended_us: self.since(request.intended),
            sent_us: 0,
            end_us: 0,
            prompt_tokens: request.prompt.len() as u32,
            cached_tokens: 0,
            max_tokens: turn.answer,
            arrivals_us: Vec::new(),
            lowest_kv_bits: None,
            mean_kv_bits: None,
        };
        let mut answer = Vec::new();
        let sent = async {
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            record.sent_us = self.since(Instant::now());
            self.live.sent();
            let end = self.read(request, &mut record, &mut answer).await;
            self.live.ended(&record, end.0 == OK || end.0 == CANCELLED);
            end
        };
        let end = tokio::select! {
            end = sent => Some(end),
            _ = stopped.wait_for(|yes| *yes) => None,
        };
        record.end_us = self.since(Instant::now());
        (record.outcome, record.message) = end.unwrap_or_else(|| {
            if record.sent_us > 0 {
                self.live.ended(&record, false);
            } else {
                record.sent_us = record.end_us;
            }
            (UNFINISHED.into(), None)
        });
        (record, answer)
    }

    async fn read(&self, request: Request<'_>, record: &mut Record, answer: &mut Vec<u32>) -> End {
        let args = self.workload.args();
        let turn = request.session.turns[request.turn];
        let slow = record.class == Class::Slow;
        let ask = Ask {
            prompt: request.prompt,
            max_tokens: turn.answer,
            temperature: args.temperature,
            seed: request.session.id,
            min_kv_bits: args.min_kv_bits,
            timeout: args.timeout(),
        };
        let pace = if slow { Pace::Slow } else { Pace::Eager };
        let mut stream = match self.protocol.generate(ask, pace).await {
            Ok(stream) => stream,
            Err(failure) => return failed(failure),
        };
        let cancel_after = turn.cancel_after.map(|tokens| tokens as usize);
        let mut finished = None;
        while cancel_after.is_none_or(|tokens| answer.len() < tokens) {
            match stream.next().await {
                None => return complete(finished, answer.len(), record),
                Some(Err(failure)) => return failed(failure),
                Some(Ok(Event::Started { cached_tokens })) => record.cached_tokens = cached_tokens,
                Some(Ok(Event::Tokens(tokens))) if tokens.is_empty() => {}
                Some(Ok(Event::Tokens(tokens))) => {
                    let at = self.since(Instant::now());
                    record.arrivals_us.push((at, tokens.len() as u32));
                    self.live.received(tokens.len());
                    answer.extend(tokens);
                }
                Some(Ok(Event::Finished(end))) => finished = Some(end),
            }
            if slow {
                tokio::time::sleep(args.slow_pause()).await;
            }
        }
        (CANCELLED.into(), None)
    }
}

fn failed(failure: Failure) -> End {
    (failure.code, Some(failure.message))
}

/// The end of a stream without an error: whether everything came.
fn complete(finished: Option<Finished>, received: usize, record: &mut Record) -> End {
    let Some(end) = finished else {
        return (
            INCOMPLETE.into(),
            Some("the stream ended before the answer did".into()),
        );
    };
    record.lowest_kv_bits = end.lowest_kv_bits;
    record.mean_kv_bits = end.mean_kv_bits;
    let asked = record.max_tokens;
    if end.completion_tokens as usize != received || asked as usize != received {
        let why = format!(
            "{received} tokens came of {} that the server counted and {asked} that were asked for",
            end.completion_tokens
        );
        return (INCOMPLETE.into(), Some(why));
    }
    (OK.into(), None)
}
