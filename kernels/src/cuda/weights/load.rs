//! Weights from a source to the device: several threads read rows into pinned memory, the device
//! fetches them from there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use half::bf16;

use super::{LoadError, PackPlan, Weights};
use crate::cuda::driver::{Device, Event, Pinned, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;
use crate::model::{ModelSpec, TensorName, WeightSource, rows_of};

/// How loading is spread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staging {
    /// Threads that read; each has a stream and two pinned buffers, one to fill while the device
    /// reads the other.
    pub(super) threads: usize,
    /// Values of a pinned buffer; a row may make it longer.
    pub(super) buffer_values: usize,
}

impl Staging {
    /// 4 MiB at a time, so that starting a copy is noise beside it, by as many threads as memory
    /// needs to be kept busy.
    pub(super) fn of_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: cores.min(16),
            buffer_values: 2 << 20,
        }
    }
}

/// Rows of a tensor and where they go.
#[derive(Debug, Clone, Copy)]
struct Piece {
    name: TensorName,
    first_row: usize,
    values: usize,
    address: DevicePtr,
}

/// Loads every tensor of a valid spec, those of `plan` packed. `progress(done, total)` counts
/// bytes, on the calling thread.
pub(super) fn load<W: WeightSource>(
    device: &Arc<Device>,
    spec: &ModelSpec,
    source: &W,
    plan: &PackPlan,
    staging: Staging,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Weights, LoadError<W::Error>> {
    // All shapes first: a model that does not fit its configuration fails before anything is read.
    check_shapes(spec, source)?;
    let mut pieces = Vec::new();
    let mut weights = Weights::build::<CudaError>(device, spec, plan, |name, buffer, offset| {
        let (rows, width) = rows_of(&name.shape(spec));
        let rows_each = (staging.buffer_values / width).max(1);
        for first_row in (0..rows).step_by(rows_each) {
            pieces.push(Piece {
                name,
                first_row,
                values: rows_each.min(rows - first_row) * width,
                address: buffer.at(offset + first_row * width),
            });
        }
        Ok(())
    })?;
    let plain_bytes = 2 * pieces.iter().map(|p| p.values as u64).sum::<u64>();
    let shared = Shared {
        longest: pieces.iter().map(|p| p.values).max().unwrap_or(0),
        total: plain_bytes + plan.bytes(),
        pieces,
        next: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
    };
    let threads = staging.threads.clamp(1, shared.pieces.len());
    let mut results = std::thread::scope(|scope| {
        let (sender, done) = channel();
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (shared, sender) = (&shared, sender.clone());
                scope.spawn(move || shared.work(device, source, &sender))
            })
            .collect();
        // Ends when the last worker has dropped its sender, whatever became of it.
        drop(sender);
        let mut sum = 0;
        for bytes in done {
            sum += bytes;
            progress(sum, shared.total);
        }
        let results = workers.into_iter().map(|worker| {
            let result = worker.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        results.collect::<Vec<_>>()
    });
    // The error of the first piece, so that the same files give the same sentence.
    results.sort_by_key(|result| result.as_ref().err().map_or(usize::MAX, |error| error.0));
    for result in results {
        result.map_err(|error| error.1)?;
    }
    let total = shared.total;
    let mut done = plain_bytes;
    let threads = staging.threads;
    weights.fill_packed(plan, source, threads, &mut |bytes| {
        done += bytes;
        progress(done, total);
    })?;
    Ok(weights)
}

fn check_shapes<W: WeightSource>(spec: &ModelSpec, source: &W) -> Result<(), LoadError<W::Error>> {
    for name in TensorName::all(spec) {
        let expected = name.shape(spec);
        let actual = source
            .shape(name)
            .map_err(|source| LoadError::Source { name, source })?;
        if actual != expected {
            return Err(LoadError::Shape {
                name,
                expected,
                actual,
            });
        }
    }
    Ok(())
}

/// What the workers share.
struct Shared {
    pieces: Vec<Piece>,
    /// Values of the longest piece.
    longest: usize,
    /// Bytes of all pieces.
    total: u64,
    /// The next piece to be taken.
    next: AtomicUsize,
    /// Nobody needs to go on.
    failed: AtomicBool,
}

/// Of the piece of this index.
type PieceError<E> = (usize, LoadError<E>);

impl Shared {
    /// Takes pieces until there are no more, or somebody failed; then waits for its own copies.
    fn work<W: WeightSource>(
        &self,
        device: &Arc<Device>,
        source: &W,
        done: &Sender<u64>,
    ) -> Result<(), PieceError<W::Error>> {
        let result = self.work_on(device, source, done);
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn work_on<W: WeightSource>(
        &self,
        device: &Arc<Device>,
        source: &W,
        done: &Sender<u64>,
    ) -> Result<(), PieceError<W::Error>> {
        let of = |index: usize| move |error: CudaError| (index, LoadError::Cuda(error));
        // A device that fails here fails for every worker.
        let mut ring = Ring::new(device, self.longest).map_err(of(0))?;
        while !self.failed.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(index) else {
                break;
            };
            let values = ring.begin(piece.values).map_err(of(index))?;
            source
                .read_rows(piece.name, piece.first_row, values)
                .map_err(|source| {
                    let name = piece.name;
                    (index, LoadError::Source { name, source })
                })?;
            // SAFETY: `build` laid the piece out within a buffer that outlives this scope of
            // threads; no two pieces overlap, and nothing else uses the weights before the load has
            // returned.
            unsafe { ring.send(piece.address, piece.values) }.map_err(of(index))?;
            // Nobody listens only if the caller is gone, and then nobody needs to know.
            let _ = done.send(2 * piece.values as u64);
        }
        ring.stream.synchronize().map_err(of(0))
    }
}

/// Two pinned buffers that take turns.
struct Ring {
    stream: Stream,
    slots: [(Pinned<bf16>, Event); 2],
    turn: usize,
}

impl Ring {
    fn new(device: &Arc<Device>, values: usize) -> Result<Self, CudaError> {
        let stream = Stream::new(device)?;
        let slot =
            || -> Result<_, CudaError> { Ok((Pinned::new(device, values)?, Event::new(device)?)) };
        Ok(Self {
            slots: [slot()?, slot()?],
            stream,
            turn: 0,
        })
    }

    /// The next buffer's first `values` values, once the device is done with it.
    fn begin(&mut self, values: usize) -> Result<&mut [bf16], CudaError> {
        let (buffer, sent) = &mut self.slots[self.turn];
        sent.synchronize()?;
        Ok(&mut buffer[..values])
    }

    /// Enqueues the copy of the buffer that was begun.
    ///
    /// # Safety
    /// `address` must be that of as many bf16 values, which nothing else uses until the stream has
    /// run this.
    unsafe fn send(&mut self, address: DevicePtr, values: usize) -> Result<(), CudaError> {
        let (buffer, sent) = &self.slots[self.turn];
        // SAFETY: the buffer is next written when its event has been reached, and freed when the
        // stream has been waited for; the rest is the caller's.
        unsafe { self.stream.upload_to(address, buffer, values)? };
        sent.record(&self.stream)?;
        self.turn = 1 - self.turn;
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // After an error copies may still run. If waiting fails too, the device is lost and copies
        // nothing any more.
        let _ = self.stream.synchronize();
    }
}
