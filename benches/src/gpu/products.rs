//! `ebb-bench products`: the matrix products of a model of Llama-3.1-8B's shape.

use std::sync::Arc;

use ebb_kernels::cuda::probe::{ProbeError, ProductProbe};
use ebb_kernels::cuda::{Device, Way};

/// (inputs, outputs): Q K V, output, gate and up, down, logits.
const SHAPES: [(usize, usize); 5] = [
    (4096, 6144),
    (4096, 4096),
    (4096, 28_672),
    (14_336, 4096),
    (4096, 128_256),
];

/// Prints the CSV `engine,way,rows,inputs,outputs,us,GBps,TFLOPs`: cold L2, graph-replayed, median.
pub fn run(device: &Arc<Device>, rows: &[usize], repeats: usize) -> Result<(), ProbeError> {
    println!("engine,way,rows,inputs,outputs,us,GBps,TFLOPs");
    for &rows in rows {
        for (inputs, outputs) in SHAPES {
            for way in [Way::Skinny, Way::Library] {
                let mut probe = ProductProbe::new(device, (rows, inputs, outputs))?;
                let Some(times) = probe.time(way, repeats)? else {
                    continue;
                };
                let us = times[times.len() / 2];
                let work = (inputs * outputs) as f64 * 2.0;
                println!(
                    "ebb,{way:?},{rows},{inputs},{outputs},{us:.1},{:.0},{:.1}",
                    work / us / 1e3,
                    work * rows as f64 / us / 1e6
                );
            }
        }
    }
    Ok(())
}
