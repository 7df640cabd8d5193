//! `ebb-bench step`: whole steps of a model of some shape, with random weights.

use std::sync::Arc;
use std::time::Instant;

use ebb_kernels::backend::{Backend, SampleRequest, StepInput};
use ebb_kernels::cuda::selftest::{Pages, Rng};
use ebb_kernels::cuda::{CudaBackend, CudaConfig, Device, StepCapacity};
use ebb_kernels::model::{ModelSpec, QkNorm, Rope, UniformModel};
use ebb_kernels::weight_formats::Quantisation;
use ebb_models::model::LoadFormat;

/// Steps before the timed ones, and timed ones.
const WARM: usize = 5;
const TIMED: usize = 40;
/// The prompt of the published comparison, and the rows of a prefill step.
const PROMPT: usize = 8192;
const CHUNK: usize = 2048;

pub(super) fn llama_8b() -> ModelSpec {
    UniformModel {
        hidden: 4096,
        layers: 32,
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 14336,
        vocab: 128_256,
        norm_eps: 1e-5,
        rope: Rope::new(
            (0..64)
                .map(|i| 500_000f32.powf(-(i as f32) / 64.0))
                .collect(),
            1.0,
        ),
        qkv_bias: false,
        qk_norm: QkNorm::None,
        tied_embeddings: false,
        max_positions: 131_072,
        ..UniformModel::default()
    }
    .spec()
}

/// The shape of the model in a directory, or Llama-3.1-8B's.
///
/// # Errors
/// When its config.json cannot be read.
pub fn shape(model: Option<&str>) -> Result<ModelSpec, Box<dyn std::error::Error>> {
    Ok(match model {
        None => llama_8b(),
        Some(model) => {
            ebb_models::open_as(model, None, LoadFormat::Dummy, None)?
                .model
                .spec
        }
    })
}

/// Prints one line a batch: wall time of a decode step, from its inputs on the host to its tokens
/// on the host; then the time to the first token of a long prompt.
///
/// # Errors
/// When the device fails, and of models with recurrent layers, whose states would have to be where
/// the steps begin.
pub fn run(
    device: &Arc<Device>,
    spec: ModelSpec,
    batches: &[usize],
    context: usize,
    (tune, batch_invariant): (bool, bool),
    quantisation: Option<Quantisation>,
) -> Result<(), Box<dyn std::error::Error>> {
    if spec.is_recurrent() {
        return Err("`ebb-bench step` has no states for recurrent layers".into());
    }
    let layout = spec.kv_geometry().frame_layout();
    let largest = batches.iter().copied().max().unwrap_or(1);
    let tokens = context + WARM + TIMED;
    let frames =
        Pages::frames_for(layout, vec![tokens; largest]).max(Pages::frames_for(layout, [PROMPT]));
    let longest = tokens.max(PROMPT);
    let config = CudaConfig {
        frames,
        capacity: StepCapacity {
            rows: CHUNK.max(largest),
            seqs: largest,
            blocks: largest * longest.div_ceil(128),
        },
        states: 0,
        logit_rows: largest,
        graph_rows_max: largest,
        tune,
        batch_invariant,
        rotate_k: false,
        rotate_v_online: false,
        scale_k_online: None,
        expand_weights: false,
    };
    let started = Instant::now();
    let mut backend = CudaBackend::random(device, spec.clone(), config, 1, quantisation)?;
    backend.arena_mut().fill_random(2)?;
    eprintln!("started in {:.1} s", started.elapsed().as_secs_f64());
    println!("engine,work,batch,context,step_us_p50,step_us_min,tok_s");
    for &batch in batches {
        let times = decode(&mut backend, batch, context, frames)?;
        let p50 = times[times.len() / 2];
        println!(
            "ebb,decode,{batch},{context},{p50:.0},{:.0},{:.0}",
            times[0],
            batch as f64 / p50 * 1e6
        );
    }
    let us = prefill(&mut backend, frames)?;
    println!(
        "ebb,prefill,1,{PROMPT},{us:.0},{us:.0},{:.0}",
        PROMPT as f64 / us * 1e6
    );
    Ok(())
}

/// Microseconds of each timed step, sorted.
fn decode(
    backend: &mut CudaBackend,
    batch: usize,
    context: usize,
    frames: u32,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let layout = backend.spec().kv_geometry().frame_layout();
    let mut pages = Pages::new(layout, frames, &mut Rng(3));
    for _ in 0..batch {
        pages.add(context + WARM + TIMED - 1, 1);
    }
    let mut input = pages.input;
    input.samples = (0..batch as u32).map(SampleRequest::greedy).collect();
    let mut times = Vec::with_capacity(TIMED);
    for step in 0..WARM + TIMED {
        for seq in &mut input.seqs {
            seq.position = (context + step) as u32;
        }
        let start = Instant::now();
        let samples = backend.step(&input)?.samples;
        let us = start.elapsed().as_secs_f64() * 1e6;
        // As the engine's: tables that are there already, and no deltas.
        input.deltas.clear();
        for (token, sampled) in input.tokens.iter_mut().zip(samples) {
            *token = sampled.token.map_err(|e| format!("no token: {e:?}"))?;
        }
        if step >= WARM {
            times.push(us);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Microseconds from a prompt's tokens to its first token; the better of two.
fn prefill(backend: &mut CudaBackend, frames: u32) -> Result<f64, Box<dyn std::error::Error>> {
    let layout = backend.spec().kv_geometry().frame_layout();
    let vocab = backend.spec().vocab;
    let mut rng = Rng(4);
    let mut pages = Pages::new(layout, frames, &mut rng);
    pages.add(0, PROMPT);
    let tokens: Vec<u32> = (0..PROMPT).map(|_| rng.below(vocab) as u32).collect();
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        for position in (0..PROMPT).step_by(CHUNK) {
            let mut input = StepInput::default();
            input.deltas.append(&mut pages.input.deltas);
            let new = input.push_seq(0, position as u32, &tokens[position..position + CHUNK]);
            if position + CHUNK == PROMPT {
                input.samples.push(SampleRequest::greedy(new.end - 1));
            }
            backend.step(&input)?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}
