//! Precision levels: which level changes a block has taken, and what it takes then.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::{LevelChange, MinBits, Page, PageLevel, PageSide, ShrinkOrder};

/// What a block takes at some precision level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSize {
    /// Frames of the pool.
    pub frames: u32,
    /// Bytes of codes and metadata, without the unused end of the last frame.
    pub bytes: u64,
}

/// One precision level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrecisionLevel {
    /// What a block takes.
    pub size: BlockSize,
    /// Lowest nominal code bits of its pages.
    pub lowest_bits: u8,
    /// Level changes from 16 bit to here.
    pub taken: u16,
    path: u8,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Path {
    min_bits: MinBits,
    /// Level after the first change; level 0 belongs to every path.
    first: u16,
    changes: Vec<LevelChange>,
    /// Levels that a shrink may end at, ascending; the last level is one.
    targets: Vec<u16>,
}

/// Every precision level that a block can be at, and which levels it can shrink to from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LevelTable {
    levels: Vec<PrecisionLevel>,
    /// By falling minimum bits.
    paths: Vec<Path>,
    /// `[level][path]`: the first level of that path at which no page has more bits, if there is
    /// one.
    entries: Vec<Vec<Option<u16>>>,
}

/// A shrink rewrites a block, so it frees at least this share (1/n) of the block's frames. From 16
/// bit to the floor a block is rewritten four or five times, two and a half times its bytes in all.
const FREED_SHARE: u32 = 3;

impl LevelTable {
    /// The levels of a shrink order. `size` says what a block takes after some level changes.
    pub fn new(order: &ShrinkOrder, mut size: impl FnMut(&[LevelChange]) -> BlockSize) -> Self {
        let at_16_bit = PrecisionLevel {
            size: size(&[]),
            lowest_bits: 16,
            taken: 0,
            path: 0,
        };
        let mut table = Self {
            levels: vec![at_16_bit],
            paths: Vec::new(),
            entries: Vec::new(),
        };
        for bits in order.page_bits() {
            let changes: Vec<LevelChange> = order.changes_within(bits).collect();
            table.add_path(MinBits(bits), changes, &mut size);
        }
        table.entries = (0..table.levels.len())
            .map(|level| table.entries_from(level))
            .collect();
        table
    }

    /// A table with 16 bit only.
    pub fn fixed(size: BlockSize) -> Self {
        let only = PrecisionLevel {
            size,
            lowest_bits: 16,
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
        Self::fixed(BlockSize { frames, bytes })
    }

    /// A table whose levels take these frames, the first at 16 bit and all others at 2 bit. For
    /// callers without formats.
    ///
    /// # Panics
    /// If `frames` is empty or has more levels than a shrink order.
    pub fn of_frames(frames: &[u32]) -> Self {
        let two_bits = PageLevel { tag: 0, bits: 2 };
        let page = |layer| Page {
            layer,
            side: PageSide::K,
        };
        let layers = frames.len() as u16 - 1;
        let changes = (0..layers).map(|layer| LevelChange {
            page: page(layer),
            to: two_bits,
        });
        let order = ShrinkOrder::new(layers, changes.collect()).expect("each page shrinks once");
        Self::new(&order, |taken| {
            let frames = frames[taken.len()];
            BlockSize {
                frames,
                bytes: frames.into(),
            }
        })
    }

    fn add_path(
        &mut self,
        min_bits: MinBits,
        changes: Vec<LevelChange>,
        size: &mut impl FnMut(&[LevelChange]) -> BlockSize,
    ) {
        let path = self.paths.len() as u8;
        let first = self.levels.len() as u16;
        let mut lowest_bits = 16;
        for taken in 1..=changes.len() {
            lowest_bits = lowest_bits.min(changes[taken - 1].to.bits);
            let level = PrecisionLevel {
                size: size(&changes[..taken]),
                lowest_bits,
                taken: taken as u16,
                path,
            };
            self.levels.push(level);
        }
        let targets = self.choose_targets(first..self.levels.len() as u16);
        self.paths.push(Path {
            min_bits,
            first,
            changes,
            targets,
        });
    }

    /// Those of a path's levels that a shrink may end at.
    fn choose_targets(&self, levels: Range<u16>) -> Vec<u16> {
        let mut last_target = self.levels[0].size.frames;
        let last = levels.end - 1;
        let frees = |level: &u16| {
            let frames = self.level(*level).size.frames;
            let gained = last_target.saturating_sub(frames);
            let is_target = gained * FREED_SHARE >= last_target || (*level == last && gained > 0);
            if is_target {
                last_target = frames;
            }
            is_target
        };
        levels.filter(frees).collect()
    }

    /// The same levels with other sizes.
    pub fn resized(&self, mut size: impl FnMut(u16) -> BlockSize) -> Self {
        let mut table = self.clone();
        for (level, number) in table.levels.iter_mut().zip(0..) {
            level.size = size(number);
        }
        for path in 0..table.paths.len() {
            let Path { first, changes, .. } = &table.paths[path];
            let levels = *first..*first + changes.len() as u16;
            table.paths[path].targets = table.choose_targets(levels);
        }
        table
    }

    fn entries_from(&self, level: usize) -> Vec<Option<u16>> {
        let mut taken: FxHashMap<Page, usize> = FxHashMap::default();
        for change in self.changes(level as u16) {
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
    pub fn level(&self, level: u16) -> PrecisionLevel {
        self.levels[level as usize]
    }

    /// The level changes from 16 bit to `level`, in order.
    pub fn changes(&self, level: u16) -> &[LevelChange] {
        let level = self.levels[level as usize];
        match self.paths.get(level.path as usize) {
            Some(path) if level.taken > 0 => &path.changes[..level.taken as usize],
            _ => &[],
        }
    }

    /// The path that goes furthest without falling below `min_bits`.
    fn path(&self, min_bits: MinBits) -> Option<usize> {
        self.paths.iter().rposition(|c| c.min_bits >= min_bits)
    }

    /// The last level within `min_bits`.
    pub fn last(&self, min_bits: MinBits) -> u16 {
        self.path(min_bits).map_or(0, |p| {
            self.paths[p].first + self.paths[p].changes.len() as u16 - 1
        })
    }

    /// The levels that blocks can shrink to.
    pub fn targets(&self) -> impl Iterator<Item = u16> + '_ {
        self.paths.iter().flat_map(|p| p.targets.iter().copied())
    }

    /// Most frames that a shrunk block can take; 0 if blocks never shrink.
    pub fn largest_target(&self) -> u32 {
        let targets = self.paths.iter().flat_map(|p| &p.targets);
        targets
            .map(|&target| self.level(target).size.frames)
            .max()
            .unwrap_or(0)
    }

    /// The floor within `min_bits`: the level at which repeated shrinking of a 16-bit block ends.
    pub fn floor(&self, min_bits: MinBits) -> u16 {
        let targets = self.path(min_bits).map(|p| &self.paths[p].targets);
        targets.and_then(|t| t.last()).copied().unwrap_or(0)
    }

    /// The same for a block that is at `level` now. `None`: nothing more comes free.
    pub fn last_target(&self, level: u16, min_bits: MinBits) -> Option<u16> {
        let next = self.next_target(level, min_bits)?;
        Some(self.floor(min_bits).max(next))
    }

    /// Mean stored bits of the values in a block at `level`, in hundredths.
    pub fn centibits(&self, level: u16) -> u64 {
        let at_16_bit = self.levels[0].size.bytes.max(1);
        self.level(level).size.bytes * 1600 / at_16_bit
    }

    /// The next lower level that a block at `level` can shrink to without falling below `min_bits`.
    /// `None`: nothing more comes free.
    pub fn next_target(&self, level: u16, min_bits: MinBits) -> Option<u16> {
        let path = self.path(min_bits)?;
        let entry = self.entries[level as usize][path]?;
        let frames = self.level(level).size.frames;
        let targets = &self.paths[path].targets;
        let from = targets.partition_point(|&target| target < entry);
        targets[from..]
            .iter()
            .copied()
            .find(|&target| self.level(target).size.frames < frames)
    }

    /// The first level on the path of `min_bits` at which no page has more bits than at `level`.
    /// `None`: a block at `level` is already lower than `min_bits` allows.
    pub fn entry(&self, level: u16, min_bits: MinBits) -> Option<u16> {
        match self.path(min_bits) {
            None => (level == 0).then_some(0),
            Some(path) => self.entries[level as usize][path],
        }
    }
}
