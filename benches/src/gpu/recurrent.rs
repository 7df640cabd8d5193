//! `ebb-bench recurrent`: one recurrent layer of Qwen3.6-27B's shape and one of Nemotron 3 Nano's,
//! without their products, over prompts, in chunks and row by row.

use std::sync::Arc;

use ebb_kernels::backend::SeqRows;
use ebb_kernels::cuda::Device;
use ebb_kernels::cuda::probe::{ColdL2, RecurrentLayer, RecurrentProbe};
use ebb_kernels::cuda::selftest::Rng;
use ebb_kernels::model::{GatedDeltaSpec, Mamba2Spec, RecurrentSpec};

/// The layers, and the hidden size of their models.
const LAYERS: [(&str, RecurrentSpec, usize); 2] = [
    (
        "qwen3.6-27b",
        RecurrentSpec::GatedDelta(GatedDeltaSpec {
            k_heads: 16,
            v_heads: 48,
            k_dim: 128,
            v_dim: 128,
            taps: 4,
            norm_eps: 1e-6,
            doubled: false,
        }),
        5120,
    ),
    (
        "nemotron-3-nano",
        RecurrentSpec::Mamba2(Mamba2Spec {
            heads: 64,
            head_dim: 64,
            groups: 8,
            state_dim: 128,
            taps: 4,
            conv_bias: true,
            norm_parts: Some(8),
            norm_eps: 1e-5,
            time_steps: [0.0, f32::INFINITY],
        }),
        2688,
    ),
];

/// Random weights beside products.
fn weights(spec: &RecurrentSpec, hidden: usize, rng: &mut Rng) -> RecurrentLayer {
    let (channels, taps) = spec.conv(hidden);
    let (heads, norm, conv_bias, skip) = match spec {
        RecurrentSpec::GatedDelta(delta) => (delta.v_heads, delta.v_dim, 0, 0),
        RecurrentSpec::Mamba2(mamba) => (mamba.heads, mamba.width(), channels, mamba.heads),
        RecurrentSpec::ShortConv(_) => (0, 0, 0, 0),
    };
    RecurrentLayer {
        conv: rng.values(channels * taps, 0.9),
        decay: rng.values(heads, 0.5),
        decay_bias: rng.values(heads, 0.5),
        norm: rng.values(norm, 1.0),
        conv_bias: rng.values(conv_bias, 0.5),
        skip: rng.values(skip, 1.0),
    }
}

/// Prints one line a layer, number of sequences, length of each and kernel: microseconds of the
/// convolution and what follows over a step of their prompts.
pub fn run(
    device: &Arc<Device>,
    tokens: &[usize],
    seqs: &[usize],
    repeats: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    println!("layer,kernel,seqs,tokens,us_p50,us_min,us_per_token");
    let mut rng = Rng(1);
    for (name, spec, hidden) in LAYERS {
        let layer = weights(&spec, hidden, &mut rng);
        for &tokens in tokens {
            for &seqs in seqs {
                let rows = tokens * seqs;
                let inputs = rng.values(rows * spec.in_width(hidden), 1.0);
                let step: Vec<_> = (0..seqs)
                    .map(|slot| SeqRows {
                        slot: slot as u32,
                        first_row: (slot * tokens) as u32,
                        rows: tokens as u32,
                        position: 0,
                    })
                    .collect();
                let mut probe = RecurrentProbe::new(device, spec, hidden, (rows, seqs), &layer)?;
                for (kernel, in_chunks) in [("chunks", true), ("rows", false)] {
                    probe.load(&step, &inputs, in_chunks)?;
                    let times = probe.time(repeats, ColdL2::Read)?;
                    let p50 = times[times.len() / 2];
                    println!(
                        "{name},{kernel},{seqs},{tokens},{p50:.1},{:.1},{:.3}",
                        times[0],
                        p50 / rows as f64
                    );
                }
            }
        }
    }
    Ok(())
}
