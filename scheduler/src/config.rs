//! The scheduler's limits, checked once.

use ebb_block_manager::precision::MinBits;
use ebb_block_manager::pressure::{Admission, Mode, Policy, Watermarks};
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig, SUB_BLOCK_TOKENS};
use thiserror::Error;

use crate::recent_tokens_max;

/// The scheduler's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most tokens computed in one step.
    pub max_step_tokens: usize,
    /// Most running sequences. From its admission on, a request counts once for each choice.
    pub max_running: usize,
    /// Most queued requests. Requests with a free batch slot do not count, see
    /// [`QueueCapacity`](crate::QueueCapacity). Preempted sequences wait in the queue too, but are
    /// never rejected: it has at most `max_waiting + max_running` entries.
    pub max_waiting: usize,
    /// Most steps in flight. 1 plans a step after the one before has returned, 2 plans it while
    /// that one runs.
    pub max_in_flight: usize,
    /// Most tokens of one prompt computed in one step.
    pub prefill_chunk: usize,
    /// Most rows of logits in one step, at least `max_running`. Bounds the logits buffer when
    /// prompts ask for log-probabilities.
    pub max_logit_rows: usize,
    /// Steps of waiting that one level of priority is worth. A request of priority `p` is overtaken
    /// by one of priority `q < p` only if that one arrives less than `(p - q) * aging_steps` steps
    /// later. 0 serves in order of arrival.
    pub aging_steps: u32,
    /// Where the batch is full: how many levels of priority a running sequence must be below the
    /// head of the queue to give its slot to it. It is computed again later, and yields only once.
    /// `None`: no sequence is preempted for priority.
    pub priority_margin: Option<u32>,
    /// Tokens that every running sequence must still have room for when one is admitted. Nothing is
    /// preempted for that many steps after an admission. Not used with [`Admission::Degrade`].
    pub headroom_tokens: u32,
    /// What happens when memory is full.
    pub mode: Mode,
    /// What a request waits for before it is admitted, where blocks can shrink.
    pub admission: Admission,
    /// Where blocks can shrink, admission promises each sequence the memory of its longest length
    /// at its floor. The promises add up to at most this share of the pool, in percent. More than
    /// 100 relies on answers that end early, and preempts if they do not.
    pub overcommit_percent: u32,
    /// [`Mode::Progressive`]: shrinking begins when less than this share of the pool would be free
    /// after the demand of the coming steps, in thousandths.
    pub low_water_permille: u32,
    /// It goes on until this share would be free. At least the low one.
    pub high_water_permille: u32,
    /// [`Mode::Progressive`]: bytes that live blocks may take before they shrink though memory is
    /// free. Every step reads all of them, so fewer bytes make steps faster and less precise.
    pub live_bytes_max: u64,
    /// [`Mode::Progressive`]: bytes of the blocks that one step shrinks. A larger block shrinks
    /// alone. Bounds what shrinking adds to the time between two tokens.
    pub shrink_bytes_max: u64,
    /// [`Mode::Static`]: tokens of a prompt that read each other at 16 bit, a multiple of 128. A
    /// prompt is computed in chunks of this length, from its start. A chunk reads the blocks before
    /// it at their floor (the recent ones at 16 bit), and shrinks to its own floor when it is
    /// complete. A longer chunk reads less that has shrunk, but the 16-bit frames of one chunk
    /// cannot be promised to sequences.
    pub static_chunk: u32,
    /// [`Mode::Static`]: share of the recent context that stays at 16 bit by KVmix's rule
    /// ([`recent_tokens`](crate::recent_tokens)), in thousandths below 1000.
    pub recent_permille: u32,
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
            priority_margin: None,
            headroom_tokens: 16,
            mode: Mode::default(),
            admission: Admission::default(),
            overcommit_percent: 100,
            low_water_permille: 20,
            high_water_permille: 50,
            live_bytes_max: u64::MAX,
            shrink_bytes_max: 256 << 20,
            static_chunk: BLOCK_TOKENS as u32,
            recent_permille: 0,
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
    /// A number of tokens is not a multiple of whole blocks.
    #[error("{field} is {value}, but must be a multiple of {BLOCK_TOKENS}")]
    NotBlocks {
        /// Name of the field of [`Config`].
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A number is out of range.
    #[error("{field} is {value}, but must be at most {max}")]
    TooLarge {
        /// Name of the field of [`Config`].
        field: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        max: u64,
    },
}

/// Why a scheduler cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetupError {
    /// A limit of the scheduler is not usable.
    #[error("scheduler: {0}")]
    Scheduler(#[from] ConfigError),
    /// The pool's shape is not usable.
    #[error("KV pool: {0}")]
    Pool(#[from] ebb_block_manager::ConfigError),
}

impl Config {
    /// [`Mode::Static`]: frames of a pool that are not promised, so that there is always room for
    /// one chunk of a prompt at 16 bit. One block of the chunk is part of every promise.
    pub fn chunk_frames(&self, pool: &PoolConfig) -> u32 {
        let blocks = self.static_chunk / BLOCK_TOKENS as u32;
        match self.mode {
            Mode::Static => blocks.saturating_sub(1).saturating_mul(pool.block_frames()),
            Mode::PreemptOnly | Mode::Progressive => 0,
        }
    }

    /// [`Mode::Static`]: most sealed blocks that the recent context of a sequence with a prompt of
    /// so many tokens keeps at 16 bit.
    pub fn recent_blocks(&self, prompt: usize) -> u32 {
        let block = BLOCK_TOKENS as u32;
        match self.mode {
            Mode::Static => {
                let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
                let step = self.static_chunk.min(prompt).max(block);
                recent_tokens_max(self.recent_permille, step) / block
            }
            Mode::PreemptOnly | Mode::Progressive => 0,
        }
    }

    /// Frames that one choice takes at its longest, `tokens` tokens, where so many recent blocks
    /// stay at 16 bit.
    pub fn frames_at_longest(&self, pool: &PoolConfig, tokens: u64, recent_blocks: u32) -> u64 {
        let policy = self.policy(pool, pool.frames);
        policy.frames_at_longest(pool, tokens, MinBits::ANY, recent_blocks)
    }

    /// The pressure policy for a pool that gives `capacity` frames to sequences.
    pub(crate) fn policy(&self, pool: &PoolConfig, capacity: u32) -> Policy {
        let headroom = self.headroom_tokens.div_ceil(SUB_BLOCK_TOKENS as u32);
        let live_max = self.live_bytes_max / pool.frame_bytes;
        let permille = (self.low_water_permille, self.high_water_permille);
        let chunk = self.prefill_chunk.min(self.max_step_tokens);
        let tokens_ahead = chunk.saturating_mul(self.max_in_flight);
        Policy {
            mode: self.mode,
            admission: self.admission,
            capacity,
            chunk_frames: self.chunk_frames(pool),
            tokens_ahead: u32::try_from(tokens_ahead).unwrap_or(u32::MAX),
            headroom_frames: u64::from(headroom) * u64::from(pool.frames_per_sub_block),
            overcommit_percent: self.overcommit_percent,
            watermarks: Watermarks::new(capacity, pool.shrink_reserve(), permille),
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
        // Every running sequence can then decode in every step.
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
            ("recent_permille", u64::from(self.recent_permille), 999),
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
