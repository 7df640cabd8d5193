//! `GET /kv_pool`: the engine and its pool for people to look at, as one JSON object.
//!
//! The engine thread makes it between two steps, only when somebody asks, and at most ten times a
//! second. [`crate::kv_pool`] bounds it: some 60 KB at most, whatever the pool's size.

use std::time::Instant;

use axum::extract;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse as _, Response};
use ebb_kernels::formats::FormatId;
use serde::Serialize;

use crate::core::PoolLook;
use crate::front_end::Engine;
use crate::http::{Api, Problem, object};
use crate::kv_pool::KvPool;
use crate::kv_state::FormatUse;
use crate::openai;

/// What the route looks at.
pub(super) struct State<E> {
    api: Api<E>,
    started: Instant,
}

impl<E> Clone for State<E> {
    fn clone(&self) -> Self {
        Self {
            api: self.api.clone(),
            started: self.started,
        }
    }
}

impl<E: Engine> State<E> {
    pub(super) fn new(api: &Api<E>) -> Self {
        Self {
            api: api.clone(),
            started: Instant::now(),
        }
    }
}

/// The answer. Bytes and counts are those of the moment `seconds`.
#[derive(Serialize)]
struct Answer<'a> {
    model: &'a str,
    max_context: usize,
    /// Whether new requests are taken.
    accepting: bool,
    /// Time since the last step while requests wait for one.
    step_age_seconds: f64,
    /// Since the server began.
    seconds: f64,
    mode: &'static str,
    running: usize,
    waiting: usize,
    preemptions: u64,
    /// Blocks shrunk while a sequence held them.
    shrinks: u64,
    /// Mean bits of everything stored, and of what has shrunk as far as it may.
    stored_bits: f64,
    floor_bits: f64,
    bytes_total: u64,
    /// Held by sequences, and by the prefix cache alone.
    bytes_live: u64,
    bytes_cached: u64,
    /// Promised to the running sequences: each at its longest, at its floor.
    bytes_promised: u64,
    /// Free bytes below which blocks begin to shrink, and at which they stop.
    watermarks_bytes: (u64, u64),
    /// At 16 bit.
    bytes_per_token: u64,
    formats: Vec<Format>,
    #[serde(flatten)]
    pool: &'a KvPool,
}

#[derive(Serialize)]
struct Format {
    format: &'static str,
    /// Of a code, without metadata.
    bits: f32,
    bytes: u64,
    cached_bytes: u64,
}

impl Format {
    fn new(used: &FormatUse) -> Option<Self> {
        let id = FormatId::ALL.iter().find(|id| id.name() == used.format)?;
        Some(Self {
            format: used.format,
            bits: id.nominal_bits(),
            bytes: used.bytes,
            cached_bytes: used.cached_bytes,
        })
    }
}

/// Answers a call.
pub(super) async fn look<E: Engine>(extract::State(state): extract::State<State<E>>) -> Response {
    let answered = answer(&state).await;
    let response = answered.unwrap_or_else(|problem| openai::shape(&problem));
    ([(CACHE_CONTROL, "no-store")], response).into_response()
}

async fn answer<E: Engine>(state: &State<E>) -> Result<Response, Problem> {
    let engine = state.api.engine()?;
    let look = engine.kv_pool().await;
    // A step that hangs keeps the look from being renewed; this tells.
    let now = engine.state();
    let PoolLook { at, state: s, pool } = &*look;
    Ok(object(&Answer {
        model: &engine.model().name,
        max_context: engine.model().max_context,
        accepting: now.accepting,
        step_age_seconds: now.step_age.as_secs_f64(),
        seconds: at.saturating_duration_since(state.started).as_secs_f64(),
        mode: s.kv.mode,
        running: s.running,
        waiting: s.waiting,
        preemptions: s.preemptions,
        shrinks: s.kv.shrinks_live,
        stored_bits: s.kv.stored_bits,
        floor_bits: s.kv.floor_bits,
        bytes_total: s.kv_bytes_total,
        bytes_live: s.kv_bytes_live,
        bytes_cached: s.kv_bytes_cached,
        bytes_promised: s.kv.promised_bytes,
        watermarks_bytes: s.kv.watermarks_bytes,
        bytes_per_token: engine.model().kv_bytes_per_token,
        formats: s.kv.formats.iter().filter_map(Format::new).collect(),
        pool,
    }))
}
