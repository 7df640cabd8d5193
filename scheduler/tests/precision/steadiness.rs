//! A load that hovers at the watermark.

use std::collections::{BTreeMap, VecDeque};

use ebb_block_manager::{BLOCK_TOKENS, BlockId, SeqId};
use ebb_scheduler::{Config, Event};

use crate::common::{Harness, request};
use crate::{progressive, shrinking_pool};

const POPULATION: u64 = 12;
const BYTES_MAX: u64 = 100_000;
/// Frames that an empty pool gives.
const FRAMES: u32 = 1000;

/// A full batch of sequences of different ages; one that ends is replaced.
struct Load {
    h: Harness,
    next: u64,
    /// Bytes of every block seen, by the sequence that holds it.
    seen: BTreeMap<(SeqId, usize, BlockId), u64>,
}

/// The pool after a step.
struct Turn {
    shrinks: usize,
    /// Frames that sequences can take once its shrinks are done.
    room: u32,
}

impl Load {
    fn new() -> Self {
        Self::of(u64::MAX)
    }

    /// Bytes that live blocks may take before they shrink though frames are free.
    fn of(live_bytes_max: u64) -> Self {
        let limits = Config {
            low_water_permille: 20,
            high_water_permille: 60,
            live_bytes_max,
            shrink_bytes_max: BYTES_MAX,
            prefill_chunk: 256,
            ..progressive()
        };
        let mut load = Self {
            h: Harness::new(limits, shrinking_pool(FRAMES)),
            next: 0,
            seen: BTreeMap::new(),
        };
        for _ in 0..POPULATION {
            for _ in 0..25 {
                if load.next > 0 {
                    load.turn();
                }
            }
            load.arrive();
        }
        load
    }

    fn arrive(&mut self) {
        self.next += 1;
        self.h.arrive(request(self.next, 300, 300));
    }

    fn turn(&mut self) -> Turn {
        let h = &mut self.h;
        let plan = h.planned();
        let pool = h.scheduler.blocks();
        let bytes: u64 = plan
            .shrinks
            .iter()
            .map(|job| job.old.len() as u64 * 1000)
            .sum();
        assert!(bytes <= BYTES_MAX || plan.shrinks.len() == 1, "{bytes}");
        for slice in &plan.slices {
            let table = pool.table(slice.seq);
            let sealed = slice.position as usize / BLOCK_TOKENS;
            for (index, (level, _)) in table.iter().enumerate().take(sealed) {
                let now = pool.config().levels.level(level).size.bytes;
                let key = (slice.seq, index, table.ids()[index]);
                let before = self.seen.insert(key, now);
                assert!(before.is_none_or(|before| before >= now));
            }
        }
        let ended = h.scheduler.stats().choices_finished;
        h.done(&plan);
        let stats = h.scheduler.stats();
        for _ in ended..stats.choices_finished {
            self.arrive();
        }
        Turn {
            shrinks: plan.shrinks.len(),
            room: self.h.scheduler.blocks().available(),
        }
    }
}

#[test]
fn a_constant_population_shrinks_in_few_bursts_and_nobody_is_preempted() {
    let mut load = Load::new();
    let (mut bursts, mut was_shrinking) = (0, false);
    let before = load.h.scheduler.stats();
    for _ in 0..1500 {
        let turn = load.turn();
        bursts += u64::from(turn.shrinks > 0 && !was_shrinking);
        was_shrinking = turn.shrinks > 0;
        // Demand of the next two steps at most: a sub-block each, and a chunk of a prompt for those
        // that begin.
        let demand = 4 * POPULATION as u32 + 2 * 64;
        if turn.shrinks > 0 {
            assert!(
                turn.room <= FRAMES * 60 / 1000 + demand + 32,
                "{}",
                turn.room
            );
        }
    }
    let stats = load.h.scheduler.stats();
    assert_eq!(stats.preemptions, 0);
    let done = stats.choices_finished - before.choices_finished;
    assert!(done > 20, "{done}");
    assert!(stats.shrinks_live > before.shrinks_live);
    // Each burst frees as much as lies between the watermarks.
    let grown = (stats.tokens_scheduled - before.tokens_scheduled) / 4;
    let between = u64::from(FRAMES) * 40 / 1000;
    assert!(bursts <= grown / between + 1, "{bursts} for {grown} frames");
}

/// The rest of the pool is free for arrivals, and live blocks take no more bytes than was asked.
#[test]
fn sequences_shrink_to_what_they_may_fill_though_there_is_room() {
    let live_max = FRAMES * 3 / 4;
    let mut load = Load::of(u64::from(live_max) * 1000);
    let (mut most, mut sum) = (0, 0);
    for _ in 0..1500 {
        load.turn();
        let live = load.h.scheduler.blocks().usage().frames_live;
        most = most.max(live);
        sum += live;
    }
    let stats = load.h.scheduler.stats();
    assert_eq!((stats.preemptions, stats.stalls), (0, 0));
    let mean = sum / 1500;
    // Shrinking begins at the limit and ends below it by the distance between the watermarks. Ends
    // of answers free more.
    assert!((live_max - 80..=live_max).contains(&mean), "{mean}");
    // Prompts take frames before blocks shrink for it: two of three blocks.
    assert!(most <= live_max + 2 * 3 * 32, "{most}");
}

#[test]
fn a_population_that_stops_growing_stops_shrinking() {
    let mut load = Load::new();
    while load.turn().shrinks == 0 {}
    while load.turn().shrinks > 0 {}
    for id in 1..load.next {
        load.h.apply(Event::Cancel(ebb_scheduler::RequestId(id)));
    }
    let before = load.h.scheduler.stats();
    for _ in 0..100 {
        let plan = load.h.planned();
        assert!(plan.shrinks.is_empty());
        load.h.done(&plan);
    }
    let after = load.h.scheduler.stats();
    assert_eq!(after.shrunk_bytes, before.shrunk_bytes);
    assert!(after.tokens_scheduled > before.tokens_scheduled);
}

/// Prompts that fill the pool two and a half times over at 16 bit. Memory for the next one has to
/// come free while the one before is computed, though what shrinks comes free two steps later and
/// is written before it does.
#[test]
fn prompts_seldom_wait_for_memory_to_come_free() {
    const PROMPTS: u64 = 40;
    const PROMPT: u32 = 1024;
    let limits = Config {
        low_water_permille: 20,
        high_water_permille: 50,
        max_in_flight: 2,
        max_step_tokens: PROMPT as usize + PROMPTS as usize,
        prefill_chunk: PROMPT as usize,
        shrink_bytes_max: 500_000,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(4096));
    for id in 1..=PROMPTS {
        h.arrive(request(id, PROMPT, 500));
    }
    let (mut computed, mut without) = (0, 0);
    let mut in_flight = VecDeque::new();
    while computed < PROMPTS * u64::from(PROMPT) {
        while let Some(plan) = h.plan() {
            let of_prompts = plan.slices.iter().filter(|s| s.position < PROMPT);
            let tokens: usize = of_prompts.map(|s| s.tokens.len()).sum();
            computed += tokens as u64;
            without += u32::from(tokens == 0);
            in_flight.push_back(plan);
        }
        let plan = in_flight.pop_front().expect("something is in flight");
        h.done(&plan);
    }
    let stats = h.scheduler.stats();
    assert_eq!(stats.preemptions, 0);
    assert!(stats.shrinks_live > 0);
    assert!(
        without <= 2,
        "{without} of {} steps compute nothing of a prompt",
        stats.steps
    );
}
