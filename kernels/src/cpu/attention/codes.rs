//! A shrunk record as an operand of products: its codes, small integers as they are.
//!
//! What a code is worth goes to the other operand, once a record instead of once an element. Of
//! keys, with a step and a zero per channel, `q·k = Σ (q_c step_c) code_c + Σ q_c zero_c`. Of
//! values, with both per token, `Σ p_t v_t = Σ (p_t step_t) code_t + Σ p_t zero_t`.
//!
//! Both are products with the rows of the record's plane, which are tokens of keys and channels of
//! values: `Σ x_column code_column`. The codes leave the plane's order as bytes, a quarter of what
//! floats would take, and become floats in registers.

use crate::BLOCK_TOKENS;
use crate::cpu::floats::Floats;
use crate::cpu::gemm::{PANEL, Panel};
use crate::cpu::math;
use crate::cpu::simd::{Kernel, Simd};
use crate::formats::order::{field, row_half_shift};
use crate::formats::{CodePlane, Codes, High, MAX_GROUPS, MAX_HEAD_DIM, Slabs};
use crate::memory::LINE;

/// Rows and columns of a tile of a plane.
const TILE: usize = 16;

/// Columns of a record of keys, at most: the channels, and again those whose codes have higher bits
/// elsewhere.
pub(super) fn most_columns(head_dim: usize) -> usize {
    head_dim + head_dim / 4
}

/// Rows of 32 codes, a byte each.
#[derive(Clone, Copy)]
pub(super) struct CodePanel(*const u8);

impl Panel for CodePanel {
    const ROW_BYTES: usize = PANEL;
    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0
    }
    #[inline(always)]
    fn ahead(self, _: usize, _: usize) -> Option<*const u8> {
        None
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: *const u8, i: usize) -> (S::F, S::F) {
        let low = row.wrapping_add(i * S::LANES);
        // SAFETY: 32 bytes, of which `LANES` from `i * LANES` and from 16 more on are read.
        unsafe { (s.load_u8(low), s.load_u8(low.wrapping_add(PANEL / 2))) }
    }
}

/// The record at hand.
#[derive(Debug)]
pub(super) struct Record {
    /// `[panel of 32 rows][column][32]`, in bytes.
    codes: Floats,
    columns: usize,
    /// By channel of keys, or token of values.
    zeros: [f32; MAX_GROUPS],
    steps: [f32; MAX_GROUPS],
    products: [f32; MAX_GROUPS],
    /// Channels with higher bits elsewhere, in order of rank: they are the last columns.
    boosted: usize,
    channels: [u8; MAX_HEAD_DIM],
}

impl Record {
    pub(super) fn new(head_dim: usize) -> Self {
        let keys = BLOCK_TOKENS * most_columns(head_dim);
        let values = head_dim.next_multiple_of(PANEL) * BLOCK_TOKENS;
        Self {
            codes: Floats::zeros(keys.max(values) / 4),
            columns: 0,
            zeros: [0.0; _],
            steps: [0.0; _],
            products: [0.0; _],
            boosted: 0,
            channels: [0; _],
        }
    }

    /// Takes in a record. `ahead` is where the next one starts, to be prefetched line by line as
    /// the planes are read; returns where that ended.
    #[inline(always)]
    pub(super) fn take<S: Simd>(
        &mut self,
        s: S,
        codes: &Codes<'_>,
        mut ahead: *const u8,
    ) -> *const u8 {
        let groups = codes.low.order.cols;
        codes.steps(&mut self.zeros[..groups], &mut self.steps[..groups]);
        self.boosted = match codes.high {
            High::Boosted(Slabs { boosted, .. }) => boosted,
            High::None | High::All(_) => 0,
        };
        self.columns = groups + self.boosted;
        let low = codes.low;
        ahead = match low.order.bits {
            8 => s.outline(self.unpack::<8, false>(low, 0, ahead)),
            4 => s.outline(self.unpack::<4, false>(low, 0, ahead)),
            _ => s.outline(self.unpack::<2, false>(low, 0, ahead)),
        };
        match codes.high {
            High::None => (),
            High::All(plane) => ahead = s.outline(self.unpack::<1, true>(plane, 0, ahead)),
            High::Boosted(slabs) => {
                let order = slabs.order;
                let all = slabs.bytes.chunks_exact(order.bytes()).enumerate();
                for (slab, bytes) in all {
                    let plane = CodePlane { order, bytes };
                    let first = groups + slab * order.cols;
                    ahead = s.outline(self.unpack::<2, false>(plane, first, ahead));
                }
                let channels = &mut self.channels[..slabs.boosted];
                for (channel, rank) in slabs.index.iter().enumerate() {
                    if let Some(place) = channels.get_mut(*rank as usize) {
                        *place = channel as u8;
                    }
                }
            }
        }
        ahead
    }

    /// Multiplicands of a query row over keys.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Writes a query row's multiplicands; returns what its scores lack, `Σ q_c zero_c`.
    #[inline(always)]
    pub(super) fn fold_query<S: Simd>(&mut self, s: S, query: &[f32], out: &mut [f32]) -> f32 {
        let (low, high) = out[..self.columns].split_at_mut(query.len());
        low.copy_from_slice(query);
        let lacking = self.fold(s, low);
        for (x, channel) in high.iter_mut().zip(&self.channels[..self.boosted]) {
            *x = 4.0 * low[*channel as usize];
        }
        lacking
    }

    /// Turns the weights of a multiple of 32 tokens into multiplicands; returns what every channel
    /// of the sum lacks, `Σ p_t zero_t`.
    #[inline(always)]
    pub(super) fn fold_weights<S: Simd>(&mut self, s: S, weights: &mut [f32]) -> f32 {
        self.fold(s, weights)
    }

    #[inline(always)]
    fn fold<S: Simd>(&mut self, s: S, x: &mut [f32]) -> f32 {
        let len = x.len();
        assert!(len <= MAX_GROUPS && len.is_multiple_of(TILE));
        for i in (0..len).step_by(S::LANES) {
            // SAFETY: `len` is a multiple of LANES, and all have that many floats.
            unsafe {
                let at = x.as_mut_ptr().add(i);
                let x = s.load(at);
                s.store(at, s.mul(x, s.load(self.steps.as_ptr().add(i))));
                let product = s.mul(x, s.load(self.zeros.as_ptr().add(i)));
                s.store(self.products.as_mut_ptr().add(i), product);
            }
        }
        math::sum(s, &self.products[..len])
    }

    /// The codes of a piece of keys: a row a column of the record, 32 tokens wide.
    pub(super) fn keys(&self, piece: usize) -> CodePanel {
        let panel = self.columns * PANEL;
        CodePanel(self.bytes()[piece * panel..][..panel].as_ptr())
    }

    /// The codes of values in panel `panel` of 32 channels: a row a token from `first` on.
    pub(super) fn values(&self, first: usize, panel: usize) -> CodePanel {
        CodePanel(self.bytes()[(panel * BLOCK_TOKENS + first) * PANEL..].as_ptr())
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.codes[..])
    }

    /// Unpacks a plane to the columns from `first` on, or with `ADD` adds four times its codes to
    /// what is there.
    fn unpack<'a, const BITS: u32, const ADD: bool>(
        &'a mut self,
        plane: CodePlane<'a>,
        first: usize,
        ahead: *const u8,
    ) -> Unpack<'a, BITS, ADD> {
        let CodePlane { order, bytes } = plane;
        let panel = self.columns * PANEL;
        let out: &mut [u8] = bytemuck::cast_slice_mut(&mut self.codes[..]);
        assert!(out.len() >= order.rows.div_ceil(PANEL) * panel);
        assert!(first + order.cols <= self.columns && bytes.len() == order.bytes());
        Unpack {
            plane,
            out: &mut out[first * PANEL..],
            panel,
            ahead,
        }
    }
}

/// Unpacks a plane's codes of `BITS` bits. The caller has checked that they fit `out`.
struct Unpack<'a, const BITS: u32, const ADD: bool> {
    plane: CodePlane<'a>,
    /// From the first column on.
    out: &'a mut [u8],
    /// Bytes of a panel of 32 rows.
    panel: usize,
    /// What is prefetched, as many bytes as the plane has.
    ahead: *const u8,
}

impl<const BITS: u32, const ADD: bool> Kernel for Unpack<'_, BITS, ADD> {
    /// Where the prefetched bytes end.
    type Output = *const u8;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> *const u8 {
        let CodePlane { order, bytes } = self.plane;
        let out = self.out.as_mut_ptr();
        // Where the codes of 16 rows in 8 columns go.
        let place = |row_tile: usize, octet: usize| {
            let at = row_tile / 2 * self.panel + 8 * octet * PANEL + row_tile % 2 * TILE;
            out.wrapping_add(at)
        };
        let (vector, per_tile) = (order.vector_words(), order.cols.div_ceil(TILE));
        let group = 32 * vector;
        let mut transposed = Transposed([0; 128]);
        // Tiles come row by row.
        let (mut row, mut col) = (0, 0);
        let mut octets = || {
            let octets = [place(row, 2 * col), place(row, 2 * col + 1)];
            col += 1;
            if col == per_tile {
                (row, col) = (row + 1, 0);
            }
            octets
        };
        let mut ahead = self.ahead;
        for (i, bytes) in bytes.chunks_exact(4 * group).enumerate() {
            for line in (0..bytes.len()).step_by(LINE) {
                s.prefetch(ahead.wrapping_add(line));
            }
            ahead = ahead.wrapping_add(bytes.len());
            transposed.take(s, bytes);
            if BITS == 8 {
                for words in transposed.0[..group].chunks_exact(64) {
                    for (words, out) in words.chunks_exact(32).zip(octets()) {
                        // SAFETY: 32 words; half a row each of 8 columns.
                        unsafe { s.bytes_of_words(words.as_ptr(), out) };
                    }
                }
                continue;
            }
            for (w, words) in transposed.0[..group].chunks_exact(32).enumerate() {
                let (words, lane_word) = (words.as_ptr(), i * vector + w);
                for j in 0..4 / BITS as usize {
                    let fragment = 4 / BITS as usize * lane_word + j;
                    let out = if order.cols == 8 {
                        [place(2 * fragment, 0), place(2 * fragment + 1, 0)]
                    } else {
                        octets()
                    };
                    let shift = field(BITS, fragment, 0).shift;
                    // SAFETY: 32 words; half a row each of 8 columns, twice.
                    unsafe {
                        match BITS {
                            4 => s.byte_fields::<4, { row_half_shift(4) }, ADD>(words, shift, out),
                            2 => s.byte_fields::<2, { row_half_shift(2) }, ADD>(words, shift, out),
                            _ => s.byte_fields::<1, { row_half_shift(1) }, ADD>(words, shift, out),
                        }
                    }
                }
            }
        }
        ahead
    }
}

/// One vector of words of every lane, by word: `[column pair][8 rows]`.
#[repr(align(64))]
struct Transposed([u32; 128]);

impl Transposed {
    /// Takes in the vectors of lanes `4 * row + column pair`, of four words each or two.
    #[inline(always)]
    fn take<S: Simd>(&mut self, s: S, bytes: &[u8]) {
        if bytes.len() == 512 {
            // SAFETY: both have 128 words.
            return unsafe { s.transpose_words(bytes.as_ptr().cast(), self.0.as_mut_ptr()) };
        }
        for (lane, words) in bytes.chunks_exact(8).enumerate() {
            for (w, word) in words.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                self.0[32 * w + lane % 4 * 8 + lane / 4] = word;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cpu::simd::Isa;
    use crate::formats::{FormatId, RecordShape};
    use crate::kv::Side;

    struct Take<'a>(&'a mut Record, &'a Codes<'a>);

    impl Kernel for Take<'_> {
        type Output = *const u8;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> *const u8 {
            self.0.take(s, self.1, self.1.record.as_ptr())
        }
    }

    /// Bytes of all planes of a record.
    fn plane_bytes(codes: &Codes<'_>) -> usize {
        codes.low.bytes.len()
            + match codes.high {
                High::None => 0,
                High::All(plane) => plane.bytes.len(),
                High::Boosted(slabs) => slabs.bytes.len(),
            }
    }

    /// The value that a record says of a token's channel.
    fn value(record: &Record, side: Side, token: usize, channel: usize) -> f32 {
        let (row, column) = match side {
            Side::K => (token, channel),
            Side::V => (channel, token),
        };
        let code = |column: usize| {
            let at = (row / PANEL * record.columns + column) * PANEL + row % PANEL;
            f32::from(record.bytes()[at])
        };
        let boosted = &record.channels[..record.boosted];
        let rank = boosted.iter().position(|c| usize::from(*c) == channel);
        let high = rank.map_or(0.0, |rank| code(record.columns - record.boosted + rank));
        (code(column) + 4.0 * high) * record.steps[column] + record.zeros[column]
    }

    #[test]
    fn codes_are_worth_what_the_format_dequantises_to() {
        let mut computed_on = vec![];
        for &format in FormatId::ALL {
            for side in [Side::K, Side::V] {
                for head_dim in [16, 32, 64, 80, 96, 128, 256] {
                    let shape = RecordShape { side, head_dim };
                    let Ok(len) = format.record_bytes(shape) else {
                        continue;
                    };
                    let numbers = (0..shape.elements() as u32).map(|i| i.wrapping_mul(2654435761));
                    let rows: Vec<bf16> = numbers
                        .map(|x| bf16::from_f32((x >> 8) as f32 / (1 << 23) as f32 - 0.7))
                        .collect();
                    let mut bytes = vec![0; len];
                    format.encode(shape, &rows, &mut bytes).unwrap();
                    let Some(codes) = format.codes(shape, &bytes) else {
                        continue;
                    };
                    computed_on.push(format.name());
                    let mut want = vec![0.0; shape.elements()];
                    format.dequantise(shape, &bytes, &mut want).unwrap();
                    for isa in Isa::available() {
                        let mut record = Record::new(head_dim);
                        let fetched = isa.run(Take(&mut record, &codes)).addr();
                        // As many bytes of the next record as were read of this one.
                        assert_eq!(fetched - bytes.as_ptr().addr(), plane_bytes(&codes));
                        for (i, want) in want.iter().enumerate() {
                            let (token, channel) = (i / head_dim, i % head_dim);
                            let got = value(&record, side, token, channel);
                            let of = format!("{format} {side:?} {head_dim} {}", isa.name());
                            assert_eq!(got, *want, "{of}: token {token}, channel {channel}");
                        }
                    }
                }
            }
        }
        computed_on.dedup();
        computed_on.sort_unstable();
        let serving = [
            "int2", "int2c", "int3", "int4", "int8", "kitty12", "kitty12c", "kitty25", "kitty25c",
        ];
        assert_eq!(computed_on, serving);
    }
}
