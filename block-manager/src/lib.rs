//! The paged KV pool of Ebb: frames, blocks, block tables and the prefix cache.
//!
//! The pool hands out *frames* (equal pieces of one arena). A *block* is 128 consecutive tokens of
//! one sequence, all layers, K and V; it owns a list of frames, not necessarily neighbours, so the
//! arena cannot fragment. The crate decides who owns which frame and when a frame may be reused.
//! It knows token ids, frame numbers and frame counts. It knows no bytes of pages, no device, no
//! thread and no clock; everything it does follows from the calls made on it.
//!
//! [`BlockManager`] is the whole interface. One step of a serving loop looks like this:
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
mod frames;
mod ids;
mod list;
mod manager;
mod mode;
mod prefix;
pub mod pressure;
mod recompute;
pub mod schedule;
mod sequence;
mod shrink_queue;
mod table;
mod usage;

pub use config::{ConfigError, PoolConfig};
pub use ids::{BlockId, SeqId, Slot, StepId};
pub use manager::{BlockManager, ColdBlock, Created, LiveBlock, PrefixHit, Short, ShrinkJob};
pub use prefix::PrefixCursor;
pub use pressure::Pressure;
pub use sequence::Terms;
pub use table::{Table, TableDelta};
pub use usage::{PositionUse, SeqBits, Usage};

/// Tokens in one block: the unit of ownership, hashing, sharing and shrinking.
pub const BLOCK_TOKENS: usize = 128;
/// Tokens in one sub-block: the unit in which an open block grows.
pub const SUB_BLOCK_TOKENS: usize = 16;
/// Sub-blocks in one block.
pub const SUB_BLOCKS: usize = BLOCK_TOKENS / SUB_BLOCK_TOKENS;
