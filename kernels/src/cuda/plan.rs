//! How attention is cut into units of work: by the sequence's own length alone.

use std::ops::Range;

use bytemuck::Zeroable;

use crate::BLOCK_TOKENS;
use crate::backend::SeqRows;
use crate::model::{ModelSpec, Seen};

/// How a decoding sequence is cut into units: most of it into large ones, its last eighth into
/// small ones, which even out what the CTAs have to do when the large ones run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitRule {
    /// Fewest blocks of a large unit: a shorter one costs more to merge than it gains in
    /// parallelism.
    pub blocks_min: usize,
    /// Most blocks of a large unit.
    pub blocks_max: usize,
    /// Large units that a sequence of middling length is cut into.
    pub units: usize,
    /// Blocks of a small unit; 0: there are none.
    pub blocks_small: usize,
    /// Blocks from which on a sequence is cut into large units of half as many blocks: few such
    /// sequences run at once.
    pub long: usize,
}

impl Default for SplitRule {
    fn default() -> Self {
        Self {
            blocks_min: 8,
            // With 8 KV heads a sequence of 128k tokens, alone, is as many large units as 132
            // multiprocessors hold twice.
            blocks_max: 28,
            units: 32,
            blocks_small: 4,
            long: usize::MAX,
        }
    }
}

impl SplitRule {
    /// For the kernel that reads shrunk blocks: what a unit costs beside its blocks is about what
    /// one block of 2 bits costs each of its warps. With 8 KV heads a sequence of 128k tokens,
    /// alone, is a unit for each team of 132 multiprocessors.
    pub const MIXED: Self = Self {
        blocks_min: 64,
        blocks_max: 64,
        units: 1,
        blocks_small: 0,
        long: 512,
    };
}

/// How the kernel over shrunk blocks divides what attends to a KV head: columns, pairs of a row and
/// a query head, numbered row * group + head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitColumns {
    /// Most rows of a sequence that decodes; at most [`ROWS_MAX`].
    pub(super) rows: usize,
    /// Query heads of a KV head.
    pub(super) group: usize,
    /// Columns of a unit.
    pub(super) of_unit: usize,
}

impl UnitColumns {
    /// Units of a range of tokens and a KV head, at most.
    fn units(self) -> usize {
        (self.rows * self.group).div_ceil(self.of_unit)
    }
}

/// How finely a sequence may be cut so that all units of a step are under way at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spread {
    /// Units; 0 or 1 where a row's results must not depend on how many sequences there are.
    pub(super) units: usize,
    /// Fewest blocks of a unit, unless half of all units are enough for units of fewer: those leave
    /// multiprocessors for the kernel behind to begin on.
    pub(super) blocks: usize,
    /// Whether the CTA that ends last merges a sequence's units. To merge one takes about a quarter
    /// of the time of a block (H100, heads of 256 channels), so a sequence of `n` blocks is cut
    /// into no more than `2 sqrt(n)` units.
    pub(super) last_merges: bool,
}

impl Spread {
    /// Of each of `seqs` sequences.
    pub(super) fn among(self, seqs: usize) -> Self {
        Self {
            units: self.units / seqs.max(1),
            ..self
        }
    }
}

/// Of so many blocks one goes into small units.
const SMALL_SHARE: usize = 8;

impl SplitRule {
    /// Blocks of a large unit of a sequence of `blocks` blocks, where a short one's has `size`.
    fn of_length(&self, blocks: usize, size: usize) -> usize {
        let parts = if blocks < self.long { 1 } else { 2 };
        size.div_ceil(parts)
    }

    /// Large units and small units of a sequence of `blocks` blocks, and the blocks that the large
    /// ones cover.
    fn cut(&self, blocks: usize) -> (usize, usize, usize) {
        let size = blocks.div_ceil(self.units);
        let size = size.clamp(self.blocks_min, self.blocks_max.max(self.blocks_min));
        let size = self.of_length(blocks, size);
        if 2 * blocks < 3 * size {
            return (1, 0, blocks);
        }
        if self.blocks_small == 0 {
            return ((blocks + size / 2) / size, 0, blocks);
        }
        let small = blocks / SMALL_SHARE;
        let large = blocks - small;
        (
            large.div_ceil(size),
            small.div_ceil(self.blocks_small),
            large,
        )
    }

    /// The same, where a sequence may be spread: if that is more units, of equal size.
    pub(super) fn cut_to_spread(&self, blocks: usize, spread: Spread) -> (usize, usize, usize) {
        let (large, small, large_blocks) = self.cut(blocks);
        let mut finest = blocks / spread.blocks.max(1);
        if spread.last_merges {
            finest = finest.min(2 * blocks.isqrt());
        } else {
            finest = finest.max(blocks.min(spread.units / 2));
        }
        let even = spread.units.min(self.units).min(finest);
        match even > large + small {
            true => (even, 0, blocks),
            false => (large, small, large_blocks),
        }
    }

    /// Most units that sequences with this many blocks in all can have.
    pub(super) fn units_max(&self, seqs: usize, blocks: usize) -> usize {
        let size = self.of_length(blocks, self.blocks_max.max(self.blocks_min));
        let large = blocks / size + seqs * (self.units + 1);
        large + blocks / SMALL_SHARE / self.blocks_small.max(1) + seqs
    }

    /// The same, and most partial results of theirs, whichever of this rule and that for shrunk
    /// blocks a step is planned by.
    pub(super) fn units_room(&self, seqs: usize, blocks: usize, columns: UnitColumns) -> usize {
        let mixed = Self::MIXED.units_max(seqs, blocks) * columns.units().max(columns.rows);
        self.units_max(seqs, blocks).max(mixed)
    }
}

/// (token, head) rows of the smallest tile that a prefill kernel takes; `PrefillAttention::kRows`
/// in the CUDA source.
pub(super) const PREFILL_TILE_ROWS_MIN: usize = 64;

/// `DecodeUnit` of the CUDA source: a range of one sequence's tokens.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct DecodeUnit {
    pub(super) row: u32,
    pub(super) first_block: u32,
    /// The first token that the sequence's first row sees of the unit's blocks.
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) split: u32,
    pub(super) splits: u32,
    pub(super) partial: u32,
    /// `counter`; of the kernel over shrunk blocks `columns`: rows of the sequence << 24 | tokens
    /// behind `end`, at most [`ROWS_MAX`] - 1, << 16 | tokens from `begin` on that its last row
    /// does not see << 12 | first column.
    pub(super) counter_or_columns: u32,
}

/// Most rows of a sequence that decodes.
pub(super) const ROWS_MAX: usize = 16;

/// `DecodeRow` of the CUDA source: a row of a sequence that decodes, and where its units leave
/// their results.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct DecodeRow {
    pub(super) row: u32,
    pub(super) splits: u32,
    pub(super) partial: u32,
    pub(super) reserved: u32,
}

/// `PrefillTile` of the CUDA source: consecutive rows of one sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct PrefillTile {
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) position: u32,
    pub(super) first_block: u32,
}

/// Most tiles that this many rows can have, whatever the kernel.
pub(super) fn prefill_tiles_max(seqs: usize, rows: usize, group: usize) -> usize {
    rows / (PREFILL_TILE_ROWS_MIN / group).max(1) + seqs
}

/// A sequence whose shrunk blocks are read in scratch, at 16 bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InScratch {
    /// When they are there: not those of all sequences are at once.
    pub(super) turn: u32,
    /// Its first entry in the tables that name scratch.
    pub(super) first_block: u32,
}

/// Which tokens the rows of a model's layers see, each once: all first, then the widest window or
/// chunk. There is a plan for each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Windows(Vec<Seen>);

impl Default for Windows {
    /// Of layers that see all tokens.
    fn default() -> Self {
        Self(vec![Seen::default()])
    }
}

impl Windows {
    /// Of layers that see so much.
    pub(super) fn of(layers: impl IntoIterator<Item = Seen>) -> Self {
        let mut all: Vec<_> = layers.into_iter().collect();
        all.sort_unstable_by_key(|s| (s.window.is_some(), std::cmp::Reverse(*s)));
        all.dedup();
        match all.is_empty() {
            true => Self::default(),
            false => Self(all),
        }
    }

    /// Of the layers of a model that attend.
    pub(super) fn of_model(spec: &ModelSpec) -> Self {
        Self::of(spec.attentions().map(|(_, attention)| attention.seen()))
    }

    /// The plan of layers that see so much.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn plan(&self, seen: Seen) -> usize {
        let found = self.0.iter().position(|s| *s == seen);
        found.expect("a plan for each that the layers see")
    }

    /// Plans.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Most blocks that `rows` rows of a sequence see in a plan; none if those are all.
    pub(super) fn blocks(&self, plan: usize, rows: usize) -> Option<usize> {
        let window = self.0[plan].window?;
        Some(window.saturating_add(rows).div_ceil(BLOCK_TOKENS) + 1)
    }

    /// Most units of a plan, and most partial results, of a step of `seqs` sequences with `blocks`
    /// blocks in all.
    pub(super) fn room(
        &self,
        plan: usize,
        rule: SplitRule,
        (seqs, blocks): (usize, usize),
        columns: UnitColumns,
    ) -> usize {
        let seen = self.blocks(plan, columns.rows);
        let blocks = seen.map_or(blocks, |seen| blocks.min(seqs.saturating_mul(seen)));
        rule.units_room(seqs, blocks, columns)
    }
}

/// The decode attention of one step in layers of which rows see as many tokens.
#[derive(Debug, Default)]
pub(super) struct DecodePlan {
    /// Which tokens a row sees.
    seen: Seen,
    pub(super) units: Vec<DecodeUnit>,
    /// Partial results the units write.
    pub(super) partials: usize,
    /// Rows among the units.
    pub(super) rows: Vec<DecodeRow>,
    /// Room to sort units in, and where the next one of each size goes.
    sorted: Vec<DecodeUnit>,
    places: Vec<usize>,
}

/// How sequences that decode are cut.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DecodeRule {
    pub(super) rule: SplitRule,
    pub(super) spread: Spread,
    /// If the kernel over shrunk blocks decodes.
    pub(super) columns: Option<UnitColumns>,
}

/// The work of one step's attention.
#[derive(Debug)]
pub(super) struct AttentionPlan {
    /// Of each of the model's [`Windows`].
    pub(super) decode: Vec<DecodePlan>,
    pub(super) tiles: Vec<PrefillTile>,
    /// Which tiles are computed in each turn; those of sequences that read no scratch, in the
    /// first.
    pub(super) turns: Vec<Range<usize>>,
    pub(super) rule: DecodeRule,
    /// The spread of plans but the first: of so many sequences as kernels may be recorded for.
    pub(super) others_spread: Spread,
    /// (token, head) rows of a tile.
    pub(super) tile_rows: usize,
    /// Blocks of a row of the block table.
    pub(super) row_blocks: u32,
}

impl AttentionPlan {
    /// No work yet, for tiles of `tile_rows` (token, head) rows, over block tables with rows of
    /// `row_blocks` blocks.
    pub(super) fn new(windows: &Windows, tile_rows: usize, row_blocks: u32) -> Self {
        let plan = |seen: &Seen| DecodePlan {
            seen: *seen,
            ..DecodePlan::default()
        };
        Self {
            decode: windows.0.iter().map(plan).collect(),
            tiles: Vec::new(),
            turns: Vec::new(),
            rule: DecodeRule::default(),
            others_spread: Spread::default(),
            tile_rows,
            row_blocks,
        }
    }

    /// Plans a step: sequences of one row, or of as many as `columns` allows, are decoded, the
    /// others, and those that read scratch, are prefilled in tiles, those of a turn with the most
    /// keys first. `in_scratch`: of each sequence; none is if it is empty.
    pub(super) fn plan(
        &mut self,
        seqs: &[SeqRows],
        group: usize,
        in_scratch: &[Option<InScratch>],
    ) {
        self.decode.iter_mut().for_each(DecodePlan::clear);
        self.tiles.clear();
        self.turns.clear();
        let place = |seq: usize| in_scratch.get(seq).copied().flatten();
        let decoded = self.rule.columns.map_or(1, |c| c.rows as u32);
        let last_turn = (0..seqs.len()).filter_map(place).map(|c| c.turn).max();
        for turn in 0..=last_turn.unwrap_or(0) {
            let first = self.tiles.len();
            for (seq, in_scratch) in seqs.iter().zip((0..).map(place)) {
                match in_scratch {
                    None if turn > 0 => {}
                    None if seq.rows <= decoded => {
                        let first_block = self.first_block(seq);
                        let mut rule = self.rule;
                        for plan in &mut self.decode {
                            plan.add(seq, rule, first_block);
                            rule.spread = self.others_spread;
                        }
                    }
                    None => self.plan_tiles(seq, self.first_block(seq), group),
                    Some(c) if c.turn == turn => self.plan_tiles(seq, c.first_block, group),
                    Some(_) => {}
                }
            }
            self.tiles[first..].sort_by_key(|t| std::cmp::Reverse(t.position));
            self.turns.push(first..self.tiles.len());
        }
        self.decode.iter_mut().for_each(DecodePlan::sort_units);
    }

    /// The first entry of a sequence's blocks.
    pub(super) fn first_block(&self, seq: &SeqRows) -> u32 {
        seq.slot * self.row_blocks
    }

    fn plan_tiles(&mut self, seq: &SeqRows, first_block: u32, group: usize) {
        let tile_tokens = (self.tile_rows / group).max(1) as u32;
        let starts = (0..seq.rows).step_by(tile_tokens as usize);
        self.tiles.extend(starts.map(|start| PrefillTile {
            first_row: seq.first_row + start,
            rows: tile_tokens.min(seq.rows - start),
            position: seq.position + start,
            first_block,
        }));
    }
}

impl DecodePlan {
    fn clear(&mut self) {
        self.units.clear();
        self.partials = 0;
        self.rows.clear();
    }

    /// The units are handed out in this order: small ones last, those of a size as they come. There
    /// are thousands, of few sizes.
    fn sort_units(&mut self) {
        let size = |u: &DecodeUnit| (u.end - u.begin).div_ceil(BLOCK_TOKENS as u32) as usize;
        self.places.clear();
        for unit in &self.units {
            let size = size(unit);
            if self.places.len() <= size {
                self.places.resize(size + 1, 0);
            }
            self.places[size] += 1;
        }
        let mut next = 0;
        for place in self.places.iter_mut().rev() {
            next += std::mem::replace(place, next);
        }
        self.sorted.clear();
        self.sorted.resize(self.units.len(), DecodeUnit::zeroed());
        for unit in &self.units {
            let place = &mut self.places[size(unit)];
            self.sorted[*place] = *unit;
            *place += 1;
        }
        std::mem::swap(&mut self.units, &mut self.sorted);
    }

    /// Plans a sequence that decodes, of which the tables have the first block at `first_block`.
    fn add(&mut self, seq: &SeqRows, rule: DecodeRule, first_block: u32) {
        let tokens = (seq.position + seq.rows) as usize;
        // The first tokens that the first row, and that the last one sees.
        let first = self.seen.first(seq.position as usize);
        let last_first = self.seen.first(tokens - 1);
        let skipped = first / BLOCK_TOKENS;
        let blocks = tokens.div_ceil(BLOCK_TOKENS) - skipped;
        let (large, small, large_blocks) = rule.rule.cut_to_spread(blocks, rule.spread);
        let splits = large + small;
        let ends = (1..=large)
            .map(|i| large_blocks * i / large)
            .chain((1..=small).map(|i| large_blocks + (blocks - large_blocks) * i / small));
        let mut begin = first;
        for (split, end) in ends.enumerate() {
            let end = ((skipped + end) * BLOCK_TOKENS).min(tokens);
            let unit = DecodeUnit {
                row: seq.first_row,
                first_block,
                begin: begin as u32,
                end: end as u32,
                split: split as u32,
                splits: splits as u32,
                partial: self.partials as u32,
                counter_or_columns: self.rows.len() as u32,
            };
            // What the last row does not see of the unit: less than there are rows.
            let unseen = last_first.saturating_sub(begin) as u32;
            begin = end;
            let Some(UnitColumns { group, of_unit, .. }) = rule.columns else {
                self.units.push(unit);
                continue;
            };
            let behind = (tokens - end).min(ROWS_MAX - 1) as u32;
            let firsts = (0..seq.rows * group as u32).step_by(of_unit);
            self.units.extend(firsts.map(|first| DecodeUnit {
                counter_or_columns: seq.rows << 24 | behind << 16 | unseen << 12 | first,
                ..unit
            }));
        }
        for row in 0..seq.rows {
            self.rows.push(DecodeRow {
                row: seq.first_row + row,
                splits: splits as u32,
                partial: self.partials as u32 + row * splits as u32,
                reserved: 0,
            });
        }
        if splits > 1 {
            self.partials += splits * seq.rows as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(windows: &Windows) -> AttentionPlan {
        AttentionPlan::new(windows, PREFILL_TILE_ROWS_MIN, 7)
    }

    fn seq(first_row: u32, rows: u32, position: u32) -> SeqRows {
        SeqRows {
            slot: first_row,
            first_row,
            rows,
            position,
        }
    }

    #[test]
    fn units_over_shrunk_blocks_halve_where_a_sequence_alone_has_to_fill_the_device() {
        let cut = |blocks| SplitRule::MIXED.cut(blocks).0;
        assert_eq!([9, 64, 95].map(cut), [1; 3]);
        assert_eq!([128, 256, 511].map(cut), [2, 4, 8]);
        assert_eq!([512, 1024].map(cut), [16, 32]);
    }

    #[test]
    fn units_cover_every_token_once_and_start_at_blocks() {
        let lengths = || (0..9000).chain([131_071, 1_000_000]);
        let rules = [SplitRule::default(), SplitRule::MIXED];
        let cases = rules
            .into_iter()
            .flat_map(|r| lengths().map(move |p| (r, p)));
        let mut plan = plan_of(&Windows::default());
        for (rule, position) in cases {
            plan.rule.rule = rule;
            plan.plan(&[seq(0, 1, position)], 4, &[]);
            let mut next = 0;
            let sizes: Vec<u32> = plan.decode[0]
                .units
                .iter()
                .map(|u| u.end - u.begin)
                .collect();
            assert!(
                sizes
                    .windows(2)
                    .all(|w| w[0].div_ceil(128) >= w[1].div_ceil(128))
            );
            plan.decode[0].units.sort_by_key(|u| u.begin);
            for u in &plan.decode[0].units {
                assert_eq!(
                    (u.begin, u.splits as usize),
                    (next, plan.decode[0].units.len())
                );
                assert!(u.end > u.begin && (u.begin as usize).is_multiple_of(BLOCK_TOKENS));
                next = u.end;
            }
            assert_eq!(next, position + 1);
            let blocks = (position as usize + 1).div_ceil(BLOCK_TOKENS);
            assert!(plan.decode[0].units.len() <= plan.rule.rule.units_max(1, blocks));
        }
    }

    #[test]
    fn windows_are_planned_once_each_the_widest_first() {
        let layers = [Some(128), None, Some(1 << 40), Some(128), None].map(Seen::window);
        let windows = Windows::of(layers.into_iter().chain([Seen::chunk(128)]));
        assert_eq!(windows.len(), 4);
        let plans = [None, Some(1 << 40), Some(128)].map(Seen::window);
        assert_eq!(plans.map(|seen| windows.plan(seen)), [0, 1, 3]);
        assert_eq!(windows.plan(Seen::chunk(128)), 2);
        assert_eq!(Windows::of([Seen::chunk(5); 3]).len(), 1);
        assert_eq!(Windows::of([]), Windows::default());
    }

    #[test]
    fn units_of_a_window_cover_what_is_seen_of_it_and_no_other_block() {
        let sizes = [1, 5, 127, 128, 129, 1000, 4096, 1 << 40];
        let chunks = sizes.map(Seen::chunk).into_iter();
        let all: Vec<_> = chunks
            .chain(sizes.map(|size| Seen::window(Some(size))))
            .collect();
        let windows = Windows::of(all.iter().copied());
        for rule in [SplitRule::default(), SplitRule::MIXED] {
            let mut plan = plan_of(&windows);
            plan.rule.rule = rule;
            for position in (0..3000).step_by(13).chain([127, 128, 20_000, 131_071]) {
                plan.plan(&[seq(0, 1, position)], 4, &[]);
                for seen in &all {
                    let index = windows.plan(*seen);
                    let units = &mut plan.decode[index].units;
                    units.sort_by_key(|u| u.begin);
                    let mut next = seen.first(position as usize) as u32;
                    for (i, u) in units.iter().enumerate() {
                        assert!(u.begin == next && u.end > next && u.split as usize == i);
                        assert!(i == 0 || u.begin % 128 == 0);
                        next = u.end;
                    }
                    assert_eq!(next, position + 1);
                    let columns = UnitColumns {
                        rows: 1,
                        group: 4,
                        of_unit: 4,
                    };
                    let blocks = position as usize / BLOCK_TOKENS + 1;
                    let room = windows.room(index, rule, (1, blocks), columns);
                    assert!(units.len() <= room);
                    let seen = windows.blocks(index, 1).unwrap();
                    assert!((units.last().unwrap().end - units[0].begin) as usize <= seen * 128);
                }
            }
        }
    }

    /// What a recorded step relies on: with as many blocks as a window may have, it is known
    /// whether any sequence is cut.
    #[test]
    fn no_fewer_blocks_are_cut_where_the_most_are_not() {
        let rules = [SplitRule::default(), SplitRule::MIXED];
        let spreads = [0, 3, 16].into_iter().flat_map(|s| [(s, 1), (s, 3)]);
        let cases = spreads.flat_map(|spread| rules.map(|rule| (rule, spread)));
        for (rule, (spread, least)) in cases {
            let is_cut = |blocks, units| {
                let spread = Spread {
                    units,
                    blocks: least,
                    last_merges: least == 1,
                };
                let (large, small, _) = rule.cut_to_spread(blocks, spread);
                large + small > 1
            };
            for blocks in 1..600 {
                assert!(is_cut(blocks + 1, spread) || !is_cut(blocks, spread));
                assert!(is_cut(blocks, spread + 1) || !is_cut(blocks, spread));
            }
        }
    }

    #[test]
    fn a_sequence_is_spread_as_finely_as_is_worth_it() {
        let units = |blocks, spread| SplitRule::default().cut_to_spread(blocks, spread).0;
        let spread = Spread {
            units: 49,
            blocks: 1,
            last_merges: true,
        };
        // 1,152 and 4,096 tokens, and no more than a rule allows.
        assert_eq!([2, 9, 32].map(|blocks| units(blocks, spread)), [2, 6, 10]);
        assert_eq!(units(1024, spread), 32);
        assert_eq!(units(9, spread.among(16)), 3);
        let of_threes = Spread {
            blocks: 3,
            last_merges: false,
            ..spread
        };
        assert_eq!([9, 32].map(|blocks| units(blocks, of_threes)), [9, 24]);
        // Of two and of eight such sequences.
        let shared = [2, 8].map(|seqs| units(9, of_threes.among(seqs)));
        assert_eq!(shared, [9, 3]);
        assert_eq!(units(64, of_threes.among(2)), 21);
    }

    #[test]
    fn rows_that_decode_together_are_told_what_the_last_one_does_not_see() {
        let columns = UnitColumns {
            rows: 16,
            group: 2,
            of_unit: 8,
        };
        let mut plan = plan_of(&Windows::of([Seen::window(Some(200))]));
        plan.rule.rule = SplitRule::MIXED;
        plan.rule.columns = Some(columns);
        plan.plan(&[seq(0, 4, 1000), seq(4, 16, 190), seq(20, 1, 0)], 2, &[]);
        let mut units: Vec<_> = plan.decode[0]
            .units
            .iter()
            .filter(|u| u.counter_or_columns & 0xfff == 0)
            .map(|u| (u.row, u.begin, u.end, u.counter_or_columns >> 12 & 15))
            .collect();
        units.sort_unstable();
        // The first row of the second sees all, its last one not the first six tokens.
        let expected = [(0, 801, 1004, 3), (4, 0, 206, 6), (20, 0, 1, 0)];
        assert_eq!(units, expected);
    }

    #[test]
    fn a_sequence_is_cut_the_same_in_any_company() {
        let (mut alone, mut together) =
            (plan_of(&Windows::default()), plan_of(&Windows::default()));
        alone.plan(&[seq(0, 1, 5000)], 4, &[]);
        let others = [seq(0, 1, 70), seq(1, 1, 5000), seq(2, 40, 100)];
        together.plan(&others, 4, &[]);
        let cuts = |plan: &AttentionPlan, row| -> Vec<_> {
            let of_row = plan.decode[0].units.iter().filter(|u| u.row == row);
            of_row.map(|u| (u.begin, u.end)).collect()
        };
        assert_eq!(cuts(&alone, 0), cuts(&together, 1));
        assert_eq!(
            (together.decode[0].rows.len(), together.decode[0].partials),
            (2, together.decode[0].units.len() - 1)
        );
    }

    #[test]
    fn rows_of_a_sequence_decode_together_in_units_of_so_many_columns() {
        let columns = UnitColumns {
            rows: 4,
            group: 4,
            of_unit: 8,
        };
        let mut plan = plan_of(&Windows::default());
        plan.rule.rule = SplitRule::MIXED;
        plan.rule.columns = Some(columns);
        // Cut in two behind block 63 of 126; the second ends two tokens into a block.
        let long = 125 * 128 + 2 - 4;
        plan.plan(&[seq(0, 4, long), seq(4, 1, 70), seq(5, 5, 0)], 4, &[]);
        let own = |rows: u32, behind: u32, first: u32| rows << 24 | behind << 16 | first;
        let mut units: Vec<_> = plan.decode[0]
            .units
            .iter()
            .map(|u| (u.row, u.begin, u.end, u.counter_or_columns))
            .collect();
        units.sort_unstable();
        let (middle, end) = (63 * 128, 125 * 128 + 2);
        assert_eq!(
            units,
            [
                (0, 0, middle, own(4, 15, 0)),
                (0, 0, middle, own(4, 15, 8)),
                (0, middle, end, own(4, 0, 0)),
                (0, middle, end, own(4, 0, 8)),
                (4, 0, 71, own(1, 0, 0)),
            ]
        );
        let rows: Vec<_> = plan.decode[0]
            .rows
            .iter()
            .map(|d| (d.row, d.splits, d.partial))
            .collect();
        let expected = [(0, 2, 0), (1, 2, 2), (2, 2, 4), (3, 2, 6), (4, 1, 8)];
        assert_eq!(
            (rows.as_slice(), plan.decode[0].partials),
            (&expected[..], 8)
        );
        // Five rows are more than may decode.
        assert!(plan.tiles.iter().all(|t| t.first_row >= 5));
        let room = plan.rule.rule.units_room(2, 127, columns);
        assert!(plan.decode[0].units.len() <= room && plan.decode[0].partials <= room);
    }

    #[test]
    fn units_come_by_size_then_in_order() {
        let mut plan = plan_of(&Windows::default());
        for seqs in [0, 1, 40] {
            let positions = (0..seqs).map(|row| (row, row * row * 7919 % 60_000));
            let seqs: Vec<_> = positions.map(|(row, p)| seq(row, 1, p)).collect();
            plan.plan(&seqs, 4, &[]);
            let mut sorted = plan.decode[0].units.clone();
            sorted.sort_by_key(|u| (u.row, u.begin));
            sorted.sort_by_key(|u| std::cmp::Reverse((u.end - u.begin).div_ceil(128)));
            assert_eq!(plan.decode[0].units, sorted);
        }
    }

    #[test]
    fn tiles_cover_the_rows() {
        for tile_rows in [PREFILL_TILE_ROWS_MIN, 128] {
            let mut plan = AttentionPlan::new(&Windows::default(), tile_rows, 7);
            for group in [1, 3, 4, 5, 6, 8, 64, 100] {
                plan.plan(&[seq(0, 130, 300), seq(130, 2, 0)], group, &[]);
                let mut rows: Vec<u32> = plan
                    .tiles
                    .iter()
                    .flat_map(|t| t.first_row..t.first_row + t.rows)
                    .collect();
                rows.sort_unstable();
                assert_eq!(rows, (0..132).collect::<Vec<_>>());
                assert!(
                    plan.tiles
                        .iter()
                        .all(|t| t.rows as usize * group <= tile_rows.max(group))
                );
                assert!(plan.tiles.len() <= prefill_tiles_max(2, 132, group));
            }
        }
    }

    #[test]
    fn sequences_that_read_scratch_come_in_their_turns() {
        let seqs = [
            seq(0, 70, 0),
            seq(70, 1, 900),
            seq(71, 1, 300),
            seq(72, 40, 500),
            seq(112, 40, 200),
        ];
        let read = |turn, first_block| Some(InScratch { turn, first_block });
        let places = [None, None, read(0, 50), read(1, 60), read(1, 70)];
        let mut plan = plan_of(&Windows::default());
        plan.plan(&seqs, 4, &places);
        let rows: Vec<_> = plan.decode[0].rows.iter().map(|d| d.row).collect();
        assert_eq!(rows, [70]);
        let turns: Vec<Vec<_>> = plan
            .turns
            .iter()
            .map(|turn| {
                let tiles = plan.tiles[turn.clone()].iter();
                let mut list: Vec<_> = tiles
                    .clone()
                    .map(|t| (t.first_row, t.first_block))
                    .collect();
                assert!(tiles.is_sorted_by_key(|t| std::cmp::Reverse(t.position)));
                list.sort_unstable();
                list
            })
            .collect();
        let first = [(0, 0), (16, 0), (32, 0), (48, 0), (64, 0), (71, 50)];
        let second = [
            (72, 60),
            (88, 60),
            (104, 60),
            (112, 70),
            (128, 70),
            (144, 70),
        ];
        assert_eq!(turns, [first, second]);
    }
}
