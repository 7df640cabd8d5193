//! The settings of a world: sizes, and which kinds of event happen in it.
//!
//! Each seed switches kinds of event on and off (swarm testing). Some bugs only show when nothing
//! else happens, and a world in which everything happens rarely reaches unusual states.

use ebb_block_manager::{
    PoolConfig, StateSlots, WindowConfig,
    precision::{
        BlockSize, LevelChange, LevelTable, MinBits, Page, PageLevel, PageSide, ShrinkOrder,
    },
};
use ebb_scheduler::{Admission, Config, Mode};

use super::rng::Rng;

/// The settings of one seed's world. Fields `*_one_in` are chances per round; 0 is never.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The scheduler's limits.
    pub scheduler: Config,
    /// The pool, mostly far too small.
    pub pool: PoolConfig,
    /// Requests that arrive.
    pub requests: u64,
    /// Most arrivals in one round.
    pub burst_max: u64,
    /// A round has arrivals.
    pub arrival_one_in: u64,
    /// Shortest prompt.
    pub prompt_min: u64,
    /// Longest prompt.
    pub prompt_max: u64,
    /// Longest answer.
    pub answer_max: u64,
    /// Prompts begin with one of this many common texts.
    pub shared_prefixes: u64,
    /// A prompt is exactly one that came before.
    pub repeat_one_in: u64,
    /// Priorities are from minus to plus this.
    pub priority_max: i64,
    /// Most choices of a request.
    pub n_max: u64,
    /// A request has a deadline.
    pub deadline_one_in: u64,
    /// A request wants prompt log probabilities.
    pub logprobs_one_in: u64,
    /// A token is a stop.
    pub stop_one_in: u64,
    /// A request is cancelled.
    pub cancel_one_in: u64,
    /// A choice is cancelled.
    pub cancel_choice_one_in: u64,
    /// A step fails.
    pub fail_one_in: u64,
    /// A step fails again if the one before did.
    pub fail_again_one_in: u64,
    /// A sample is lost.
    pub lose_one_in: u64,
    /// A step that could come back takes another round.
    pub delay_one_in: u64,
    /// Outputs return in another order, with one of an unknown request.
    pub noise_one_in: u64,
    /// A request asks for some bits.
    pub min_bits_one_in: u64,
    /// A block cannot be encoded.
    pub fail_shrink_one_in: u64,
}

impl Settings {
    /// The settings of a seed.
    pub fn from_seed(rng: &mut Rng) -> Self {
        let on = |rng: &mut Rng, of: &[u64]| if rng.one_in(2) { rng.pick(of) } else { 0 };
        let prompt_max = rng.pick(&[20, 150, 300, 300, 500]);
        let answer_max = rng.pick(&[1, 8, 60, 150, 150]);
        // Mostly room for one to three of the longest sequences. In one of eight worlds the longest
        // requests do not fit, so that they are rejected.
        let longest = u64::div_ceil(prompt_max + answer_max, 16);
        let sub_blocks = match rng.below(8) {
            0 => longest * 8,
            1 => longest * 3 / 4,
            2..=4 => rng.range(longest, longest * 3 / 2),
            _ => rng.range(longest, longest * 3),
        };
        let sub_blocks = sub_blocks.max(8) as u32;
        let frames_per_sub_block = rng.pick(&[1, 1, 2, 3]);
        let block_frames = 8 * frames_per_sub_block;
        let mode = rng.pick(&[
            Mode::PreemptOnly,
            Mode::PreemptOnly,
            Mode::Progressive,
            Mode::Progressive,
            Mode::Static,
        ]);
        // On a stream of its own: worlds without a window stay what they were.
        let mut of_windows = Rng::new(rng.clone().bits());
        let mut of_states = Rng::new(of_windows.clone().bits());
        let (levels, kept) = if mode.shrinks() || rng.one_in(4) {
            levels(rng, block_frames)
        } else {
            let kept = 8 * kept_frames(frames_per_sub_block);
            (LevelTable::whole(block_frames), LevelTable::whole(kept))
        };
        let window = of_windows.one_in(2).then(|| WindowConfig {
            tokens: of_windows.pick(&[1, 16, 100, 128, 129, 200, 300]),
            kept_per_sub_block: kept_frames(frames_per_sub_block),
            kept,
        });
        let shrink_reserve = levels.largest_target();
        let longest_blocks = longest.div_ceil(8) as u32;
        let protected = MinBits(rng.pick(&[8, 8, 8, 16, 4, 0]));
        let mut pool = PoolConfig {
            frames: sub_blocks * frames_per_sub_block
                + shrink_reserve
                + rng.below(u64::from(frames_per_sub_block)) as u32,
            frame_bytes: 4096,
            frames_per_sub_block,
            levels,
            window,
            protected,
            sink: protected.max(MinBits(rng.pick(&[0, 0, 0, 8, 16]))),
            prefix_cache: !rng.one_in(5),
            states: None,
            max_blocks_per_seq: longest_blocks + 1 - u32::from(rng.one_in(4)),
            hash_key: 0,
        };
        let max_running = rng.pick(&[1, 2, 4, 8, 8, 16, 16]);
        pool.states = of_states.one_in(3).then(|| StateSlots {
            first: max_running as u32,
            count: of_states.pick(&[0, 1, 2, 3, 8, 30]),
        });
        let scheduler = Config {
            max_step_tokens: max_running + rng.pick(&[0, 1, 7, 40, 200, 1000]),
            max_running,
            max_waiting: rng.pick(&[1, 4, 64, 64, 64]),
            max_in_flight: rng.pick(&[1, 1, 2, 2, 3]),
            prefill_chunk: rng.pick(&[3, 16, 33, 128, 1000, 1000]),
            max_logit_rows: max_running + rng.pick(&[0, 1, 10, 100]),
            aging_steps: rng.pick(&[0, 1, 10, 1000]),
            priority_margin: rng.pick(&[None, None, Some(0), Some(1), Some(3)]),
            headroom_tokens: rng.pick(&[0, 0, 0, 1, 16, 40]),
            mode,
            admission: rng.pick(&[Admission::Degrade, Admission::Degrade, Admission::Queue]),
            overcommit_percent: rng.pick(&[100, 100, 100, 100, 150, 60]),
            low_water_permille: rng.pick(&[0, 20, 20, 200]),
            high_water_permille: rng.pick(&[200, 200, 1000]),
            live_bytes_max: rng.pick(&[u64::MAX, u64::MAX, 4096 * 200, 0]),
            shrink_bytes_max: 4096 * rng.pick(&[0, 30, 100, 10_000]),
            static_chunk: 128 * rng.pick(&[1, 1, 2, 3, 8]),
            recent_permille: match mode {
                Mode::Static => rng.pick(&[0, 0, 200, 500, 800]),
                Mode::PreemptOnly | Mode::Progressive => 0,
            },
        };
        Self {
            requests: rng.range(4, 40),
            burst_max: rng.pick(&[1, 3, 12]),
            arrival_one_in: rng.pick(&[1, 2, 6]),
            prompt_min: 1,
            prompt_max,
            answer_max,
            shared_prefixes: on(rng, &[1, 1, 3]),
            repeat_one_in: on(rng, &[2, 4]),
            priority_max: on(rng, &[1, 2, 10]) as i64,
            n_max: match rng.below(4) {
                0 | 1 => 1,
                2 => rng.range(1, max_running.min(4) as u64),
                _ => max_running as u64,
            },
            deadline_one_in: on(rng, &[2, 5, 10]),
            logprobs_one_in: on(rng, &[2, 4]),
            stop_one_in: on(rng, &[10, 100, 300]),
            cancel_one_in: on(rng, &[10, 60]),
            cancel_choice_one_in: on(rng, &[10, 60]),
            fail_one_in: on(rng, &[3, 10, 40]),
            fail_again_one_in: on(rng, &[2]),
            lose_one_in: on(rng, &[10, 60]),
            delay_one_in: on(rng, &[2, 4]),
            noise_one_in: on(rng, &[2]),
            min_bits_one_in: on(rng, &[2, 4]),
            fail_shrink_one_in: if rng.one_in(4) { rng.pick(&[2, 20]) } else { 0 },
            scheduler,
            pool,
        }
    }

    /// A world without faults for so small a pool: few requests of many choices, with prompts that
    /// end shortly before or behind the end of a block, so that all choices fill a block together.
    pub fn cramped(scheduler: Config, pool: PoolConfig, choices: u64) -> Self {
        Self {
            scheduler,
            pool,
            requests: 2,
            burst_max: 2,
            arrival_one_in: 1,
            prompt_min: 112,
            prompt_max: 132,
            answer_max: 24,
            shared_prefixes: 0,
            repeat_one_in: 3,
            priority_max: 0,
            n_max: choices,
            deadline_one_in: 0,
            logprobs_one_in: 0,
            stop_one_in: 0,
            cancel_one_in: 0,
            cancel_choice_one_in: 0,
            fail_one_in: 0,
            fail_again_one_in: 0,
            lose_one_in: 0,
            delay_one_in: 0,
            noise_one_in: 0,
            min_bits_one_in: 0,
            fail_shrink_one_in: 0,
        }
    }

    /// Switches all faults off.
    pub fn stop_faults(&mut self) {
        self.cancel_one_in = 0;
        self.cancel_choice_one_in = 0;
        self.fail_one_in = 0;
        self.fail_again_one_in = 0;
        self.lose_one_in = 0;
        self.delay_one_in = 0;
    }
}

/// Frames of a sub-block that a block keeps behind a window.
fn kept_frames(frames_per_sub_block: u32) -> u32 {
    frames_per_sub_block.div_ceil(2)
}

/// The levels of a shrink order in which a few pages shrink in any order; and what blocks keep
/// there behind a window, which all pages have but those of the first layer, or all values where
/// there is one layer.
fn levels(rng: &mut Rng, block_frames: u32) -> (LevelTable, LevelTable) {
    let (layers, all) = (rng.range(1, 3) as u16, [8, 4, 2, 2]);
    let formats = &all[..rng.pick(&[1, 2, 3, 4, 4])];
    let side = |v: bool| if v { PageSide::V } else { PageSide::K };
    let pages = (0..layers).flat_map(|layer| {
        [false, true].map(|v| Page {
            layer,
            side: side(v),
        })
    });
    let mut open: Vec<(Page, usize)> = pages.map(|page| (page, 0)).collect();
    let count = open.len() as u64;
    let mut steps = Vec::new();
    while !open.is_empty() {
        let at = rng.below(open.len() as u64) as usize;
        let (page, format) = &mut open[at];
        let to = PageLevel {
            tag: *format as u8,
            bits: formats[*format],
        };
        steps.push(LevelChange { page: *page, to });
        *format += 1;
        if *format == formats.len() || rng.one_in(8) {
            open.swap_remove(at);
        }
    }
    let order = ShrinkOrder::new(layers, steps).expect("pages only shrink");
    let is_kept = |page: &Page| page.layer == 0 && (layers > 1 || page.side == PageSide::K);
    let size = |taken: &[LevelChange], of: &dyn Fn(&Page) -> bool, count: u64, frames: u32| {
        let mut bits = std::collections::BTreeMap::new();
        for step in taken.iter().filter(|step| of(&step.page)) {
            // The second of two formats of 2 bit is a little smaller.
            let of_8 = u64::from(step.to.bits) * 8 - u64::from(step.to.tag);
            bits.insert((step.page.layer, step.page.side), of_8);
        }
        let sum = bits.values().sum::<u64>() + 128 * (count - bits.len() as u64);
        let bytes = sum * u64::from(frames) * 4096 / (128 * count);
        BlockSize {
            frames: bytes.div_ceil(4096).max(1) as u32,
            bytes,
        }
    };
    let whole = |taken: &[LevelChange]| size(taken, &|_| true, count, block_frames);
    let kept_count = if layers > 1 { 2 } else { 1 };
    let kept_at_16_bit = 8 * kept_frames(block_frames / 8);
    let kept = |taken: &[LevelChange]| {
        let kept = size(taken, &is_kept, kept_count, kept_at_16_bit);
        let frames = match taken {
            [] => kept.frames,
            _ => kept.frames.min(whole(taken).frames),
        };
        BlockSize { frames, ..kept }
    };
    (
        LevelTable::new(&order, whole),
        LevelTable::new(&order, kept),
    )
}
