//! From the fused projections to queries, keys and values: head norms, RoPE, scales of keys and
//! queries, Hadamard rotations, and the append of keys and values to their pages.

use super::for_rows;
use super::norm::{rms_norm_in_place, rms_normalise};
use super::rope::{RopeTable, rotate};
use crate::SUB_BLOCK_TOKENS;
use crate::cpu::attention::Pages;
use crate::cpu::math::to_bf16_bits;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::formats::rotation::hadamard;
use crate::kv::Side;
use crate::model::{HeadShape, KvPlace, QueryGrowth};

/// What happens to the rows of one layer's fused projection `[rows][q heads | k heads | v heads]`.
#[derive(Clone, Copy)]
pub(crate) struct HeadOps<'a> {
    pub(crate) heads: HeadShape,
    /// Whether the rows have keys and values; otherwise only queries.
    pub(crate) has_kv: bool,
    /// Added to the mean square in norms.
    pub(crate) eps: f32,
    /// None in layers without RoPE.
    pub(crate) rope: Option<&'a RopeTable>,
    pub(crate) pages: Pages<'a>,
    /// Where each row's keys and values go.
    pub(crate) places: &'a [RowPlace],
    /// Where the layer's keys and values lie.
    pub(crate) place: KvPlace,
    /// Weights of the query and the key norm, if the model has them: as wide as a head, or as the
    /// whole projection.
    pub(crate) qk_norm: Option<(&'a [f32], &'a [f32])>,
    /// Whether values are normalised by head, without weights.
    pub(crate) v_norm: bool,
    /// Whether they are normalised behind RoPE, each head by itself.
    pub(crate) norms_behind_rope: bool,
    /// How queries grow with their position.
    pub(crate) growth: Option<QueryGrowth>,
    /// Whether queries and keys are multiplied by a Hadamard matrix.
    pub(crate) rotate_k: bool,
    /// Whether values are, because their projection is not.
    pub(crate) rotate_v: bool,
    /// What pairs of channels of queries and keys are multiplied by behind RoPE,
    /// `[q_heads + kv_heads][head_dim / 2]`.
    pub(crate) key_factors: Option<&'a [f32]>,
}

/// Where a row's keys and values go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPlace {
    /// Of the token in its sequence.
    pub(crate) position: u32,
    /// The block, by its number in the tables.
    pub(crate) block: u32,
    /// Token within the block.
    pub(crate) token: u32,
}

impl HeadOps<'_> {
    /// Normalises and rotates queries in place; writes keys and values, rounded to bf16, to their
    /// pages.
    pub(crate) fn run(&self, pool: &mut Pool, isa: Isa, qkv: &mut [f32]) -> Result<(), TaskPanic> {
        let width = self.width();
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

    /// Channels of a row.
    fn width(&self) -> usize {
        match self.has_kv {
            true => self.heads.qkv_width(),
            false => self.heads.q_width(),
        }
    }

    /// Writes one head of one row to its pages.
    #[inline(always)]
    fn append(&self, place: RowPlace, side: Side, head: usize, values: &[f32]) {
        let parts = values.chunks_exact(self.pages.geometry.head_dim);
        for (part, values) in parts.enumerate() {
            self.append_part(place, side, (head, part), values);
        }
    }

    /// Writes a part of one head of one row to its page.
    #[inline(always)]
    fn append_part(
        &self,
        place: RowPlace,
        side: Side,
        (head, part): (usize, usize),
        values: &[f32],
    ) {
        let (layer, record) = self.place.record(head, part);
        let record = self.pages.geometry.record(layer, side, record);
        let (sub_block, token) = (
            place.token as usize / SUB_BLOCK_TOKENS,
            place.token as usize % SUB_BLOCK_TOKENS,
        );
        let rows = self.pages.sub_record(place.block, sub_block, record);
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
        let (ops, heads) = (self.ops, self.ops.heads);
        let (dim, record_dim) = (heads.head_dim, ops.pages.geometry.head_dim);
        let (q_norm, k_norm) = ops.qk_norm.unzip();
        for (r, row) in self.qkv.chunks_exact_mut(ops.width()).enumerate() {
            let place = ops.places[self.first + r];
            let angles = ops.rope.map(|rope| rope.row(self.first + r));
            let (queries, rest) = row.split_at_mut(heads.q_width());
            let (keys, values) = match ops.has_kv {
                true => rest.split_at_mut(heads.kv_width()),
                false => (&mut [][..], &mut [][..]),
            };
            let growth = ops
                .growth
                .map_or(1.0, |growth| growth.factor(place.position));
            let parts = [
                (&mut *queries, q_norm, 0, growth),
                (&mut *keys, k_norm, heads.q_heads, 1.0),
            ];
            for (part, norm, first, growth) in parts {
                // Of keys, if there are any.
                let norm = norm.filter(|weight| !weight.is_empty());
                // Heads by themselves, or the whole projection.
                if let Some(weight) = norm.filter(|_| !ops.norms_behind_rope) {
                    for part in part.chunks_exact_mut(weight.len()) {
                        rms_norm_in_place(s, part, weight, ops.eps);
                    }
                }
                for (h, head) in (first..).zip(part.chunks_exact_mut(dim)) {
                    if let Some(angles) = angles {
                        rotate(head, angles);
                    }
                    if let Some(weight) = norm.filter(|_| ops.norms_behind_rope) {
                        rms_norm_in_place(s, head, weight, ops.eps);
                    }
                    if growth != 1.0 {
                        head.iter_mut().for_each(|x| *x *= growth);
                    }
                    if let Some(factors) = ops.key_factors {
                        let factors = &factors[h * (dim / 2)..][..dim / 2];
                        for half in head.chunks_exact_mut(dim / 2) {
                            half.iter_mut().zip(factors).for_each(|(x, f)| *x *= f);
                        }
                    }
                    if ops.rotate_k {
                        head.chunks_exact_mut(record_dim).for_each(hadamard);
                    }
                }
            }
            for (h, head) in keys.chunks_exact(dim).enumerate() {
                ops.append(place, Side::K, h, head);
            }
            for (h, head) in values.chunks_exact_mut(dim).enumerate() {
                if ops.v_norm {
                    rms_normalise(s, head, ops.eps);
                }
                if ops.rotate_v {
                    head.chunks_exact_mut(record_dim).for_each(hadamard);
                }
                ops.append(place, Side::V, h, head);
            }
        }
    }
}

/// Multiplies all records of rows of `width` channels of attention's output by the Hadamard matrix
/// again, where values were multiplied as they were appended: the matrix is its own inverse.
pub(crate) fn rotate_back(
    pool: &mut Pool,
    attended: &mut [f32],
    (width, record_dim): (usize, usize),
) -> Result<(), TaskPanic> {
    let rows = attended.len() / width;
    let attended = SharedSlice::new(attended);
    for_rows(pool, rows, width, |first, end| {
        // SAFETY: ranges of rows are disjoint.
        let rows = unsafe { attended.slice(first * width, (end - first) * width) };
        rows.chunks_exact_mut(record_dim).for_each(hadamard);
    })
}
