//! Timing a graph with nothing of its own in L2.

use std::sync::Arc;

use crate::cuda::driver::{Device, DeviceBuffer, Event, Graph, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, KernelParams};

/// Bytes that pass through L2 before a timed run: more than any holds.
const BYTES: usize = 256 << 20;
/// Runs before the first that counts.
const WARM_UP: usize = 3;
const READ_CTAS: u32 = 1024;
const READ_THREADS: u32 = 256;

/// What L2 is full of when a timed run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdL2 {
    /// Bytes just written, which the run has to write back as it goes: what published comparisons
    /// do, as a fill is at hand everywhere.
    Written,
    /// Bytes just read, such as the weights that a step has read before it attends.
    Read,
}

/// `ebb::ReadParams` of probe/read.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ReadParams {
    from: DevicePtr,
    count: u64,
    all_ones: DevicePtr,
}
const _: () = assert!(size_of::<ReadParams>() == 24);
// SAFETY: field for field `ebb::ReadParams` of probe/read.cu.
unsafe impl KernelParams for ReadParams {}

/// Fills L2.
struct Filler {
    cold: ColdL2,
    bytes: DeviceBuffer<u8>,
    all_ones: DeviceBuffer<u32>,
    read: Kernel<ReadParams>,
}

impl Filler {
    fn new(device: &Arc<Device>, cold: ColdL2) -> Result<Self, CudaError> {
        Ok(Self {
            cold,
            bytes: DeviceBuffer::filled(device, BYTES, 0, "the L2 flush")?,
            all_ones: DeviceBuffer::filled(device, 1, 0, "what the L2 flush reads")?,
            read: device.kernel("probe_read", 0)?,
        })
    }

    fn fill(&mut self, stream: &Stream, run: usize) -> Result<(), CudaError> {
        match self.cold {
            ColdL2::Written => stream.fill(&mut self.bytes, run as u8),
            ColdL2::Read => {
                let params = ReadParams {
                    from: self.bytes.ptr(),
                    count: (BYTES / 16) as u64,
                    all_ones: self.all_ones.ptr(),
                };
                // SAFETY: the buffers have these sizes and outlive the run, which is waited for.
                unsafe {
                    self.read
                        .launch(stream, (READ_CTAS, 1), READ_THREADS, &params)
                }
            }
        }
    }
}

/// Replays `graph` `repeats` times, each with a cold L2. Microseconds, sorted.
pub(super) fn time_graph(
    stream: &Stream,
    graph: &Graph,
    repeats: usize,
    cold: ColdL2,
) -> Result<Vec<f64>, CudaError> {
    let device = stream.device();
    let mut filler = Filler::new(device, cold)?;
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    let mut times = Vec::with_capacity(repeats);
    for run in 0..repeats + WARM_UP {
        filler.fill(stream, run)?;
        start.record(stream)?;
        // SAFETY: the caller keeps what the graph uses alive and untouched; the loop waits for each
        // replay.
        unsafe { graph.launch(stream)? };
        end.record(stream)?;
        stream.synchronize()?;
        if run >= WARM_UP {
            times.push(end.micros_since(&start)?);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
