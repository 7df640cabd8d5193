//! Attention over shrunk pages, against an f64 oracle over what the pages dequantise to.

use half::bf16;

use super::{Attention, Heads, Pages, Plan, Scratch, max_query_rows};
use crate::BLOCK_TOKENS;
use crate::backend::{BlockTables, SeqRows, StepInput, TableBuilder, TableShape};
use crate::cpu::simd::Isa;
use crate::cpu::threads::Pool;
use crate::formats::{FormatId as F, RecordShape};
use crate::kv::{KvArena, KvGeometry, KvLayout, Side};
use crate::model::{KvPlace, Seen};

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
/// The last of the layers.
const LAYER: usize = LAYERS - 1;
/// Blocks of the sequence: shrunk ones, and one of 16 bit.
const SHRUNK: usize = 2;
const TOKENS: usize = (SHRUNK + 1) * BLOCK_TOKENS;

/// Numbers in [-1, 1), a function of the seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// One sequence's pages in one layer, and what they hold.
struct Sequence {
    layout: KvLayout,
    arena: KvArena,
    tables: BlockTables,
    /// `[side][head][token][channel]`, as f32.
    held: [Vec<f32>; 2],
    heads: Heads,
    /// Records of a head.
    parts: usize,
    beyond: Beyond,
}

/// What attention has beyond the plain.
#[derive(Debug, Clone, Copy, Default)]
struct Beyond {
    seen: Seen,
    soft_cap: Option<f32>,
    sinks: bool,
}

impl Sequence {
    /// Channels of keys lie around numbers up to `bias` in magnitude, as those of models whose key
    /// projections have biases do.
    fn new(k: F, v: F, head_dim: usize, group: usize, bias: f32) -> Self {
        let geometry = KvGeometry {
            layers: LAYERS,
            kv_heads: KV_HEADS,
            head_dim,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let frame = geometry.frame_layout();
        let formats = [k, v].into_iter().cycle().take(2 * LAYERS).collect();
        let layout = KvLayout::new(geometry, frame, &[formats]).unwrap();
        let counts = [layout.frames(1), layout.frames(1), layout.frames(0)];
        let frames = counts.iter().sum();
        let mut arena = KvArena::new(frame, frames).unwrap();
        // Whoever reads what nobody wrote gets NaN.
        (0..frames).for_each(|f| arena.frame_mut(f).fill(0xff));
        let (mut builder, mut deltas) = (TableBuilder::default(), vec![]);
        let (mut numbers, mut first) = (Numbers(head_dim as u64), 0);
        let mut held = [(); 2].map(|()| vec![0.0; KV_HEADS * TOKENS * head_dim]);
        for (block, count) in counts.into_iter().enumerate() {
            let own: Vec<u32> = (first..first + count).rev().collect();
            first += count;
            let level = u16::from(block < SHRUNK);
            builder.set(0, block, level, &own);
            for (index, side) in [Side::K, Side::V].into_iter().enumerate() {
                let shape = RecordShape { side, head_dim };
                for head in 0..KV_HEADS {
                    let biases: Vec<f32> = (0..head_dim).map(|_| numbers.next()).collect();
                    let bias = if side == Side::K { bias } else { 0.0 };
                    let element = |i| bias * biases[i % head_dim] + numbers.next();
                    let rows = (0..shape.elements()).map(element).map(bf16::from_f32);
                    let rows: Vec<bf16> = rows.collect();
                    let record = geometry.record(LAYER, side, head);
                    let at = (head * TOKENS + block * BLOCK_TOKENS) * head_dim;
                    let out = &mut held[index][at..][..shape.elements()];
                    if level == 0 {
                        let sub = rows.chunks(rows.len() / 8).enumerate();
                        for (sub_block, rows) in sub {
                            let place = geometry.sub_record_place(frame, record);
                            let slot = sub_block * frame.frames_per_sub_block + place.frame;
                            let bytes: Vec<u8> =
                                rows.iter().flat_map(|x| x.to_le_bytes()).collect();
                            arena.frame_mut(own[slot])[place.offset..][..bytes.len()]
                                .copy_from_slice(&bytes);
                        }
                        out.iter_mut().zip(&rows).for_each(|(x, y)| *x = y.to_f32());
                        continue;
                    }
                    let format = layout.format(1, LAYER, side);
                    let mut bytes = vec![0; format.record_bytes(shape).unwrap()];
                    format.encode(shape, &rows, &mut bytes).unwrap();
                    format.dequantise(shape, &bytes, out).unwrap();
                    let place = layout.place(1, record);
                    let (here, rest) = bytes.split_at(place.first_part as usize);
                    let (f, offset) = (place.frame as usize, place.offset as usize);
                    arena.frame_mut(own[f])[offset..][..here.len()].copy_from_slice(here);
                    if !rest.is_empty() {
                        arena.frame_mut(own[f + 1])[..rest.len()].copy_from_slice(rest);
                    }
                }
            }
        }
        builder.take_deltas(&mut deltas);
        let shape = TableShape::new(1, SHRUNK + 1, &layout, frames);
        let mut tables = BlockTables::new(shape, frames);
        tables.apply(&layout, &deltas, |_| ()).unwrap();
        Self {
            layout,
            arena,
            tables,
            held,
            heads: Heads {
                kv_heads: KV_HEADS,
                group,
                head_dim,
            },
            parts: 1,
            beyond: Beyond::default(),
        }
    }

    /// The same pages as those of one head, of which each record is a part.
    fn in_parts(mut self) -> Self {
        let dim = self.heads.head_dim;
        for held in &mut self.held {
            let records: Vec<Vec<f32>> = held
                .chunks_exact(TOKENS * dim)
                .map(<[f32]>::to_vec)
                .collect();
            let tokens = (0..TOKENS).flat_map(|token| {
                let parts = records.iter();
                parts.flat_map(move |part| part[token * dim..][..dim].to_vec())
            });
            *held = tokens.collect();
        }
        self.parts = KV_HEADS;
        self.heads.kv_heads = 1;
        self.heads.head_dim = KV_HEADS * dim;
        self
    }

    /// Of each query head, some above and some below all scores.
    fn sinks(&self) -> Option<Vec<f32>> {
        let heads = self.heads.kv_heads * self.heads.group;
        let sinks = (0..heads).map(|head| head as f32 - 1.5);
        self.beyond.sinks.then(|| sinks.collect())
    }

    /// Attention of rows at `position` and on.
    fn attend(&self, isa: Isa, threads: usize, position: usize, queries: &[f32]) -> Vec<f32> {
        let width = self.heads.kv_heads * self.heads.group * self.heads.head_dim;
        let rows = queries.len() / width;
        let mut input = StepInput::default();
        input.seqs.push(SeqRows {
            slot: 0,
            first_row: 0,
            rows: rows as u32,
            position: position as u32,
        });
        let mut plan = Plan::new(self.beyond.seen, self.heads);
        plan.build(&input, threads);
        let most = max_query_rows(self.heads.group);
        let record_dim = self.heads.head_dim / self.parts;
        let new = |_| Scratch::new(self.heads.head_dim, record_dim, most);
        let mut scratch: Vec<Scratch> = (0..threads).map(new).collect();
        let mut partials = vec![0.0; plan.partial_floats()];
        let mut out = vec![f32::NAN; queries.len()];
        let sinks = self.sinks();
        let attention = Attention {
            pages: Pages {
                arena: &self.arena,
                geometry: self.layout.geometry(),
                layout: &self.layout,
                tables: &self.tables,
            },
            plan: &plan,
            place: KvPlace::new(LAYER, self.heads.kv_heads, self.parts),
            heads: self.heads,
            queries,
            query_stride: width,
            scale: self.scale(),
            soft_cap: self.beyond.soft_cap,
            sinks: sinks.as_deref(),
        };
        let mut pool = Pool::new(threads).unwrap();
        let on = (&mut scratch[..], &mut partials[..]);
        attention.run(&mut pool, isa, on.0, on.1, &mut out).unwrap();
        out
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.head_dim as f32).sqrt()
    }

    /// The same in f64, and by how much each element may differ.
    fn oracle(&self, position: usize, queries: &[f32]) -> Vec<(f64, f64)> {
        let (dim, group) = (self.heads.head_dim, self.heads.group);
        let q_heads = self.heads.kv_heads * group;
        let rows = queries.chunks_exact(dim).enumerate().map(|(i, query)| {
            let head = i % q_heads / group;
            let seen = position + i / q_heads + 1;
            let first = match (self.beyond.seen.window, self.beyond.seen.chunked) {
                (Some(chunk), true) => (seen - 1) / chunk * chunk,
                (window, _) => seen.saturating_sub(window.unwrap_or(TOKENS)),
            };
            let [keys, values] = [0, 1].map(|side: usize| {
                let of_head = &self.held[side][head * TOKENS * dim..];
                of_head[first * dim..seen * dim].chunks_exact(dim)
            });
            let scale = f64::from(self.scale());
            let products = |key: &[f32]| -> (f64, f64) {
                let terms = query.iter().zip(key);
                let terms = terms.map(|(q, k)| f64::from(*q) * f64::from(*k) * scale);
                terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()))
            };
            let mut scores: Vec<(f64, f64)> = keys.map(products).collect();
            if let Some(cap) = self.beyond.soft_cap.map(f64::from) {
                for (score, size) in &mut scores {
                    *score = cap * (*score / cap).tanh();
                    *size += 4.0 * cap;
                }
            }
            let sink = self.sinks().map(|s| f64::from(s[i % q_heads]));
            let least = sink.unwrap_or(f64::MIN);
            let top = scores.iter().fold(least, |top, s| top.max(s.0));
            let size = scores.iter().fold(0.0f64, |most, s| most.max(s.1));
            let weights: Vec<f64> = scores.iter().map(|s| (s.0 - top).exp()).collect();
            let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
            let mut out = vec![(0.0, 0.0); dim];
            for (weight, value) in weights.iter().zip(values) {
                for ((o, size), v) in out.iter_mut().zip(value) {
                    *o += weight / sum * f64::from(*v);
                    *size += weight / sum * f64::from(v.abs());
                }
            }
            // Units in the last place of what is added up: of scores, which weigh exponentially,
            // and of values, which lie within [-1, 1] and whose zeros are added apart.
            let unit = f64::from(f32::EPSILON);
            out.iter()
                .map(|(o, _)| (*o, unit * (2.0 * size + 4.0)))
                .collect::<Vec<_>>()
        });
        rows.flatten().collect()
    }
}

fn queries(seed: u64, rows: usize, heads: Heads) -> Vec<f32> {
    let mut numbers = Numbers(seed);
    let len = rows * heads.kv_heads * heads.group * heads.head_dim;
    (0..len).map(|_| 2.0 * numbers.next()).collect()
}

/// Formats of keys and values: those computed on as codes, and beside them others.
const PAGES: [(F, F); 9] = [
    (F::Int8, F::Int8),
    (F::Int4, F::Int4),
    (F::Int3, F::Int3),
    (F::Int2, F::Int2c),
    (F::Kitty25, F::Int2),
    (F::Kitty12c, F::Int4),
    (F::F16, F::Int4),
    (F::Int4t, F::Int8),
    (F::Int8, F::F16),
];

/// Position of the first row, and rows: decode; a chunk whose rows end in a shrunk block, see some
/// of the next and are more than a tile; two that see all of the shrunk blocks.
const STEPS: [(usize, usize); 4] = [(300, 1), (100, 40), (0, 3), (254, 4)];

fn has_record(format: F, side: Side, head_dim: usize) -> bool {
    format.record_bytes(RecordShape { side, head_dim }).is_ok()
}

#[test]
fn codes_give_the_attention_of_what_they_dequantise_to() {
    let mut closest = 0.0f64;
    for (k, v) in PAGES {
        for (head_dim, group) in [(16, 2), (64, 3), (80, 1), (128, 6), (256, 9)] {
            if !has_record(k, Side::K, head_dim) {
                continue;
            }
            for bias in [0.0, 60.0] {
                let sequence = Sequence::new(k, v, head_dim, group, bias);
                for (position, rows) in STEPS {
                    let queries = queries(7, rows, sequence.heads);
                    let got = sequence.attend(Isa::detect(), 2, position, &queries);
                    let want = sequence.oracle(position, &queries);
                    for (got, (want, may_differ)) in got.iter().zip(want) {
                        let of_bound = (f64::from(*got) - want).abs() / may_differ;
                        closest = closest.max(of_bound);
                        assert!(
                            of_bound <= 1.0,
                            "{k} {v} {head_dim} {bias} {position}: {got} is not {want}"
                        );
                    }
                }
            }
        }
    }
    // A bound far from what is reached would show nothing.
    assert!(closest > 0.1, "{closest}");
}

/// Chunks and windows within a block, across blocks, of one token, and wider than the sequence;
/// each of the others alone and with all.
const BEYOND: [Beyond; 10] = [
    Beyond {
        seen: Seen::chunk(110),
        soft_cap: None,
        sinks: false,
    },
    Beyond {
        seen: Seen::chunk(1),
        soft_cap: None,
        sinks: true,
    },
    Beyond {
        seen: Seen::chunk(128),
        soft_cap: Some(3.0),
        sinks: true,
    },
    Beyond {
        seen: Seen::chunk(1000),
        soft_cap: None,
        sinks: false,
    },
    Beyond {
        seen: Seen::window(Some(100)),
        soft_cap: None,
        sinks: false,
    },
    Beyond {
        seen: Seen::window(Some(1)),
        soft_cap: None,
        sinks: true,
    },
    Beyond {
        seen: Seen::window(None),
        soft_cap: Some(3.0),
        sinks: false,
    },
    Beyond {
        seen: Seen::window(None),
        soft_cap: None,
        sinks: true,
    },
    Beyond {
        seen: Seen::window(Some(200)),
        soft_cap: Some(3.0),
        sinks: true,
    },
    Beyond {
        seen: Seen::window(Some(1000)),
        soft_cap: None,
        sinks: false,
    },
];

#[test]
fn windows_caps_and_sinks_are_their_definitions() {
    let pages = [(F::F16, F::F16), (F::Int4, F::Int4), (F::Int4t, F::Int8)];
    for (k, v) in pages {
        for (head_dim, group) in [(64, 3), (128, 6)] {
            for parts in [1, KV_HEADS] {
                let mut sequence = Sequence::new(k, v, head_dim, group, 1.0);
                if parts > 1 {
                    sequence = sequence.in_parts();
                }
                for beyond in BEYOND {
                    sequence.beyond = beyond;
                    compare_with_oracle(&sequence, &format!("{k} {v} {head_dim} {beyond:?}"));
                }
            }
        }
    }
}

fn compare_with_oracle(sequence: &Sequence, of: &str) {
    for (position, rows) in STEPS {
        let queries = queries(5, rows, sequence.heads);
        let want = sequence.oracle(position, &queries);
        for threads in [1, 3] {
            let got = sequence.attend(Isa::detect(), threads, position, &queries);
            for (got, (want, may_differ)) in got.iter().zip(&want) {
                let error = (f64::from(*got) - want).abs();
                assert!(error <= *may_differ, "{of} {position}: {got} is not {want}");
            }
        }
    }
}

#[test]
fn bits_depend_on_no_company_thread_or_instruction_set() {
    for beyond in [Beyond::default(), BEYOND[0], BEYOND[4], BEYOND[8]] {
        bits_depend_on_no_company(beyond);
    }
}

fn bits_depend_on_no_company(beyond: Beyond) {
    for (k, v) in PAGES {
        for (head_dim, group) in [(64, 3), (80, 4)] {
            if !has_record(k, Side::K, head_dim) {
                continue;
            }
            let mut sequence = Sequence::new(k, v, head_dim, group, 1.0);
            sequence.beyond = beyond;
            for (position, rows) in STEPS {
                let queries = queries(9, rows, sequence.heads);
                let want = sequence.attend(Isa::detect(), 1, position, &queries);
                for isa in Isa::available() {
                    let got = sequence.attend(isa, 3, position, &queries);
                    assert_eq!(got, want, "{k} {v} {head_dim} {position} {}", isa.name());
                }
                let alone = queries.chunks_exact(queries.len() / rows).enumerate();
                let alone = alone.flat_map(|(row, query)| {
                    sequence.attend(Isa::detect(), 1, position + row, query)
                });
                assert!(alone.eq(want), "{k} {v} {head_dim} {position}");
            }
        }
    }
}
