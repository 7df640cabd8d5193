//! The paged KV cache pool of Ebb: frames, blocks, block tables and the prefix cache.
//!
//! # What it owns
//! - **Frames**: equal pieces of the KV arena, named by number. Each has one owner at a time.
//! - **Blocks**: 128 consecutive tokens of one sequence, all layers, K and V. A block owns a list
//!   of frames, which need not be neighbours, so the arena cannot fragment. It is *open* until all
//!   its tokens are in the KV cache, then *sealed*. An open block grows by sub-blocks of 16 tokens.
//! - **Block tables**: which blocks hold a sequence's tokens. Sequences with a common prefix share
//!   blocks; the first that writes to a shared open block copies it.
//! - **The prefix cache**: sealed blocks, found by their tokens and everything before them. A block
//!   is *live* while a sequence holds it, then *cached* until it is evicted.
//! - **Precision levels**: which format each page of a block has. Level 0 is 16 bit. A sealed block
//!   *shrinks* to a lower level, in new frames. Its *floor* is the lowest level that its holders
//!   allow. [`precision`] has the levels and the order in which pages shrink.
//! - **Windows**: no step reads the pages of layers with a sliding window once a block lies behind
//!   it. [`WindowConfig`] says which frames these are; they are reused when memory is short.
//! - **States** of recurrent layers stand for all tokens before. Some are kept behind prefixes, so
//!   that prompts can begin there: see [`StateSlots`].
//! - **The pressure policy**: what happens when memory is short, see [`pressure`].
//!
//! # What it must not know
//! Bytes of pages, formats, devices, threads, clocks, requests. It sees token ids, frame numbers
//! and frame counts. Everything it does follows from the calls made on it, so it is tested by
//! replaying calls against a naive model.
//!
//! # Entry points
//! [`BlockManager`] is the whole interface. Start reading in `manager/`: `grow` takes memory,
//! `commit` seals and publishes blocks, `share` begins and ends sequences, `choose` decides which
//! blocks shrink and `shrink` does it. `epoch` is why a frame is never reused too early: what is
//! freed waits for every step that may still touch it.
//!
//! # One step
//! 1. `grow` each sequence of the step, `shrink_for` the memory that is wanted.
//! 2. Drain the table changes, the copies and the shrinks into the plan, then `begin_step`.
//! 3. The device applies the table changes, copies, shrinks, and computes the step.
//! 4. `retire_step`, then `commit` the tokens that are in the cache for certain.
//!
//! ```
//! use ebb_block_manager::{BlockManager, PoolConfig, SeqId, StepId};
//!
//! // 64 frames of 128 KiB, two for each 16 tokens; nothing shrinks.
//! let mut pool = BlockManager::new(PoolConfig::whole(64, 1 << 17, 2))?;
//! let prompt: Vec<u32> = (0..200).collect();
//! // Admission: what is cached of the prompt, and does the rest fit?
//! let seq = SeqId(7);
//! let created = pool.create(seq, &prompt, prompt.len() - 1);
//! assert!(pool.frames_needed(seq, prompt.len()) <= pool.available());
//! pool.grow(seq, prompt.len()).expect("it was just found to fit");
//! // The step that computes the prompt.
//! pool.begin_step(StepId(1));
//! // ... the device reads `pool.table(seq)` and fills the frames ...
//! pool.retire_step(StepId(1));
//! pool.commit(seq, &prompt[created.cached_tokens..]);
//! // The answer is complete: the full block stays cached, the open one is freed.
//! pool.release(seq);
//! assert_eq!(pool.lookup(&prompt, 199).tokens, 128);
//! # Ok::<(), ebb_block_manager::ConfigError>(())
//! ```

mod block;
mod cached;
mod config;
mod epoch;
mod evictable;
mod frames;
mod hidden;
mod ids;
mod level_counts;
mod list;
mod manager;
mod mode;
pub mod precision;
mod prefix;
pub mod pressure;
mod recompute;
mod sequence;
mod shrink_queue;
mod states;
mod table;
mod usage;

pub use config::{ConfigError, PoolConfig, WindowConfig};
pub use ids::{BlockId, SeqId, Slot, StepId};
pub use manager::{
    BlockManager, CachedBlock, Created, LiveBlock, OutOfFrames, PrefixHit, ShrinkJob,
};
pub use prefix::PrefixCursor;
pub use pressure::Pressure;
pub use sequence::SeqOptions;
pub use states::{KeptState, StateSlots};
pub use table::{Table, TableDelta};
pub use usage::{LevelUse, SeqBits, Usage};

/// Tokens in one block: the unit of ownership, hashing, sharing and shrinking.
pub const BLOCK_TOKENS: usize = 128;
/// Tokens in one sub-block: the unit in which an open block grows.
pub const SUB_BLOCK_TOKENS: usize = 16;
/// Stands for a frame that a trimmed block has given back: see [`WindowConfig`].
pub const NO_FRAME: u32 = u32::MAX;
/// Sub-blocks in one block.
pub const SUB_BLOCKS: usize = BLOCK_TOKENS / SUB_BLOCK_TOKENS;
