//! Streams that run at once, and graphs that are lists of closures.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::device::Device;
use crate::cuda::error::CudaError;

type Work = Box<dyn Fn() + Send>;

/// A queue of work on the device.
pub struct Stream {
    device: Arc<Device>,
    /// What a capture has recorded so far.
    recording: RefCell<Option<Vec<Work>>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

impl Stream {
    /// A new stream.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self {
            device: device.clone(),
            recording: RefCell::new(None),
        })
    }

    /// The device it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Nothing to wait for.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(())
    }

    /// Runs `work`, or records it.
    pub(super) fn submit(&self, work: impl Fn() + Send + 'static) {
        match &mut *self.recording.borrow_mut() {
            Some(recorded) => recorded.push(Box::new(work)),
            None => work(),
        }
    }

    /// Records the work that `enqueue` enqueues instead of running it.
    pub(in crate::cuda) fn capture<E: From<CudaError>>(
        &self,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        *self.recording.borrow_mut() = Some(Vec::new());
        let enqueued = enqueue();
        let recorded = self.recording.borrow_mut().take().unwrap_or_default();
        enqueued.map(|()| Graph(recorded))
    }
}

/// A recorded piece of work.
pub(in crate::cuda) struct Graph(Vec<Work>);

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} launches)", self.0.len())
    }
}

impl Graph {
    /// How many launches and copies were recorded.
    #[cfg(test)]
    pub(in crate::cuda) fn len(&self) -> usize {
        self.0.len()
    }

    /// Runs it.
    ///
    /// # Safety
    /// What held for the recorded launches must hold again.
    pub(in crate::cuda) unsafe fn launch(&self, _stream: &Stream) -> Result<(), CudaError> {
        self.0.iter().for_each(|work| work());
        Ok(())
    }
}

/// A point in time.
#[derive(Debug)]
pub struct Event(RefCell<Instant>);

impl Event {
    /// A new event.
    pub fn new(_device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self(RefCell::new(Instant::now())))
    }

    /// Takes the time.
    pub fn record(&self, _stream: &Stream) -> Result<(), CudaError> {
        *self.0.borrow_mut() = Instant::now();
        Ok(())
    }

    /// Nothing to wait for.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(())
    }

    /// Microseconds from `start` to this event.
    pub fn micros_since(&self, start: &Event) -> Result<f64, CudaError> {
        Ok(self
            .0
            .borrow()
            .duration_since(*start.0.borrow())
            .as_secs_f64()
            * 1e6)
    }
}
