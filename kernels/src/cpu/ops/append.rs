//! From the fused projections to queries, keys and values: head norms, RoPE, the Hadamard rotation
//! of keys and queries, and the append of keys and values to their pages.

use super::for_rows;
use super::norm::rms_norm_in_place;
use super::rope::{RopeTable, rotate};
use crate::SUB_BLOCK_TOKENS;
use crate::cpu::attention::Pages;
use crate::cpu::math::to_bf16_bits;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::formats::rotation::hadamard;
use crate::kv::Side;
use crate::model::TransformerSpec;

/// What happens to the rows of one layer's fused projection `[rows][q heads | k heads | v heads]`.
#[derive(Clone, Copy)]
pub(crate) struct HeadOps<'a> {
    pub(crate) spec: &'a TransformerSpec,
    pub(crate) rope: &'a RopeTable,
    pub(crate) pages: Pages<'a>,
    /// Where each row's keys and values go.
    pub(crate) places: &'a [RowPlace],
    pub(crate) layer: usize,
    /// Weights of the query and the key norm, if the model has them.
    pub(crate) qk_norm: Option<(&'a [f32], &'a [f32])>,
    /// Whether queries and keys are multiplied by a Hadamard matrix.
    pub(crate) rotate_k: bool,
}

/// Where a row's keys and values go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPlace {
    /// First frame of the block, into the step's list.
    pub(crate) first_frame: u32,
    /// Token within the block.
    pub(crate) token: u32,
}

impl HeadOps<'_> {
    /// Normalises and rotates queries in place; writes keys and values, rounded to bf16, to their
    /// pages.
    pub(crate) fn run(&self, pool: &mut Pool, isa: Isa, qkv: &mut [f32]) -> Result<(), TaskPanic> {
        let width = self.spec.q_width() + 2 * self.spec.kv_width();
        let rows = self.places.len();
        assert!(qkv.len() >= rows * width);
        let qkv = SharedSlice::new(qkv);
        for_rows(pool, rows, width, |first, end| {
            isa.run(RowRange {
                ops: self,
                first,
                // SAFETY: ranges of rows are disjoint.
                qkv: unsafe { qkv.slice(first * width, (end - first) * width) },
            });
        })
    }

    /// Writes one head of one row to its page.
    #[inline(always)]
    fn append(&self, place: RowPlace, side: Side, head: usize, values: &[f32]) {
        let record = self.pages.geometry.record(self.layer, side, head);
        let (sub_block, token) = (
            place.token as usize / SUB_BLOCK_TOKENS,
            place.token as usize % SUB_BLOCK_TOKENS,
        );
        let rows = self.pages.sub_record(place.first_frame, sub_block, record);
        let to = rows.cast::<u16>().wrapping_add(token * values.len());
        for (i, x) in values.iter().enumerate() {
            // SAFETY: row `token` of the 16 rows of `head_dim` bf16 of a sub-record in the arena,
            // which the step holds mutably; the checked step writes no frame through two
            // sub-blocks, so this row and head alone writes here, and nobody reads yet.
            unsafe { to.wrapping_add(i).write(to_bf16_bits(*x)) };
        }
    }
}

struct RowRange<'a, 'b> {
    ops: &'b HeadOps<'a>,
    first: usize,
    qkv: &'b mut [f32],
}

impl Kernel for RowRange<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (ops, spec) = (self.ops, self.ops.spec);
        let dim = spec.head_dim;
        let width = spec.q_width() + 2 * spec.kv_width();
        for (r, row) in self.qkv.chunks_exact_mut(width).enumerate() {
            let place = ops.places[self.first + r];
            let angles = ops.rope.row(self.first + r);
            let (queries, rest) = row.split_at_mut(spec.q_width());
            let (keys, values) = rest.split_at_mut(spec.kv_width());
            for head in queries.chunks_exact_mut(dim) {
                if let Some((weight, _)) = ops.qk_norm {
                    rms_norm_in_place(s, head, weight, spec.norm_eps);
                }
                rotate(head, angles);
                if ops.rotate_k {
                    hadamard(head);
                }
            }
            for (h, head) in keys.chunks_exact_mut(dim).enumerate() {
                if let Some((_, weight)) = ops.qk_norm {
                    rms_norm_in_place(s, head, weight, spec.norm_eps);
                }
                rotate(head, angles);
                if ops.rotate_k {
                    hadamard(head);
                }
                ops.append(place, Side::K, h, head);
            }
            for (h, head) in values.chunks_exact(dim).enumerate() {
                ops.append(place, Side::V, h, head);
            }
        }
    }
}
