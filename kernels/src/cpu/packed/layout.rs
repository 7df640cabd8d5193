//! Packed weights in the order in which the kernels read them.
//!
//! A panel is 16 outputs. It has, each part from a cache line on,
//! - a factor for each output, f32, a power of two, by which its scales and offsets were divided;
//! - for each group 16 scales in f16, and 16 offsets if the format has them;
//! - the codes, by blocks of 32 inputs.
//!
//! The 512 codes of a block are ordered by `[input / 4][output][input % 4]`, which is what dot
//! products of four want. That order is cut into planes by the bits that codes have: 4, 2 and 1 (or
//! 8 alone), lowest bits first. With `c` the codes in that order:
//! - byte `i` of the plane of 4 bits, 256 bytes, holds `c[i]` and `c[i + 256]`;
//! - byte `64h + i` of the plane of 2 bits, 128 bytes, holds `c[256h + 64j + i]` for `j` in `0..4`;
//! - byte `i` of the plane of 1 bit, 64 bytes, holds `c[64j + i]` for `j` in `0..8`.
//!
//! E4M3 codes are ordered by `[input][output]`.

use std::sync::Arc;

use half::f16;

use super::{BLOCK, PANEL};
use crate::cpu::gemm::WeightMemory;
use crate::memory::{HugeBuffer, LINE};
use crate::weight_formats::{Codes, E4M3, IQ4_VALUES, WeightFormat};

/// How the codes of a matrix are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As integers: code minus zero.
    Ints {
        bits: usize,
        zero: u8,
        /// Codes are looked up here first; there are 4 bits of them.
        table: Option<&'static [u8; 16]>,
        /// Whether the integers are twice the format's values.
        doubled: bool,
    },
    /// As floats.
    E4M3,
}

/// Twice the values of E2M1, plus 12.
static E2M1_TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The values of IQ4, plus 128.
static IQ4_TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (IQ4_VALUES[code] as i16 + 128) as u8;
        code += 1;
    }
    table
};

impl Kind {
    fn of(codes: Codes) -> Option<Self> {
        Some(match codes {
            Codes::Int { bits, zero } if (1..=8).contains(&bits) => Self::Ints {
                bits: usize::from(bits).max(2),
                zero,
                table: None,
                doubled: false,
            },
            Codes::Int { .. } => return None,
            Codes::E2M1 => Self::Ints {
                bits: 4,
                zero: 12,
                table: Some(&E2M1_TABLE),
                doubled: true,
            },
            Codes::Iq4 => Self::Ints {
                bits: 4,
                zero: 128,
                table: Some(&IQ4_TABLE),
                doubled: false,
            },
            Codes::E4M3 => Self::E4M3,
        })
    }

    /// What scales are multiplied by when they are packed.
    pub(super) fn scale(self) -> f32 {
        match self {
            Self::Ints { doubled: true, .. } => 0.5,
            _ => 1.0,
        }
    }

    /// Whether integers above 127 occur.
    pub(super) fn is_wide(self) -> bool {
        match self {
            Self::Ints { bits, table, .. } => {
                bits == 8 || table.is_some_and(|table| table.iter().any(|x| *x > 127))
            }
            Self::E4M3 => false,
        }
    }
}

/// Sizes of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Inputs that share a scale: a multiple of 16.
    pub(super) group: usize,
    pub(super) has_offsets: bool,
}

impl Layout {
    fn new(format: WeightFormat, inputs: usize, outputs: usize) -> Option<Self> {
        let kind = Kind::of(format.codes)?;
        let whole_row = format.group >= inputs;
        if inputs == 0 || format.group == 0 || !whole_row && !format.group.is_multiple_of(16) {
            return None;
        }
        Some(Self {
            kind,
            inputs,
            outputs,
            group: match whole_row {
                true => inputs.next_multiple_of(BLOCK),
                false => format.group,
            },
            has_offsets: format.has_offsets,
        })
    }

    pub(super) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    pub(super) fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    /// Blocks of a row; the last may have fewer inputs.
    pub(super) fn blocks(&self) -> usize {
        self.inputs.div_ceil(BLOCK)
    }

    /// Inputs of a block's part that has one scale: 16 or 32.
    pub(super) fn unit(&self) -> usize {
        match self.group.is_multiple_of(BLOCK) {
            true => BLOCK,
            false => BLOCK / 2,
        }
    }

    /// Bytes of a group's scales and offsets.
    pub(super) fn group_bytes(&self) -> usize {
        2 * PANEL * if self.has_offsets { 2 } else { 1 }
    }

    /// Bytes of the codes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        match self.kind {
            Kind::Ints { bits, .. } => LINE * bits,
            Kind::E4M3 => BLOCK * PANEL,
        }
    }

    /// Where scales begin in a panel.
    pub(super) const SCALES: usize = 4 * PANEL;

    /// Where codes begin in a panel.
    pub(super) fn codes(&self) -> usize {
        (Self::SCALES + self.groups() * self.group_bytes()).next_multiple_of(LINE)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.codes() + self.blocks() * self.block_bytes()
    }
}

/// A packed weight matrix in panels.
#[derive(Debug)]
pub struct QuantisedMatrix {
    pub(super) layout: Layout,
    pub(super) format: WeightFormat,
    memory: Arc<HugeBuffer>,
    offset: usize,
}

impl QuantisedMatrix {
    /// Bytes of a matrix, or none if its format has no layout: groups must be a multiple of 16
    /// inputs or a whole row, and integers have at most 8 bits.
    pub fn bytes(format: WeightFormat, inputs: usize, outputs: usize) -> Option<usize> {
        let layout = Layout::new(format, inputs, outputs)?;
        Some(layout.panels() * layout.panel_bytes())
    }

    /// Whether two formats can be gate and up of one product.
    pub fn can_join(a: WeightFormat, b: WeightFormat) -> bool {
        (a.codes == Codes::E4M3) == (b.codes == Codes::E4M3)
    }

    /// Carves a matrix, all zero. Panics if the format has no layout or the memory is exhausted.
    pub fn new(
        memory: &mut WeightMemory,
        format: WeightFormat,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let layout = Layout::new(format, inputs, outputs).expect("the format has a layout");
        let (memory, offset) = memory.carve(layout.panels() * layout.panel_bytes());
        Self {
            layout,
            format,
            memory,
            offset,
        }
    }

    /// The inner dimension.
    pub fn inputs(&self) -> usize {
        self.layout.inputs
    }

    /// Rows of the tensor, columns of the product.
    pub fn outputs(&self) -> usize {
        self.layout.outputs
    }

    /// How the tensor was stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Bytes in memory.
    pub fn len(&self) -> usize {
        self.layout.panels() * self.layout.panel_bytes()
    }

    /// Whether it has no outputs.
    pub fn is_empty(&self) -> bool {
        self.layout.outputs == 0
    }

    /// Start of a panel.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> *const u8 {
        assert!(panel < self.layout.panels());
        let start = self.offset + panel * self.layout.panel_bytes();
        self.memory.as_ptr().wrapping_add(start)
    }

    /// All bytes, to be written.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.memory.as_ptr().wrapping_add(self.offset);
        // SAFETY: `new` carved these bytes, zeroed, for this matrix alone, and `&mut self` excludes
        // readers.
        unsafe { std::slice::from_raw_parts_mut(start, self.len()) }
    }

    /// The weights of one output, `inputs` floats: the embedding of a token if the matrix is the
    /// embedding table.
    pub fn row(&self, output: usize, out: &mut [f32]) {
        let layout = &self.layout;
        assert!(output < layout.outputs && out.len() == layout.inputs);
        let lane = output % PANEL;
        // SAFETY: a panel of this matrix, which nobody writes while `&self` lives.
        let panel =
            unsafe { std::slice::from_raw_parts(self.panel(output / PANEL), layout.panel_bytes()) };
        let factor = f32::from_le_bytes(*panel[4 * lane..].first_chunk().expect("16 factors"));
        let (scales, codes) = panel.split_at(layout.codes());
        let half = |group: usize, side: usize| {
            let at = Layout::SCALES + group * layout.group_bytes() + 2 * (side * PANEL + lane);
            let bytes = scales[at..].first_chunk().expect("within the groups");
            f16::from_le_bytes(*bytes).to_f32() * factor
        };
        let blocks = codes.chunks_exact(layout.block_bytes());
        for (index, (codes, out)) in blocks.zip(out.chunks_mut(BLOCK)).enumerate() {
            for (at, out) in out.iter_mut().enumerate() {
                let group = (index * BLOCK + at) / layout.group;
                let value = match layout.kind {
                    Kind::E4M3 => E4M3[usize::from(codes[at * PANEL + lane])],
                    Kind::Ints {
                        bits, zero, table, ..
                    } => {
                        let code = code(bits, codes, at / 4 * LINE + lane * 4 + at % 4);
                        let code = table.map_or(code, |table| table[usize::from(code)]);
                        f32::from(code) - f32::from(zero)
                    }
                };
                *out = half(group, 0) * value;
                if layout.has_offsets {
                    *out += half(group, 1);
                }
            }
        }
    }
}

/// Code `i` of a block, in the order of the panel.
fn code(bits: usize, block: &[u8], i: usize) -> u8 {
    if bits == 8 {
        return block[i];
    }
    let (quad, byte) = (i / LINE, i % LINE);
    let (mut code, mut shift, mut plane) = (0, 0, block);
    if bits & 4 > 0 {
        code = plane[quad % 4 * LINE + byte] >> (quad / 4 * 4) & 15;
        (shift, plane) = (4, &plane[4 * LINE..]);
    }
    if bits & 2 > 0 {
        code |= (plane[quad / 4 * LINE + byte] >> (quad % 4 * 2) & 3) << shift;
        (shift, plane) = (shift + 2, &plane[2 * LINE..]);
    }
    if bits & 1 > 0 {
        code |= (plane[byte] >> quad & 1) << shift;
    }
    code
}
