//! `ebb-bench products`: the matrix products of a model of Llama-3.1-8B's shape.

use std::sync::Arc;

use ebb_kernels::cuda::probe::{LayersProbe, PackedProbe, ProbeError, ProductProbe};
use ebb_kernels::cuda::{Device, PackedWay, Way};
use ebb_kernels::weight_formats::{Codes, PackedTensor, WeightFormat};

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

/// Formats that are timed, and what they are called.
const FORMATS: [(&str, Codes, usize, bool); 7] = [
    ("fp8", Codes::E4M3, usize::MAX, false),
    ("fp8 blocks", Codes::E4M3, 128, false),
    ("int8", Codes::Int { bits: 8, zero: 128 }, usize::MAX, false),
    ("q8_0", Codes::Int { bits: 8, zero: 128 }, 32, false),
    ("int4", Codes::Int { bits: 4, zero: 0 }, 128, true),
    ("q4_1", Codes::Int { bits: 4, zero: 0 }, 32, true),
    ("mxfp4", Codes::E2M1, 32, false),
];

/// Ways that are timed.
const WAYS: [PackedWay; 4] = [
    PackedWay::Streamed,
    PackedWay::Skinny,
    PackedWay::Unpacked,
    PackedWay::Fp8,
];

/// Prints the CSV `engine,format,way,rows,inputs,outputs,us,GBps,TFLOPs` of packed weights, as
/// [`alone`] does; GB/s of packed bytes.
pub fn packed(device: &Arc<Device>, rows: &[usize], repeats: usize) -> Result<(), ProbeError> {
    println!("engine,format,way,rows,inputs,outputs,us,GBps,TFLOPs");
    for (name, codes, group, has_offsets) in FORMATS {
        for (inputs, outputs) in LAYER {
            let format = WeightFormat {
                codes,
                group: group.min(inputs),
                has_offsets,
            };
            let tensor = tensor(format, inputs, outputs);
            for &rows in rows {
                let Some(mut probe) = PackedProbe::new(device, &tensor, rows, false, false)? else {
                    continue;
                };
                let bytes = probe.bytes() as f64;
                for way in WAYS {
                    let Some(times) = probe.time(way, repeats)? else {
                        continue;
                    };
                    let us = times[times.len() / 2];
                    println!(
                        "ebb,{name},{way:?},{rows},{inputs},{outputs},{us:.1},{:.0},{:.1}",
                        bytes / us / 1e3,
                        2.0 * (inputs * outputs * rows) as f64 / us / 1e6
                    );
                }
            }
        }
    }
    Ok(())
}

/// Codes of any value that is a number, and scales of one size.
pub(super) fn tensor(format: WeightFormat, inputs: usize, outputs: usize) -> PackedTensor {
    let mut tensor = PackedTensor::new(format, outputs, inputs);
    let rows = tensor.rows_mut(0, outputs);
    let mut bits = 1u64;
    for code in rows.codes {
        bits = bits
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        *code = match format.codes {
            Codes::E4M3 => (bits >> 33) as u8 & 0xbf,
            codes => (bits >> 33) as u8 & ((1u16 << codes.bits()) - 1) as u8,
        };
    }
    rows.scales.fill(0.01);
    rows.offsets.fill(-0.07);
    tensor
}
