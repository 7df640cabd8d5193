//! Streams, events and graphs.

use std::sync::Arc;

use cudarc::driver::sys;

use super::check;
use super::device::Device;
use crate::cuda::error::CudaError;

/// A queue of work on the device.
#[derive(Debug)]
pub struct Stream {
    stream: sys::CUstream,
    device: Arc<Device>,
}

// SAFETY: a stream handle may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A new stream that does not wait for the default one.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.bind()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: valid out-pointer.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut stream, flags)
        })?;
        Ok(Self {
            stream,
            device: device.clone(),
        })
    }

    /// The device it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(in crate::cuda) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// Waits until all work enqueued so far is done; reports errors of that work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        check("waiting for the device", unsafe {
            sys::cuStreamSynchronize(self.stream)
        })
    }

    /// Records the work that `enqueue` enqueues instead of running it.
    pub(in crate::cuda) fn capture<E: From<CudaError>>(
        &self,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check("starting a graph capture", unsafe {
            sys::cuStreamBeginCapture_v2(self.stream, mode)
        })?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: a capture is under way; it is ended also after an error, or the stream would stay
        // unusable.
        let ended = check("ending a graph capture", unsafe {
            sys::cuStreamEndCapture(self.stream, &mut graph)
        });
        enqueued?;
        ended?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is valid; the executable graph does not need it afterwards.
        let code = unsafe {
            let code = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            code
        };
        check("instantiating a graph", code)?;
        Ok(Graph {
            exec,
            _device: self.device.clone(),
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// A recorded piece of work that can be enqueued at once.
#[derive(Debug)]
pub(in crate::cuda) struct Graph {
    exec: sys::CUgraphExec,
    _device: Arc<Device>,
}

// SAFETY: the executable graph is used through `&self` by one thread at a time, as `Graph` is not
// `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// Enqueues it.
    ///
    /// # Safety
    /// What held for the recorded launches must hold again: their buffers live and nothing else
    /// uses them meanwhile.
    pub(in crate::cuda) unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the handles are alive; the rest is the caller's.
        check("launching a graph", unsafe {
            sys::cuGraphLaunch(self.exec, stream.raw())
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once and destroyed once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}

/// A point in a stream, with the time the device reached it.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    _device: Arc<Device>,
}

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: valid out-pointer.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut event, 0)
        })?;
        Ok(Self {
            event,
            _device: device.clone(),
        })
    }

    /// Marks the work enqueued so far.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.event, stream.raw())
        })
    }

    /// Waits until the device has reached it; reports errors of the work before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is alive.
        check("waiting for a step", unsafe {
            sys::cuEventSynchronize(self.event)
        })
    }

    /// Microseconds from `start` to this event; both must have been reached.
    pub fn micros_since(&self, start: &Event) -> Result<f64, CudaError> {
        let mut ms = 0f32;
        // SAFETY: both handles are alive and the out-pointer is valid.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut ms, start.event, self.event)
        })?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}
