//! One configuration to replay a trace against.

use ebb_block_manager::PoolConfig;
use ebb_scheduler::{Config, Mode};
use ebb_serving::kv_plan::{KvPlan, KvSource, frames_of, static_chunk};
use ebb_serving::kv_spec::KvSpec;

use super::hardware::Hardware;
use super::shape::Shape;

/// What requests must meet to count as served well.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Targets {
    /// Seconds from arrival to the first token.
    pub ttft: f64,
    /// Seconds between two tokens of an answer, on its average.
    pub tpot: f64,
}

/// A server: model, device, memory, mode and limits.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The model.
    pub shape: Shape,
    /// The device.
    pub hardware: Hardware,
    /// Bytes for the KV cache.
    pub kv_bytes: u64,
    /// Where blocks shrink to.
    pub floor: KvSpec,
    /// The scheduler's limits, its mode among them. Its static chunk is the next field's.
    pub limits: Config,
    /// Static mode: tokens of a prompt that read each other at 16 bit; none: what an engine takes
    /// for such a pool.
    pub static_chunk: Option<u32>,
    /// Whether blocks of requests that have ended stay for others to find. No two prompts begin
    /// alike, so that a request finds its own alone, after a preemption; but they take part in what
    /// becomes free when.
    pub prefix_cache: bool,
    /// `max_tokens` of a request over the tokens it generates: 1 tells the scheduler the true
    /// length.
    pub max_tokens_factor: f64,
    /// What counts as served well.
    pub targets: Targets,
}

impl Setup {
    /// The scheduler's limits for a pool.
    #[must_use]
    pub fn limits_of(&self, pool: &PoolConfig) -> Config {
        Config {
            static_chunk: self.static_chunk.unwrap_or_else(|| static_chunk(pool)),
            ..self.limits.clone()
        }
    }

    /// The pool.
    ///
    /// # Errors
    /// When the floor does not fit the model or the mode.
    pub fn pool(&self) -> Result<PoolConfig, String> {
        let source = KvSource::Floor(self.floor.clone());
        let plan = KvPlan::new(self.shape.geometry, self.limits.mode, &source);
        let plan = plan.map_err(|e| e.to_string())?;
        if plan.recent_permille > 0 {
            return Err("the simulation knows no recent context; leave out recent=profile".into());
        }
        Ok(PoolConfig {
            prefix_cache: self.prefix_cache,
            ..plan.pool(frames_of(self.shape.geometry, self.kv_bytes))
        })
    }
}

/// The mode of that name.
///
/// # Errors
/// A sentence with the names there are.
pub fn mode_named(name: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
    found.ok_or_else(|| {
        format!("{name:?} is not a mode; choose preempt-only, static or progressive")
    })
}
