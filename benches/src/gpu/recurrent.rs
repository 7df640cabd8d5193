//! `ebb-bench recurrent`: one recurrent layer of Qwen3.6-27B's shape, without its products, over
//! prompts, in chunks and row by row.

use std::sync::Arc;

use ebb_kernels::backend::SeqRows;
use ebb_kernels::cuda::Device;
use ebb_kernels::cuda::probe::{ColdL2, RecurrentLayer, RecurrentProbe};
use ebb_kernels::cuda::selftest::Rng;
use ebb_kernels::model::{GatedDeltaSpec, RecurrentSpec};

const LAYER: GatedDeltaSpec = GatedDeltaSpec {
    k_heads: 16,
    v_heads: 48,
    k_dim: 128,
    v_dim: 128,
    taps: 4,
    norm_eps: 1e-6,
    doubled: false,
};
const HIDDEN: usize = 5120;

/// Prints one line a number of sequences, length of each and kernel: microseconds of the
/// convolution and the delta rule over a step of their prompts.
pub fn run(
    device: &Arc<Device>,
    tokens: &[usize],
    seqs: &[usize],
    repeats: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    println!("kernel,seqs,tokens,us_p50,us_min,us_per_token");
    let mut rng = Rng(1);
    let layer = RecurrentLayer {
        conv: rng.values(LAYER.conv_width() * LAYER.taps, 0.9),
        decay: rng.values(LAYER.v_heads, 0.5),
        decay_bias: rng.values(LAYER.v_heads, 0.5),
        norm: rng.values(LAYER.v_dim, 1.0),
    };
    for &tokens in tokens {
        for &seqs in seqs {
            let rows = tokens * seqs;
            let inputs = rng.values(rows * LAYER.in_width(), 1.0);
            let step: Vec<_> = (0..seqs)
                .map(|slot| SeqRows {
                    slot: slot as u32,
                    first_row: (slot * tokens) as u32,
                    rows: tokens as u32,
                    position: 0,
                })
                .collect();
            let spec = RecurrentSpec::GatedDelta(LAYER);
            let mut probe = RecurrentProbe::new(device, spec, HIDDEN, (rows, seqs), &layer)?;
            for (kernel, in_chunks) in [("chunks", true), ("rows", false)] {
                probe.load(&step, &inputs, in_chunks)?;
                let times = probe.time(repeats, ColdL2::Read)?;
                let p50 = times[times.len() / 2];
                println!(
                    "{kernel},{seqs},{tokens},{p50:.1},{:.1},{:.3}",
                    times[0],
                    p50 / rows as f64
                );
            }
        }
    }
    Ok(())
}
