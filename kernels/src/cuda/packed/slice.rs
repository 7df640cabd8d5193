//! How outputs are packed.

use half::bf16;

use super::{CHUNK_INPUTS, ChunkCodes, DeviceFormat, SLICE_OUTPUTS, row_bytes};
use crate::weight_formats::{Codes, IQ4_VALUES, PackedTensor};

/// One output as the device has it: codes as bytes, and what its scales come to.
#[derive(Debug, Clone, Default)]
struct OutputCodes {
    codes: Vec<u8>,
    /// Scale and offset of each of a chunk's groups, chunk after chunk, as bf16 bits.
    scales: Vec<[u16; 2]>,
    factor: f32,
}

impl OutputCodes {
    /// Row `row` of a tensor.
    fn new(format: DeviceFormat, tensor: &PackedTensor, row: usize) -> Self {
        let (from, inputs) = (tensor.format(), tensor.inputs());
        let zero = match from.codes {
            Codes::Int { zero, .. } => i16::from(zero),
            Codes::Iq4 => 128,
            Codes::E4M3 | Codes::E2M1 => 0,
        };
        let mut codes = tensor.codes(row).to_vec();
        match (from.codes, format.codes) {
            (Codes::Iq4, _) => {
                for code in &mut codes {
                    *code = (i16::from(IQ4_VALUES[usize::from(*code & 15)]) + 128) as u8;
                }
            }
            (Codes::Int { .. }, ChunkCodes::Int8) if format.groups == 0 => {
                for code in &mut codes {
                    *code = (i16::from(*code) - zero + 128) as u8;
                }
            }
            _ => {}
        }
        // Bits of a code, moved into a bf16, are a number whatever the code: an output with a NaN
        // becomes NaN by its factor, as on a CPU.
        let is_nan = from.codes == Codes::E4M3 && codes.iter().any(|code| code & 0x7f == 0x7f);
        let nan_or = |factor: f32| if is_nan { f32::NAN } else { factor };
        let (scales, offsets) = (tensor.scales(row), tensor.offsets(row));
        if format.groups == 0 {
            let unit = match format.codes {
                // The kernel's own scale is 2^127.
                ChunkCodes::Int8 => 64.0,
                _ => 1.0,
            };
            return Self {
                codes,
                scales: Vec::new(),
                factor: nan_or(scales.first().map_or(0.0, |scale| scale * unit)),
            };
        }
        // No scale may be beyond bf16; what is, goes into the factor.
        let greatest = scales
            .iter()
            .fold(0.0, |most: f32, scale| most.max(scale.abs()));
        let exponent = format.exponent();
        let beyond = (exponent_of(greatest) + exponent - 126).max(0);
        let power = |exponent: i32| 2f64.powi(exponent);
        // An only scale is the factor's, but for a power of two, so that weights are exact.
        let is_only = scales.len() == 1 && !from.has_offsets;
        let rounded = |scale: f32| match is_only && scale != 0.0 {
            true => power(exponent_of(scale)),
            false => bf16::from_f32(scale).to_f64(),
        };
        let of_factor = match scales {
            [scale] if is_only && *scale != 0.0 => f64::from(*scale) / rounded(*scale),
            _ => 1.0,
        };
        // What rounding takes from the scale is made up for at the middle of the codes.
        let middle = match from.codes {
            Codes::Int { bits, .. } => f64::from((1u16 << bits) - 1) / 2.0,
            _ => 0.0,
        };
        let each = CHUNK_INPUTS / format.groups;
        let groups = inputs.div_ceil(CHUNK_INPUTS) * format.groups;
        let scales = (0..groups).map(|group| {
            if group * each >= inputs {
                return [0; 2];
            }
            let at = (group * each / from.group).min(scales.len() - 1);
            let scale = rounded(scales[at]);
            let offset = match offsets.get(at) {
                Some(offset) => {
                    let lost = f64::from(scales[at]) - scale;
                    f64::from(*offset) + lost * (middle - f64::from(zero))
                }
                None => 0.0,
            };
            let offset = offset - f64::from(zero) * scale;
            [
                bf16::from_f64(scale * power(exponent - beyond)).to_bits(),
                bf16::from_f64(offset * power(-beyond)).to_bits(),
            ]
        });
        Self {
            codes,
            scales: scales.collect(),
            factor: nan_or((power(beyond) * of_factor) as f32),
        }
    }
}

/// The exponent of a float's power of two.
fn exponent_of(value: f32) -> i32 {
    (value.to_bits() >> 23 & 0xff) as i32 - 127
}

/// A slice: all chunks of 16 outputs.
#[derive(Debug)]
pub(in crate::cuda) struct PackedSlice {
    /// `[inputs / 128]` chunks, or `[16]` rows.
    pub(super) codes: Vec<u8>,
    /// What the outputs' sums are multiplied by.
    pub(super) factors: [f32; SLICE_OUTPUTS],
}

impl PackedSlice {
    /// Of outputs of so many `inputs`: `rows` has the tensor and row of each, none of those beyond
    /// the last.
    pub(in crate::cuda) fn new(
        format: DeviceFormat,
        inputs: usize,
        rows: &[Option<(&PackedTensor, usize)>; SLICE_OUTPUTS],
    ) -> Self {
        let rows = rows.map(|row| match row {
            Some((tensor, row)) => OutputCodes::new(format, tensor, row),
            None => OutputCodes::default(),
        });
        let codes = match format.is_fp8_rows() {
            true => rows.each_ref().map(|row| permuted(row, inputs)).concat(),
            false => {
                let bytes = format.slice_bytes();
                let mut chunks = vec![0; inputs.div_ceil(CHUNK_INPUTS) * bytes];
                for (step, chunk) in chunks.chunks_exact_mut(bytes).enumerate() {
                    pack_chunk(format, &rows, step, chunk);
                }
                chunks
            }
        };
        Self {
            codes,
            factors: rows.map(|row| row.factor),
        }
    }
}

/// The codes of a row in the order of `Fp8Rows` of the kernels: within sixteens at 4 t + i.
fn permuted(row: &OutputCodes, inputs: usize) -> Vec<u8> {
    let mut codes = row.codes.clone();
    codes.resize(row_bytes(inputs), 0);
    for sixteen in codes.as_chunks_mut::<16>().0 {
        let plain = *sixteen;
        for (at, code) in sixteen.iter_mut().enumerate() {
            *code = plain[2 * (at / 4) + [0, 8, 1, 9][at % 4]];
        }
    }
    codes
}

fn pack_chunk(format: DeviceFormat, rows: &[OutputCodes], step: usize, out: &mut [u8]) {
    let (codes, scales) = out.split_at_mut(format.code_bytes());
    let code = |row: usize, input: usize| {
        let at = step * CHUNK_INPUTS + input;
        rows[row].codes.get(at).copied().unwrap_or(0)
    };
    let lane_bytes = format.bits() * 2;
    for (place, codes) in codes.chunks_exact_mut(lane_bytes).enumerate() {
        let (quarter, lane) = (place / 32, place % 32);
        let (g, t) = (lane / 4, lane % 4);
        // Of register r and its half e, in k = 16 number k.
        let of = &|k: usize, r: usize, e: usize| {
            let input = match format.in_turn {
                true => 8 * t + 4 * k + r / 2 * 2 + e,
                false => k * 16 + 2 * t + e + r / 2 * 8,
            };
            code(g + r % 2 * 8, quarter * 32 + input)
        };
        let (words, _) = codes.as_chunks_mut::<4>();
        for (word, bytes) in words.iter_mut().enumerate() {
            let nibbles = || {
                (0..8).fold(0, |bits, nibble| {
                    bits | u32::from(of(word, nibble % 4, nibble / 4) & 15) << (4 * nibble)
                })
            };
            let (k, first) = (word / 2, word % 2 * 2);
            let word = match format.codes {
                ChunkCodes::Int4 => nibbles().rotate_left(3),
                ChunkCodes::Fp4 => e2m1_word(of, word),
                ChunkCodes::Int8 => (0..4).fold(0, |bits, byte| {
                    bits | u32::from(of(k, first + byte % 2, byte / 2)) << (8 * byte)
                }),
                ChunkCodes::Fp8 => e4m3_word(|r, half| of(k, first + r, half)),
            };
            *bytes = word.to_le_bytes();
        }
    }
    let each = if format.has_offsets() { 4 } else { 2 };
    for (place, scale) in scales.chunks_exact_mut(each).enumerate() {
        let (group, g, half) = (place / SLICE_OUTPUTS, place % SLICE_OUTPUTS / 2, place % 2);
        let all = &rows[g + 8 * half].scales;
        let pair = all
            .get(step * format.groups + group)
            .copied()
            .unwrap_or_default();
        for (to, value) in scale.as_chunks_mut::<2>().0.iter_mut().zip(pair) {
            *to = value.to_le_bytes();
        }
    }
}

/// One of a quarter's two words of E2M1 (`Fp4Codes` of the kernels); `code` is that of a k, a
/// register and a half.
fn e2m1_word(code: impl Fn(usize, usize, usize) -> u8, word: usize) -> u32 {
    const LEFT_OF_FIRST: u32 = 0x0603_0603;
    // Sign and the rest, where they lie in each half of a register.
    let register = |k: usize, r: usize| {
        let half = |half: usize| {
            let code = u32::from(code(k, r, half));
            (code & 8) << 12 | (code & 7) << 6
        };
        half(0) | half(1) << 16
    };
    let left = register(0, 3).rotate_right(6) | register(1, 3).rotate_right(12);
    let left = match word {
        0 => left & LEFT_OF_FIRST,
        _ => (left & !LEFT_OF_FIRST).rotate_right(2),
    };
    let third = register(word, 2).rotate_right(10);
    register(word, 0) | register(word, 1).rotate_right(4) | third | left
}

/// A word of E4M3 (`Fp8Codes` of the kernels); `code` is that of one of two registers and a half.
fn e4m3_word(code: impl Fn(usize, usize) -> u8) -> u32 {
    let register = |r: usize| {
        let half = |half: usize| {
            let code = u32::from(code(r, half));
            (code & 0x80) << 8 | (code & 0x7f) << 4
        };
        half(0) | half(1) << 16
    };
    let second = register(1);
    let (low, high) = (second & 0x80f0_80f0, second & 0x0700_0700);
    register(0) | low.rotate_right(4) | high.rotate_right(12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight_formats::WeightFormat;

    #[test]
    fn an_output_with_a_code_that_is_no_number_is_none() {
        for group in [128, 256] {
            let format = WeightFormat {
                codes: Codes::E4M3,
                group,
                has_offsets: false,
            };
            let mut tensor = PackedTensor::new(format, 3, 256);
            let rows = tensor.rows_mut(0, 3);
            rows.codes.fill(0x30);
            rows.codes[256 + 7] = 0xff;
            rows.scales.fill(0.5);
            let format = DeviceFormat::of(format, 256).expect("there are kernels");
            let rows = std::array::from_fn(|row| (row < 3).then_some((&tensor, row)));
            let factors = PackedSlice::new(format, 256, &rows).factors;
            let are_nan = factors.map(f32::is_nan);
            assert!(are_nan[1] && are_nan.iter().filter(|nan| **nan).count() == 1);
        }
    }
}
