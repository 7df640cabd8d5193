//! How wide the KV cache is: what GetServerInfo and the metrics tell about precision.

use ebb_kernels::formats::FormatId;
use ebb_scheduler::{Mode, Scheduler, Stats};

use crate::kv_plan::KvPlan;

/// Pages of one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatUse {
    /// Its name.
    pub format: &'static str,
    /// One block's part for one layer and side each.
    pub pages: u64,
    /// Bytes of codes and metadata; at 16 bit of the memory taken.
    pub bytes: u64,
    /// Of those, bytes that are kept for later prompts alone.
    pub cached_bytes: u64,
}

/// A look at the widths in the pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KvState {
    /// `progressive`, `static` or `preempt-only`.
    pub mode: &'static str,
    /// Mean bits of sealed unprotected pages at the floor.
    pub floor_bits: f64,
    /// Mean bits of everything stored now.
    pub stored_bits: f64,
    /// Formats in use.
    pub formats: Vec<FormatUse>,
    /// Level changes of the longest chain of the shrink order.
    pub level_changes: u32,
    /// Level changes taken, the mean over all blocks; an open one has taken none.
    pub level_changes_mean: f64,
    /// Level changes taken by the block that has taken most.
    pub level_changes_max: u32,
    /// Mean over the running sequences of the mean bits that each has read.
    pub running_bits: f64,
    /// Lowest nominal bits that a running sequence has read.
    pub running_bits_lowest: u8,
    /// Blocks shrunk while a sequence held them.
    pub shrinks_live: u64,
    /// Blocks shrunk that only the prefix cache kept.
    pub shrinks_cached: u64,
    /// Blocks that could not be shrunk.
    pub shrink_failures: u64,
    /// Bytes of blocks rewritten, as they were before.
    pub shrunk_bytes: u64,
    /// Preemptions that shrinking stood in for.
    pub preemptions_avoided: f64,
    /// Times that a sequence waited for memory that was yet to come free by shrinking.
    pub stalls: u64,
    /// Bytes promised to running requests.
    pub promised_bytes: u64,
    /// Bytes of the pool that are lost: places of open blocks that nobody has filled yet, and ends
    /// of last frames.
    pub waste_bytes: u64,
    /// Bytes of live blocks that can shrink further.
    pub shrinkable_bytes: u64,
    /// Free bytes below which blocks begin to shrink, and at which they stop; 0 where nothing
    /// shrinks by itself.
    pub watermarks_bytes: (u64, u64),
}

/// What a [`KvState`] needs to know of each precision level, worked out once.
#[derive(Debug)]
pub struct KvFacts {
    mode: Mode,
    floor_bits: f64,
    steps: u32,
    levels: Vec<LevelFacts>,
}

/// What blocks at one precision level have, whole and trimmed.
#[derive(Debug)]
struct LevelFacts {
    /// Level changes taken.
    taken: u16,
    /// Bytes and pages of each format.
    formats: [Vec<(u64, u32)>; 2],
    frames: [u64; 2],
    /// Bytes that the same values take at 16 bit.
    bytes_at_16_bit: [u64; 2],
}

impl KvFacts {
    /// The facts of a plan.
    pub fn new(plan: &KvPlan) -> Self {
        let at_16_bit = plan.layout.page_bytes(0);
        let levels = (0..plan.levels.len() as u16).map(|level| {
            let pages = plan.layout.page_bytes(level);
            LevelFacts {
                taken: plan.levels.level(level).taken,
                formats: [false, true].map(|trimmed| plan.bytes_by_format(level, trimmed)),
                frames: pages.map(|pages| pages.frames.into()),
                bytes_at_16_bit: at_16_bit.map(|pages| pages.bytes),
            }
        });
        let levels: Vec<_> = levels.collect();
        Self {
            mode: plan.mode,
            floor_bits: plan.floor_bits(),
            steps: levels
                .iter()
                .map(|level| u32::from(level.taken))
                .max()
                .unwrap_or(0),
            levels,
        }
    }

    /// The pool as it is now.
    pub fn state(&self, scheduler: &Scheduler, stats: &Stats) -> KvState {
        let usage = &stats.blocks;
        let mut formats = vec![(0, 0, 0); FormatId::ALL.len()];
        let (mut shrunk_bytes, mut shrunk_frames, mut shrunk_at_16_bit) = (0, 0, 0);
        let mut cached_shrunk_frames = 0;
        let (mut blocks, mut taken_sum, mut taken_max) = (0, 0, 0);
        for at in scheduler.blocks().level_use() {
            let level = &self.levels[usize::from(at.level)];
            let is_shrunk = at.level > 0;
            let kinds = [
                (at.blocks - at.trimmed, at.cached - at.cached_trimmed),
                (at.trimmed, at.cached_trimmed),
            ];
            for (kind, (count, cached)) in kinds.into_iter().enumerate() {
                let (count, cached) = (u64::from(count), u64::from(cached));
                for (sum, (bytes, pages)) in formats.iter_mut().zip(&level.formats[kind]) {
                    sum.0 += bytes * count * u64::from(is_shrunk);
                    sum.1 += u64::from(*pages) * count;
                    sum.2 += bytes * cached * u64::from(is_shrunk);
                }
                if is_shrunk {
                    shrunk_frames += level.frames[kind] * count;
                    cached_shrunk_frames += level.frames[kind] * cached;
                    shrunk_at_16_bit += level.bytes_at_16_bit[kind] * count;
                }
            }
            // What is kept of hidden blocks for later prompts alone.
            let hidden = u64::from(at.hidden) * u64::from(is_shrunk);
            let [whole, kept] = &level.formats;
            for (sum, (whole, kept)) in formats.iter_mut().zip(whole.iter().zip(kept)) {
                sum.2 += (whole.0 - kept.0) * hidden;
            }
            cached_shrunk_frames += (level.frames[0] - level.frames[1]) * hidden;
            shrunk_bytes += at.bytes * u64::from(is_shrunk);
            blocks += u64::from(at.blocks);
            taken_sum += u64::from(level.taken) * u64::from(at.blocks);
            taken_max = taken_max.max(u32::from(level.taken));
        }
        let held = [usage.frames_live, usage.frames_hidden, usage.frames_cached];
        let held_frames: u64 = held.into_iter().map(u64::from).sum();
        let whole_bytes = (held_frames - shrunk_frames) * usage.frame_bytes;
        formats[0].0 += whole_bytes;
        let cached_frames = u64::from(usage.frames_cached) + u64::from(usage.frames_hidden);
        formats[0].2 += (cached_frames - cached_shrunk_frames) * usage.frame_bytes;
        let names = FormatId::ALL.iter().zip(formats);
        let formats = names.filter(|(_, (_, pages, _))| *pages > 0);
        let running = scheduler.running_bits();
        let watermarks = match self.mode {
            Mode::Progressive => scheduler.watermarks(),
            Mode::Static | Mode::PreemptOnly => (0, 0),
        };
        let frames = |n: u32| u64::from(n) * usage.frame_bytes;
        let per = |sum: u64, n: u64, none: f64| match n {
            0 => none,
            n => sum as f64 / n as f64,
        };
        KvState {
            mode: self.mode.name(),
            floor_bits: self.floor_bits,
            stored_bits: 16.0
                * per(
                    whole_bytes + shrunk_bytes,
                    whole_bytes + shrunk_at_16_bit,
                    1.0,
                ),
            formats: formats
                .map(|(format, (bytes, pages, cached_bytes))| FormatUse {
                    format: format.name(),
                    pages,
                    bytes,
                    cached_bytes,
                })
                .collect(),
            level_changes: self.steps,
            level_changes_mean: per(taken_sum, blocks, 0.0),
            level_changes_max: taken_max,
            running_bits: f64::from(running.mean_centibits) / 100.0,
            running_bits_lowest: running.lowest,
            shrinks_live: stats.shrinks_live,
            shrinks_cached: stats.shrinks - stats.shrinks_live,
            shrink_failures: stats.shrinks_failed,
            shrunk_bytes: stats.shrunk_bytes,
            preemptions_avoided: stats.preemptions_avoided_milli as f64 / 1000.0,
            stalls: stats.stalls,
            promised_bytes: stats.frames_promised * usage.frame_bytes,
            waste_bytes: usage.bytes_reserved_empty + shrunk_frames * usage.frame_bytes
                - shrunk_bytes,
            shrinkable_bytes: usage.frames_shrinkable * usage.frame_bytes,
            watermarks_bytes: (frames(watermarks.0), frames(watermarks.1)),
        }
    }
}
