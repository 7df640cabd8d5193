//! Convolutions of recurrent layers.

use std::sync::Arc;

use super::params::{ConvChunkParams, ConvParams};
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;
use crate::cuda::recurrence::RecurrenceStep;
use crate::model::RecurrentSpec;

/// Channels, and threads, of a CTA.
const CHANNELS: usize = 256;

/// The kernels for a kind of recurrence. What they compute has the same bits in chunks.
#[derive(Debug)]
pub(super) struct Conv {
    walk: Kernel<ConvParams>,
    keep_before: Kernel<ConvChunkParams>,
    chunks: Kernel<ConvChunkParams>,
}

impl Conv {
    /// Of channels that are convolved in place, and go through SiLU.
    pub(super) fn in_place(device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self {
            walk: device.kernel("conv_in_place", 0)?,
            keep_before: device.kernel("keep_before_in_place", 0)?,
            chunks: device.kernel("conv_chunks_in_place", 0)?,
        })
    }

    /// Of short convolutions.
    pub(super) fn of_short(device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self {
            walk: device.kernel("conv_short", 0)?,
            keep_before: device.kernel("keep_before_short", 0)?,
            chunks: device.kernel("conv_chunks_short", 0)?,
        })
    }

    /// Words of scratch for each chunk of a step.
    pub(super) fn chunk_words(spec: &RecurrentSpec, hidden: usize) -> usize {
        let (channels, taps) = spec.conv(hidden);
        (taps - 1) * channels
    }

    /// Enqueues the convolution of a step's rows.
    ///
    /// # Safety
    /// As of [`Kernel::launch`]: the addresses of the parameters and of the step; `scratch` has
    /// [`Self::chunk_words`] for each of the step's chunks.
    pub(super) unsafe fn run(
        &self,
        stream: &Stream,
        step: &RecurrenceStep,
        mut params: ConvParams,
        scratch: DevicePtr,
    ) -> Result<(), CudaError> {
        let parts = params.channels.div_ceil(CHANNELS as u32);
        params.states.seq_count = step.walked_count;
        let of_seqs = (step.walked as u32, parts);
        let of_chunks = (step.chunk_count as u32, parts);
        let in_chunks = ConvChunkParams {
            conv: params,
            chunks: step.chunks,
            before: scratch,
        };
        let threads = CHANNELS as u32;
        // SAFETY: the caller's.
        unsafe {
            self.keep_before
                .launch(stream, of_chunks, threads, &in_chunks)?;
            self.chunks.launch(stream, of_chunks, threads, &in_chunks)?;
            self.walk.launch(stream, of_seqs, threads, &params)
        }
    }
}
