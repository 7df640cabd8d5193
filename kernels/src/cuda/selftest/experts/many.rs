//! The kernels for experts with more and with many rows against that for few, to the bit, and that
//! against the definition: every format of weights, experts with every number of rows about a
//! tile's.

use std::sync::Arc;

use half::bf16;

use super::{LIMIT, Layer, Started};
use crate::cuda::driver::Device;
use crate::cuda::experts::TILE_ROWS;
use crate::cuda::probe::ProbeError;
use crate::cuda::selftest::packed::{WEIGHTS_LIMIT, formats, random_tensor};
use crate::cuda::selftest::reference::relative_error;
use crate::cuda::selftest::rng::Rng;
use crate::cuda::selftest::table::Report;
use crate::model::{ExpertActivation, ExpertsSpec, Routing};
use crate::weight_formats::{PackedTensor, WeightFormat};

/// Hidden size, intermediate size, and the rows of each expert.
type Shape<'a> = (usize, usize, &'a [usize]);

/// None, one, parts of a tile and tiles of every kernel with one row less or more, more than two.
const COUNTS: &[usize] = &[0, 1, 127, 128, 129, 300, 64, 65, 7, 8, 9, 16, 17, 32, 33];
/// All to one.
const CROWDED: &[usize] = &[0, 300];
const FEW: &[usize] = &[3, 20, 0, 1];

/// Of bf16 weights: stages begun, what tiny models have, units and stages begun, and the widths of
/// gpt-oss.
const PLAIN: [Shape<'_>; 6] = [
    (72, 40, COUNTS),
    (64, 64, COUNTS),
    (64, 64, CROWDED),
    (328, 264, FEW),
    (2880, 32, FEW),
    (64, 2880, FEW),
];
/// Of packed ones, which two of three formats take in turns.
const PACKED: [Shape<'_>; 3] = [(72, 40, COUNTS), (200, 136, FEW), (328, 264, FEW)];
/// Rows of a case whose definition is computed, at most.
const DEFINED: usize = 48;

pub(super) fn check(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let plain = if quick { &PLAIN[..2] } else { &PLAIN[..] };
    for (index, shape) in plain.iter().enumerate() {
        compare(device, *shape, None, index, report)?;
    }
    for (index, format) in formats().into_iter().enumerate() {
        for (place, shape) in PACKED.iter().enumerate() {
            if (index + place) % 3 == 0 || (!quick && (index + place) % 3 == 1) {
                compare(device, *shape, Some(format), index + place, report)?;
            }
        }
    }
    Ok(())
}

/// A layer whose rows go where their first inputs say.
fn layer(shape: Shape<'_>, format: Option<WeightFormat>, index: usize, rng: &mut Rng) -> Layer {
    let (hidden, intermediate, counts) = shape;
    let is_clamped = index % 2 == 1;
    let spec = ExpertsSpec {
        biases: is_clamped,
        activation: match is_clamped {
            true => ExpertActivation::Clamped {
                limit: 0.7,
                alpha: 1.702,
            },
            false if index % 4 == 2 => ExpertActivation::GeGlu,
            false if index % 8 == 4 => ExpertActivation::Relu2,
            false => ExpertActivation::SwiGlu,
        },
        ..ExpertsSpec::plain(counts.len(), 1, intermediate, Routing::SOFTMAX_OF_CHOSEN)
    };
    let experts = spec.experts;
    let mut layer = Layer::new(spec, hidden, rng);
    layer.router[0] = vec![bf16::ZERO; experts * hidden];
    for expert in 0..experts {
        layer.router[0][expert * hidden + expert] = bf16::ONE;
    }
    let Some(format) = format else {
        return layer;
    };
    let tensors = |rows: usize, inputs: usize, seed: u64| -> Vec<PackedTensor> {
        let seeds = (0..experts as u64).map(|expert| 2 * (seed + expert));
        let tensor = |seed| random_tensor(format, rows, inputs, seed, 1.0);
        seeds.map(tensor).collect()
    };
    let gates = if layer.spec.activation.is_gated() {
        intermediate
    } else {
        0
    };
    let gate_up = tensors(gates + intermediate, hidden, 7);
    let down = tensors(hidden, intermediate, 70);
    let both: Vec<_> = gate_up.iter().map(PackedTensor::dequantise).collect();
    let halves = both.iter().map(|both| both.split_at(gates * hidden));
    let (gate, up): (Vec<_>, Vec<_>) = halves.unzip();
    let of_down: Vec<_> = down.iter().map(PackedTensor::dequantise).collect();
    layer.matrices = [gate.concat(), up.concat(), of_down.concat()];
    layer.packed = Some([gate_up, down]);
    layer
}

/// Rows that go to experts as often as `counts` says, shuffled.
fn rows(hidden: usize, counts: &[usize], rng: &mut Rng) -> Vec<bf16> {
    let experts = counts.iter().enumerate();
    let mut chosen: Vec<usize> = experts
        .flat_map(|(expert, count)| std::iter::repeat_n(expert, *count))
        .collect();
    rng.shuffle(&mut chosen);
    let mut x = rng.values(chosen.len() * hidden, 1.0);
    for (row, expert) in x.chunks_exact_mut(hidden).zip(chosen) {
        for (index, value) in row[..counts.len()].iter_mut().enumerate() {
            *value = bf16::from_f32(if index == expert { 2.0 } else { -1.0 });
        }
    }
    x
}

fn compare(
    device: &Arc<Device>,
    shape: Shape<'_>,
    format: Option<WeightFormat>,
    index: usize,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let (hidden, intermediate, counts) = shape;
    let mut rng = Rng(90 + index as u64);
    let layer = layer(shape, format, index, &mut rng);
    let x = rows(hidden, counts, &mut rng);
    let count = x.len() / hidden;
    let nothing = vec![bf16::ZERO; x.len()];
    let mut started = Started::new(device, &layer, count)?;
    let mut run = |tile: usize| {
        started.experts.take_tile(tile);
        started.run(device, &layer, &x, &nothing)
    };
    let (few, others) = (run(0)?, [run(1)?, run(2)?, run(3)?]);
    let kind = super::format_of(&started.weights.gate_up).map_or("bf16", |format| format.name());
    let name = format!("experts of many rows: {kind}, {hidden} x {intermediate}, {counts:?}");
    for (others, rows) in others.iter().zip(&TILE_ROWS[1..]) {
        let differ = few.iter().zip(others).filter(|(a, b)| a != b).count();
        let name = format!("{name}: tiles of {rows} as of {}", TILE_ROWS[0]);
        report.check(&name, differ as f64, 0.0);
    }
    let mut worst: f64 = 0.0;
    for row in (0..count).step_by(count.div_ceil(DEFINED)) {
        let of = |values: &[bf16]| values[row * hidden..][..hidden].to_vec();
        let want = layer.row(&of(&x), &of(&nothing));
        let got = of(&few);
        worst = worst.max(relative_error(got.iter().map(|v| v.to_f64()), &want));
    }
    let limit = match format {
        Some(_) => LIMIT + WEIGHTS_LIMIT,
        None => LIMIT,
    };
    report.check(&name, worst, limit);
    Ok(())
}
