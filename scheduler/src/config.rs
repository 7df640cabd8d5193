//! Limits of the scheduler, checked once.

use ebb_block_manager::pressure::{Admission, Mode, Policy, Watermarks};
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig, SUB_BLOCK_TOKENS};
use thiserror::Error;

/// Limits and policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rows (tokens computed) of one step at most.
    pub max_step_tokens: usize,
    /// Sequences with memory at once. A request counts once per choice from its admission on.
    pub max_running: usize,
    /// Bound of the waiting queue for arrivals, beyond those that free places await (see
    /// [`Room`](crate::Room)). Preempted sequences wait in it too and are never turned away. It
    /// holds at most `max_waiting + max_running` entries.
    pub max_waiting: usize,
    /// Steps that may be planned before the first of them is done: 1 plans a step after the one
    /// before has finished, 2 plans it while that one runs.
    pub max_in_flight: usize,
    /// Tokens of one prompt computed in one step at most.
    pub prefill_chunk: usize,
    /// Rows of logits of one step at most: what bounds the logits buffer when prompts ask for
    /// log probabilities. At least `max_running`.
    pub max_logit_rows: usize,
    /// Steps of waiting that one level of priority is worth. A request of priority `p` is overtaken
    /// by one of priority `q < p` only if that arrives less than `(p - q) * aging_steps` steps
    /// later. 0 serves in order of arrival.
    pub aging_steps: u32,
    /// Tokens that every running sequence, the new one included, must still have room for when a
    /// sequence is admitted: nothing is preempted for that many steps after an admission.
    /// Not used with [`Admission::Degrade`].
    pub headroom_tokens: u32,
    /// What gives way when memory is full.
    pub mode: Mode,
    /// When requests are let in, if blocks can shrink.
    pub admission: Admission,
    /// Where blocks can shrink, each running sequence is promised its longest length at the width
    /// of its floor; the promises make up at most this share of the pool, in percent. Up to 100
    /// nothing is ever preempted; more bets on answers that end early.
    pub overcommit_percent: u32,
    /// [`Mode::Progressive`]: shrinking begins when less than this share of the pool would be free
    /// after the coming steps' demand, in thousandths ...
    pub low_water_permille: u32,
    /// ... and goes on until this share would be. At least the low one.
    pub high_water_permille: u32,
    /// [`Mode::Progressive`]: bytes that running sequences' blocks may fill before they shrink
    /// though there is room. Every step reads all of them: fewer make faster steps of less
    /// precision.
    pub live_bytes_max: u64,
    /// Bytes of the blocks that one step transcodes in [`Mode::Progressive`]; a block that is
    /// larger goes alone. Bounds what shrinking adds to the time between two tokens.
    pub shrink_bytes_max: u64,
    /// [`Mode::Static`]: tokens of a prompt that read each other at 16 bit, a multiple of 128. A
    /// prompt is computed in chunks of so many from its begin on; a chunk reads those before it at
    /// their place, and goes to its own when it is complete. A longer one reads less that has
    /// shrunk, and keeps memory for itself: nothing that is promised may lie in the 16-bit frames
    /// of one chunk.
    pub static_chunk: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_step_tokens: 2048,
            max_running: 256,
            max_waiting: 2048,
            max_in_flight: 1,
            prefill_chunk: 512,
            max_logit_rows: 256,
            aging_steps: 256,
            headroom_tokens: 16,
            mode: Mode::default(),
            admission: Admission::default(),
            overcommit_percent: 100,
            low_water_permille: 20,
            high_water_permille: 50,
            live_bytes_max: u64::MAX,
            shrink_bytes_max: 256 << 20,
            static_chunk: BLOCK_TOKENS as u32,
        }
    }
}

/// Why a [`Config`] is not usable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A limit that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// Name of the field of [`Config`].
        field: &'static str,
    },
    /// Two limits contradict each other.
    #[error("{field} is {value}, but must be at least max_running ({max_running})")]
    BelowRunning {
        /// Name of the field of [`Config`].
        field: &'static str,
        /// Its value.
        value: usize,
        /// [`Config::max_running`].
        max_running: usize,
    },
    /// A number of tokens is not one of whole blocks.
    #[error("{field} is {value}, but must be a multiple of {BLOCK_TOKENS}")]
    NotBlocks {
        /// Name of the field of [`Config`].
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A number is out of range.
    #[error("{field} is {value}, more than the {max} that is possible")]
    TooLarge {
        /// Name of the field of [`Config`].
        field: &'static str,
        /// Its value.
        value: u64,
        /// What is possible.
        max: u64,
    },
}

/// Why a scheduler cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetupError {
    /// The scheduler's own limits.
    #[error("scheduler: {0}")]
    Scheduler(#[from] ConfigError),
    /// The pool's shape.
    #[error("KV pool: {0}")]
    Pool(#[from] ebb_block_manager::ConfigError),
}

impl Config {
    /// [`Mode::Static`]: frames of a pool that are promised to nobody, so that there is always room
    /// for the chunk of a prompt at 16 bit; one block of it is in every promise.
    pub fn chunk_frames(&self, pool: &PoolConfig) -> u32 {
        let blocks = self.static_chunk / BLOCK_TOKENS as u32;
        match self.mode {
            Mode::Static => blocks.saturating_sub(1).saturating_mul(pool.block_frames()),
            Mode::PreemptOnly | Mode::Progressive => 0,
        }
    }

    /// The pressure policy for a pool that gives `capacity` frames to sequences.
    pub(crate) fn policy(&self, pool: &PoolConfig, capacity: u32) -> Policy {
        let headroom = self.headroom_tokens.div_ceil(SUB_BLOCK_TOKENS as u32);
        let live_max = self.live_bytes_max / pool.frame_bytes;
        let permille = (self.low_water_permille, self.high_water_permille);
        Policy {
            mode: self.mode,
            admission: self.admission,
            capacity,
            chunk_frames: self.chunk_frames(pool),
            headroom_frames: u64::from(headroom) * u64::from(pool.frames_per_sub_block),
            overcommit_percent: self.overcommit_percent,
            watermarks: Watermarks::new(capacity, pool.held_back(), permille),
            live_max: u32::try_from(live_max).unwrap_or(u32::MAX),
            shrink_bytes_max: self.shrink_bytes_max,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("max_step_tokens", self.max_step_tokens),
            ("max_running", self.max_running),
            ("max_waiting", self.max_waiting),
            ("max_in_flight", self.max_in_flight),
            ("prefill_chunk", self.prefill_chunk),
            ("overcommit_percent", self.overcommit_percent as usize),
            ("static_chunk", self.static_chunk as usize),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        if !(self.static_chunk as usize).is_multiple_of(BLOCK_TOKENS) {
            return Err(ConfigError::NotBlocks {
                field: "static_chunk",
                value: self.static_chunk,
            });
        }
        // Every running sequence can then decode in every step, and whatever is left of the running
        // ones gets at least one row.
        for (field, value) in [
            ("max_step_tokens", self.max_step_tokens),
            ("max_logit_rows", self.max_logit_rows),
        ] {
            if value < self.max_running {
                let max_running = self.max_running;
                return Err(ConfigError::BelowRunning {
                    field,
                    value,
                    max_running,
                });
            }
        }
        for (field, value, max) in [
            ("max_step_tokens", self.max_step_tokens as u64, 1 << 24),
            ("max_running", self.max_running as u64, 1 << 20),
            ("max_waiting", self.max_waiting as u64, 1 << 24),
            ("aging_steps", u64::from(self.aging_steps), 1 << 24),
            ("static_chunk", u64::from(self.static_chunk), 1 << 20),
            ("headroom_tokens", u64::from(self.headroom_tokens), 1 << 20),
            (
                "overcommit_percent",
                u64::from(self.overcommit_percent),
                10_000,
            ),
            (
                "low_water_permille",
                u64::from(self.low_water_permille),
                u64::from(self.high_water_permille),
            ),
            (
                "high_water_permille",
                u64::from(self.high_water_permille),
                1000,
            ),
        ] {
            if value > max {
                return Err(ConfigError::TooLarge { field, value, max });
            }
        }
        Ok(())
    }
}
