//! `ebb-bench prompts`: chunks of a prompt over a context that has shrunk, against one at 16 bit,
//! in whole steps of a model of Llama-3.1-8B's shape.

use std::sync::Arc;
use std::time::Instant;

use ebb_kernels::backend::{Backend, SampleRequest, StepInput, TableBuilder};
use ebb_kernels::cuda::selftest::Rng;
use ebb_kernels::cuda::{CudaBackend, CudaConfig, Device, StepCapacity};
use ebb_kernels::formats::FormatId as F;
use ebb_kernels::kv::KvLayout;

use super::step::llama_8b;

const CONTEXTS: [usize; 2] = [8192, 32_768];
const CHUNKS: [usize; 3] = [128, 512, 2048];
/// Formats of keys and values; 16 bit first.
const PAIRS: [(F, F); 4] = [
    (F::F16, F::F16),
    (F::Int8, F::Int8),
    (F::Int4, F::Int4),
    (F::Kitty25, F::Int2),
];
const TIMED: usize = 9;

/// Prints one line a context, chunk and pair of formats: median wall time of a step of the chunk,
/// and of one at 16 bit the share.
pub fn run(device: &Arc<Device>) -> Result<(), Box<dyn std::error::Error>> {
    let spec = llama_8b();
    let geometry = spec.kv_geometry();
    let shrunk: Vec<Vec<F>> = PAIRS[1..]
        .iter()
        .map(|(k, v)| [*k, *v].repeat(geometry.layers))
        .collect();
    let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk)?;
    let blocks = (CONTEXTS[1] + CHUNKS[2]) / 128;
    let frames = blocks as u32 * layout.frames(0);
    let config = CudaConfig {
        frames,
        capacity: StepCapacity {
            rows: CHUNKS[2],
            seqs: 1,
            blocks,
        },
        states: 1,
        logit_rows: 1,
        graph_rows_max: 1,
        tune: false,
        batch_invariant: false,
        rotate_k: false,
        rotate_v_online: false,
        scale_k_online: None,
        expand_weights: false,
    };
    let mut backend = CudaBackend::random_with_pages(device, spec, config, &layout, 1, None)?;
    println!("engine,keys,values,context,chunk,step_us_p50,of_16_bit");
    for context in CONTEXTS {
        for chunk in CHUNKS {
            let mut at_16_bit = 0.0;
            for (position, (k, v)) in (0..).zip(PAIRS) {
                backend.arena_mut().fill_random(2)?;
                let us = time(&mut backend, &layout, (context, chunk), position)?;
                if position == 0 {
                    at_16_bit = us;
                }
                println!(
                    "ebb,{k},{v},{context},{chunk},{us:.0},{:.2}",
                    at_16_bit / us
                );
            }
        }
    }
    Ok(())
}

fn time(
    backend: &mut CudaBackend,
    layout: &KvLayout,
    (context, chunk): (usize, usize),
    position: u16,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mut input = StepInput::default();
    let mut rng = Rng(4);
    let vocab = backend.spec().vocab;
    let tokens: Vec<u32> = (0..chunk).map(|_| rng.below(vocab) as u32).collect();
    let positions =
        (0..(context + chunk) / 128).map(|block| if block < context / 128 { position } else { 0 });
    let count: u32 = positions.clone().map(|p| layout.frames(p)).sum();
    let mut frames: Vec<u32> = (0..count).collect();
    rng.shuffle(&mut frames);
    let (mut tables, mut frames) = (TableBuilder::default(), frames.into_iter());
    for (block, position) in positions.enumerate() {
        let own = frames.by_ref().take(layout.frames(position) as usize);
        tables.set(0, block, position, &own.collect::<Vec<u32>>());
    }
    tables.take_deltas(&mut input.deltas);
    input.push_seq(0, context as u32, &tokens);
    input.samples = vec![SampleRequest::greedy(chunk as u32 - 1)];
    let mut times = Vec::with_capacity(TIMED);
    for turn in 0..TIMED + 2 {
        let start = Instant::now();
        backend.step(&input)?;
        if turn >= 2 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        input.deltas.clear();
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
