//! Gates of what attention puts out: launches of `cuda/ops/open_attended.cu`.

use std::sync::Arc;

use half::bf16;

use super::super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::super::error::CudaError;
use super::super::params::{DevicePtr, KernelParams};
use crate::model::{HeadShape, OutputGate};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct OpenParams {
    attended: DevicePtr,
    gates: DevicePtr,
    count: u64,
    channels: u32,
    is_softplus: u32,
}
// SAFETY: field for field `ebb::OpenParams` of ops/open_attended.cu.
unsafe impl KernelParams for OpenParams {}

/// Opens what attention puts out.
#[derive(Debug)]
pub(super) struct OpenAttended(Kernel<OpenParams>);

impl OpenAttended {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.kernel("open_attended", 0).map(Self)
    }

    /// Multiplies `rows` rows of heads by their gates, whose products are `gates`.
    pub(super) fn run(
        &self,
        stream: &Stream,
        (rows, heads): (usize, HeadShape),
        gate: OutputGate,
        gates: &DeviceBuffer<bf16>,
        attended: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let channels = if gate.per_head { heads.head_dim } else { 1 };
        let count = rows * heads.q_width();
        assert!(heads.head_dim.is_multiple_of(8));
        assert!(count <= attended.len() && count / channels <= gates.len());
        let params = OpenParams {
            attended: attended.ptr(),
            gates: gates.ptr(),
            count: count as u64,
            channels: channels as u32,
            is_softplus: gate.softplus.into(),
        };
        let grid = (count.div_ceil(2048) as u32, 1);
        // SAFETY: the buffers are the backend's and hold that many values; work of one stream runs
        // in order.
        unsafe { self.0.launch(stream, grid, 256, &params) }
    }
}
