//! `ebb-bench experts`: products of a layer of experts, by each kernel.

use std::sync::Arc;

use ebb_kernels::cuda::Device;
use ebb_kernels::cuda::probe::{ExpertsProbe, ProbeError};
use ebb_kernels::model::{ExpertActivation, ExpertsSpec, Routing};
use ebb_kernels::weight_formats::{Codes, WeightFormat};

use super::products::tensor;

/// What a model's weights are called, and their codes and group; none: bf16.
type Format = (&'static str, Option<(Codes, usize)>);

const QWEN_FORMATS: [Format; 3] = [
    ("bf16", None),
    ("fp8", Some((Codes::E4M3, usize::MAX))),
    ("fp8 blocks", Some((Codes::E4M3, 128))),
];
const GPT_OSS_FORMATS: [Format; 1] = [("mxfp4", Some((Codes::E2M1, 32)))];

/// Prints the CSV `engine,model,format,tile_rows,rows,us,TFLOPs`: both products of a layer, cold
/// L2, graph-replayed, median.
///
/// # Errors
/// When the device fails.
pub fn run(device: &Arc<Device>, rows: &[usize], repeats: usize) -> Result<(), ProbeError> {
    println!("engine,model,format,tile_rows,rows,us,TFLOPs");
    let qwen = ExpertsSpec::plain(128, 8, 768, Routing::SOFTMAX_OF_CHOSEN);
    let gpt_oss = ExpertsSpec {
        experts: 32,
        per_token: 4,
        intermediate: 2880,
        biases: true,
        activation: ExpertActivation::Clamped {
            limit: 7.0,
            alpha: 1.702,
        },
        ..qwen.clone()
    };
    let sizes = (rows, repeats);
    model(device, ("Qwen3-30B-A3B", &qwen, 2048), &QWEN_FORMATS, sizes)?;
    model(
        device,
        ("gpt-oss-20b", &gpt_oss, 2880),
        &GPT_OSS_FORMATS,
        sizes,
    )
}

fn model(
    device: &Arc<Device>,
    (name, spec, hidden): (&str, &ExpertsSpec, usize),
    formats: &[Format],
    (rows, repeats): (&[usize], usize),
) -> Result<(), ProbeError> {
    let most = rows.iter().copied().max().unwrap_or(1);
    for (format_name, codes) in formats {
        let packed = codes.map(|(codes, group)| {
            let of = |inputs: usize, outputs: usize| {
                let format = WeightFormat {
                    codes,
                    group: group.min(inputs),
                    has_offsets: false,
                };
                tensor(format, inputs, outputs)
            };
            [
                of(hidden, 2 * spec.intermediate),
                of(spec.intermediate, hidden),
            ]
        });
        let packed = packed.as_ref().map(|[gate_up, down]| [gate_up, down]);
        let mut probe = ExpertsProbe::new(device, spec, (most, hidden), packed)?;
        for &rows in rows {
            for (tile, tile_rows) in ExpertsProbe::TILE_ROWS.iter().enumerate() {
                let times = probe.time(rows, tile, repeats)?;
                let us = times[times.len() / 2];
                let weights = 3 * spec.intermediate * hidden;
                let flops = 2.0 * (rows * spec.per_token * weights) as f64;
                println!(
                    "ebb,{name},{format_name},{tile_rows},{rows},{us:.1},{:.1}",
                    flops / us / 1e6
                );
            }
        }
    }
    Ok(())
}
