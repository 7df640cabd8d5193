//! Time of a decode step's attention on the CPU over blocks of each page format.
//!
//! Eight sequences have ten full blocks each, and some of them decode a token in turn. The model
//! has the heads of a real one and next to nothing else; what a step without those blocks takes is
//! taken off. Where others use the machine, one thread and one sequence a step are disturbed least.
//!
//! ```sh
//! cargo run --release -p ebb-kernels --example attention_speed [THREADS [SEQUENCES_A_STEP]]
//! ```

use std::error::Error;
use std::time::Instant;

use ebb_kernels::backend::{Backend, StepInput, TableBuilder};
use ebb_kernels::cpu::{CpuBackend, CpuOptions};
use ebb_kernels::formats::{FormatId as F, RecordShape};
use ebb_kernels::kv::{KvArena, KvLayout, Side};
use ebb_kernels::model::{ModelSpec, QkNorm, RandomWeights, Rope, UniformModel};
use ebb_kernels::{BLOCK_TOKENS, bf16};

const SEQUENCES: usize = 8;
/// Full blocks of each sequence.
const BLOCKS: usize = 10;
const REPETITIONS: usize = 400;

/// Formats of keys and values.
const PAGES: [(F, F); 9] = [
    (F::F16, F::F16),
    (F::Int8, F::Int8),
    (F::Int4, F::Int4),
    (F::Int3, F::Int3),
    (F::Kitty25c, F::Int2c),
    (F::Kitty12c, F::Int2c),
    (F::Int2c, F::Int2c),
    (F::Int4, F::Int2c),
    (F::Int4t, F::Int4),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse());
    let threads = args.next().transpose()?.unwrap_or(2);
    let at_once = args.next().transpose()?.unwrap_or(SEQUENCES);
    println!("{threads} threads, {at_once} sequences a step");
    println!("ms of a step's attention, and over that of 16 bit (shortest of {REPETITIONS})");
    for (name, layers, q_heads, kv_heads, head_dim) in [
        ("SmolLM2-135M", 30, 9, 3, 64),
        ("Qwen2.5-1.5B", 28, 12, 2, 128),
    ] {
        println!("{name}: {q_heads} query heads, {kv_heads} KV heads, head_dim {head_dim}");
        let spec = spec(layers, q_heads, kv_heads, head_dim);
        let mut sixteen = None;
        for (k, v) in PAGES {
            let ms = attention_ms(&spec, (k, v), threads, at_once)?;
            let sixteen = *sixteen.get_or_insert(ms);
            println!("  k={k:<9} v={v:<6} {ms:>7.2} {:>6.2}", ms / sixteen);
        }
    }
    Ok(())
}

/// A model of these heads.
fn spec(layers: usize, q_heads: usize, kv_heads: usize, head_dim: usize) -> ModelSpec {
    let half = head_dim / 2;
    let frequency = |i| 1e5f32.powf(-(i as f32) / half as f32);
    UniformModel {
        hidden: 32,
        layers,
        q_heads,
        kv_heads,
        head_dim,
        intermediate: 32,
        vocab: 32,
        norm_eps: 1e-5,
        rope: Rope::new((0..half).map(frequency).collect(), 1.0),
        qkv_bias: false,
        qk_norm: QkNorm::None,
        tied_embeddings: true,
        max_positions: 4096,
        ..UniformModel::default()
    }
    .spec()
}

/// Milliseconds of a decode step over blocks of these formats, less one of empty sequences.
fn attention_ms(
    spec: &ModelSpec,
    (k, v): (F, F),
    threads: usize,
    at_once: usize,
) -> Result<f64, Box<dyn Error>> {
    let geometry = spec.kv_geometry();
    let frame = geometry.frame_layout();
    let shrunk = (k, v) != (F::F16, F::F16);
    let formats = [k, v].into_iter().cycle().take(2 * spec.layers.len());
    let levels: Vec<Vec<F>> = shrunk.then(|| formats.collect()).into_iter().collect();
    let layout = KvLayout::new(geometry, frame, &levels)?;
    let level = u16::from(shrunk);
    let full = match shrunk {
        true => layout.frames(1),
        false => frame.frames_per_block() as u32,
    };
    let per_sequence = BLOCKS as u32 * full + frame.frames_per_sub_block as u32;
    let mut arena = KvArena::new(frame, per_sequence * 2 * SEQUENCES as u32)?;
    let records = Records::new(&layout, k, v)?;
    let (mut tables, mut step) = (TableBuilder::default(), StepInput::default());
    let mut frames = 0u32..;
    let mut take = |count| frames.by_ref().take(count as usize).collect::<Vec<u32>>();
    for slot in 0..SEQUENCES {
        for block in 0..BLOCKS {
            let frames = take(full);
            records.write(&layout, level, &mut arena, &frames);
            tables.set(slot as u32, block, level, &frames);
        }
        let open = take(frame.frames_per_sub_block as u32);
        tables.set(slot as u32, BLOCKS, 0, &open);
        let empty = take(frame.frames_per_sub_block as u32);
        tables.set((SEQUENCES + slot) as u32, 0, 0, &empty);
    }
    tables.take_deltas(&mut step.deltas);
    let weights = RandomWeights {
        spec: spec.clone(),
        seed: 1,
    };
    let options = CpuOptions {
        layout: Some(layout),
        ..CpuOptions::new(threads)
    };
    let mut backend =
        CpuBackend::with_options(spec.clone(), &weights, arena, options, &mut |_, _| ())?;
    backend.step(&step)?;
    let mut time = |first: usize, position: usize| -> Result<f64, Box<dyn Error>> {
        let mut shortest = f64::INFINITY;
        for start in (0..SEQUENCES).step_by(at_once).cycle().take(REPETITIONS) {
            let mut input = StepInput::default();
            for slot in start..SEQUENCES.min(start + at_once) {
                input.push_seq((first + slot) as u32, position as u32, &[7]);
            }
            let start = Instant::now();
            backend.step(&input)?;
            shortest = shortest.min(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(shortest)
    };
    let empty = time(SEQUENCES, 0)?;
    Ok(time(0, BLOCKS * BLOCK_TOKENS)? - empty)
}

/// A record of each side, to be written everywhere.
struct Records {
    sides: [Vec<u8>; 2],
}

impl Records {
    fn new(layout: &KvLayout, k: F, v: F) -> Result<Self, Box<dyn Error>> {
        let head_dim = layout.geometry().head_dim;
        let record = |side, format: F| -> Result<Vec<u8>, Box<dyn Error>> {
            let shape = RecordShape { side, head_dim };
            let mut record = vec![0; format.record_bytes(shape)?];
            format.encode(shape, &rows(shape), &mut record)?;
            Ok(record)
        };
        Ok(Self {
            sides: [record(Side::K, k)?, record(Side::V, v)?],
        })
    }

    /// Fills a block's frames.
    fn write(&self, layout: &KvLayout, level: u16, arena: &mut KvArena, frames: &[u32]) {
        let geometry = layout.geometry();
        if level == 0 {
            for frame in frames {
                let bytes = arena.frame_mut(*frame).chunks_mut(self.sides[0].len());
                bytes.for_each(|bytes| bytes.copy_from_slice(&self.sides[0][..bytes.len()]));
            }
            return;
        }
        for layer in 0..geometry.layers {
            for (side, bytes) in [Side::K, Side::V].into_iter().zip(&self.sides) {
                for head in 0..geometry.kv_heads {
                    let place = layout.place(level, geometry.record(layer, side, head));
                    let (here, rest) = bytes.split_at(place.first_part as usize);
                    let frame = place.frame as usize;
                    arena.frame_mut(frames[frame])[place.offset as usize..][..here.len()]
                        .copy_from_slice(here);
                    if !rest.is_empty() {
                        arena.frame_mut(frames[frame + 1])[..rest.len()].copy_from_slice(rest);
                    }
                }
            }
        }
    }
}

/// Random rows, uniform in [-1, 1).
fn rows(shape: RecordShape) -> Vec<bf16> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    std::iter::repeat_with(draw)
        .take(shape.elements())
        .collect()
}
