//! One row: codes go from memory to registers and are multiplied there, at the memory's speed.
//!
//! Operations on floats are those of [`super::tile`], in the same order.

use super::activations::{Block, four};
use super::ahead::Ahead;
use super::layout::{Kind, Layout};
use super::planes::Planes;
use super::stretch::Groups;
use super::tile::add_unit;
use super::{BLOCK, PANEL};
use crate::cpu::simd::{DotKernel, DotSet, Dots, Simd};
use crate::memory::LINE;

/// The product of a row with a panel of integers.
#[derive(Clone, Copy)]
pub(super) struct OneRow<'a> {
    layout: &'a Layout,
    /// A panel of the layout.
    panel: *const u8,
    /// As many blocks as the layout has.
    row: &'a [Block],
    /// Room for 16 sums.
    sums: *mut f32,
}

impl<'a> OneRow<'a> {
    /// Writes 16 sums.
    ///
    /// # Safety
    /// `panel` must be a readable panel of `layout`, and `sums` have room.
    pub(super) unsafe fn run(
        dots: DotSet,
        layout: &'a Layout,
        panel: *const u8,
        row: &'a [Block],
        sums: *mut f32,
    ) {
        assert_eq!(row.len(), layout.blocks());
        let Kind::Ints { bits, table, .. } = layout.kind else {
            unreachable!("floats have their own product");
        };
        let product = Self {
            layout,
            panel,
            row,
            sums,
        };
        let plain = &[0; 16];
        match (bits, table, layout.kind.is_wide()) {
            (2, ..) => dots.run(OneRowKernel::<2, false, false>(product, plain)),
            (3, ..) => dots.run(OneRowKernel::<3, false, false>(product, plain)),
            (4, None, _) => dots.run(OneRowKernel::<4, false, false>(product, plain)),
            (4, Some(table), false) => dots.run(OneRowKernel::<4, true, false>(product, table)),
            (4, Some(table), true) => dots.run(OneRowKernel::<4, true, true>(product, table)),
            (5, ..) => dots.run(OneRowKernel::<5, false, false>(product, plain)),
            (6, ..) => dots.run(OneRowKernel::<6, false, false>(product, plain)),
            (7, ..) => dots.run(OneRowKernel::<7, false, false>(product, plain)),
            (8, ..) => dots.run(OneRowKernel::<8, false, true>(product, plain)),
            _ => unreachable!("codes of {bits} bits"),
        }
    }
}

/// For codes of `BITS` bits, looked up in the table if `TABLE`; `WIDE` says that codes or entries
/// above 127 occur.
struct OneRowKernel<'a, const BITS: usize, const TABLE: bool, const WIDE: bool>(
    OneRow<'a>,
    &'a [u8; 16],
);

impl<const BITS: usize, const TABLE: bool, const WIDE: bool> DotKernel
    for OneRowKernel<'_, BITS, TABLE, WIDE>
{
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        match self.0.layout.unit() {
            BLOCK => self.units::<D, BLOCK>(d),
            _ => self.units::<D, { BLOCK / 2 }>(d),
        }
    }
}

impl<const BITS: usize, const TABLE: bool, const WIDE: bool> OneRowKernel<'_, BITS, TABLE, WIDE> {
    #[inline(always)]
    fn units<D: Dots, const UNIT: usize>(self, d: D) {
        let OneRow {
            layout,
            panel,
            row,
            sums,
        } = self.0;
        let s = d.floats();
        let Kind::Ints { zero, .. } = layout.kind else {
            unreachable!("floats have their own product");
        };
        let has_offsets = layout.has_offsets;
        let group_bytes = layout.group_bytes();
        let codes = panel.wrapping_add(layout.codes());
        let mut ahead = Ahead::of(layout, panel, 0);
        for lane in (0..PANEL).step_by(D::Floats::LANES) {
            let scales = panel.wrapping_add(Layout::SCALES + 2 * lane);
            // SAFETY: 16 factors come first.
            let factor = unsafe { s.load(panel.cast::<f32>().wrapping_add(lane)) };
            let mut acc = s.splat(0.0);
            let mut groups = Groups::at(layout, 0);
            for (index, block) in row.iter().enumerate() {
                let from = codes.wrapping_add(index * BITS * LINE + 4 * lane);
                if lane == 0 {
                    ahead.fetch(s);
                }
                // SAFETY: a block of the panel.
                let planes = unsafe { Planes::<D, BITS>::load(d, from) };
                for unit in 0..BLOCK / UNIT {
                    // Of the block's three sums.
                    let sum = if UNIT == BLOCK { 2 } else { unit };
                    let mut coarse = d.splat(-i32::from(zero) * block.coarse_sums[sum]);
                    let mut fine = d.splat(-i32::from(zero) * block.fine_sums[sum]);
                    for quad in unit * UNIT / 4..(unit + 1) * UNIT / 4 {
                        let mut weights = planes.codes(d, quad);
                        if TABLE {
                            weights = d.look_up(self.1, weights);
                        }
                        coarse = d.dot::<WIDE>(coarse, weights, four(&block.coarse, quad));
                        fine = d.dot::<WIDE>(fine, weights, four(&block.fine, quad));
                    }
                    let group = scales.wrapping_add(groups.next(UNIT) * group_bytes);
                    // SAFETY: a group of the panel.
                    let scale = unsafe { s.mul(d.load_f16(group.cast()), factor) };
                    acc = add_unit(d, acc, [coarse, fine], block.scale, scale);
                    if has_offsets {
                        let offset = group.wrapping_add(2 * PANEL);
                        // SAFETY: the group's offsets.
                        let offset = unsafe { s.mul(d.load_f16(offset.cast()), factor) };
                        acc = s.fma(s.splat(block.sums[sum]), offset, acc);
                    }
                }
            }
            // SAFETY: 16 sums.
            unsafe { s.store(sums.wrapping_add(lane), acc) };
        }
    }
}
