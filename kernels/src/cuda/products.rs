//! Matrix products: cuBLASLt's, and kernels of our own for the few rows where reading the weights
//! is everything.

mod packed;
mod streamed;

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;

use super::driver::{Device, Event, Gemm, Kernel, Stream};
use super::error::CudaError;
use super::packed::{DeviceFormat, PackedPart};
use super::params::{DevicePtr, GemmShape, KernelParams};
use packed::{PACKED_ROWS, PackedProducts};
pub(super) use streamed::{Ends, Residual, squares_len};
use streamed::{Io, PACKED_ROWS_MAX, ROWS_MAX, Streamed, StreamedWeights};

/// Rows that the skinny kernel takes: the n side of its matrix instruction.
const SKINNY_ROWS: usize = 8;
/// Outputs of a CTA of the skinny kernel.
const SKINNY_OUTPUTS: usize = 16;
/// Inputs of a step of the skinny kernel.
const SKINNY_INPUTS: usize = 32;
/// Threads of a CTA of the skinny kernel.
const SKINNY_THREADS: u32 = 256;
/// Most rows that are streamed. Among a step's other kernels, which timings of a product alone do
/// not show, and with norms and gates in products, streaming all of them gains 8 % at 32 rows and 1
/// to 3 % at 64 (Llama-3.1-8B, H200).
const STREAM_ROWS: usize = 64;
/// Timed runs of each way when tuning.
const TUNING_RUNS: usize = 5;
/// A way other than the first is taken if it needs less than this part of its time: noise must not
/// choose, as each way has bits of its own.
const CLEARLY_FASTER: f64 = 0.95;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SkinnyParams {
    x: DevicePtr,
    w: DevicePtr,
    y: DevicePtr,
    rows: u32,
    inputs: u32,
    outputs: u32,
    wide: u32,
}
// SAFETY: field for field `ebb::SkinnyParams` of product/skinny.cu.
unsafe impl KernelParams for SkinnyParams {}

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By cuBLASLt.
    Library,
    /// By the kernel for up to 8 rows, which every device can run.
    Skinny,
    /// By the kernel for up to 64 rows of devices of compute capability 9.x.
    Stream,
}

impl Way {
    /// All, the preferred ones first.
    pub const ALL: [Self; 3] = [Self::Stream, Self::Skinny, Self::Library];
}

/// How a product of packed weights is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedWay {
    /// By the kernels for up to 128 rows of devices of compute capability 9.x, 128 rows at a time.
    Streamed,
    /// By the kernels for up to 8 rows, which every device can run.
    Skinny,
    /// By cuBLASLt, once bf16 has been made of them.
    Unpacked,
    /// By cuBLASLt, weights and rows being eight-bit floats: rows are quantised as they come, each
    /// its greatest magnitude to 448.
    Fp8,
}

/// Computes `y = x · wᵀ` the fastest way.
#[derive(Debug)]
pub(super) struct Products {
    gemm: Gemm,
    /// Only the library is used, with one algorithm for all rows.
    invariant: bool,
    skinny: Kernel<SkinnyParams>,
    streamed: Option<Streamed>,
    packed: PackedProducts,
    /// Most rows that packed weights are streamed for.
    packed_rows: usize,
    /// The fastest way, where they were measured.
    measured: HashMap<GemmShape, Way>,
}

impl Products {
    /// `invariant`: a row's results do not depend on how many rows there are.
    pub(super) fn new(device: &Arc<Device>, invariant: bool) -> Result<Self, CudaError> {
        Ok(Self {
            gemm: Gemm::new(device, invariant)?,
            invariant,
            skinny: device.kernel("product_skinny", 0)?,
            streamed: Streamed::new(device)?,
            packed: PackedProducts::default(),
            packed_rows: PACKED_ROWS,
            measured: HashMap::new(),
        })
    }

    /// Whether a row's results do not depend on how many rows there are.
    pub(super) fn is_invariant(&self) -> bool {
        self.invariant
    }

    /// Bytes that `new` allocates on the device, beside the library's workspace.
    pub(super) fn bytes(device: &Device) -> usize {
        Streamed::bytes(device)
    }

    /// Whether a way can run a shape.
    pub(super) fn can(&self, way: Way, shape: GemmShape) -> bool {
        match way {
            Way::Library => true,
            Way::Skinny => {
                shape.rows <= SKINNY_ROWS
                    && shape.inputs.is_multiple_of(SKINNY_INPUTS)
                    && shape.outputs.is_multiple_of(SKINNY_OUTPUTS)
            }
            Way::Stream => self.streamed.is_some() && Streamed::can(shape),
        }
    }

    /// The ways to choose from, the preferred ones first.
    fn ways(&self, shape: GemmShape) -> impl Iterator<Item = Way> + '_ {
        let worth = move |way: &Way| *way != Way::Stream || shape.rows <= STREAM_ROWS;
        Way::ALL
            .into_iter()
            .filter(move |way| worth(way) && self.can(*way, shape))
    }

    fn way(&self, shape: GemmShape) -> Way {
        if self.invariant {
            return Way::Library;
        }
        let measured = self.measured.get(&shape).copied();
        let first = || self.ways(shape).next().unwrap_or(Way::Library);
        measured.unwrap_or_else(first)
    }

    /// Makes what running this shape needs, so that it can be recorded.
    pub(super) fn prepare(&mut self, shape: GemmShape) -> Result<(), CudaError> {
        match self.way(shape) {
            Way::Skinny | Way::Stream => Ok(()),
            Way::Library => self.gemm.prepare(shape),
        }
    }

    /// Enqueues `y = x · wᵀ`: `x` `[rows][inputs]` and `w` `[outputs][inputs]` bf16, `y`
    /// `[rows][outputs]` bf16 or f32.
    ///
    /// # Safety
    /// The addresses must hold matrices of that shape until the stream has run this, and `y` must
    /// overlap neither input. `w` may be read before the work enqueued earlier has ended, which
    /// must not write it.
    pub(super) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.run_as(self.way(shape), stream, shape, x, w, y) }
    }

    /// Whether a layer's gates and what they open, a product of `shape`, are best streamed and
    /// gated ([`Products::run_to`]).
    pub(super) fn gates(&self, shape: GemmShape) -> bool {
        let can = self.streamed.is_some() && !self.invariant;
        can && shape.rows <= STREAM_ROWS && Streamed::can_gate(shape)
    }

    /// Whether all products of a layer, of these shapes (Q K V, attention's output, gates and what
    /// they open, down), are best streamed and take part in its norms ([`Products::run_to`]).
    pub(super) fn norms(&self, layer: [GemmShape; 4]) -> bool {
        let streams = |shape| self.way(shape) == Way::Stream && Streamed::can_norm(shape);
        layer.into_iter().all(streams) && self.gates(layer[2])
    }

    /// Enqueues `y = x · wᵀ` streamed, and what `ends` says: for shapes that [`Products::gates`] or
    /// [`Products::norms`] says so of. Sums are rounded to bf16 before they are gated or added to
    /// anything, as they are where they pass through memory.
    ///
    /// # Safety
    /// As for [`Products::run`], where `y` is `[rows][outputs / 2]` if gated. The addresses in
    /// `ends` must hold what they say, and overlap nothing else.
    pub(super) unsafe fn run_to(
        &mut self,
        ends: Ends,
        stream: &Stream,
        shape: GemmShape,
        [x, w, y]: [DevicePtr; 3],
    ) -> Result<(), CudaError> {
        let Some(streamed) = &mut self.streamed else {
            return Err(CudaError::Unsupported(format!("{shape:?} with {ends:?}")));
        };
        let stride = if ends.gated.is_some() {
            shape.outputs / 2
        } else {
            shape.outputs
        };
        // SAFETY: the caller's.
        unsafe {
            streamed.run(
                stream,
                shape,
                ends,
                StreamedWeights::Plain(w),
                Io { x, y, stride },
            )
        }
    }

    /// [`Products::run`] in a chosen way, which must be able to.
    ///
    /// # Safety
    /// As for [`Products::run`].
    pub(super) unsafe fn run_as(
        &mut self,
        way: Way,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        assert!(self.can(way, shape), "{way:?} cannot run {shape:?}");
        match (way, &mut self.streamed) {
            // SAFETY: the caller's.
            (Way::Library, _) => return unsafe { self.gemm.run(stream, shape, x, w, y) },
            // SAFETY: the caller's.
            (Way::Stream, Some(streamed)) => unsafe {
                let (weights, stride) = (StreamedWeights::Plain(w), shape.outputs);
                return streamed.run(stream, shape, Ends::default(), weights, Io { x, y, stride });
            },
            _ => {}
        }
        let params = SkinnyParams {
            x,
            w,
            y,
            rows: shape.rows as u32,
            inputs: shape.inputs as u32,
            outputs: shape.outputs as u32,
            wide: u32::from(shape.wide),
        };
        let grid = (shape.outputs / SKINNY_OUTPUTS) as u32;
        // SAFETY: the caller's.
        unsafe {
            self.skinny
                .launch(stream, (grid, 1), SKINNY_THREADS, &params)
        }
    }

    /// Loads what products of packed weights of `formats` need. `values`: the most weights of a
    /// linear layer that is not the output projection, and of that one.
    pub(super) fn take_packed(
        &mut self,
        device: &Arc<Device>,
        formats: impl Iterator<Item = DeviceFormat> + Clone,
        values: [usize; 2],
    ) -> Result<(), CudaError> {
        let mut all = formats.clone();
        let streams = self.streamed.is_some();
        let values = Self::unpacked_values(streams && !self.invariant, values);
        self.packed = PackedProducts::new(device, formats, streams, values)?;
        if self.packed.has_fp8() && all.all(DeviceFormat::is_fp8_rows) {
            // For more rows, tensor cores multiply eight-bit floats; those of a shape that they
            // cannot (inputs or outputs are no multiple of 16) are then unpacked.
            self.packed_rows = ROWS_MAX;
        }
        Ok(())
    }

    /// Weights that there must be room for to unpack. The output projection is streamed for any
    /// number of rows, where that can be.
    fn unpacked_values(streams: bool, [layers, lm_head]: [usize; 2]) -> usize {
        if streams { layers } else { layers.max(lm_head) }
    }

    /// Bytes that [`Products::take_packed`] allocates.
    pub(super) fn packed_bytes(device: &Device, invariant: bool, values: [usize; 2]) -> usize {
        let streams = Streamed::bytes(device) > 0;
        2 * Self::unpacked_values(streams && !invariant, values)
    }

    /// Whether so many rows are multiplied by streaming packed weights, gates and all.
    pub(super) fn streams_packed(&self, rows: usize) -> bool {
        self.streamed.is_some() && !self.invariant && rows <= self.packed_rows
    }

    /// How packed parts are multiplied by.
    fn packed_way(&self, parts: &[PackedPart], shape: GemmShape, ends: Ends) -> PackedWay {
        let is_output = shape.wide;
        let as_they_lie = parts.iter().all(|part| part.gated == ends.gated.is_some());
        let can_stream = self.streamed.is_some() && !self.invariant && as_they_lie;
        if can_stream && (shape.rows <= self.packed_rows || is_output) {
            PackedWay::Streamed
        } else if shape.rows <= SKINNY_ROWS && !self.invariant {
            PackedWay::Skinny
        } else if !self.invariant && self.packed.can_fp8(parts, shape) {
            PackedWay::Fp8
        } else {
            PackedWay::Unpacked
        }
    }

    /// Whether a product can be one of eight-bit floats.
    pub(super) fn can_fp8(&self, parts: &[PackedPart], shape: GemmShape) -> bool {
        self.packed.can_fp8(parts, shape)
    }

    /// Enqueues `y = x · wᵀ` of packed parts beside each other, and what `ends` says, which must be
    /// nothing where [`Products::streams_packed`] says no. Norms are for up to 64 rows and, if
    /// outputs are added to a residual stream, for one part.
    ///
    /// # Safety
    /// As for [`Products::run_to`].
    pub(super) unsafe fn run_packed(
        &mut self,
        stream: &Stream,
        parts: &[PackedPart],
        shape: GemmShape,
        io: [DevicePtr; 2],
        ends: Ends,
    ) -> Result<(), CudaError> {
        let way = self.packed_way(parts, shape, ends);
        // SAFETY: the caller's.
        unsafe { self.run_packed_as(way, stream, parts, shape, io, ends) }
    }

    /// [`Products::run_packed`] in a chosen way.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn run_packed_as(
        &mut self,
        way: PackedWay,
        stream: &Stream,
        parts: &[PackedPart],
        shape: GemmShape,
        [x, y]: [DevicePtr; 2],
        ends: Ends,
    ) -> Result<(), CudaError> {
        if way != PackedWay::Streamed && !ends.is_none() {
            let what = format!("{shape:?} of packed weights with {ends:?}");
            return Err(CudaError::Unsupported(what));
        }
        match way {
            // SAFETY: the caller's.
            PackedWay::Streamed => unsafe {
                self.stream_packed(stream, parts, shape, [x, y], ends)
            },
            PackedWay::Skinny => {
                let width = if shape.wide { 4 } else { 2 };
                let mut first = 0;
                for part in parts {
                    let io = [x, y + (first * width) as u64];
                    let (rows, stride) = ((shape.rows, shape.wide), shape.outputs);
                    // SAFETY: the caller's; the parts' outputs lie beside each other.
                    unsafe { self.packed.skinny(stream, part, rows, io, stride)? };
                    first += part.outputs;
                }
                Ok(())
            }
            PackedWay::Fp8 => {
                // SAFETY: the caller's; the operands are used up before they are made anew, as work
                // of one stream runs in order.
                unsafe {
                    let operands = self.packed.fp8_operands(stream, &parts[0], shape, x)?;
                    self.gemm.run_fp8(stream, shape, operands.x, operands.w, y)
                }
            }
            PackedWay::Unpacked => {
                let w = self.packed.unpack(stream, parts)?;
                // SAFETY: the caller's; `w` has all parts' outputs.
                unsafe { self.gemm.run(stream, shape, x, w, y) }
            }
        }
    }

    /// Parts as the device unpacks them, once the stream has been waited for.
    pub(super) fn unpacked(
        &self,
        stream: &Stream,
        parts: &[PackedPart],
    ) -> Result<Vec<bf16>, CudaError> {
        self.packed.unpack(stream, parts)?;
        stream.synchronize()?;
        self.packed.read(parts)
    }

    /// [`Products::run_packed`], 128 rows at a time.
    ///
    /// # Safety
    /// As there.
    unsafe fn stream_packed(
        &mut self,
        stream: &Stream,
        parts: &[PackedPart],
        shape: GemmShape,
        [x, y]: [DevicePtr; 2],
        ends: Ends,
    ) -> Result<(), CudaError> {
        let Some(streamed) = &mut self.streamed else {
            return Err(CudaError::Unsupported(format!("streaming {shape:?}")));
        };
        let stride = if ends.gated.is_some() {
            shape.outputs / 2
        } else {
            shape.outputs
        };
        let width = if shape.wide { 4 } else { 2 };
        for row in (0..shape.rows).step_by(PACKED_ROWS_MAX) {
            let rows = PACKED_ROWS_MAX.min(shape.rows - row);
            let mut first = 0;
            for part in parts {
                let of_part = GemmShape {
                    rows,
                    outputs: part.outputs,
                    ..shape
                };
                let io = Io {
                    x: x + (2 * row * shape.inputs) as u64,
                    y: y + (width * (row * stride + first)) as u64,
                    stride,
                };
                let weights = StreamedWeights::Packed(part, self.packed.streamed(part.format)?);
                // SAFETY: the caller's; the parts' outputs lie beside each other.
                unsafe { streamed.run(stream, of_part, ends, weights, io)? };
                first += part.outputs;
            }
        }
        Ok(())
    }

    /// Measures a shape on real weights (several, so that none is in the cache) and keeps the
    /// fastest way of running it.
    ///
    /// # Safety
    /// As for [`Products::run`], for each of the weights; `y` is overwritten.
    pub(super) unsafe fn tune(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        weights: &[DevicePtr],
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        // Timed alone, products do not show what it saves that a streamed one begins while others
        // end.
        if !shape.wide && self.ways(shape).next() == Some(Way::Stream) {
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.gemm.tune(stream, shape, x, weights, y)? };
        let mut best: Vec<(f64, Way)> = self.ways(shape).map(|w| (f64::INFINITY, w)).collect();
        if best.len() < 2 {
            return Ok(());
        }
        let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
        for _ in 0..TUNING_RUNS {
            for (best, way) in &mut best {
                start.record(stream)?;
                for &w in weights {
                    // SAFETY: the caller's.
                    unsafe { self.run_as(*way, stream, shape, x, w, y)? };
                }
                end.record(stream)?;
                stream.synchronize()?;
                *best = best.min(end.micros_since(&start)?);
            }
        }
        let faster = |a: (f64, Way), b: &(f64, Way)| {
            if b.0 < a.0 * CLEARLY_FASTER { *b } else { a }
        };
        let fastest = best[1..].iter().fold(best[0], faster);
        self.measured.insert(shape, fastest.1);
        Ok(())
    }
}
