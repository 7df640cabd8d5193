//! `ebb-bench sample`: samples tokens from logits that are on the device, without a model.

use std::sync::Arc;

use ebb_kernels::backend::{Edits, LogitEdit, SampleRequest};
use ebb_kernels::cuda::Device;
use ebb_kernels::cuda::probe::SampleProbe;
use ebb_kernels::cuda::selftest::Rng;

/// Prints one line a vocabulary, batch and kind of request: microseconds on the device from
/// uploading the requests to their tokens on the host.
pub fn run(
    device: &Arc<Device>,
    vocabs: &[usize],
    batches: &[usize],
    repeats: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    println!("vocab,batch,draw,us_p50,us_min,logits_gb_s");
    let mut rng = Rng(1);
    let largest = batches.iter().copied().max().unwrap_or(1);
    for &vocab in vocabs {
        let mut probe = SampleProbe::new(device, vocab, largest, largest)?;
        // As a model's: bell-shaped, a few tokens far above.
        let row: Vec<f32> = (0..vocab)
            .map(|_| {
                let bell = (0..6).map(|_| rng.uniform()).sum::<f32>() * 2.0;
                bell + if rng.below(2000) == 0 { 9.0 } else { 0.0 }
            })
            .collect();
        probe.fill(&row)?;
        for &batch in batches {
            for (name, sample) in kinds() {
                // Edits add nothing, so that they can be applied again and again.
                let each = if name == "penalties" { 500 } else { 0 };
                let edits: Vec<LogitEdit> = (0..batch)
                    .flat_map(|_| (0..each).map(|i| edit(i * (vocab / 512))))
                    .collect();
                let samples: Vec<SampleRequest> = (0..batch)
                    .map(|row| SampleRequest {
                        row: row as u32,
                        bits: rng.bits(),
                        edits: Edits {
                            first: (row * each) as u32,
                            len: each as u32,
                            ..Edits::NONE
                        },
                        ..sample
                    })
                    .collect();
                probe.time(&samples, &edits, 5)?;
                let times = probe.time(&samples, &edits, repeats)?;
                let p50 = times[times.len() / 2];
                println!(
                    "{vocab},{batch},{name},{p50:.1},{:.1},{:.0}",
                    times[0],
                    (batch * vocab * 4) as f64 / p50 / 1e3
                );
            }
        }
    }
    Ok(())
}

fn kinds() -> [(&'static str, SampleRequest); 8] {
    let greedy = SampleRequest::greedy(0);
    let plain = SampleRequest {
        temperature: 1.0,
        ..greedy
    };
    [
        ("greedy", greedy),
        ("temperature", plain),
        (
            "top-p 0.95",
            SampleRequest {
                top_p: 0.95,
                ..plain
            },
        ),
        ("top-k 50", SampleRequest { top_k: 50, ..plain }),
        (
            "top-k 50 top-p 0.9 temperature 0.7",
            SampleRequest {
                temperature: 0.7,
                top_k: 50,
                top_p: 0.9,
                ..greedy
            },
        ),
        (
            "min-p 0.05",
            SampleRequest {
                min_p: 0.05,
                ..plain
            },
        ),
        ("penalties", plain),
        (
            "logprobs 20",
            SampleRequest {
                logprobs: Some(20),
                ..plain
            },
        ),
    ]
}

fn edit(id: usize) -> LogitEdit {
    LogitEdit {
        id: id as u32,
        bias: 0.0,
        count: 1,
        masked: false,
        in_prompt: true,
    }
}
