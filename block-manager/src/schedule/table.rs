//! Precision levels: which level changes a block has taken, and what it takes then.

use rustc_hash::FxHashMap;

use super::{Bound, Page, PageSide, Rung, Schedule, Step};

/// What a block takes at some precision level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Frames of the pool.
    pub frames: u32,
    /// Bytes of codes and metadata, without the unused end of the last frame.
    pub bytes: u64,
}

/// One precision level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// What a block takes.
    pub cost: Cost,
    /// Lowest nominal code bits of its pages.
    pub min_bits: u8,
    /// Level changes from 16 bit to here.
    pub taken: u16,
    path: u8,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Path {
    bound: Bound,
    /// Level after the first change; level 0 belongs to every path.
    first: u16,
    changes: Vec<Step>,
    /// Levels that a shrink may end at, ascending; the last level is one.
    targets: Vec<u16>,
}

/// Every precision level that a block can be at, and which levels it can shrink to from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PositionTable {
    levels: Vec<Standing>,
    /// By falling bound.
    paths: Vec<Path>,
    /// `[level][path]`: the first level of that path at which no page has more bits, if there is
    /// one.
    entries: Vec<Vec<Option<u16>>>,
}

/// A shrink rewrites a block, so it frees at least this share (1/n) of the block's frames. From 16
/// bit to the floor a block is rewritten four or five times, two and a half times its bytes in all.
const FREED_SHARE: u32 = 3;

impl PositionTable {
    /// The levels of a shrink order. `cost` says what a block takes after some level changes.
    pub fn new(schedule: &Schedule, mut cost: impl FnMut(&[Step]) -> Cost) -> Self {
        let whole = Standing {
            cost: cost(&[]),
            min_bits: 16,
            taken: 0,
            path: 0,
        };
        let mut table = Self {
            levels: vec![whole],
            paths: Vec::new(),
            entries: Vec::new(),
        };
        for width in schedule.widths() {
            let changes: Vec<Step> = schedule.chain(width).collect();
            table.add_path(Bound(width), changes, &mut cost);
        }
        table.entries = (0..table.levels.len())
            .map(|level| table.entries_from(level))
            .collect();
        table
    }

    /// A table with 16 bit only.
    pub fn fixed(cost: Cost) -> Self {
        let only = Standing {
            cost,
            min_bits: 16,
            taken: 0,
            path: 0,
        };
        Self {
            levels: vec![only],
            paths: Vec::new(),
            entries: vec![Vec::new()],
        }
    }

    /// A table with 16 bit only, for blocks of `frames` frames.
    pub fn whole(frames: u32) -> Self {
        let bytes = u64::from(frames);
        Self::fixed(Cost { frames, bytes })
    }

    /// A table whose levels take these frames, the first at 16 bit and all others at 2 bit. For
    /// callers without formats.
    ///
    /// # Panics
    /// If `frames` is empty or has more levels than a shrink order.
    pub fn of_frames(frames: &[u32]) -> Self {
        let two_bits = Rung { tag: 0, bits: 2 };
        let page = |layer| Page {
            layer,
            side: PageSide::K,
        };
        let layers = frames.len() as u16 - 1;
        let steps = (0..layers).map(|layer| Step {
            page: page(layer),
            to: two_bits,
        });
        let schedule = Schedule::new(layers, steps.collect()).expect("each page goes down once");
        Self::new(&schedule, |taken| {
            let frames = frames[taken.len()];
            Cost {
                frames,
                bytes: frames.into(),
            }
        })
    }

    fn add_path(
        &mut self,
        bound: Bound,
        changes: Vec<Step>,
        cost: &mut impl FnMut(&[Step]) -> Cost,
    ) {
        let path = self.paths.len() as u8;
        let first = self.levels.len() as u16;
        let mut min_bits = 16;
        let mut last_target = self.levels[0].cost.frames;
        let mut targets = Vec::new();
        for taken in 1..=changes.len() {
            min_bits = min_bits.min(changes[taken - 1].to.bits);
            let level = Standing {
                cost: cost(&changes[..taken]),
                min_bits,
                taken: taken as u16,
                path,
            };
            let frames = level.cost.frames;
            let gained = last_target.saturating_sub(frames);
            if gained * FREED_SHARE >= last_target || (taken == changes.len() && gained > 0) {
                targets.push(self.levels.len() as u16);
                last_target = frames;
            }
            self.levels.push(level);
        }
        self.paths.push(Path {
            bound,
            first,
            changes,
            targets,
        });
    }

    fn entries_from(&self, level: usize) -> Vec<Option<u16>> {
        let mut taken: FxHashMap<Page, usize> = FxHashMap::default();
        for change in self.steps(level as u16) {
            *taken.entry(change.page).or_default() += 1;
        }
        let entry = |path: &Path| {
            // The level after the last change that this block has taken already.
            let mut left = taken.clone();
            let mut missing: usize = left.values().sum();
            if missing == 0 {
                return Some(0);
            }
            for (index, change) in path.changes.iter().enumerate() {
                if let Some(n) = left.get_mut(&change.page).filter(|n| **n > 0) {
                    *n -= 1;
                    missing -= 1;
                    if missing == 0 {
                        return Some(path.first + index as u16);
                    }
                }
            }
            None
        };
        self.paths.iter().map(entry).collect()
    }

    /// Number of levels.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// False: level 0 always exists.
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// A level by its number. Panics if there is no such level.
    pub fn standing(&self, level: u16) -> Standing {
        self.levels[level as usize]
    }

    /// The level changes of a block at `level`, in order.
    pub fn steps(&self, level: u16) -> &[Step] {
        let level = self.levels[level as usize];
        match self.paths.get(level.path as usize) {
            Some(path) if level.taken > 0 => &path.changes[..level.taken as usize],
            _ => &[],
        }
    }

    /// The path that goes furthest without falling below `bound`.
    fn path(&self, bound: Bound) -> Option<usize> {
        self.paths.iter().rposition(|c| c.bound >= bound)
    }

    /// The last level within `bound`.
    pub fn last(&self, bound: Bound) -> u16 {
        self.path(bound).map_or(0, |p| {
            self.paths[p].first + self.paths[p].changes.len() as u16 - 1
        })
    }

    /// The levels that blocks can shrink to.
    pub fn stops(&self) -> impl Iterator<Item = u16> + '_ {
        self.paths.iter().flat_map(|p| p.targets.iter().copied())
    }

    /// Most frames that a shrunk block can take; 0 if blocks never shrink.
    pub fn largest_stop(&self) -> u32 {
        let targets = self.paths.iter().flat_map(|p| &p.targets);
        targets
            .map(|&target| self.standing(target).cost.frames)
            .max()
            .unwrap_or(0)
    }

    /// The floor within `bound`: the level at which repeated shrinking of a 16-bit block ends.
    pub fn floor(&self, bound: Bound) -> u16 {
        let targets = self.path(bound).map(|p| &self.paths[p].targets);
        targets.and_then(|t| t.last()).copied().unwrap_or(0)
    }

    /// The same for a block that is at `level` now. `None`: nothing more comes free.
    pub fn last_stop(&self, level: u16, bound: Bound) -> Option<u16> {
        let next = self.next_stop(level, bound)?;
        Some(self.floor(bound).max(next))
    }

    /// Mean stored bits of the values in a block at `level`, in hundredths.
    pub fn centibits(&self, level: u16) -> u64 {
        let at_16_bit = self.levels[0].cost.bytes.max(1);
        self.standing(level).cost.bytes * 1600 / at_16_bit
    }

    /// The next lower level that a block at `level` can shrink to without falling below `bound`.
    /// `None`: nothing more comes free.
    pub fn next_stop(&self, level: u16, bound: Bound) -> Option<u16> {
        let path = self.path(bound)?;
        let entry = self.entries[level as usize][path]?;
        let frames = self.standing(level).cost.frames;
        let targets = &self.paths[path].targets;
        let from = targets.partition_point(|&target| target < entry);
        targets[from..]
            .iter()
            .copied()
            .find(|&target| self.standing(target).cost.frames < frames)
    }

    /// The first level on the path of `bound` at which no page has more bits than at `level`.
    /// `None`: a block at `level` is already lower than `bound` allows.
    pub fn entry(&self, level: u16, bound: Bound) -> Option<u16> {
        match self.path(bound) {
            None => (level == 0).then_some(0),
            Some(path) => self.entries[level as usize][path],
        }
    }
}
