//! Paged causal attention with grouped query heads.
//!
//! Each query row goes over the blocks of its sequence in order of position, 128 tokens at a time
//! (see [`rows`]); rows of a chunk and the query heads of a KV head share the reading of a block.
//! Of shrunk pages it computes on the codes (see [`codes`]), or dequantises them if their format
//! has none to compute on.

mod codes;
mod pages;
mod plan;
mod products;
mod rows;
#[cfg(test)]
mod tests;

pub(crate) use pages::Pages;
pub(crate) use plan::{Heads, Plan, Plans};
pub(crate) use rows::Scratch;

use super::shared::SharedSlice;
use super::simd::{Isa, Kernel, Simd};
use super::threads::{Pool, TaskPanic};
use crate::BLOCK_TOKENS;
use crate::model::KvPlace;
use plan::{Task, Unit};
use rows::{Block, MAX_ROWS, Shape, add_sink, finish, merge, state_stride};

/// Most query rows a unit of work has, for groups of `group` query heads.
pub(crate) fn max_query_rows(group: usize) -> usize {
    MAX_ROWS.max(group)
}

/// One layer's attention.
#[derive(Clone, Copy)]
pub(crate) struct Attention<'a> {
    pub(crate) pages: Pages<'a>,
    pub(crate) plan: &'a Plan,
    /// Where the layer's keys and values lie.
    pub(crate) place: KvPlace,
    pub(crate) heads: Heads,
    /// `[rows][query_stride]`; a row starts with its query heads.
    pub(crate) queries: &'a [f32],
    pub(crate) query_stride: usize,
    /// Multiplier of query-key products.
    pub(crate) scale: f32,
    /// Scores become `cap tanh(score / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// `[q_heads]`: a score of each head that takes part in the softmax and has no value.
    pub(crate) sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Writes `out[rows][q_heads * head_dim]`. `scratch` has one entry per thread, and `partials`
    /// what the plan needs.
    pub(crate) fn run(
        &self,
        pool: &mut Pool,
        isa: Isa,
        scratch: &mut [Scratch],
        partials: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), TaskPanic> {
        assert!(scratch.len() >= pool.threads());
        assert!(partials.len() >= self.plan.partial_floats());
        let scratch = SharedSlice::new(scratch);
        let partials = SharedSlice::new(partials);
        let out = SharedSlice::new(out);
        pool.run(self.plan.tasks.len(), |task, worker| {
            // SAFETY: no two concurrent tasks have the same worker.
            let scratch = &mut unsafe { scratch.slice(worker, 1) }[0];
            isa.run(RunTask {
                attention: self,
                task: self.plan.tasks[task],
                scratch,
                partials,
                out,
            });
        })?;
        pool.run(self.plan.split.len(), |i, worker| {
            // SAFETY: as above.
            let scratch = &mut unsafe { scratch.slice(worker, 1) }[0];
            isa.run(MergeUnit {
                attention: self,
                unit: self.plan.units[self.plan.split[i] as usize],
                scratch,
                partials,
                out,
            });
        })
    }

    fn shape(&self, unit: &Unit) -> Shape {
        Shape {
            head_dim: self.heads.head_dim,
            kv_heads: unit.kv_heads as usize,
            rows: unit.rows as usize * self.heads.group,
        }
    }

    /// Where query row `i` of a unit stands: its row of the step and its query head.
    #[inline(always)]
    fn row_and_head(&self, unit: &Unit, i: usize) -> (usize, usize) {
        let group = self.heads.group;
        let per_head = unit.rows as usize * group;
        let (kv_head, i) = (unit.first_head as usize + i / per_head, i % per_head);
        (
            unit.first_row as usize + i / group,
            kv_head * group + i % group,
        )
    }

    /// Writes the finished query row `i` of a unit.
    ///
    /// # Safety
    /// No other thread writes that row and head.
    #[inline(always)]
    unsafe fn finish_row<S: Simd>(
        &self,
        s: S,
        (unit, i): (&Unit, usize),
        state: &mut [f32],
        out: SharedSlice<'_, f32>,
    ) {
        let dim = self.heads.head_dim;
        let (row, head) = self.row_and_head(unit, i);
        if let Some(sinks) = self.sinks {
            add_sink(s, state, sinks[head]);
        }
        let q_heads = self.heads.kv_heads * self.heads.group;
        // SAFETY: the caller's promise.
        finish(state, unsafe {
            out.slice((row * q_heads + head) * dim, dim)
        });
    }
}

/// One task: a unit's query rows over some of its blocks.
struct RunTask<'a, 'b> {
    attention: &'b Attention<'a>,
    task: Task,
    scratch: &'b mut Scratch,
    partials: SharedSlice<'b, f32>,
    out: SharedSlice<'b, f32>,
}

impl Kernel for RunTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            attention,
            task,
            scratch,
            partials,
            out,
        } = self;
        let unit = attention.plan.units[task.unit as usize];
        let (first_block, end_block) = (task.first_block as usize, task.end_block as usize);
        let shape = attention.shape(&unit);
        let rows = shape.kv_heads * shape.rows;
        let dim = shape.head_dim;
        let stride = state_stride(dim);
        let scale = attention.scale;
        for i in 0..rows {
            let (row, head) = attention.row_and_head(&unit, i);
            let from = &attention.queries[row * attention.query_stride + head * dim..][..dim];
            let to = &mut scratch.queries[i * dim..][..dim];
            for (to, from) in to.iter_mut().zip(from) {
                *to = from * scale;
            }
        }
        let blocks = attention.pages.tables.row(unit.slot);
        // A block, and how many of its tokens the unit's last row sees.
        let block_and_tokens = |block: usize| {
            let tokens = BLOCK_TOKENS.min(unit.tokens() - block * BLOCK_TOKENS);
            (blocks[block], tokens)
        };
        for block in first_block..end_block {
            let first_token = block * BLOCK_TOKENS;
            let next = (block + 1 < end_block).then(|| block_and_tokens(block + 1));
            let (id, tokens) = block_and_tokens(block);
            let seen = Block {
                pages: &attention.pages,
                block: id,
                place: attention.place,
                first_head: unit.first_head as usize,
                tokens,
                next,
            };
            let position = |i: usize| unit.position as usize + i / attention.heads.group;
            let first = |i: usize| attention.plan.first_seen(position(i));
            let tokens_seen = |i: usize| {
                let end = (position(i) + 1).saturating_sub(first_token).min(tokens);
                first(i).saturating_sub(first_token)..end
            };
            scratch.attend(s, shape, seen, attention.soft_cap, tokens_seen);
            for row in 0..rows {
                let i = row % shape.rows;
                if tokens_seen(i).is_empty() {
                    continue;
                }
                let sums = &scratch.block[row * stride..][..stride];
                let state = &mut scratch.state[row * stride..][..stride];
                match unit.partials {
                    Some(start) => {
                        let block = block - unit.first_block as usize;
                        let place = start + (row * unit.blocks() + block) * stride;
                        // SAFETY: one task attends this query row to this block.
                        unsafe { partials.slice(place, stride) }.copy_from_slice(sums);
                    }
                    None if block == first(i) / BLOCK_TOKENS => state.copy_from_slice(sums),
                    None => merge(s, state, sums),
                }
            }
        }
        if unit.partials.is_none() {
            for i in 0..rows {
                let state = &mut scratch.state[i * stride..][..stride];
                // SAFETY: this task alone has the unit.
                unsafe { attention.finish_row(s, (&unit, i), state, out) };
            }
        }
    }
}

/// Merges a split unit's results over single blocks, in the order an unsplit one takes.
struct MergeUnit<'a, 'b> {
    attention: &'b Attention<'a>,
    unit: Unit,
    scratch: &'b mut Scratch,
    partials: SharedSlice<'b, f32>,
    out: SharedSlice<'b, f32>,
}

impl Kernel for MergeUnit<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (attention, unit) = (self.attention, self.unit);
        let shape = attention.shape(&unit);
        let stride = state_stride(shape.head_dim);
        let Some(start) = unit.partials else { return };
        for i in 0..shape.kv_heads * shape.rows {
            let row = i % shape.rows / attention.heads.group;
            let position = unit.position as usize + row;
            let first = attention.plan.first_seen(position) / BLOCK_TOKENS;
            let seen = position / BLOCK_TOKENS + 1 - first;
            let place = start + (i * unit.blocks() + first - unit.first_block as usize) * stride;
            // SAFETY: the tasks that wrote this row's results are over, and one merge has the unit.
            let blocks = unsafe { self.partials.slice(place, seen * stride) };
            let state = &mut self.scratch.state[..stride];
            for (block, sums) in blocks.chunks_exact(stride).enumerate() {
                if block == 0 {
                    state.copy_from_slice(sums);
                } else {
                    merge(s, state, sums);
                }
            }
            // SAFETY: one merge has the unit.
            unsafe { attention.finish_row(s, (&unit, i), state, self.out) };
        }
    }
}
