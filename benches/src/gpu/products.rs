//! `ebb-bench products`: the matrix products of a model of Llama-3.1-8B's shape.

use std::sync::Arc;

use ebb_kernels::cuda::probe::{LayersProbe, ProbeError, ProductProbe};
use ebb_kernels::cuda::{Device, Way};

/// (inputs, outputs) of a layer: Q K V, output, gate and up, down.
const LAYER: [(usize, usize); 4] = [(4096, 6144), (4096, 4096), (4096, 28_672), (14_336, 4096)];
/// (inputs, outputs) of the logits.
const LOGITS: (usize, usize) = (4096, 128_256);
/// Layers timed in sequence: the weights of one are more than L2 holds.
const LAYERS: usize = 6;
/// Most rows of a timed sequence of layers.
const ROWS_MAX: usize = 1024;

/// Prints the CSV `engine,way,rows,inputs,outputs,us,GBps,TFLOPs`: cold L2, graph-replayed, median.
pub fn alone(device: &Arc<Device>, rows: &[usize], repeats: usize) -> Result<(), ProbeError> {
    println!("engine,way,rows,inputs,outputs,us,GBps,TFLOPs");
    for &rows in rows {
        for (inputs, outputs) in LAYER.into_iter().chain([LOGITS]) {
            let wide = (inputs, outputs) == LOGITS;
            let mut probe = ProductProbe::new(device, (rows, inputs, outputs), wide)?;
            for way in Way::ALL {
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

/// Prints the CSV `engine,way,rows,layer_us,GBps`: the four products of a layer after one another,
/// several layers in one graph, median; GB/s of weights.
pub fn in_sequence(device: &Arc<Device>, rows: &[usize], repeats: usize) -> Result<(), ProbeError> {
    println!("engine,way,rows,layer_us,GBps");
    let mut probe = LayersProbe::new(device, LAYERS, &LAYER, ROWS_MAX)?;
    let weights: usize = LAYER.iter().map(|(i, o)| 2 * i * o).sum();
    for &rows in rows.iter().filter(|rows| **rows <= ROWS_MAX) {
        for way in Way::ALL {
            let Some(times) = probe.time(way, rows, repeats)? else {
                continue;
            };
            let us = times[times.len() / 2] / LAYERS as f64;
            println!(
                "ebb,{way:?},{rows},{us:.1},{:.0}",
                weights as f64 / us / 1e3
            );
        }
    }
    Ok(())
}
