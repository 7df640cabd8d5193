//! The gated delta rule and Mamba-2, row by row and in chunks.

use std::sync::Arc;

use super::params::{RuleChunkParams, RuleParams};
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;
use crate::cuda::recurrence::{CHUNK_ROWS, RecurrenceStep};
use crate::model::RecurrentSpec;

/// Threads of a CTA that walks rows that own columns, and all: two warps more.
const OWNERS: usize = 512;
const THREADS: u32 = OWNERS as u32 + 64;
/// Values of a column that a thread owns.
const ROWS: usize = 32;
/// Channels of queries, keys and values, at most; of queries and keys in chunks.
const DIM: usize = 256;
const CHUNK_K_DIM: usize = 128;
/// Threads of the kernels over chunks, and bytes of shared memory of two of them.
const CHUNK_THREADS: u32 = 128;
const PREPARE_SHARED_BYTES: usize = 35_072;
const CHUNKS_SHARED_BYTES: usize = 91_648;
/// Columns of a state that a CTA of them has.
const SLICE_COLUMNS: usize = 32;
/// Channels that a CTA of `mamba_finish` has.
const FINISH_CHANNELS: usize = CHUNK_THREADS as usize * 8;
/// What is kept of a chunk and a value head, in words: three values of each row, and of the delta
/// rule ten tiles of 16 by 16 values (ops/rule_chunks.cuh).
const ROW_WORDS: usize = 3 * CHUNK_ROWS;
const TILE_WORDS: usize = 10 * 256;

/// States of heads, `[k_dim][v_dim]`, and where a row has what they read. Mamba-2's C, B and x are
/// queries, keys and values here.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleShape {
    pub(super) k_heads: usize,
    pub(super) v_heads: usize,
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    pub(super) queries_at: usize,
    pub(super) keys_at: usize,
    pub(super) values_at: usize,
    /// Added to the mean square in the norm.
    pub(super) norm_eps: f32,
    /// Least and largest time step of Mamba-2.
    pub(super) time_steps: [f32; 2],
    /// Words that are kept of a chunk and a value head.
    record_words: usize,
}

impl RuleShape {
    /// Of a recurrence that has states of heads.
    pub(super) fn of(spec: &RecurrentSpec) -> Option<Self> {
        match spec {
            RecurrentSpec::ShortConv(_) => None,
            RecurrentSpec::GatedDelta(delta) => Some(Self {
                k_heads: delta.k_heads,
                v_heads: delta.v_heads,
                k_dim: delta.k_dim,
                v_dim: delta.v_dim,
                queries_at: 0,
                keys_at: delta.k_width(),
                values_at: 2 * delta.k_width(),
                norm_eps: delta.norm_eps,
                time_steps: [0.0; 2],
                record_words: ROW_WORDS + TILE_WORDS,
            }),
            RecurrentSpec::Mamba2(mamba) => Some(Self {
                k_heads: mamba.groups,
                v_heads: mamba.heads,
                k_dim: mamba.state_dim,
                v_dim: mamba.head_dim,
                queries_at: mamba.width() + mamba.group_width(),
                keys_at: mamba.width(),
                values_at: 0,
                norm_eps: mamba.norm_eps,
                time_steps: mamba.time_steps,
                record_words: ROW_WORDS,
            }),
        }
    }

    /// Threads that share a column.
    pub(super) fn lanes(&self) -> usize {
        self.k_dim.div_ceil(ROWS).next_power_of_two()
    }

    /// Whether there is a kernel for its states.
    pub(super) fn has_kernel(&self) -> bool {
        self.k_dim.max(self.v_dim) <= DIM && self.lanes() * self.v_dim <= OWNERS
    }

    /// Whether there are kernels for chunks, too: rows are read 16 bytes at a time.
    fn has_chunks(&self) -> bool {
        let is_aligned = [self.k_dim, self.v_dim].iter().all(|dim| dim % 8 == 0);
        self.has_kernel() && self.k_dim <= CHUNK_K_DIM && is_aligned
    }

    /// The second dimension of the largest grid that kernels are launched with.
    pub(super) fn grid(&self) -> usize {
        self.v_heads * self.v_dim.div_ceil(SLICE_COLUMNS)
    }

    /// Words of scratch for each chunk of a step.
    pub(super) fn chunk_words(&self, in_chunks: bool) -> usize {
        match in_chunks && self.has_chunks() {
            true => self.v_heads * self.record_words,
            false => 0,
        }
    }
}

/// The kernels of one of them.
#[derive(Debug)]
pub(super) struct HeadRule {
    walk: Kernel<RuleParams>,
    prepare: Kernel<RuleChunkParams>,
    prepare_threads: u32,
    chunks: Kernel<RuleChunkParams>,
    finish: Kernel<RuleChunkParams>,
    /// A CTA of the last has a part of all heads' channels, not a head.
    finishes_parts: bool,
    in_chunks: bool,
}

impl HeadRule {
    /// Of the delta rule. `in_chunks`: wherever that is possible.
    pub(super) fn of_delta(device: &Arc<Device>, in_chunks: bool) -> Result<Self, CudaError> {
        Ok(Self {
            walk: device.kernel("delta_rule", 0)?,
            prepare: device.kernel("delta_prepare", PREPARE_SHARED_BYTES)?,
            prepare_threads: CHUNK_THREADS,
            chunks: device.kernel("delta_chunks", CHUNKS_SHARED_BYTES)?,
            finish: device.kernel("delta_finish", 0)?,
            finishes_parts: false,
            in_chunks,
        })
    }

    /// Of Mamba-2, likewise.
    pub(super) fn of_mamba(device: &Arc<Device>, in_chunks: bool) -> Result<Self, CudaError> {
        Ok(Self {
            walk: device.kernel("mamba_rule", 0)?,
            prepare: device.kernel("mamba_prepare", 0)?,
            prepare_threads: CHUNK_ROWS as u32,
            chunks: device.kernel("mamba_chunks", CHUNKS_SHARED_BYTES)?,
            finish: device.kernel("mamba_finish", 0)?,
            finishes_parts: true,
            in_chunks,
        })
    }

    /// Enqueues the rule over a step's rows, whose queries, keys and values have been convolved.
    ///
    /// # Safety
    /// As of [`Kernel::launch`]: the addresses of the parameters and of the step; `scratch` has
    /// [`RuleShape::chunk_words`] for each of the step's chunks.
    pub(super) unsafe fn run(
        &self,
        stream: &Stream,
        (shape, step): (&RuleShape, &RecurrenceStep),
        mut params: RuleParams,
        scratch: DevicePtr,
    ) -> Result<(), CudaError> {
        let heads = shape.v_heads as u32;
        let in_chunks = self.in_chunks && shape.has_chunks() && step.chunk_count > 0;
        let mut walked = step.seqs_at_most();
        if in_chunks {
            let slices = shape.v_dim.div_ceil(SLICE_COLUMNS) as u32;
            let chunks = step.chunk_count as u32;
            let of_seqs = (step.chunked_seqs as u32, heads * slices);
            let width = shape.v_heads * shape.v_dim;
            let finished = match self.finishes_parts {
                true => width.div_ceil(FINISH_CHANNELS) as u32,
                false => heads,
            };
            let params = RuleChunkParams {
                rule: params,
                chunks: step.chunks,
                chunked: step.chunked,
                records: scratch,
                record_words: shape.record_words as u32,
                reserved: 0,
            };
            // SAFETY: the caller's.
            unsafe {
                self.prepare
                    .launch(stream, (chunks, heads), self.prepare_threads, &params)?;
                self.chunks
                    .launch(stream, of_seqs, CHUNK_THREADS, &params)?;
                self.finish
                    .launch(stream, (chunks, finished), CHUNK_THREADS, &params)?;
            }
            walked = step.walked;
        }
        params.states.seq_count = match in_chunks {
            true => step.walked_count,
            false => step.seq_count,
        };
        // SAFETY: the caller's.
        unsafe {
            self.walk
                .launch(stream, (walked as u32, heads), THREADS, &params)
        }
    }
}
