//! Panels of floats of eight bits: expanded into the L1 cache and multiplied in f32.

use super::layout::{Layout, QuantisedMatrix};
use super::{AHEAD, PANEL};
use crate::cpu::gemm::{F32Panel, PANEL as COLUMNS, Rows, Sums, multiply_tile};
use crate::cpu::simd::{DotKernel, DotSet, Dots, Simd};

/// Inputs of a stretch.
const INPUTS: usize = 128;

/// An expanded stretch, `[inputs][32 columns]`.
#[repr(C, align(64))]
pub(super) struct FloatStretch([f32; INPUTS * COLUMNS]);

/// The product of rows with a pair of panels, `sums[row][32]`: one chain of fused multiply-adds
/// over the inputs in ascending order.
pub(super) struct Floats<'a> {
    /// `[rows][inputs]`
    pub(super) a: &'a [f32],
    pub(super) rows: usize,
    pub(super) halves: [Option<(&'a QuantisedMatrix, usize)>; 2],
    pub(super) stretch: *mut FloatStretch,
    pub(super) sums: *mut f32,
}

impl Floats<'_> {
    /// Writes all sums.
    ///
    /// # Safety
    /// `sums` must have room for `rows` rows of 32 floats, and `stretch` be writable.
    pub(super) unsafe fn run(self, dots: DotSet) {
        let [Some((matrix, _)), _] = self.halves else {
            return;
        };
        let inputs = matrix.layout.inputs;
        assert!(self.a.len() >= self.rows * inputs);
        match self.rows {
            1 => dots.run(OneRowKernel(self)),
            _ => dots.run(RowsKernel(self)),
        }
    }
}

/// One row.
struct OneRowKernel<'a>(Floats<'a>);

impl DotKernel for OneRowKernel<'_> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let [Some(first), second] = self.0.halves else {
            return;
        };
        // Where there is one panel, nobody reads the other's sums.
        let panels = [first, second.unwrap_or(first)];
        let panels = panels.map(|(matrix, panel)| (&matrix.layout, matrix.panel(panel)));
        // SAFETY: panels of the matrices; the promise of `Floats::run`.
        unsafe { one_row(d, panels, self.0.a, self.0.sums) };
    }
}

/// Any rows.
struct RowsKernel<'a>(Floats<'a>);

impl DotKernel for RowsKernel<'_> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let Floats {
            a,
            rows,
            halves,
            stretch,
            sums,
        } = self.0;
        // SAFETY: the promise of `Floats::run`.
        unsafe { multiply(d, a.as_ptr(), rows, halves, stretch, sums) };
    }
}

/// # Safety
/// `a` must hold `rows` rows of the matrices' inputs, `sums` room for as many of 32 floats, and
/// `stretch` be writable.
#[inline(always)]
unsafe fn multiply<D: Dots>(
    d: D,
    a: *const f32,
    rows: usize,
    halves: [Option<(&QuantisedMatrix, usize)>; 2],
    stretch: *mut FloatStretch,
    sums: *mut f32,
) {
    let s = d.floats();
    let Some((first, _)) = halves[0] else { return };
    let inputs = first.layout.inputs;
    let expanded = stretch.cast::<f32>();
    if halves[1].is_none() {
        // SAFETY: the caller's promise.
        unsafe { stretch.write_bytes(0, 1) };
    }
    for start in (0..inputs).step_by(INPUTS) {
        let count = INPUTS.min(inputs - start);
        let mut following = [std::ptr::null(); 2];
        for (half, place) in halves.iter().enumerate() {
            let Some((matrix, panel)) = place else {
                continue;
            };
            let panel = matrix.panel(*panel);
            let to = expanded.wrapping_add(half * PANEL);
            // SAFETY: a panel of the matrix; 128 rows of 32 floats, of which 16 are written.
            unsafe { expand(d, &matrix.layout, panel, (start, count), to) };
            let next = matrix.layout.codes() + (start + count) * PANEL;
            following[half] = panel.wrapping_add(next);
        }
        let right = F32Panel {
            start: expanded,
            runs: following,
            run: INPUTS / 4,
            skip: 0,
        };
        let tiles = rows.div_ceil(D::Floats::TILE_ROWS);
        for tile in 0..tiles {
            let row = tile * rows / tiles;
            let of_tile = (tile + 1) * rows / tiles - row;
            let left = Rows {
                start: a.wrapping_add(row * inputs + start),
                stride: inputs,
                k: count,
            };
            let sums = Sums {
                start: sums.wrapping_add(row * COLUMNS),
                stride: COLUMNS,
                add: start > 0,
            };
            // SAFETY: the caller's promise; the stretch has `count` rows.
            unsafe { multiply_tile(s, of_tile, left, right, sums) };
        }
    }
}

/// Scale and offset of an input's group, from a lane on, and where the group ends.
///
/// # Safety
/// `panel` must be a panel of `layout` with this input.
#[inline(always)]
unsafe fn group<D: Dots>(
    d: D,
    layout: &Layout,
    panel: *const u8,
    (input, lane): (usize, usize),
) -> (Float<D>, Float<D>, usize) {
    let s = d.floats();
    let group = input / layout.group;
    let place = panel.wrapping_add(Layout::SCALES + group * layout.group_bytes() + 2 * lane);
    let mut offset = s.splat(0.0);
    // SAFETY: a panel has 16 factors and the group's scales and offsets.
    let scale = unsafe {
        let factor = s.load(panel.cast::<f32>().wrapping_add(lane));
        if layout.has_offsets {
            let place = place.wrapping_add(2 * PANEL);
            offset = s.mul(d.load_f16(place.cast()), factor);
        }
        s.mul(d.load_f16(place.cast()), factor)
    };
    // What `load_e4m3` divides by.
    let scale = s.mul(scale, s.splat(256.0));
    (scale, offset, (group + 1) * layout.group)
}

/// A vector of floats.
pub(super) type Float<D> = <<D as Dots>::Floats as Simd>::F;

/// The 32 sums of a row with two panels: the operations of [`multiply`] in the same order, without
/// a detour through memory. (Two panels, because a chain of additions alone would wait for itself.)
///
/// # Safety
/// The panels must be panels of their layouts, and `sums` have room.
#[inline(always)]
unsafe fn one_row<D: Dots>(d: D, panels: [(&Layout, *const u8); 2], a: &[f32], sums: *mut f32) {
    let (s, inputs) = (d.floats(), panels[0].0.inputs);
    let codes = panels.map(|(layout, panel)| panel.wrapping_add(layout.codes()));
    for lane in (0..PANEL).step_by(D::Floats::LANES) {
        let mut acc = [s.splat(0.0); 2];
        let mut input = 0;
        while input < inputs {
            // SAFETY: an input of the panels.
            let groups = unsafe {
                [
                    group(d, panels[0].0, panels[0].1, (input, lane)),
                    group(d, panels[1].0, panels[1].1, (input, lane)),
                ]
            };
            let end = inputs.min(groups[0].2).min(groups[1].2);
            for (x, input) in a[input..end].iter().zip(input..) {
                let x = s.splat(*x);
                for (half, acc) in acc.iter_mut().enumerate() {
                    let from = codes[half].wrapping_add(input * PANEL + lane);
                    if input % 4 == 0 {
                        s.prefetch(from.wrapping_add(AHEAD));
                    }
                    let (scale, offset, _) = groups[half];
                    // SAFETY: an input of the panel.
                    let weight = s.fma(unsafe { d.load_e4m3(from) }, scale, offset);
                    *acc = s.fma(x, weight, *acc);
                }
            }
            input = end;
        }
        for (half, acc) in acc.iter().enumerate() {
            // SAFETY: 32 sums.
            unsafe { s.store(sums.wrapping_add(half * PANEL + lane), *acc) };
        }
    }
}

/// Writes `count` inputs from `first` on of 16 outputs, `to[input][32]`.
///
/// # Safety
/// `panel` must be a panel of `layout` with these inputs, and `to` have room.
#[inline(always)]
unsafe fn expand<D: Dots>(
    d: D,
    layout: &Layout,
    panel: *const u8,
    (first, count): (usize, usize),
    to: *mut f32,
) {
    let (s, lanes) = (d.floats(), D::Floats::LANES);
    let codes = panel.wrapping_add(layout.codes());
    for lane in (0..PANEL).step_by(lanes) {
        let mut input = first;
        while input < first + count {
            // SAFETY: an input of the panel.
            let (scale, offset, end) = unsafe { group(d, layout, panel, (input, lane)) };
            let end = end.min(first + count);
            for input in input..end {
                // SAFETY: an input of the panel, and row `input - first` of the stretch.
                unsafe {
                    let value = d.load_e4m3(codes.wrapping_add(input * PANEL + lane));
                    let to = to.wrapping_add((input - first) * COLUMNS + lane);
                    s.store(to, s.fma(value, scale, offset));
                }
            }
            input = end;
        }
    }
}
