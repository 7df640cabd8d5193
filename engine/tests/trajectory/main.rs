//! Answers of an engine whose KV cache shrinks, computed again from their trajectories.

mod bench;
mod logs;
mod replays;
