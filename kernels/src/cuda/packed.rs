//! Packed weights in device memory: what a chunk holds, and how it is made (`product/packed.cuh`).

use half::bf16;

use super::driver::DeviceBuffer;
use crate::weight_formats::{Codes, IQ4_VALUES, PackedTensor, WeightFormat};

/// Outputs of a chunk, a slice; `kChunkOutputs` of the kernels.
pub(super) const SLICE_OUTPUTS: usize = 16;
/// Inputs of a chunk; `kChunkInputs` of the kernels.
pub(super) const CHUNK_INPUTS: usize = 128;
/// Gates of a slice of gates and what they open.
const GATES: usize = 8;

/// What codes of a chunk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ChunkCodes {
    Int4,
    Fp4,
    Int8,
    Fp8,
}

/// How the weights of a matrix lie in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChunkFormat {
    codes: ChunkCodes,
    /// Scales of an output in a chunk; 0 if outputs have one each.
    groups: usize,
}

impl ChunkFormat {
    /// The chunks that keep a format of rows of so many inputs, if any do: scales must be those of
    /// whole sixteens.
    pub(super) fn of(format: WeightFormat, inputs: usize) -> Option<Self> {
        let is_row = format.group >= inputs;
        let groups = match format.group {
            _ if is_row => 0,
            group if group.is_multiple_of(128) => 1,
            group if group.is_multiple_of(64) => 2,
            group if group.is_multiple_of(32) => 4,
            group if group.is_multiple_of(16) => 8,
            _ => return None,
        };
        let codes = match format.codes {
            Codes::Int { bits: ..=4, .. } => ChunkCodes::Int4,
            Codes::Int { .. } | Codes::Iq4 => ChunkCodes::Int8,
            Codes::E2M1 => ChunkCodes::Fp4,
            Codes::E4M3 => ChunkCodes::Fp8,
        };
        // Codes around 128 need no offset.
        let is_centred = match format.codes {
            Codes::Int { bits, zero } => {
                let greatest = (1u16 << bits) - 1;
                zero <= 128 && greatest - u16::from(zero) <= 127
            }
            _ => true,
        };
        let groups = match (codes, groups) {
            (ChunkCodes::Int4, 0) => 1,
            (ChunkCodes::Int8, 0) if format.has_offsets || !is_centred => 1,
            (ChunkCodes::Int8, 2) => 4,
            (ChunkCodes::Fp4, 0..=2) => 4,
            (ChunkCodes::Fp4 | ChunkCodes::Fp8, _) if format.has_offsets => return None,
            (ChunkCodes::Fp8, 2..) => return None,
            (_, groups) => groups,
        };
        Some(Self { codes, groups })
    }

    /// What kernels' names have.
    pub(super) fn name(self) -> &'static str {
        use ChunkCodes as C;
        match (self.codes, self.groups) {
            (C::Int4, 1) => "int4_1",
            (C::Int4, 2) => "int4_2",
            (C::Int4, 4) => "int4_4",
            (C::Int4, _) => "int4_8",
            (C::Fp4, 4) => "fp4_4",
            (C::Fp4, _) => "fp4_8",
            (C::Int8, 0) => "int8_0",
            (C::Int8, 1) => "int8_1",
            (C::Int8, 4) => "int8_4",
            (C::Int8, _) => "int8_8",
            (C::Fp8, 0) => "fp8_0",
            (C::Fp8, _) => "fp8_1",
        }
    }

    /// What users read.
    pub(super) fn title(self) -> &'static str {
        match self.codes {
            ChunkCodes::Int4 => "4-bit integers",
            ChunkCodes::Fp4 => "4-bit floats",
            ChunkCodes::Int8 => "8-bit integers",
            ChunkCodes::Fp8 => "8-bit floats",
        }
    }

    /// Whether codes are E4M3 and outputs have one scale each, which tensor cores multiply as they
    /// are.
    pub(super) fn is_fp8_of_rows(self) -> bool {
        self.codes == ChunkCodes::Fp8 && self.groups == 0
    }

    fn bits(self) -> usize {
        match self.codes {
            ChunkCodes::Int4 | ChunkCodes::Fp4 => 4,
            ChunkCodes::Int8 | ChunkCodes::Fp8 => 8,
        }
    }

    fn code_bytes(self) -> usize {
        SLICE_OUTPUTS * CHUNK_INPUTS * self.bits() / 8
    }

    fn has_offsets(self) -> bool {
        matches!(self.codes, ChunkCodes::Int4 | ChunkCodes::Int8)
    }

    /// Bytes of a chunk; `kSliceBytes` of the kernels.
    pub(super) fn slice_bytes(self) -> usize {
        let scale_bytes = if self.has_offsets() { 4 } else { 2 };
        self.code_bytes() + self.groups * SLICE_OUTPUTS * scale_bytes
    }

    /// Bytes of all chunks of a matrix.
    pub(super) fn bytes(self, inputs: usize, outputs: usize) -> usize {
        inputs.div_ceil(CHUNK_INPUTS) * outputs.div_ceil(SLICE_OUTPUTS) * self.slice_bytes()
    }

    /// Bits of a code, moved into a bf16, are its value times two to the minus this.
    fn exponent(self) -> i32 {
        match self.codes {
            ChunkCodes::Int4 => 130,
            ChunkCodes::Fp4 => 126,
            ChunkCodes::Int8 => 133,
            ChunkCodes::Fp8 => 120,
        }
    }
}

/// A packed matrix, or some outputs of one.
#[derive(Debug)]
pub(super) struct PackedPart {
    pub(super) format: ChunkFormat,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Slices have eight gates and what they open.
    pub(super) gated: bool,
    /// `[inputs / 128][outputs / 16]` chunks.
    pub(super) chunks: DeviceBuffer<u8>,
    /// `[outputs / 16][16]`: what sums are multiplied by.
    pub(super) factors: DeviceBuffer<f32>,
}

impl PackedPart {
    /// Bytes in device memory.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.bytes() + self.factors.bytes()
    }
}

/// Row `row` of slice `slice` of a matrix of `outputs`, by its place among the outputs; none beyond
/// the last.
pub(super) fn output_of(slice: usize, row: usize, outputs: usize, gated: bool) -> Option<usize> {
    let output = match gated {
        true => {
            let gate = slice * GATES + row % GATES;
            (gate < outputs / 2).then_some(gate + row / GATES * (outputs / 2))?
        }
        false => slice * SLICE_OUTPUTS + row,
    };
    (output < outputs).then_some(output)
}

/// One output as chunks have it: codes as bytes, and what its scales come to.
#[derive(Debug, Clone, Default)]
struct ChunkRow {
    codes: Vec<u8>,
    /// Scale and offset of each of a chunk's groups, chunk after chunk, as bf16 bits.
    scales: Vec<[u16; 2]>,
    factor: f32,
}

impl ChunkRow {
    /// Row `row` of a tensor.
    fn new(format: ChunkFormat, tensor: &PackedTensor, row: usize) -> Self {
        let (from, inputs) = (tensor.format(), tensor.inputs());
        let zero = match from.codes {
            Codes::Int { zero, .. } => i16::from(zero),
            Codes::Iq4 => 128,
            Codes::E4M3 | Codes::E2M1 => 0,
        };
        let code = |code: u8| match (from.codes, format.codes) {
            (Codes::Iq4, _) => (i16::from(IQ4_VALUES[usize::from(code & 15)]) + 128) as u8,
            (Codes::Int { .. }, ChunkCodes::Int8) if format.groups == 0 => {
                (i16::from(code) - zero + 128) as u8
            }
            _ => code,
        };
        let codes = tensor.codes(row).iter().map(|c| code(*c)).collect();
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
                factor: scales.first().map_or(0.0, |scale| scale * unit),
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
        let rounded = |scale: f32| match is_only {
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
            factor: (power(beyond) * of_factor) as f32,
        }
    }
}

/// The exponent of a float's power of two.
fn exponent_of(value: f32) -> i32 {
    (value.to_bits() >> 23 & 0xff) as i32 - 127
}

/// Packs a slice: `rows` has the tensor and row of each of its 16 outputs, `out(step)` is where the
/// chunk of inputs `128 step` and more goes. Gives the outputs' factors.
pub(super) fn pack_slice<'a>(
    format: ChunkFormat,
    rows: &[Option<(&PackedTensor, usize)>; SLICE_OUTPUTS],
    steps: usize,
    mut out: impl FnMut(usize) -> &'a mut [u8],
) -> [f32; SLICE_OUTPUTS] {
    let rows: Vec<ChunkRow> = rows
        .iter()
        .map(|row| match row {
            Some((tensor, row)) => ChunkRow::new(format, tensor, *row),
            None => ChunkRow::default(),
        })
        .collect();
    for step in 0..steps {
        pack_chunk(format, &rows, step, out(step));
    }
    std::array::from_fn(|row| rows[row].factor)
}

fn pack_chunk(format: ChunkFormat, rows: &[ChunkRow], step: usize, out: &mut [u8]) {
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
        let of = |k: usize, r: usize, e: usize| {
            code(g + r % 2 * 8, quarter * 32 + k * 16 + 2 * t + e + r / 2 * 8)
        };
        for (word, bytes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let word = match format.bits() {
                4 => (0..8).fold(0, |bits, nibble: u32| {
                    let code = of(word, nibble as usize % 4, nibble as usize / 4);
                    bits | u32::from(code & 15) << (4 * nibble)
                }),
                _ => (0..4).fold(0, |bits, byte: u32| {
                    let (k, r) = (word / 2, word % 2 * 2 + byte as usize % 2);
                    bits | u32::from(of(k, r, byte as usize / 2)) << (8 * byte)
                }),
            };
            let word = match format.codes {
                ChunkCodes::Int4 => word.rotate_left(3),
                _ => word,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_the_chunks_that_waste_the_least() {
        let int = |bits, zero| Codes::Int { bits, zero };
        let row = usize::MAX;
        for (codes, group, has_offsets, name) in [
            (int(4, 8), 128, false, Some("int4_1")),
            (int(4, 8), row, false, Some("int4_1")),
            (int(4, 0), 64, true, Some("int4_2")),
            (int(2, 0), 16, true, Some("int4_8")),
            (int(4, 0), 256, true, Some("int4_1")),
            (int(4, 0), 96, true, Some("int4_4")),
            (int(4, 0), 24, true, None),
            (Codes::E2M1, 32, false, Some("fp4_4")),
            (Codes::E2M1, 16, false, Some("fp4_8")),
            (Codes::E2M1, row, false, Some("fp4_4")),
            (int(8, 128), row, false, Some("int8_0")),
            (int(8, 0), row, false, Some("int8_1")),
            (int(8, 128), row, true, Some("int8_1")),
            (int(5, 0), 32, true, Some("int8_4")),
            (int(6, 32), 16, false, Some("int8_8")),
            (int(8, 128), 64, false, Some("int8_4")),
            (Codes::Iq4, 32, false, Some("int8_4")),
            (Codes::E4M3, row, false, Some("fp8_0")),
            (Codes::E4M3, 128, false, Some("fp8_1")),
            (Codes::E4M3, 32, false, None),
        ] {
            let format = WeightFormat {
                codes,
                group,
                has_offsets,
            };
            let found = ChunkFormat::of(format, 4096).map(ChunkFormat::name);
            assert_eq!(found, name, "{format:?}");
        }
    }

    #[test]
    fn a_slice_of_gates_has_eight_and_what_they_open() {
        let of = |slice, row| output_of(slice, row, 40, true);
        assert_eq!([of(0, 0), of(0, 7), of(0, 8)], [Some(0), Some(7), Some(20)]);
        assert_eq!([of(2, 3), of(2, 4), of(2, 11)], [Some(19), None, Some(39)]);
        assert_eq!(output_of(2, 8, 40, false), None);
    }
}
