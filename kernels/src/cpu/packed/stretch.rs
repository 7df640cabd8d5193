//! A stretch of a panel, unpacked into the L1 cache for all rows that are multiplied with it.

use super::layout::{Kind, Layout};
use super::planes::Planes;
use super::{BLOCK, PANEL};
use crate::cpu::simd::{DotKernel, DotSet, Dots, Simd};
use crate::memory::LINE;

/// Blocks of the longest stretch.
pub(super) const BLOCKS: usize = 16;

/// Codes of a block in bytes.
pub(super) const BLOCK_CODES: usize = BLOCK * PANEL;

/// Unpacked codes, scales and offsets.
#[repr(C, align(64))]
pub(super) struct Stretch {
    /// `[blocks][input / 4][output][input % 4]`
    pub(super) codes: [u8; BLOCKS * BLOCK_CODES],
    /// `[units][output]`, a unit being 32 inputs, or 16 where groups end there.
    pub(super) scales: [f32; 2 * BLOCKS * PANEL],
    /// Likewise; unset in formats without.
    pub(super) offsets: [f32; 2 * BLOCKS * PANEL],
}

/// Unpacks `count` blocks from `first` on of the panel at `panel`, and returns where the codes are:
/// bytes stay where they are.
///
/// # Safety
/// `panel` must be a readable panel of `layout`, whose codes are integers, with these blocks, and
/// `out` writable.
pub(super) unsafe fn unpack(
    dots: DotSet,
    layout: &Layout,
    panel: *const u8,
    (first, count): (usize, usize),
    out: *mut Stretch,
) -> *const u8 {
    let Kind::Ints { bits, table, .. } = layout.kind else {
        unreachable!("floats are not unpacked to bytes");
    };
    assert!(count <= BLOCKS && first + count <= layout.blocks());
    let stretch = Unpack {
        layout,
        panel,
        first,
        count,
        out,
    };
    let plain = &[0; 16];
    match (bits, table) {
        (2, _) => dots.run(Planar::<2, false>(stretch, plain)),
        (3, _) => dots.run(Planar::<3, false>(stretch, plain)),
        (4, None) => dots.run(Planar::<4, false>(stretch, plain)),
        (4, Some(table)) => dots.run(Planar::<4, true>(stretch, table)),
        (5, _) => dots.run(Planar::<5, false>(stretch, plain)),
        (6, _) => dots.run(Planar::<6, false>(stretch, plain)),
        (7, _) => dots.run(Planar::<7, false>(stretch, plain)),
        _ => {
            dots.run(Planar::<0, false>(stretch, plain));
            return stretch.codes();
        }
    }
    // SAFETY: only a place is computed.
    unsafe { (&raw const (*out).codes).cast() }
}

/// What is unpacked.
#[derive(Clone, Copy)]
struct Unpack<'a> {
    layout: &'a Layout,
    panel: *const u8,
    first: usize,
    count: usize,
    out: *mut Stretch,
}

impl Unpack<'_> {
    #[inline(always)]
    fn codes(&self) -> *const u8 {
        let block = self.layout.codes() + self.first * self.layout.block_bytes();
        self.panel.wrapping_add(block)
    }
}

/// Of codes of `BITS` bits, looked up in the table if `TABLE`; only scales if there are 0 bits.
struct Planar<'a, const BITS: usize, const TABLE: bool>(Unpack<'a>, &'a [u8; 16]);

impl<const BITS: usize, const TABLE: bool> DotKernel for Planar<'_, BITS, TABLE> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let Unpack {
            layout,
            panel,
            first,
            count,
            out,
        } = self.0;
        let codes = self.0.codes();
        // SAFETY: the blocks are within the panel, and there is room for `BLOCKS`.
        unsafe {
            unpack_scales(d, layout, panel, (first, count), out);
            if BITS > 0 {
                let to = (&raw mut (*out).codes).cast::<u8>();
                unpack_codes::<D, BITS, TABLE>(d, codes, count, to, self.1);
            }
        }
    }
}

/// The groups of consecutive units.
pub(super) struct Groups {
    group: usize,
    /// Inputs until the next group.
    left: usize,
    of_group: usize,
    last: usize,
}

impl Groups {
    /// From an input on, where a unit begins.
    #[inline(always)]
    pub(super) fn at(layout: &Layout, input: usize) -> Self {
        Self {
            group: input / layout.group,
            left: layout.group - input % layout.group,
            of_group: layout.group,
            last: layout.groups() - 1,
        }
    }

    /// The group of the next unit. The last block may reach beyond the last group; activations are
    /// 0 there.
    #[inline(always)]
    pub(super) fn next(&mut self, unit: usize) -> usize {
        let group = self.group;
        self.left -= unit;
        if self.left == 0 {
            (self.group, self.left) = (self.last.min(group + 1), self.of_group);
        }
        group
    }
}

/// Scales and offsets of every unit.
///
/// # Safety
/// As for [`unpack`].
#[inline(always)]
unsafe fn unpack_scales<D: Dots>(
    d: D,
    layout: &Layout,
    panel: *const u8,
    (first, count): (usize, usize),
    out: *mut Stretch,
) {
    let (s, lanes, unit) = (d.floats(), D::Floats::LANES, layout.unit());
    let (group_bytes, has_offsets) = (layout.group_bytes(), layout.has_offsets);
    let scales = panel.wrapping_add(Layout::SCALES);
    let units = count * BLOCK / unit;
    for lane in (0..PANEL).step_by(lanes) {
        // SAFETY: 16 factors come first.
        let factor = unsafe { s.load(panel.cast::<f32>().wrapping_add(lane)) };
        let mut groups = Groups::at(layout, first * BLOCK);
        for at in 0..units {
            let from = scales.wrapping_add(groups.next(unit) * group_bytes + 2 * lane);
            let to = at * PANEL + lane;
            // SAFETY: the group is one of the panel's, and `at` below `2 * BLOCKS`.
            unsafe {
                let scale = s.mul(d.load_f16(from.cast()), factor);
                s.store((&raw mut (*out).scales).cast::<f32>().add(to), scale);
                if has_offsets {
                    let offset = d.load_f16(from.wrapping_add(2 * PANEL).cast());
                    let offset = s.mul(offset, factor);
                    s.store((&raw mut (*out).offsets).cast::<f32>().add(to), offset);
                }
            }
        }
    }
}

/// Codes as bytes, looked up if `TABLE`.
///
/// # Safety
/// `from` must hold `count` blocks, and `to` have room for them.
#[inline(always)]
unsafe fn unpack_codes<D: Dots, const BITS: usize, const TABLE: bool>(
    d: D,
    from: *const u8,
    count: usize,
    to: *mut u8,
    table: &[u8; 16],
) {
    for block in 0..count {
        let from = from.wrapping_add(block * BITS * LINE);
        let to = to.wrapping_add(block * BLOCK_CODES);
        for part in (0..LINE).step_by(4 * D::Floats::LANES) {
            // SAFETY: a block has `BITS` lines.
            let planes = unsafe { Planes::<D, BITS>::load(d, from.wrapping_add(part)) };
            for quad in 0..8 {
                let mut codes = planes.codes(d, quad);
                if TABLE {
                    codes = d.look_up(table, codes);
                }
                // SAFETY: line `quad` of the block.
                unsafe { d.store(to.wrapping_add(quad * LINE + part), codes) };
            }
        }
    }
}
