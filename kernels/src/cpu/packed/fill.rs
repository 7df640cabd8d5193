//! Writing a matrix from rows of codes.

use half::f16;
use parking_lot::Mutex;

use super::layout::{Kind, Layout, QuantisedMatrix};
use super::{BLOCK, PANEL};
use crate::cpu::shared::SharedSlice;
use crate::cpu::threads::{Pool, TaskPanic};
use crate::memory::LINE;
use crate::weight_formats::{PackedRows, PackedTensor};

impl QuantisedMatrix {
    /// Fills the matrix, panel by panel on all threads: `read(first_row, rows)` reads whole rows of
    /// the tensor, at most 16. Returns the first error of `read`.
    pub fn fill<E: Send>(
        &mut self,
        pool: &mut Pool,
        read: impl Fn(usize, PackedRows<'_>) -> Result<(), E> + Sync,
    ) -> Result<Result<(), E>, TaskPanic> {
        let (layout, format) = (self.layout, self.format);
        // Only 16 rows a thread are ever unpacked.
        let rows = || Mutex::new(PackedTensor::new(format, PANEL, layout.inputs));
        let rows: Vec<_> = (0..pool.threads()).map(|_| rows()).collect();
        let failure = Mutex::new(None);
        let bytes = SharedSlice::new(self.bytes_mut());
        pool.run(layout.panels(), |panel, worker| {
            if failure.lock().is_some() {
                return;
            }
            let mut rows = rows[worker].lock();
            let first = panel * PANEL;
            let count = PANEL.min(layout.outputs - first);
            if let Err(error) = read(first, rows.rows_mut(0, count)) {
                failure.lock().get_or_insert(error);
                return;
            }
            // SAFETY: one task a panel.
            let to = unsafe { bytes.slice(panel * layout.panel_bytes(), layout.panel_bytes()) };
            let (scales, codes) = to.split_at_mut(layout.codes());
            fill_scales(&layout, &rows, count, scales);
            let blocks = codes.chunks_exact_mut(layout.block_bytes());
            for (block, to) in blocks.enumerate() {
                match layout.kind {
                    Kind::Ints { bits, .. } => fill_ints(bits, &rows, count, block, to),
                    Kind::E4M3 => fill_floats(&rows, count, block, to),
                }
            }
        })?;
        Ok(failure.into_inner().map_or(Ok(()), Err))
    }
}

/// The power of two by which an output's scales and offsets are divided: the greatest is below
/// 2^15 then, and f16 has 28 powers of two below that.
fn factor(values: impl Iterator<Item = f32>) -> f32 {
    let finite = values.map(f32::abs).filter(|value| value.is_finite());
    let exponent = (finite.fold(0.0, f32::max).to_bits() >> 23) as i32 - 14;
    f32::from_bits((exponent.max(1) as u32) << 23)
}

fn fill_scales(layout: &Layout, rows: &PackedTensor, count: usize, to: &mut [u8]) {
    let times = layout.kind.scale();
    for lane in 0..count {
        let (scales, offsets) = (rows.scales(lane), rows.offsets(lane));
        let factor = factor(scales.iter().chain(offsets).copied());
        to[4 * lane..][..4].copy_from_slice(&factor.to_le_bytes());
        let mut put = |group: usize, side: usize, value: f32| {
            let at = Layout::SCALES + group * layout.group_bytes() + 2 * (side * PANEL + lane);
            to[at..][..2].copy_from_slice(&f16::from_f32(value / factor).to_le_bytes());
        };
        let groups = rows.codes(lane).chunks(layout.group);
        for (group, (scale, codes)) in scales.iter().zip(groups).enumerate() {
            // A NaN of the codes makes the output NaN through its scale.
            let is_nan = layout.kind == Kind::E4M3 && codes.iter().any(|c| c & 0x7f == 0x7f);
            put(group, 0, if is_nan { f32::NAN } else { scale * times });
        }
        for (group, offset) in offsets.iter().enumerate() {
            put(group, 1, *offset);
        }
    }
}

/// The codes of a row's block; inputs beyond the row are 0.
fn block_codes(rows: &PackedTensor, lane: usize, block: usize) -> [u8; BLOCK] {
    let codes = &rows.codes(lane)[block * BLOCK..];
    let mut out = [0; BLOCK];
    let count = codes.len().min(BLOCK);
    out[..count].copy_from_slice(&codes[..count]);
    out
}

fn fill_ints(bits: usize, rows: &PackedTensor, count: usize, block: usize, to: &mut [u8]) {
    // [input / 4][output][input % 4]
    let mut codes = [[0u8; LINE]; BLOCK / 4];
    for lane in 0..count {
        let row = block_codes(rows, lane, block);
        for (codes, four) in codes.iter_mut().zip(row.as_chunks::<4>().0) {
            codes[4 * lane..][..4].copy_from_slice(four);
        }
    }
    if bits == 8 {
        to.copy_from_slice(codes.as_flattened());
        return;
    }
    // Planes are put together bit by bit.
    to.fill(0);
    let mut low_bits = 0;
    let mut lines = to.as_chunks_mut::<LINE>().0.iter_mut();
    for width in [4, 2, 1] {
        if bits & width == 0 {
            continue;
        }
        // Each line of the plane takes `8 / width` lines of codes.
        let per_line = 8 / width;
        for line in 0..width {
            let of_line = (0..per_line).map(|j| match width {
                4 => line + 4 * j,
                2 => 4 * line + j,
                _ => j,
            });
            let to = lines.next().expect("a line a bit");
            for (j, source) in of_line.enumerate() {
                for (to, code) in to.iter_mut().zip(&codes[source]) {
                    *to |= (code >> low_bits & ((1 << width) - 1)) << (j * width);
                }
            }
        }
        low_bits += width;
    }
}

fn fill_floats(rows: &PackedTensor, count: usize, block: usize, to: &mut [u8]) {
    for lane in 0..count {
        let row = block_codes(rows, lane, block);
        for (to, code) in to.as_chunks_mut::<PANEL>().0.iter_mut().zip(row) {
            to[lane] = code;
        }
    }
}
