//! Packed weights in device memory: which chunks there are, and a matrix of them
//! (`product/packed.cuh`).

mod slice;

use super::driver::DeviceBuffer;
use super::error::CudaError;
use crate::weight_formats::{Codes, WeightFormat};
pub(super) use slice::PackedSlice;

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

/// How the weights of a matrix lie in device memory: in chunks, or E4M3 with a scale for each
/// output in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DeviceFormat {
    codes: ChunkCodes,
    /// Scales of an output in a chunk; 0 if outputs have one each.
    groups: usize,
    /// Lanes have a chunk's inputs in turn, as kernels of experts read them.
    in_turn: bool,
}

impl DeviceFormat {
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
        Some(Self {
            codes,
            groups,
            in_turn: false,
        })
    }

    /// The same, as experts have it: always in chunks.
    pub(super) fn of_experts(self) -> Self {
        Self {
            in_turn: true,
            ..self
        }
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
            ChunkCodes::Int4 => "int4",
            ChunkCodes::Fp4 => "e2m1",
            ChunkCodes::Int8 => "int8",
            ChunkCodes::Fp8 => "e4m3",
        }
    }

    /// Whether codes are E4M3 and outputs have one scale each: these lie in rows, `Fp8Rows` of the
    /// kernels, which tensor cores multiply as they are.
    pub(super) fn is_fp8_rows(self) -> bool {
        self.codes == ChunkCodes::Fp8 && self.groups == 0 && !self.in_turn
    }

    /// Bits of a code.
    pub(super) fn bits(self) -> usize {
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

    /// Bytes that half of a chunk's inputs take: codes and their scales. A scale for all of a chunk
    /// counts for both halves.
    pub(super) fn half_slice_bytes(self) -> usize {
        let scales = self.slice_bytes() - self.code_bytes();
        self.code_bytes() / 2 + if self.groups == 1 { scales } else { scales / 2 }
    }

    /// Bytes of a matrix.
    pub(super) fn bytes(self, inputs: usize, outputs: usize) -> usize {
        match self.is_fp8_rows() {
            true => row_bytes(inputs) * outputs,
            false => {
                inputs.div_ceil(CHUNK_INPUTS) * outputs.div_ceil(SLICE_OUTPUTS) * self.slice_bytes()
            }
        }
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

/// Bytes of a row of so many inputs, where codes lie in rows.
pub(super) fn row_bytes(inputs: usize) -> usize {
    inputs.next_multiple_of(16)
}

/// A packed matrix, or some outputs of one; or stacked matrices of experts.
#[derive(Debug)]
pub(super) struct PackedPart {
    pub(super) format: DeviceFormat,
    /// Matrices one behind the other; what follows is each one's.
    pub(super) experts: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Slices have eight gates and what they open.
    pub(super) gated: bool,
    /// `[inputs / 128][outputs / 16]` chunks, or `[outputs]` rows.
    pub(super) codes: DeviceBuffer<u8>,
    /// `[outputs / 16][16]`, or `[outputs]`: what sums are multiplied by.
    pub(super) factors: DeviceBuffer<f32>,
}

impl PackedPart {
    /// Bytes in device memory.
    pub(super) fn bytes(&self) -> usize {
        self.codes.bytes() + self.factors.bytes()
    }

    /// How many slices a matrix has.
    pub(super) fn slices(&self) -> usize {
        self.outputs.div_ceil(SLICE_OUTPUTS)
    }

    /// Writes slices from `first` on of a matrix.
    pub(super) fn write(
        &mut self,
        expert: usize,
        first: usize,
        slices: &[&PackedSlice],
    ) -> Result<(), CudaError> {
        if self.format.is_fp8_rows() {
            return self.write_rows(expert, first, slices);
        }
        let (codes, factors) = self.starts(expert);
        let bytes = self.format.slice_bytes();
        let mut of_step = Vec::with_capacity(slices.len() * bytes);
        for step in 0..self.inputs.div_ceil(CHUNK_INPUTS) {
            of_step.clear();
            for slice in slices {
                of_step.extend_from_slice(&slice.codes[step * bytes..][..bytes]);
            }
            let at = (step * self.slices() + first) * bytes;
            self.codes.write(codes + at, &of_step)?;
        }
        let of_slices: Vec<f32> = slices.iter().flat_map(|slice| slice.factors).collect();
        self.factors
            .write(factors + first * SLICE_OUTPUTS, &of_slices)
    }

    /// Where the codes and the factors of a matrix begin.
    fn starts(&self, expert: usize) -> (usize, usize) {
        let codes = self.codes.len() / self.experts;
        (expert * codes, expert * (self.factors.len() / self.experts))
    }

    fn write_rows(
        &mut self,
        expert: usize,
        first: usize,
        slices: &[&PackedSlice],
    ) -> Result<(), CudaError> {
        let bytes = row_bytes(self.inputs);
        let (codes_start, factors_start) = self.starts(expert);
        // Runs of a slice's rows whose outputs lie beside each other, one of gates and one of what
        // they open or one of all; `each` has so many of the outputs.
        let runs = if self.gated { 2 } else { 1 };
        let (len, each) = (SLICE_OUTPUTS / runs, self.outputs / runs);
        for index in 0..runs {
            let rows = index * len..(index + 1) * len;
            let begin = first * len;
            let count = (slices.len() * len).min(each - begin);
            let places = slices.iter().flat_map(|slice| {
                let rows = rows.clone();
                rows.map(move |row| (&slice.codes[row * bytes..][..bytes], slice.factors[row]))
            });
            let (codes, factors): (Vec<&[u8]>, Vec<f32>) = places.take(count).unzip();
            let output = index * each + begin;
            self.codes
                .write(codes_start + output * bytes, &codes.concat())?;
            self.factors.write(factors_start + output, &factors)?;
        }
        Ok(())
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
            let found = DeviceFormat::of(format, 4096).map(DeviceFormat::name);
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
