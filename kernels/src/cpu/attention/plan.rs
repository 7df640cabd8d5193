//! Divides the attention of a step into tasks; the same list serves every layer of a window.

use super::pages::PIECE;
use super::rows::{MAX_ROWS, state_stride};
use crate::BLOCK_TOKENS;
use crate::backend::StepInput;
use crate::model::{HeadShape, Seen};

/// Query rows that go through the pages together: some rows of one sequence, and the query heads of
/// some KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// The sequence's.
    pub(super) slot: u32,
    pub(super) first_head: u32,
    pub(super) kv_heads: u32,
    /// First row of the step, and rows.
    pub(super) first_row: u32,
    pub(super) rows: u32,
    /// Position of the first row.
    pub(super) position: u32,
    /// The first block that this row sees.
    pub(super) first_block: u32,
    /// Where the results over single blocks go, `[query row][block]` from `first_block` on, if the
    /// unit is split.
    pub(super) partials: Option<usize>,
}

impl Unit {
    /// Tokens that the unit's last row sees.
    pub(super) fn tokens(&self) -> usize {
        (self.position + self.rows) as usize
    }

    /// Blocks that it sees.
    pub(super) fn blocks(&self) -> usize {
        self.tokens().div_ceil(BLOCK_TOKENS) - self.first_block as usize
    }

    /// Effort, in pieces read (which costs about as much as attending 8 query rows to them).
    fn cost(&self, group: usize) -> u64 {
        let skipped = self.first_block as usize * BLOCK_TOKENS;
        let pieces = (self.tokens() - skipped).div_ceil(PIECE) as u64;
        pieces * u64::from(self.kv_heads) * (8 + u64::from(self.rows) * group as u64)
    }
}

/// A unit, or its part over some of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) unit: u32,
    pub(super) first_block: u32,
    pub(super) end_block: u32,
    cost: u64,
}

/// The attention work of a step in layers whose queries see as much, of one shape of heads.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Which tokens queries see.
    seen: Seen,
    heads: Heads,
    pub(super) units: Vec<Unit>,
    pub(super) tasks: Vec<Task>,
    /// Units whose blocks are divided among tasks, to be merged afterwards.
    pub(super) split: Vec<u32>,
    partial_floats: usize,
}

/// No unit is split if all results over single blocks would exceed this.
const MAX_PARTIAL_FLOATS: usize = 16 << 20;

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Heads {
    pub(crate) kv_heads: usize,
    /// Query heads of a KV head.
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
}

impl From<HeadShape> for Heads {
    fn from(heads: HeadShape) -> Self {
        Self {
            kv_heads: heads.kv_heads,
            group: heads.group(),
            head_dim: heads.head_dim,
        }
    }
}

/// A plan for each that layers of a model see and shape of heads.
#[derive(Debug)]
pub(crate) struct Plans(Vec<Plan>);

impl Plans {
    /// For layers that see so much, of these heads.
    pub(crate) fn new(layers: impl Iterator<Item = (Seen, Heads)>) -> Self {
        let mut layers: Vec<_> = layers.collect();
        layers.sort_unstable();
        layers.dedup();
        let plans = layers.into_iter();
        Self(plans.map(|(seen, heads)| Plan::new(seen, heads)).collect())
    }

    /// Plans a checked step.
    pub(crate) fn build(&mut self, input: &StepInput, threads: usize) {
        for plan in &mut self.0 {
            plan.build(input, threads);
        }
    }

    /// Floats that the results over single blocks take in any layer.
    pub(crate) fn partial_floats(&self) -> usize {
        let floats = self.0.iter().map(Plan::partial_floats);
        floats.max().unwrap_or(0)
    }

    /// The plan of layers that see so much, with these heads.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn of(&self, seen: Seen, heads: Heads) -> &Plan {
        let mut plans = self.0.iter();
        let found = plans.find(|plan| (plan.seen, plan.heads) == (seen, heads));
        found.expect("a plan for each that the layers see and shape of heads")
    }
}

impl Plan {
    /// No work yet, of layers whose queries see so much.
    pub(crate) fn new(seen: Seen, heads: Heads) -> Self {
        Self {
            seen,
            heads,
            ..Self::default()
        }
    }

    /// The first token that a query at `position` sees.
    #[inline(always)]
    pub(super) fn first_seen(&self, position: usize) -> usize {
        self.seen.first(position)
    }

    /// Floats that the results over single blocks take.
    pub(crate) fn partial_floats(&self) -> usize {
        self.partial_floats
    }

    /// Plans a checked step. Neither the division nor the thread count changes any result.
    pub(crate) fn build(&mut self, input: &StepInput, threads: usize) {
        let heads = self.heads;
        self.units.clear();
        self.tasks.clear();
        self.split.clear();
        self.partial_floats = 0;
        let units: Vec<_> = self.row_groups(input, heads).collect();
        let total: u64 = units.iter().map(|u| u.cost(heads.group)).sum();
        // Small enough that the last task to finish keeps the others waiting only briefly.
        let target = match threads {
            1 => u64::MAX,
            n => total.div_ceil(n as u64 * 4).max(1),
        };
        for unit in units {
            let query_rows = unit.rows as usize * heads.group;
            // The heads of a block lie side by side in memory: better divide the blocks.
            let parts = unit.cost(heads.group).div_ceil(target) as usize;
            let mut kv_heads = (MAX_ROWS / query_rows).clamp(1, heads.kv_heads);
            if parts > unit.blocks() {
                kv_heads = kv_heads.min((heads.kv_heads / parts).max(1));
            }
            for first in (0..heads.kv_heads).step_by(kv_heads) {
                self.add(
                    Unit {
                        first_head: first as u32,
                        kv_heads: kv_heads.min(heads.kv_heads - first) as u32,
                        ..unit
                    },
                    heads,
                    target,
                );
            }
        }
        // Longest first, so that the short ones fill the gaps at the end.
        self.tasks
            .sort_unstable_by_key(|t| (std::cmp::Reverse(t.cost), t.unit, t.first_block));
    }

    /// Adds a unit, its blocks divided so that no task exceeds the target by much.
    fn add(&mut self, mut unit: Unit, heads: Heads, target: u64) {
        let blocks = unit.blocks();
        let cost = unit.cost(heads.group);
        let mut parts = (cost.div_ceil(target) as usize).min(blocks);
        if parts > 1 {
            let rows = (unit.rows * unit.kv_heads) as usize * heads.group;
            let floats = rows * blocks * state_stride(heads.head_dim);
            if self.partial_floats + floats <= MAX_PARTIAL_FLOATS {
                unit.partials = Some(self.partial_floats);
                self.partial_floats += floats;
                self.split.push(self.units.len() as u32);
            } else {
                parts = 1;
            }
        }
        for part in 0..parts {
            let (first, end) = (part * blocks / parts, (part + 1) * blocks / parts);
            self.tasks.push(Task {
                unit: self.units.len() as u32,
                first_block: unit.first_block + first as u32,
                end_block: unit.first_block + end as u32,
                cost: cost * (end - first) as u64 / blocks as u64,
            });
        }
        self.units.push(unit);
    }

    /// The rows of each sequence in groups that share the reading of a block, with all heads.
    fn row_groups(&self, input: &StepInput, heads: Heads) -> impl Iterator<Item = Unit> {
        let most = (MAX_ROWS / heads.group).max(1);
        input.seqs.iter().flat_map(move |s| {
            (0..s.rows as usize).step_by(most).map(move |first| {
                let position = s.position + first as u32;
                Unit {
                    slot: s.slot,
                    first_head: 0,
                    kv_heads: heads.kv_heads as u32,
                    first_row: s.first_row + first as u32,
                    rows: most.min(s.rows as usize - first) as u32,
                    position,
                    first_block: (self.first_seen(position as usize) / BLOCK_TOKENS) as u32,
                    partials: None,
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SeqRows;

    fn plan(seqs: &[(u32, u32)], threads: usize) -> Plan {
        seeing(Seen::default(), seqs, threads)
    }

    fn seeing(seen: Seen, seqs: &[(u32, u32)], threads: usize) -> Plan {
        let mut input = StepInput::default();
        let mut first_row = 0;
        for (slot, &(position, rows)) in (0..).zip(seqs) {
            input.seqs.push(SeqRows {
                slot,
                first_row,
                rows,
                position,
            });
            first_row += rows;
        }
        let heads = Heads {
            kv_heads: 3,
            group: 3,
            head_dim: 64,
        };
        let mut plan = Plan::new(seen, heads);
        plan.build(&input, threads);
        plan
    }

    #[test]
    fn tasks_cover_every_row_head_and_block_once() {
        let windows = [None, Some(1), Some(130), Some(1000)].map(Seen::window);
        let all = [&windows[..], &[Seen::chunk(110), Seen::chunk(1024)]].concat();
        let each = |threads| all.iter().map(move |seen| (threads, *seen));
        for (threads, seen) in [1, 2, 7].into_iter().flat_map(each) {
            for seqs in [
                &[(0, 100), (5000, 1), (127, 2), (128, 1), (300, 33)][..],
                &[(8000, 1)],
                &[(20, 1)],
                &[(0, 2000)],
            ] {
                let plan = seeing(seen, seqs, threads);
                let count = |u: &Unit| u.rows * u.kv_heads;
                let got: u32 = plan.units.iter().map(count).sum();
                assert_eq!(got, seqs.iter().map(|s| s.1 * 3).sum());
                assert!(plan.units.iter().all(|u| count(u) as usize * 3 <= MAX_ROWS));
                for (i, unit) in plan.units.iter().enumerate() {
                    let mut parts: Vec<_> =
                        plan.tasks.iter().filter(|t| t.unit == i as u32).collect();
                    parts.sort_by_key(|t| t.first_block);
                    let mut next = unit.first_block;
                    for part in &parts {
                        assert!(part.first_block == next && part.end_block > next);
                        next = part.end_block;
                    }
                    assert_eq!(next as usize, unit.tokens().div_ceil(BLOCK_TOKENS));
                    // No block that nobody sees.
                    let seen = plan.first_seen(unit.position as usize);
                    let first = unit.first_block as usize * BLOCK_TOKENS;
                    assert!(first <= seen && seen < first + BLOCK_TOKENS);
                    assert_eq!(unit.partials.is_some(), parts.len() > 1);
                }
            }
        }
    }

    #[test]
    fn a_single_stream_uses_every_thread() {
        // Divided over blocks if there are enough, else over heads too.
        for (tokens, threads, least) in [(8000, 8, 16), (300, 2, 6), (20, 2, 3)] {
            let plan = plan(&[(tokens, 1)], threads);
            assert!(plan.tasks.len() >= least, "{} tasks", plan.tasks.len());
        }
        assert_eq!(plan(&[(8000, 1)], 2).units.len(), 1);
        // Over a window as over a sequence of that many tokens.
        let windowed = seeing(Seen::window(Some(1024)), &[(8000, 1)], 4);
        let costs: Vec<_> = windowed.tasks.iter().map(|task| task.cost).collect();
        assert!(costs.len() >= 8, "{costs:?}");
        let least = plan(&[(1023, 1)], 4).partial_floats();
        assert!(windowed.partial_floats() <= least * 9 / 8);
    }
}
