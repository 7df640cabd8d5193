//! Packed rows: codes, scales and offsets.

use half::bf16;

use super::WeightFormat;

/// Rows of a packed matrix, to be filled or read.
#[derive(Debug)]
pub struct PackedRows<'a> {
    /// `[rows][inputs]`, a code a byte.
    pub codes: &'a mut [u8],
    /// `[rows][groups]`.
    pub scales: &'a mut [f32],
    /// `[rows][groups]`; empty in formats without.
    pub offsets: &'a mut [f32],
}

impl PackedRows<'_> {
    /// The same rows, to be given away for a while.
    pub fn reborrow(&mut self) -> PackedRows<'_> {
        PackedRows {
            codes: self.codes,
            scales: self.scales,
            offsets: self.offsets,
        }
    }

    /// `count` of these rows of `inputs` weights, from `first` on.
    pub fn slice(self, format: &WeightFormat, inputs: usize, first: usize, count: usize) -> Self {
        let groups = format.groups(inputs);
        let offsets = match format.has_offsets {
            true => first * groups..(first + count) * groups,
            false => 0..0,
        };
        PackedRows {
            codes: &mut self.codes[first * inputs..][..count * inputs],
            scales: &mut self.scales[first * groups..][..count * groups],
            offsets: &mut self.offsets[offsets],
        }
    }
}

/// A packed matrix, or rows of one.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedTensor {
    format: WeightFormat,
    inputs: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

impl PackedTensor {
    /// Of zeros.
    pub fn new(format: WeightFormat, rows: usize, inputs: usize) -> Self {
        let groups = rows * format.groups(inputs);
        Self {
            format,
            inputs,
            codes: vec![0; rows * inputs],
            scales: vec![0.0; groups],
            offsets: vec![0.0; if format.has_offsets { groups } else { 0 }],
        }
    }

    /// How it is stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.codes.len() / self.inputs.max(1)
    }

    /// Weights of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// `count` rows from `first` on.
    pub fn rows_mut(&mut self, first: usize, count: usize) -> PackedRows<'_> {
        let all = PackedRows {
            codes: &mut self.codes,
            scales: &mut self.scales,
            offsets: &mut self.offsets,
        };
        all.slice(&self.format, self.inputs, first, count)
    }

    /// Copies rows from `first` on, as many as `out` has, which is of the same format and inputs.
    /// Panics if it is not, or if there are fewer rows.
    pub fn copy_rows(&self, first: usize, out: PackedRows<'_>) {
        let rows = out.codes.len() / self.inputs.max(1);
        let groups = self.format.groups(self.inputs);
        let codes = first * self.inputs..(first + rows) * self.inputs;
        let scales = first * groups..(first + rows) * groups;
        let offsets = match self.format.has_offsets {
            true => scales.clone(),
            false => 0..0,
        };
        out.codes.copy_from_slice(&self.codes[codes]);
        out.scales.copy_from_slice(&self.scales[scales]);
        out.offsets.copy_from_slice(&self.offsets[offsets]);
    }

    /// Codes of a row.
    pub fn codes(&self, row: usize) -> &[u8] {
        &self.codes[row * self.inputs..][..self.inputs]
    }

    /// Scales of a row's groups.
    pub fn scales(&self, row: usize) -> &[f32] {
        let groups = self.format.groups(self.inputs);
        &self.scales[row * groups..][..groups]
    }

    /// Offsets of a row's groups; empty in formats without.
    pub fn offsets(&self, row: usize) -> &[f32] {
        match self.format.has_offsets {
            true => {
                let groups = self.format.groups(self.inputs);
                &self.offsets[row * groups..][..groups]
            }
            false => &[],
        }
    }

    /// The weights of a row in f32: `scale · value(code) + offset`.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        let (codes, scales) = (self.codes(row), self.scales(row));
        let offsets = self.offsets(row);
        let groups = codes
            .chunks(self.format.group)
            .zip(out.chunks_mut(self.format.group));
        for (group, (codes, out)) in groups.enumerate() {
            let offset = offsets.get(group).copied().unwrap_or(0.0);
            for (out, code) in out.iter_mut().zip(codes) {
                *out = scales[group] * self.format.codes.value(*code) + offset;
            }
        }
    }

    /// All weights, `[rows][inputs]`, rounded to bf16.
    pub fn dequantise(&self) -> Vec<bf16> {
        let mut row_values = vec![0.0; self.inputs];
        let mut out = Vec::with_capacity(self.codes.len());
        for row in 0..self.rows() {
            self.dequantise_row(row, &mut row_values);
            out.extend(row_values.iter().map(|value| bf16::from_f32(*value)));
        }
        out
    }
}
