//! Matrix products of packed weights.

use std::convert::Infallible;
use std::sync::Arc;

use half::bf16;

use super::model::RandomWeights;
use super::reference::relative_error;
use super::rng::Rng;
use super::table::Report;
use crate::cuda::driver::Device;
use crate::cuda::probe::{PackedProbe, ProbeError};
use crate::cuda::products::PackedWay;
use crate::model::{LayerTensor, TensorName, WeightSource};
use crate::weight_formats::{Codes, PackedRows, PackedTensor, Quantisation, WeightFormat};

/// Which weights of a model are packed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Packing {
    None,
    /// All linear layers, alike.
    All(Quantisation),
    /// Values have 8 bits in groups of 16, and others 4.
    Values8,
}

impl Packing {
    fn of(self, name: TensorName) -> Option<Quantisation> {
        use LayerTensor as L;
        let TensorName::Layer(_, tensor) = name else {
            return None;
        };
        match (self, tensor) {
            (Self::Values8, L::V) => Some(Quantisation::Nearest(WeightFormat {
                codes: Codes::Int { bits: 6, zero: 32 },
                group: 16,
                has_offsets: false,
            })),
            (Self::Values8, tensor) if tensor.is_linear() => Some(Quantisation::Int4),
            (Self::All(all), tensor) if tensor.is_linear() => Some(all),
            _ => None,
        }
    }
}

/// A model's random weights, some packed.
pub(super) struct PackedSource<'a> {
    pub(super) source: RandomWeights<'a>,
    pub(super) packing: Packing,
}

impl PackedSource<'_> {
    fn rows(&self, name: TensorName, first: usize, values: usize) -> Result<Vec<f32>, Infallible> {
        let mut plain = vec![bf16::ZERO; values];
        self.source.read_rows(name, first, &mut plain)?;
        Ok(plain.iter().map(|value| value.to_f32()).collect())
    }

    fn inputs(&self, name: TensorName) -> usize {
        name.shape(self.source.0).last().copied().unwrap_or(1)
    }
}

impl WeightSource for PackedSource<'_> {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        self.source.shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        let Some(quantisation) = self.packing.of(name) else {
            return self.source.read_rows(name, first_row, out);
        };
        let weights = self.rows(name, first_row, out.len())?;
        let tensor = quantisation.tensor(self.inputs(name), &weights);
        out.copy_from_slice(&tensor.dequantise());
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, Infallible> {
        let quantisation = self.packing.of(name);
        Ok(quantisation.map(|quantisation| quantisation.format(self.inputs(name))))
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), Infallible> {
        let weights = self.rows(name, first_row, out.codes.len())?;
        if let Some(quantisation) = self.packing.of(name) {
            quantisation.quantise(self.inputs(name), &weights, out);
        }
        Ok(())
    }
}

/// Sums of weights that are exact in bf16, which only sums are rounded of.
const WIDE_LIMIT: f64 = 1e-5;
/// Outputs rounded to bf16.
const NARROW_LIMIT: f64 = 1.0 / 256.0;
/// Gates, what they open and the outputs.
const GATED_LIMIT: f64 = 2.0 / 256.0;
/// Outputs rounded to bf16, of sums that tensor cores keep with fewer bits than f32; and a value
/// between two codes may become the other one, as the scale is divided by in another way.
const FP8_LIMIT: f64 = 1.5 / 256.0;
/// Weights whose scales, offsets and values are rounded to bf16: half of the last of its 8 bits
/// each, and products of codes and scales may be larger than weights.
pub(super) const WEIGHTS_LIMIT: f64 = 2.0 / 256.0;

const ALL_WAYS: [PackedWay; 3] = [PackedWay::Streamed, PackedWay::Skinny, PackedWay::Unpacked];

/// Every kind of chunk, by formats that become it.
pub(super) fn formats() -> Vec<WeightFormat> {
    let int = |bits, zero| Codes::Int { bits, zero };
    let format = |codes, group, has_offsets| WeightFormat {
        codes,
        group,
        has_offsets,
    };
    vec![
        format(int(4, 8), 128, false),
        format(int(4, 0), 64, true),
        format(int(4, 0), 32, true),
        format(int(2, 0), 16, true),
        format(int(3, 4), 1 << 20, false),
        format(Codes::E2M1, 32, false),
        format(Codes::E2M1, 16, false),
        format(int(8, 128), 1 << 20, false),
        format(int(8, 128), 128, false),
        format(int(5, 0), 32, true),
        format(int(6, 32), 16, false),
        format(Codes::Iq4, 32, false),
        format(Codes::E4M3, 1 << 20, false),
        format(Codes::E4M3, 128, false),
    ]
}

/// A tensor of random codes, scales between a half and one and a half of what makes weights of
/// about a tenth, some negative, and one output whose scales are huge.
fn tensor(format: WeightFormat, outputs: usize, inputs: usize, seed: u64) -> PackedTensor {
    random_tensor(format, outputs, inputs, seed, 1e4)
}

/// The same, `huge` being how much larger that output's scales are.
pub(super) fn random_tensor(
    format: WeightFormat,
    outputs: usize,
    inputs: usize,
    seed: u64,
    huge: f32,
) -> PackedTensor {
    let mut rng = Rng(seed);
    let mut unit = || (f64::from(rng.uniform()) + 1.0) / 2.0;
    let format = WeightFormat {
        group: format.group.min(inputs),
        ..format
    };
    let values = format.codes.values();
    let finite: Vec<u8> = (0..values.len())
        .filter(|code| values[*code].is_finite())
        .map(|code| code as u8)
        .collect();
    let most = values
        .iter()
        .filter(|v| v.is_finite())
        .fold(0.0, |m: f32, v| m.max(v.abs()));
    let mut tensor = PackedTensor::new(format, outputs, inputs);
    let rows = tensor.rows_mut(0, outputs);
    for code in rows.codes {
        *code = finite[(unit() * finite.len() as f64) as usize % finite.len()];
    }
    let groups = format.groups(inputs);
    for (at, scale) in rows.scales.iter_mut().enumerate() {
        let sign = if unit() < 0.2 { -1.0 } else { 1.0 };
        let huge = if at / groups == 1 { huge } else { 1.0 };
        *scale = sign * huge * (0.1 * (0.5 + unit()) as f32) / most;
    }
    for (at, offset) in rows.offsets.iter_mut().enumerate() {
        let huge = if at / groups == 1 { huge } else { 1.0 };
        *offset = huge * (0.1 * (unit() - 0.7)) as f32;
    }
    tensor
}

/// (rows, inputs, outputs): less than a chunk, chunks begun, tiles begun, rows of every kernel and
/// of two passes.
const SHAPES: [(usize, usize, usize); 7] = [
    (7, 200, 136),
    (16, 776, 264),
    (100, 1032, 392),
    (1, 64, 24),
    (29, 1032, 392),
    (64, 520, 1000),
    (140, 320, 144),
];
/// How many of them are run where time is short.
const QUICK_SHAPES: usize = 3;

/// Every format in every way against the definition.
pub(super) fn check(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let formats = formats();
    let shapes = if quick {
        &SHAPES[..QUICK_SHAPES]
    } else {
        &SHAPES[..]
    };
    for (index, format) in formats.iter().enumerate() {
        for (place, &shape) in shapes.iter().enumerate() {
            // Half of the shapes for each format, and all formats in every kernel: the rest only
            // differs by its number of rows.
            if (index + place) % 2 == 0 || [16, 100].contains(&shape.0) {
                products(device, *format, shape, index as u64, report)?;
            }
        }
        for rows in [11, 90] {
            gated(device, *format, (rows, 264, 272), report)?;
        }
        if format.codes == Codes::E4M3 && format.group > 1024 {
            for shape in [(3, 336, 272), (100, 192, 144), (9, 14_336, 32)] {
                fp8(device, *format, shape, report)?;
            }
        }
    }
    Ok(())
}

fn widened(weights: &[bf16]) -> Vec<f64> {
    weights.iter().map(|w| w.to_f64()).collect()
}

/// `[rows][outputs]`.
fn by_definition(x: &[f64], w: &[f64], inputs: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    let rows = x.chunks_exact(inputs);
    rows.flat_map(|x| w.chunks_exact(inputs).map(move |w| dot(x, w)))
        .collect()
}

/// The greatest error of an output's weights, by their own size.
fn weights_error(got: &[f64], want: &[f64], inputs: usize) -> f64 {
    let rows = got.chunks_exact(inputs).zip(want.chunks_exact(inputs));
    rows.map(|(got, want)| relative_error(got.iter().copied(), want))
        .fold(0.0, f64::max)
}

fn products(
    device: &Arc<Device>,
    format: WeightFormat,
    shape: (usize, usize, usize),
    seed: u64,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let (rows, inputs, outputs) = shape;
    let tensor = tensor(format, outputs, inputs, seed + 1);
    let mut exact = vec![0.0; inputs];
    let mut dequantised = Vec::new();
    for row in 0..outputs {
        tensor.dequantise_row(row, &mut exact);
        dequantised.extend(exact.iter().map(|w| f64::from(*w)));
    }
    for wide in [true, false] {
        let Some(mut probe) = PackedProbe::new(device, &tensor, rows, wide, false)? else {
            report.check(&format!("{format:?} has kernels"), 1.0, 0.0);
            return Ok(());
        };
        let name = format!("{} {shape:?}", probe.format());
        let unpacked = widened(&probe.unpacked()?);
        if wide {
            let error = weights_error(&unpacked, &dequantised, inputs);
            report.check(&format!("weights of {name}"), error, WEIGHTS_LIMIT);
        }
        // An output's only scale is applied to its sum, with nothing rounded before.
        let of_rows = tensor.format().groups(inputs) == 1 && !tensor.format().has_offsets;
        let x = widened(&probe.x()?);
        let want = by_definition(&x, if of_rows { &dequantised } else { &unpacked }, inputs);
        for way in ALL_WAYS {
            let Some(y) = probe.run(way)? else {
                continue;
            };
            let limit = match (wide, way) {
                // These have rounded weights, whatever the outputs are.
                (_, PackedWay::Unpacked) if of_rows => WEIGHTS_LIMIT,
                (true, _) => WIDE_LIMIT,
                _ => NARROW_LIMIT,
            };
            // Row by row, as one output is of another size.
            let transposed = |y: &dyn Fn(usize) -> f64| -> Vec<Vec<f64>> {
                let column = |o: usize| (0..rows).map(|r| y(r * outputs + o)).collect();
                (0..outputs).map(column).collect()
            };
            let got = transposed(&|at| f64::from(y[at]));
            let want = transposed(&|at| want[at]);
            let (huge, others) = (relative_error(got[1].iter().copied(), &want[1]), {
                let rest = |all: &[Vec<f64>]| [&all[..1], &all[2..]].concat().concat();
                relative_error(rest(&got), &rest(&want))
            });
            let width = if wide { "f32" } else { "bf16" };
            report.check(&format!("{way:?} {name} {width}"), others.max(huge), limit);
        }
    }
    Ok(())
}

/// Gated products against the definition.
fn gated(
    device: &Arc<Device>,
    format: WeightFormat,
    shape: (usize, usize, usize),
    report: &mut Report,
) -> Result<(), ProbeError> {
    let (rows, inputs, outputs) = shape;
    let plain = tensor(format, outputs, inputs, 9);
    let Some(mut probe) = PackedProbe::new(device, &plain, rows, false, true)? else {
        return Ok(());
    };
    let Some(y) = probe.run(PackedWay::Streamed)? else {
        return Ok(());
    };
    let sums = by_definition(&widened(&probe.x()?), &widened(&probe.unpacked()?), inputs);
    let rounded = |sum: f64| bf16::from_f64(sum).to_f64();
    let want: Vec<f64> = (0..rows * outputs / 2)
        .map(|at| {
            let (row, output) = (at / (outputs / 2), at % (outputs / 2));
            let gate = rounded(sums[row * outputs + output]);
            let up = rounded(sums[row * outputs + outputs / 2 + output]);
            gate / (1.0 + (-gate).exp()) * up
        })
        .collect();
    let error = relative_error(y.iter().map(|v| f64::from(*v)), &want);
    report.check(
        &format!("gated {} {shape:?}", probe.format()),
        error,
        GATED_LIMIT,
    );
    Ok(())
}

/// Products of eight-bit floats against the definition with rows quantised alike.
fn fp8(
    device: &Arc<Device>,
    format: WeightFormat,
    (rows, inputs, outputs): (usize, usize, usize),
    report: &mut Report,
) -> Result<(), ProbeError> {
    let tensor = tensor(format, outputs, inputs, 11);
    let Some(mut probe) = PackedProbe::new(device, &tensor, rows, false, false)? else {
        return Ok(());
    };
    // Zeros among other numbers, and a row of nothing else.
    probe.clear(0, inputs / 2)?;
    probe.clear(rows - 1, inputs)?;
    let Some(y) = probe.run(PackedWay::Fp8)? else {
        return Ok(());
    };
    let mut x = Vec::new();
    for row in probe.x()?.chunks_exact(inputs) {
        let row: Vec<f32> = row.iter().map(|x| x.to_f32()).collect();
        let quantised = Quantisation::Fp8.tensor(inputs, &row);
        let mut values = vec![0.0; inputs];
        quantised.dequantise_row(0, &mut values);
        x.extend(values.iter().map(|x| f64::from(*x)));
    }
    let mut w = Vec::new();
    let mut values = vec![0.0; inputs];
    for output in 0..outputs {
        tensor.dequantise_row(output, &mut values);
        w.extend(values.iter().map(|w| f64::from(*w)));
    }
    let want = by_definition(&x, &w, inputs);
    // Output 1 is of another size.
    let others = |y: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let all = (0..rows * outputs).filter(|at| at % outputs != 1);
        all.map(y).collect()
    };
    let got = others(&|at| f64::from(y[at]));
    let error = relative_error(got, &others(&|at| want[at]));
    let name = format!("products of eight-bit floats {:?}", (rows, inputs, outputs));
    report.check(&name, error, FP8_LIMIT);
    Ok(())
}
