//! Quantising weights while they are loaded.

use super::floats::rounded;
use super::{Codes, PackedRows, PackedTensor, WeightFormat, nearest_e2m1, nearest_e4m3};
use crate::model::TensorName;

/// What plain weights become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quantisation {
    /// E4M3 with a scale for each output: the greatest magnitude becomes 448.
    Fp8,
    /// Four bits with a scale and an offset for each group of 128 inputs, 64 or 32 where 128 do not
    /// divide a row; rounded to nearest within the range that has the least squared error of a few.
    Int4,
    /// Experts alone, as MXFP4 of the Microscaling formats (OCP, version 1.0): E2M1, ties to even,
    /// with a power of two for each group of 32 inputs, by which the greatest magnitude has the
    /// greatest exponent.
    Mxfp4,
    /// Any format: codes are the nearest after scaling the greatest magnitude to the greatest
    /// value, without a search. For tests and random weights.
    Nearest(WeightFormat),
}

/// Parts of a group's range that are tried: rare large weights may cost less than coarse steps.
const RANGES: [f32; 5] = [1.0, 0.95, 0.9, 0.85, 0.8];

impl Quantisation {
    /// Whether a tensor is one of those that are quantised.
    pub fn takes(self, tensor: TensorName) -> bool {
        match self {
            Self::Mxfp4 => tensor.is_of_experts(),
            Self::Fp8 | Self::Int4 | Self::Nearest(_) => tensor.is_linear(),
        }
    }

    /// The format of a matrix with so many inputs.
    pub fn format(self, inputs: usize) -> WeightFormat {
        match self {
            Self::Fp8 => WeightFormat {
                codes: Codes::E4M3,
                group: inputs.max(1),
                has_offsets: false,
            },
            Self::Int4 => WeightFormat {
                codes: Codes::Int { bits: 4, zero: 0 },
                group: [128, 64, 32]
                    .into_iter()
                    .find(|group| inputs.is_multiple_of(*group))
                    .unwrap_or(128),
                has_offsets: true,
            },
            Self::Mxfp4 => WeightFormat {
                codes: Codes::E2M1,
                group: 32.min(inputs.max(1)),
                has_offsets: false,
            },
            Self::Nearest(format) => WeightFormat {
                group: format.group.min(inputs.max(1)),
                ..format
            },
        }
    }

    /// Quantises rows of `inputs` weights. A group with a weight that is not finite becomes NaN,
    /// all of it: its other weights have no range to be quantised in, and no sum that it is part of
    /// should be taken for a number.
    pub fn quantise(self, inputs: usize, weights: &[f32], out: PackedRows<'_>) {
        let format = self.format(inputs);
        let groups = format.groups(inputs);
        let values = format.codes.values();
        let rows = weights.chunks(inputs).zip(out.codes.chunks_mut(inputs));
        for (row, (weights, codes)) in rows.enumerate() {
            let parts = weights
                .chunks(format.group)
                .zip(codes.chunks_mut(format.group));
            for (group, (weights, codes)) in parts.enumerate() {
                let at = row * groups + group;
                let (scale, offset) = match self {
                    _ if !weights.iter().all(|weight| weight.is_finite()) => {
                        codes.fill(0);
                        (f32::NAN, f32::NAN)
                    }
                    Self::Fp8 => fp8(weights, codes),
                    Self::Int4 => best_range(weights, codes),
                    Self::Mxfp4 => mxfp4(weights, codes),
                    Self::Nearest(_) => nearest(format, &values, weights, codes),
                };
                out.scales[at] = scale;
                if let Some(to) = out.offsets.get_mut(at) {
                    *to = offset;
                }
            }
        }
    }

    /// Quantises a matrix.
    pub fn tensor(self, inputs: usize, weights: &[f32]) -> PackedTensor {
        let rows = weights.len() / inputs.max(1);
        let mut tensor = PackedTensor::new(self.format(inputs), rows, inputs);
        self.quantise(inputs, weights, tensor.rows_mut(0, rows));
        tensor
    }
}

fn fp8(weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (scale, inverse) = with_inverse(greatest(weights) / 448.0);
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = nearest_e4m3(weight * inverse);
    }
    (scale, 0.0)
}

/// A scale and what weights are multiplied by for it. Both are 0 for a scale so small, 3e-39, that
/// the inverse overflows: zeros would become NaN.
fn with_inverse(scale: f32) -> (f32, f32) {
    match scale.recip() {
        inverse if inverse.is_finite() => (scale, inverse),
        _ => (0.0, 0.0),
    }
}

fn greatest(weights: &[f32]) -> f32 {
    let [low, high] = range(weights);
    high.max(-low).max(0.0)
}

/// The least and the greatest of finite weights, eight beside each other, which the compiler
/// computes at once.
fn range(weights: &[f32]) -> [f32; 2] {
    let (mut least, mut most) = ([f32::MAX; 8], [f32::MIN; 8]);
    let (eights, rest) = weights.as_chunks::<8>();
    for some in eights.iter().map(|eight| &eight[..]).chain([rest]) {
        for ((least, most), &weight) in least.iter_mut().zip(&mut most).zip(some) {
            *least = if weight < *least { weight } else { *least };
            *most = if weight > *most { weight } else { *most };
        }
    }
    [
        least.into_iter().fold(f32::MAX, f32::min),
        most.into_iter().fold(f32::MIN, f32::max),
    ]
}

/// Sixteen steps over the best of some ranges around the middle.
fn best_range(weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let [low, high] = range(weights);
    let (middle, half) = ((low + high) / 2.0, (high - low) / 2.0);
    if half <= 0.0 {
        codes.fill(0);
        return (0.0, low);
    }
    let steps = |part: f32| {
        let scale = 2.0 * half * part / 15.0;
        (scale, middle - half * part)
    };
    let code = |weight: f32, (scale, offset): (f32, f32)| {
        rounded(((weight - offset) / scale).clamp(0.0, 15.0))
    };
    let error = |steps: (f32, f32)| {
        // Sums beside each other, which the compiler computes at once.
        let mut sums = [0f32; 8];
        let (eights, rest) = weights.as_chunks::<8>();
        for some in eights.iter().map(|eight| &eight[..]).chain([rest]) {
            for (sum, weight) in sums.iter_mut().zip(some) {
                let error = code(*weight, steps) * steps.0 + steps.1 - weight;
                *sum += error * error;
            }
        }
        sums.iter().sum::<f32>()
    };
    let tried = RANGES.map(|part| (error(steps(part)), steps(part)));
    let best = tried.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let best = best.map_or(steps(1.0), |(_, steps)| steps);
    for (to, weight) in codes.iter_mut().zip(weights) {
        *to = code(*weight, best) as u8;
    }
    best
}

fn mxfp4(weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
    // That of the greatest value, 6.
    const EXPONENT: i32 = 2;
    let exponent = (greatest(weights).to_bits() >> 23) as i32 - 127;
    // Scales are 2^-126 or more, so that their inverse is a number.
    let scale = ((exponent - EXPONENT).max(-126) as f32).exp2();
    let inverse = scale.recip();
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = nearest_e2m1(weight * inverse);
    }
    (scale, 0.0)
}

/// The nearest codes of any format.
fn nearest(format: WeightFormat, values: &[f32], weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = finite().fold((f32::MAX, f32::MIN), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let [least, most] = range(weights);
    let (scale, offset) = match format.has_offsets {
        true => {
            let scale = (most - least) / (high - low);
            (scale, least - low * scale)
        }
        false => {
            // Both ends fit; a format without negative values has none for negative weights.
            let ends = [(most, high), (least, low)];
            let ends = ends
                .into_iter()
                .filter(|(weight, value)| weight * value > 0.0);
            (
                ends.map(|(weight, value)| weight / value)
                    .fold(0.0, f32::max),
                0.0,
            )
        }
    };
    let (scale, inverse) = with_inverse(scale);
    for (code, weight) in codes.iter_mut().zip(weights) {
        let wanted = (weight - offset) * inverse;
        let distance = |value: f32| (value - wanted).abs();
        let mut best = 0;
        for (index, value) in values.iter().enumerate() {
            if distance(*value) < distance(values[best]) {
                best = index;
            }
        }
        *code = best as u8;
    }
    (scale, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 % 1000) as f32 - 480.0) / 3000.0)
            .collect()
    }

    /// Every code of every format comes back from its own value.
    #[test]
    fn values_are_their_own_nearest() {
        let all = [
            Codes::Int { bits: 4, zero: 8 },
            Codes::Int { bits: 8, zero: 128 },
            Codes::Int { bits: 3, zero: 4 },
            Codes::E4M3,
            Codes::E2M1,
            Codes::Iq4,
        ];
        for codes in all {
            let format = WeightFormat {
                codes,
                group: 512,
                has_offsets: false,
            };
            let values: Vec<f32> = codes
                .values()
                .into_iter()
                .filter(|v| v.is_finite())
                .collect();
            let tensor = Quantisation::Nearest(format).tensor(values.len(), &values);
            let mut back = vec![0.0; values.len()];
            tensor.dequantise_row(0, &mut back);
            assert_eq!(back, values, "{codes:?}");
        }
    }

    #[test]
    fn errors_are_within_half_a_step() {
        let weights = weights(3 * 256);
        let all = [
            (Quantisation::Fp8, 0.01),
            (Quantisation::Int4, 0.012),
            // The greatest, 0.173, is 5.5 times 2^-5: beyond 5 codes are 4 or 6.
            (Quantisation::Mxfp4, 0.0314),
        ];
        for (quantisation, bound) in all {
            let tensor = quantisation.tensor(256, &weights);
            assert_eq!((tensor.rows(), tensor.inputs()), (3, 256));
            let mut row = vec![0.0; 256];
            for (index, expected) in weights.chunks(256).enumerate() {
                tensor.dequantise_row(index, &mut row);
                for (a, b) in row.iter().zip(expected) {
                    assert!((a - b).abs() <= bound, "{quantisation:?}: {a} {b}");
                }
            }
        }
    }

    /// Powers of two, by which the greatest magnitude is at least 4 and less than 8.
    #[test]
    fn scales_of_mxfp4() {
        let mut weights = vec![0.0; 4 * 32];
        weights[0] = 7.9;
        weights[32] = -4.0;
        weights[33] = 1.4;
        weights[64] = 0.75;
        let tensor = Quantisation::Mxfp4.tensor(128, &weights);
        let mut back = vec![1.0; 128];
        tensor.dequantise_row(0, &mut back);
        let mut expected = weights.clone();
        (expected[0], expected[33]) = (6.0, 1.5);
        assert_eq!(back, expected);
        let mut least = vec![0.0; 32];
        least[3] = f32::from_bits(1);
        let tensor = Quantisation::Mxfp4.tensor(32, &least);
        tensor.dequantise_row(0, &mut back[..32]);
        assert_eq!(back[..32], [0.0; 32]);
    }

    /// Every way to quantise, in groups of 64 where the format leaves a choice.
    fn all_quantisations() -> Vec<Quantisation> {
        let mut all = vec![Quantisation::Fp8, Quantisation::Int4, Quantisation::Mxfp4];
        for codes in [
            Codes::Int { bits: 4, zero: 8 },
            Codes::Int { bits: 8, zero: 128 },
            Codes::E4M3,
            Codes::E2M1,
            Codes::Iq4,
        ] {
            for has_offsets in [false, true] {
                all.push(Quantisation::Nearest(WeightFormat {
                    codes,
                    group: 64,
                    has_offsets,
                }));
            }
        }
        all
    }

    fn rows(quantisation: Quantisation, inputs: usize, weights: &[f32]) -> Vec<f32> {
        let tensor = quantisation.tensor(inputs, weights);
        let mut out = vec![0.0; weights.len()];
        for (row, out) in out.chunks_mut(inputs).enumerate() {
            tensor.dequantise_row(row, out);
        }
        out
    }

    #[test]
    fn what_is_not_finite_becomes_no_number() {
        let clean = weights(2 * 192);
        for quantisation in all_quantisations() {
            let group = quantisation.format(192).group;
            let want = rows(quantisation, 192, &clean);
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut weights = clean.clone();
                weights[100] = odd;
                let got = rows(quantisation, 192, &weights);
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let is_hit = i / group == 100 / group;
                    let what = format!("{quantisation:?} {odd} {i}: {got} {want}");
                    assert!(if is_hit { got.is_nan() } else { got == want }, "{what}");
                }
            }
            let all = rows(quantisation, 192, &[f32::NAN; 192]);
            assert!(all.iter().all(|x| x.is_nan()), "{quantisation:?}");
        }
    }

    #[test]
    fn the_smallest_weights_stay_small() {
        for size in [f32::from_bits(1), 1e-40, 1e-38, 1e-36] {
            let weights: Vec<f32> = (0..64).map(|i| (i % 3) as f32 * size - size).collect();
            for quantisation in all_quantisations() {
                for (got, want) in rows(quantisation, 64, &weights).iter().zip(&weights) {
                    let error = (got - want).abs();
                    assert!(error <= 2.0 * size, "{quantisation:?} {size}: {got} {want}");
                }
            }
        }
    }

    #[test]
    fn a_group_of_equal_weights_is_exact() {
        let tensor = Quantisation::Int4.tensor(64, &[0.25; 64]);
        let mut row = vec![0.0; 64];
        tensor.dequantise_row(0, &mut row);
        assert_eq!(row, [0.25; 64]);
        let tensor = Quantisation::Fp8.tensor(64, &[0.0; 64]);
        tensor.dequantise_row(0, &mut row);
        assert_eq!(row, [0.0; 64]);
    }
}
