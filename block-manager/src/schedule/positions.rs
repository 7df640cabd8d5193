//! Positions: how many steps of which chain a block has taken, and what that costs.

use rustc_hash::FxHashMap;

use super::{Page, PageSide, Rung, Schedule, Step};

/// The lowest nominal code bits that any page of a block may come to. 16 forbids shrinking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bound(pub u8);

impl Bound {
    /// Nothing may shrink.
    pub const NEVER: Self = Self(16);
    /// Everything may go as far as the schedule does.
    pub const FLOOR: Self = Self(0);

    /// The widths that bounds are told apart by, highest first. A bound between two acts as the
    /// higher one.
    pub(crate) const WIDTHS: [Self; 4] = [Self(16), Self(8), Self(4), Self(2)];

    /// Which of [`WIDTHS`](Self::WIDTHS) it is.
    pub(crate) fn class(self) -> usize {
        match self.0 {
            9.. => 0,
            5..=8 => 1,
            3..=4 => 2,
            _ => 3,
        }
    }
}

/// What a block at some position takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Frames of the pool.
    pub frames: u32,
    /// Bytes of codes and metadata, without the unused end of the last frame.
    pub bytes: u64,
}

/// One position of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// What a block there takes.
    pub cost: Cost,
    /// Lowest nominal code bits over its pages.
    pub min_bits: u8,
    /// Steps of its chain taken.
    pub taken: u16,
    chain: u8,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Chain {
    bound: Bound,
    /// Position after the first step; position 0 belongs to every chain.
    first: u16,
    steps: Vec<Step>,
    /// Positions at which a shrink may stop, ascending; the last position is one.
    stops: Vec<u16>,
}

/// Every position a block can be at, with its cost and its ways down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PositionTable {
    standings: Vec<Standing>,
    /// By falling bound.
    chains: Vec<Chain>,
    /// `[position][chain]`: the first position of that chain whose pages are nowhere higher, if the
    /// chain has one.
    entries: Vec<Vec<Option<u16>>>,
}

/// A shrink rewrites a block, so it goes on until at least this share (1/n) of the frames has come
/// free: from 16 bit to the floor a block is rewritten four or five times, two and a half times its
/// bytes in all. Many blocks at different stops make up for the coarse steps of each.
const SHARE: u32 = 3;

impl PositionTable {
    /// The table of `schedule`, whose blocks cost what `cost` says: it is given the steps taken, in
    /// order.
    pub fn new(schedule: &Schedule, mut cost: impl FnMut(&[Step]) -> Cost) -> Self {
        let whole = Standing {
            cost: cost(&[]),
            min_bits: 16,
            taken: 0,
            chain: 0,
        };
        let mut table = Self {
            standings: vec![whole],
            chains: Vec::new(),
            entries: Vec::new(),
        };
        for width in schedule.widths() {
            let steps: Vec<Step> = schedule.chain(width).collect();
            table.add_chain(Bound(width), steps, &mut cost);
        }
        table.entries = (0..table.standings.len())
            .map(|p| table.entries_from(p))
            .collect();
        table
    }

    /// A table with 16 bit only.
    pub fn fixed(cost: Cost) -> Self {
        let standing = Standing {
            cost,
            min_bits: 16,
            taken: 0,
            chain: 0,
        };
        Self {
            standings: vec![standing],
            chains: Vec::new(),
            entries: vec![Vec::new()],
        }
    }

    /// A table with 16 bit only, for blocks of `frames` frames.
    pub fn whole(frames: u32) -> Self {
        let bytes = u64::from(frames);
        Self::fixed(Cost { frames, bytes })
    }

    /// A table of one chain down to 2 bit whose positions take these frames, the first of them at
    /// 16 bit: for callers who care for no formats.
    ///
    /// # Panics
    /// If `frames` is empty or has more positions than a schedule.
    pub fn of_frames(frames: &[u32]) -> Self {
        let rung = Rung { tag: 0, bits: 2 };
        let page = |layer| Page {
            layer,
            side: PageSide::K,
        };
        let layers = frames.len() as u16 - 1;
        let steps = (0..layers).map(|layer| Step {
            page: page(layer),
            to: rung,
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

    fn add_chain(
        &mut self,
        bound: Bound,
        steps: Vec<Step>,
        cost: &mut impl FnMut(&[Step]) -> Cost,
    ) {
        let chain = self.chains.len() as u8;
        let first = self.standings.len() as u16;
        let mut min_bits = 16;
        let mut last_stop = self.standings[0].cost.frames;
        let mut stops = Vec::new();
        for taken in 1..=steps.len() {
            min_bits = min_bits.min(steps[taken - 1].to.bits);
            let standing = Standing {
                cost: cost(&steps[..taken]),
                min_bits,
                taken: taken as u16,
                chain,
            };
            let frames = standing.cost.frames;
            let gained = last_stop.saturating_sub(frames);
            if gained * SHARE >= last_stop || (taken == steps.len() && gained > 0) {
                stops.push(self.standings.len() as u16);
                last_stop = frames;
            }
            self.standings.push(standing);
        }
        self.chains.push(Chain {
            bound,
            first,
            steps,
            stops,
        });
    }

    fn entries_from(&self, position: usize) -> Vec<Option<u16>> {
        let mut taken: FxHashMap<Page, usize> = FxHashMap::default();
        for step in self.steps(position as u16) {
            *taken.entry(step.page).or_default() += 1;
        }
        let entry = |chain: &Chain| {
            // The position behind the last step that this block has taken already.
            let mut left = taken.clone();
            let mut missing: usize = left.values().sum();
            if missing == 0 {
                return Some(0);
            }
            for (index, step) in chain.steps.iter().enumerate() {
                if let Some(n) = left.get_mut(&step.page).filter(|n| **n > 0) {
                    *n -= 1;
                    missing -= 1;
                    if missing == 0 {
                        return Some(chain.first + index as u16);
                    }
                }
            }
            None
        };
        self.chains.iter().map(entry).collect()
    }

    /// Positions there are.
    pub fn len(&self) -> usize {
        self.standings.len()
    }

    /// Never: position 0 always exists.
    pub fn is_empty(&self) -> bool {
        self.standings.is_empty()
    }

    /// What a block at `position` takes. Panics if there is no such position.
    pub fn standing(&self, position: u16) -> Standing {
        self.standings[position as usize]
    }

    /// The steps that a block at `position` has taken, in order.
    pub fn steps(&self, position: u16) -> &[Step] {
        let standing = self.standings[position as usize];
        match self.chains.get(standing.chain as usize) {
            Some(chain) if standing.taken > 0 => &chain.steps[..standing.taken as usize],
            _ => &[],
        }
    }

    /// The chain that goes furthest without falling below `bound`.
    fn chain(&self, bound: Bound) -> Option<usize> {
        self.chains.iter().rposition(|c| c.bound >= bound)
    }

    /// The furthest position within `bound`.
    pub fn last(&self, bound: Bound) -> u16 {
        self.chain(bound).map_or(0, |c| {
            self.chains[c].first + self.chains[c].steps.len() as u16 - 1
        })
    }

    /// The positions that blocks can stand at, besides 0.
    pub fn stops(&self) -> impl Iterator<Item = u16> + '_ {
        self.chains.iter().flat_map(|c| c.stops.iter().copied())
    }

    /// Most frames that a shrunk block can take; 0 if blocks never shrink.
    pub fn largest_stop(&self) -> u32 {
        let stops = self.chains.iter().flat_map(|c| &c.stops);
        stops
            .map(|&stop| self.standing(stop).cost.frames)
            .max()
            .unwrap_or(0)
    }

    /// The last stop within `bound`: where repeated shrinking of a 16-bit block ends.
    pub fn floor(&self, bound: Bound) -> u16 {
        let stops = self.chain(bound).map(|c| &self.chains[c].stops);
        stops.and_then(|stops| stops.last()).copied().unwrap_or(0)
    }

    /// The same for a block that is at `position` now, if frames come free on the way.
    pub fn last_stop(&self, position: u16, bound: Bound) -> Option<u16> {
        let next = self.next_stop(position, bound)?;
        Some(self.floor(bound).max(next))
    }

    /// Mean bits of all stored bytes of a block at `position`, in hundredths.
    pub fn centibits(&self, position: u16) -> u64 {
        let whole = self.standings[0].cost.bytes.max(1);
        self.standing(position).cost.bytes * 1600 / whole
    }

    /// Where a shrink of a block at `position` goes that may not fall below `bound`: the next stop
    /// that frees frames. `None` when nothing more comes free.
    pub fn next_stop(&self, position: u16, bound: Bound) -> Option<u16> {
        let chain = self.chain(bound)?;
        let entry = self.entries[position as usize][chain]?;
        let frames = self.standing(position).cost.frames;
        let stops = &self.chains[chain].stops;
        let from = stops.partition_point(|&stop| stop < entry);
        stops[from..]
            .iter()
            .copied()
            .find(|&stop| self.standing(stop).cost.frames < frames)
    }

    /// The position of `bound`'s chain that a block at `position` stands at or has to move to
    /// first; `None` when the block is already lower than the bound allows.
    pub fn entry(&self, position: u16, bound: Bound) -> Option<u16> {
        match self.chain(bound) {
            None => (position == 0).then_some(0),
            Some(chain) => self.entries[position as usize][chain],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIGHT: Rung = Rung { tag: 1, bits: 8 };
    const FOUR: Rung = Rung { tag: 2, bits: 4 };
    const KITTY: Rung = Rung { tag: 3, bits: 2 };
    const TWO: Rung = Rung { tag: 4, bits: 2 };

    fn step(layer: u16, side: PageSide, to: Rung) -> Step {
        Step {
            page: Page { layer, side },
            to,
        }
    }

    /// Two layers; V goes to 2 bit before K leaves 8.
    fn schedule() -> Schedule {
        use PageSide::{K, V};
        Schedule::new(
            2,
            vec![
                step(0, V, EIGHT),
                step(1, V, EIGHT),
                step(0, K, EIGHT),
                step(1, K, EIGHT),
                step(0, V, FOUR),
                step(0, V, TWO),
                step(1, V, FOUR),
                step(1, K, FOUR),
                step(1, V, TWO),
                step(0, K, FOUR),
                step(1, K, KITTY),
                step(1, K, TWO),
            ],
        )
        .unwrap()
    }

    /// 100 bytes a bit and page, 64 bytes a frame.
    fn cost(steps: &[Step]) -> Cost {
        let mut bits = std::collections::BTreeMap::new();
        for s in steps {
            bits.insert(s.page, u64::from(s.to.bits) + u64::from(s.to == KITTY));
        }
        let bytes = 100 * (bits.values().sum::<u64>() + 16 * (4 - bits.len() as u64));
        Cost {
            frames: bytes.div_ceil(64) as u32,
            bytes,
        }
    }

    fn table() -> PositionTable {
        PositionTable::new(&schedule(), cost)
    }

    /// The naive meaning of a position: rung index of every page.
    fn depth(table: &PositionTable, position: u16) -> std::collections::BTreeMap<Page, usize> {
        let mut depth = std::collections::BTreeMap::new();
        for s in table.steps(position) {
            *depth.entry(s.page).or_default() += 1;
        }
        depth
    }

    #[test]
    fn chains_stay_within_their_bound_and_end_as_low_as_it_allows() {
        let table = table();
        for (bound, end) in [(16, 16), (8, 8), (7, 8), (4, 4), (3, 4), (2, 2), (0, 2)] {
            let last = table.last(Bound(bound));
            assert_eq!(table.standing(last).min_bits, end, "bound {bound}");
            assert!(table.next_stop(last, Bound(bound)).is_none());
        }
        assert_eq!(table.last(Bound(8)), 4);
        assert_eq!(table.len(), 1 + 4 + 8 + 12);
    }

    #[test]
    fn every_stop_frees_frames_and_no_page_gains_bits() {
        let table = table();
        for position in 0..table.len() as u16 {
            for bound in [0, 2, 3, 4, 8, 16] {
                let Some(stop) = table.next_stop(position, Bound(bound)) else {
                    continue;
                };
                assert!(table.standing(stop).cost.frames < table.standing(position).cost.frames);
                assert!(table.standing(stop).min_bits >= bound);
                let (from, to) = (depth(&table, position), depth(&table, stop));
                assert!(
                    from.iter()
                        .all(|(page, n)| to.get(page).is_some_and(|m| m >= n)),
                    "{position} to {stop}"
                );
            }
        }
    }

    #[test]
    fn following_stops_ends_at_the_floor_of_the_bound() {
        let table = table();
        for bound in [2, 4, 8] {
            let mut position = 0;
            let mut hops = 0;
            while let Some(next) = table.next_stop(position, Bound(bound)) {
                position = next;
                hops += 1;
            }
            assert_eq!(position, table.last(Bound(bound)));
            assert!(hops <= 12);
        }
    }

    #[test]
    fn a_block_whose_bound_falls_goes_on_from_the_first_position_that_covers_it() {
        let table = table();
        let eight = table.last(Bound(8));
        let entry = table.entry(eight, Bound(2)).unwrap();
        assert_eq!(table.steps(entry), &schedule().steps()[..4]);
        // A block that is lower than a bound cannot enter its chain.
        assert_eq!(table.entry(table.last(Bound(2)), Bound(8)), None);
        assert_eq!(table.next_stop(table.last(Bound(2)), Bound(8)), None);
    }

    #[test]
    fn steps_that_go_up_or_nowhere_are_refused() {
        use PageSide::K;
        let up = Schedule::new(1, vec![step(0, K, FOUR), step(0, K, EIGHT)]);
        assert!(up.unwrap_err().to_string().contains("never gains bits"));
        assert!(Schedule::new(1, vec![step(0, K, TWO), step(0, K, TWO)]).is_err());
        assert!(Schedule::new(1, vec![step(1, K, TWO)]).is_err());
        assert!(Schedule::new(1, vec![step(0, K, KITTY), step(0, K, TWO)]).is_ok());
    }
}
