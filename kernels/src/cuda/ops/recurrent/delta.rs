//! The gated delta rule, row by row and in chunks.

use std::sync::Arc;

use super::params::{DeltaChunkParams, DeltaParams};
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;
use crate::cuda::recurrence::{CHUNK_ROWS, RecurrenceStep};
use crate::model::GatedDeltaSpec;

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
/// What is kept of a chunk and a value head, in words: ten tiles of 16 by 16 values, and three
/// values of each row (`kRecordWords` of ops/delta_chunks.cuh).
const RECORD_WORDS: usize = 10 * 256 + 3 * CHUNK_ROWS;

/// Threads that share a column.
pub(super) fn lanes(delta: &GatedDeltaSpec) -> usize {
    delta.k_dim.div_ceil(ROWS).next_power_of_two()
}

/// Whether there is a kernel for its states.
pub(super) fn has_kernel(delta: &GatedDeltaSpec) -> bool {
    delta.k_dim.max(delta.v_dim) <= DIM && lanes(delta) * delta.v_dim <= OWNERS
}

/// Whether there are kernels for chunks, too: rows are read 16 bytes at a time.
fn has_chunks(delta: &GatedDeltaSpec) -> bool {
    let is_aligned = [delta.k_dim, delta.v_dim].iter().all(|dim| dim % 8 == 0);
    has_kernel(delta) && delta.k_dim <= CHUNK_K_DIM && is_aligned
}

/// The kernels.
#[derive(Debug)]
pub(super) struct DeltaRule {
    walk: Kernel<DeltaParams>,
    prepare: Kernel<DeltaChunkParams>,
    chunks: Kernel<DeltaChunkParams>,
    finish: Kernel<DeltaChunkParams>,
    in_chunks: bool,
}

impl DeltaRule {
    /// `in_chunks`: wherever that is possible.
    pub(super) fn new(device: &Arc<Device>, in_chunks: bool) -> Result<Self, CudaError> {
        Ok(Self {
            walk: device.kernel("delta_rule", 0)?,
            prepare: device.kernel("delta_prepare", PREPARE_SHARED_BYTES)?,
            chunks: device.kernel("delta_chunks", CHUNKS_SHARED_BYTES)?,
            finish: device.kernel("delta_finish", 0)?,
            in_chunks,
        })
    }

    /// Words of scratch for each chunk of a step.
    pub(super) fn chunk_words(delta: &GatedDeltaSpec, in_chunks: bool) -> usize {
        match in_chunks && has_chunks(delta) {
            true => delta.v_heads * RECORD_WORDS,
            false => 0,
        }
    }

    /// Enqueues the rule over a step's rows, whose queries, keys and values have been convolved.
    ///
    /// # Safety
    /// As of [`Kernel::launch`]: the addresses of the parameters and of the step; `scratch` has
    /// [`Self::chunk_words`] for each of the step's chunks.
    pub(super) unsafe fn run(
        &self,
        stream: &Stream,
        (delta, step): (&GatedDeltaSpec, &RecurrenceStep),
        mut params: DeltaParams,
        scratch: DevicePtr,
    ) -> Result<(), CudaError> {
        let heads = delta.v_heads as u32;
        let in_chunks = self.in_chunks && has_chunks(delta) && step.chunk_count > 0;
        let mut walked = step.seqs_at_most();
        if in_chunks {
            let slices = delta.v_dim.div_ceil(SLICE_COLUMNS) as u32;
            let of_chunks = (step.chunk_count as u32, heads);
            let of_seqs = (step.chunked_seqs as u32, heads * slices);
            let params = DeltaChunkParams {
                delta: params,
                chunks: step.chunks,
                chunked: step.chunked,
                records: scratch,
            };
            // SAFETY: the caller's.
            unsafe {
                self.prepare
                    .launch(stream, of_chunks, CHUNK_THREADS, &params)?;
                self.chunks
                    .launch(stream, of_seqs, CHUNK_THREADS, &params)?;
                self.finish
                    .launch(stream, of_chunks, CHUNK_THREADS, &params)?;
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
