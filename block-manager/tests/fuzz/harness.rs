//! The pool, its naive model and a device side by side.

use std::collections::BTreeMap;

use ebb_block_manager::{
    BlockId, BlockManager, PoolConfig, PrefixCursor, Pressure, SeqId, SeqOptions, ShrinkJob, Slot,
    StepId, precision::MinBits,
};

use crate::{
    Op,
    common::{
        device::{Device, Rows},
        model::{Key, Model},
        text,
    },
    coverage::Coverage,
};

const PROMPTS: u16 = 6;
const SEQUENCES_MAX: usize = 8;
const IN_FLIGHT_MAX: usize = 3;

/// What the caller of the pool knows of a sequence.
#[derive(Clone)]
struct Sequence {
    slot: Slot,
    /// Token ids, as many as have memory.
    tokens: Vec<u32>,
    /// Tokens that submitted steps compute.
    submitted: usize,
}

/// The pool beside its model and its device.
pub(crate) struct Harness {
    pool: BlockManager,
    model: Model,
    device: Device,
    seqs: BTreeMap<u64, Sequence>,
    in_flight: Vec<u64>,
    shrinks: Vec<ShrinkJob>,
    /// The shrinks of the plan and of each step in flight: block of the pool, block of the model.
    planned: Vec<(BlockId, Key)>,
    sent: BTreeMap<u64, Vec<(BlockId, Key)>>,
    cursors: Vec<PrefixCursor>,
    next_seq: u64,
    next_step: u64,
    salt: u32,
    coverage: Coverage,
}

impl Harness {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            pool: BlockManager::new(config.clone()).expect("the case is valid"),
            model: Model::new(config.clone()),
            device: Device::new(config),
            seqs: BTreeMap::new(),
            in_flight: Vec::new(),
            shrinks: Vec::new(),
            planned: Vec::new(),
            sent: BTreeMap::new(),
            cursors: vec![PrefixCursor::default(); PROMPTS.into()],
            next_seq: 1,
            next_step: 1,
            salt: 1000,
            coverage: Coverage::default(),
        }
    }

    fn pick(&self, at: u16) -> Option<u64> {
        let count = self.seqs.len().max(1);
        self.seqs.keys().nth(usize::from(at) % count).copied()
    }

    pub(crate) fn apply(&mut self, op: Op) -> Result<(), String> {
        let Op(_, a, b, c) = op;
        self.coverage.count("operations", 1_u64);
        match op.name() {
            "create" => self.create(a % PROMPTS, b, c),
            "decode" => self.grow(a, usize::from(b) % 40),
            "prefill" => self.grow(a, usize::from(b) % 400),
            "commit" => self.commit(a, b, c),
            "release" => self.release(a),
            "fork" => self.fork(a),
            "step" => return self.step(),
            "retire" => return self.retire(a, b),
            _ => self.shrink(a, b, c),
        }
        Ok(())
    }

    /// Prompts that share beginnings: some blocks of one text, then another.
    fn prompt(which: u16) -> Vec<u32> {
        let which = u32::from(which);
        let mut prompt = text(which % 2, 128 * (which as usize % 3 + 1));
        prompt.extend(text(10 + which, 300));
        prompt
    }

    fn create(&mut self, which: u16, max: u16, how: u16) {
        let prompt = Self::prompt(which);
        // Often the same limit, so that cursors are used again.
        let any_max = usize::from(max) % (prompt.len() + 1);
        let max = if how.is_multiple_of(2) {
            prompt.len() - 1
        } else {
            any_max
        };
        let options = SeqOptions {
            min_bits: MinBits([0, 0, 3, 8, 16][usize::from(how / 16) % 5]),
            priority: i32::from(how / 128) % 3,
            is_private: false,
        };
        let (any, _) = self.model.lookup(&prompt, max, MinBits::ANY);
        let (tokens, frames_revived) = self.model.lookup(&prompt, max, options.min_bits);
        self.coverage
            .count("blocks too low for a request", (any - tokens) as u64 / 128);
        let cursor = &mut self.cursors[usize::from(which)];
        assert_eq!(self.pool.lookup(&prompt, max).tokens, any);
        let hit = self
            .pool
            .lookup_from(cursor, &prompt, max, options.min_bits);
        assert_eq!((hit.tokens, hit.frames_revived), (tokens, frames_revived));
        if self.seqs.len() >= SEQUENCES_MAX {
            return;
        }
        let (id, available) = (self.next_seq, self.pool.available());
        self.next_seq += 1;
        let mut fresh = PrefixCursor::default();
        let cursor = match how % 3 {
            0 => &mut fresh,
            _ => cursor,
        };
        let created = self
            .pool
            .create_from(SeqId(id), cursor, &prompt, max, options);
        assert_eq!(
            created.cached_tokens,
            self.model.create(id, &prompt, max, options)
        );
        assert!(self.pool.available() >= available.saturating_sub(frames_revived));
        let tokens = prompt[..created.cached_tokens].to_vec();
        self.coverage
            .count("blocks found in the cache", tokens.len() as u64 / 128);
        let submitted = tokens.len();
        self.seqs.insert(
            id,
            Sequence {
                slot: created.slot,
                tokens,
                submitted,
            },
        );
    }

    fn grow(&mut self, at: u16, by: usize) {
        let Some(id) = self.pick(at) else { return };
        let len_max = self.pool.config().max_blocks_per_seq as usize * 128;
        let len = (self.model.allocated(id) + by).min(len_max);
        let needed = self.model.frames_needed(id, len);
        assert_eq!(self.pool.frames_needed(SeqId(id), len), needed);
        let missing = needed.saturating_sub(self.pool.available());
        let published = self.model.published();
        let grown = self.pool.grow(SeqId(id), len);
        assert_eq!(
            grown.map_err(|short| short.missing),
            self.model.grow(id, len)
        );
        self.coverage
            .count("blocks evicted", published - self.model.published());
        match grown {
            Ok(()) => self.write_text(id, len),
            Err(short) => {
                assert_eq!(short.missing, missing);
                self.coverage.count("reservations that did not fit", 1_u64);
            }
        }
    }

    /// Decides the token ids up to `len`: a prompt's while they agree with it, then new ones.
    fn write_text(&mut self, id: u64, len: usize) {
        self.salt += 1;
        let seq = self.seqs.get_mut(&id).expect("picked");
        let prompt = (0..PROMPTS)
            .map(Self::prompt)
            .find(|p| p.starts_with(&seq.tokens));
        let known = prompt.unwrap_or_default();
        let from = seq.tokens.len();
        let new = text(self.salt, len.saturating_sub(from));
        let tail = (from..len).map(|at| known.get(at).copied().unwrap_or_else(|| new[at - from]));
        seq.tokens.extend(tail);
    }

    /// Commits some of what was submitted; sometimes the rest turns out to be wrong drafts.
    fn commit(&mut self, at: u16, count: u16, draft: u16) {
        let Some(id) = self.pick(at) else { return };
        let seq = self.seqs.get_mut(&id).expect("picked");
        let from = self.model.committed(id);
        let to = from + (usize::from(count) % 200).min(seq.submitted - from);
        let duplicates = self.model.duplicates();
        self.pool.commit(SeqId(id), &seq.tokens[from..to]);
        self.model.commit(id, &seq.tokens[from..to]);
        assert_eq!(self.pool.committed(SeqId(id)), to);
        if draft.is_multiple_of(8) {
            let allocated = seq.tokens.len();
            seq.tokens.truncate(to);
            seq.submitted = to;
            self.write_text(id, allocated);
        }
        self.coverage
            .count("duplicates published", self.model.duplicates() - duplicates);
        let better = std::mem::take(&mut self.model.better);
        self.coverage
            .count("duplicates better than the first", better);
    }

    fn release(&mut self, at: u16) {
        let Some(id) = self.pick(at) else { return };
        assert_eq!(
            self.pool.releasable_frames(SeqId(id)),
            self.model.releasable(id)
        );
        let copied = self.model.copied();
        self.pool.release(SeqId(id));
        self.model.release(id);
        self.coverage
            .count("copies cancelled", copied - self.model.copied());
        self.seqs.remove(&id);
    }

    fn fork(&mut self, at: u16) {
        let Some(parent) = self.pick(at) else { return };
        if self.seqs.len() >= SEQUENCES_MAX {
            return;
        }
        let id = self.next_seq;
        self.next_seq += 1;
        let slot = self.pool.fork(SeqId(parent), SeqId(id));
        self.model.fork(parent, id);
        let submitted = self.model.committed(id);
        let tokens = self.seqs[&parent].tokens[..submitted].to_vec();
        self.seqs.insert(
            id,
            Sequence {
                slot,
                tokens,
                submitted,
            },
        );
    }

    fn step(&mut self) -> Result<(), String> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Ok(());
        }
        let id = self.next_step;
        self.next_step += 1;
        let rows = self.seqs.iter_mut().map(|(&seq, state)| {
            let from = std::mem::replace(&mut state.submitted, state.tokens.len());
            Rows {
                seq,
                slot: state.slot,
                tokens: state.tokens.clone(),
                from,
            }
        });
        let rows: Vec<Rows> = rows.collect();
        for rows in rows.iter().filter(|rows| rows.tokens.len() > rows.from) {
            let count = rows.tokens.len() - rows.from;
            self.pool.note_read(SeqId(rows.seq), count as u32);
            self.model.note_read(rows.seq);
        }
        let shrinks = std::mem::take(&mut self.shrinks);
        self.sent.insert(id, std::mem::take(&mut self.planned));
        let copied = self.device.submit(id, &mut self.pool, shrinks, rows)?;
        assert_eq!(copied, self.model.copied());
        self.coverage.count("frames copied on write", copied);
        self.pool.begin_step(StepId(id));
        self.model.begin(id);
        self.in_flight.push(id);
        Ok(())
    }

    /// Mostly the oldest step retires, now and then a later one.
    fn retire(&mut self, at: u16, luck: u16) -> Result<(), String> {
        if self.in_flight.is_empty() {
            return Ok(());
        }
        let any = usize::from(at / 4) % self.in_flight.len();
        let at = if at.is_multiple_of(4) { any } else { 0 };
        self.coverage.count("steps retired out of order", at > 0);
        let id = self.in_flight.remove(at);
        self.device.finish(id)?;
        let sent = self.sent.remove(&id).expect("every step has its list");
        match luck % 4 {
            0 => {
                self.pool.shrinks_failed(StepId(id));
                sent.iter()
                    .for_each(|&(_, key)| self.model.fail(key, false));
            }
            1 => {
                for &(block, key) in sent.iter().take(1) {
                    self.pool.shrink_failed(StepId(id), block);
                    self.model.fail(key, true);
                    self.coverage.count("shrinks failed", 1_u64);
                }
            }
            _ => {}
        }
        self.pool.retire_step(StepId(id));
        self.model.retire(id);
        Ok(())
    }

    /// Shrinks a cached block, one of a sequence, or what memory pressure asks for.
    fn shrink(&mut self, at: u16, which: u16, how: u16) {
        if how.is_multiple_of(2) {
            return self.shrink_for(at, which, how);
        }
        let which = usize::from(which);
        let cold: Vec<_> = self.pool.cached_blocks().map(|cold| cold.block).collect();
        let (block, place, kind) = if at.is_multiple_of(2) && !cold.is_empty() {
            let pick = which % cold.len();
            (cold[pick], (None, pick), "cold blocks shrunk")
        } else {
            let Some(id) = self.pick(at / 2) else { return };
            let unprotected = self.model.unprotected(id);
            let live = self.pool.unprotected_blocks(SeqId(id));
            let ids = self.pool.table(SeqId(id)).ids();
            assert!(
                live.map(|l| l.block)
                    .eq(unprotected.iter().map(|&index| ids[index]))
            );
            let Some(pick) = which.checked_rem(ids.len()) else {
                return;
            };
            (ids[pick], (Some(id), pick), "live blocks shrunk")
        };
        let shrunk = self.pool.shrink(block).map_err(|short| short.missing);
        let expected = self.model.shrink(place.0, place.1);
        let brief = shrunk
            .as_ref()
            .map(|job| job.as_ref().map(|j| (j.from, j.to)));
        let expected_brief = expected
            .as_ref()
            .map(|job| job.map(|(_, from, to)| (from, to)));
        assert_eq!(brief, expected_brief);
        if let (Ok(Some(job)), Ok(Some((key, ..)))) = (shrunk, expected) {
            self.coverage.count(kind, 1_u64);
            self.planned.push((job.block, key));
            self.shrinks.push(job);
        }
    }

    fn shrink_for(&mut self, demand: u16, marks: u16, bytes: u16) {
        let pressure = Pressure {
            demand: u32::from(demand % 64),
            decodes: u32::from(demand / 64 % 64).min(u32::from(demand % 64)),
            low: u32::from(marks % 16),
            high: u32::from(marks % 16 + marks / 64 % 64),
            live_max: match demand / 4096 {
                0 => u32::from(bytes / 512),
                _ => u32::MAX,
            },
            bytes_max: 4096 * u64::from(bytes % 128),
            shrinks_cached: !(bytes / 128).is_multiple_of(4),
        };
        let mut jobs = Vec::new();
        let before = self.pool.usage().blocks_cached;
        self.pool.shrink_for(&pressure, &mut jobs);
        let evicted = before - self.pool.usage().blocks_cached;
        self.coverage
            .count("blocks evicted for shrinks", u64::from(evicted));
        let spared = before > evicted && jobs.first().is_some_and(|job| job.live);
        self.coverage
            .count("live blocks shrunk beside cached ones", u64::from(spared));
        let over = jobs
            .iter()
            .filter(|job| job.live && pressure.live_max < u32::MAX);
        self.coverage
            .count("live blocks shrunk beside a limit", over.count() as u64);
        let expected = self.model.shrink_for(&pressure);
        let brief: Vec<_> = jobs.iter().map(|job| (job.from, job.to)).collect();
        let expected_brief = expected.iter().map(|&(_, from, to)| (from, to));
        assert_eq!(brief, expected_brief.collect::<Vec<_>>(), "{pressure:?}");
        self.coverage
            .count("blocks shrunk under pressure", jobs.len() as u64);
        for (job, (key, ..)) in jobs.into_iter().zip(expected) {
            self.planned.push((job.block, key));
            self.shrinks.push(job);
        }
    }

    /// The pool agrees with the model.
    pub(crate) fn compare(&self) -> Result<(), String> {
        self.pool.check()?;
        let (usage, model) = (self.pool.usage(), &self.model);
        assert_eq!(self.pool.available(), model.available());
        assert_eq!(
            (usage.frames_free, usage.frames_retiring),
            (model.free(), model.retiring())
        );
        assert_eq!(
            (usage.frames_cached, usage.frames_live, usage.frames_hidden),
            model.cached_live_hidden()
        );
        assert_eq!(usage.blocks_published, model.published());
        assert_eq!(usage.frames_shrinking, model.shrinking());
        let cold = self
            .pool
            .cached_blocks()
            .map(|b| (b.depth, b.level, b.frames));
        assert_eq!(cold.collect::<Vec<_>>(), model.cached_blocks());
        Ok(())
    }

    /// Ends everything: no frame may be lost.
    pub(crate) fn finish(mut self) -> Result<Coverage, String> {
        self.coverage.count("blocks hidden", self.model.hid);
        self.coverage.count("blocks trimmed", self.model.trimmed);
        // The last plan's shrinks need a step.
        for _ in 0..2 {
            while !self.in_flight.is_empty() {
                self.retire(1, 2)?;
            }
            self.step()?;
        }
        self.retire(1, 2)?;
        let slots = self.seqs.iter().map(|(&id, seq)| (id, seq.slot)).collect();
        self.device.compare_tables(&self.pool, &slots);
        while !self.seqs.is_empty() {
            self.release(0);
        }
        let (usage, total) = (self.pool.usage(), self.pool.config().frames);
        assert_eq!(usage.frames_free + usage.frames_cached, total);
        self.compare()?;
        self.coverage
            .count("tokens read back", self.device.tokens_read);
        Ok(self.coverage)
    }
}
