//! A product of packed weights on its own.

use std::sync::Arc;

use half::bf16;

use super::{ColdL2, ProbeError, time_graph};
use crate::cuda::driver::{Device, DeviceBuffer, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::ops::Fill;
use crate::cuda::packed::PackedPart;
use crate::cuda::params::GemmShape;
use crate::cuda::products::{Ends, PackedWay, Products};
use crate::cuda::weights::pack_tensor;
use crate::model::Activation;
use crate::weight_formats::PackedTensor;

/// Random rows times the weights of a tensor.
#[derive(Debug)]
pub struct PackedProbe {
    stream: Stream,
    products: Products,
    parts: [PackedPart; 1],
    shape: GemmShape,
    x: DeviceBuffer<bf16>,
    y: DeviceBuffer<f32>,
    ends: Ends,
}

impl PackedProbe {
    /// `x` `[rows][inputs]`, random; outputs of f32 if `wide`, or gated: the tensor's first half
    /// are gates. None if no kernel reads the tensor's format.
    pub fn new(
        device: &Arc<Device>,
        tensor: &PackedTensor,
        rows: usize,
        wide: bool,
        gated: bool,
    ) -> Result<Option<Self>, CudaError> {
        let Some(part) = pack_tensor(device, tensor, gated)? else {
            return Ok(None);
        };
        let (inputs, outputs) = (tensor.inputs(), tensor.rows());
        let mut products = Products::new(device, false)?;
        let formats = std::iter::once(part.format);
        products.take_packed(device, formats, [inputs * outputs; 2])?;
        let this = Self {
            stream: Stream::new(device)?,
            products,
            parts: [part],
            shape: GemmShape {
                rows,
                inputs,
                outputs,
                wide,
            },
            x: DeviceBuffer::new(device, rows * inputs, "inputs")?,
            y: DeviceBuffer::filled(device, rows * outputs, 0xff, "outputs")?,
            ends: Ends {
                gated: gated.then_some(Activation::Silu),
                ..Ends::default()
            },
        };
        let fill = Fill::new(device)?;
        // SAFETY: the buffer lives as long as `this`, and the stream is waited for.
        unsafe { fill.run(&this.stream, this.x.ptr(), this.x.len(), 1, 1.0, 0.0)? };
        this.stream.synchronize()?;
        Ok(Some(this))
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.parts[0].bytes()
    }

    /// What the kernels call the format.
    pub fn format(&self) -> &'static str {
        self.parts[0].format.name()
    }

    fn can(&self, way: PackedWay) -> bool {
        match way {
            // Of any number of rows, in passes.
            PackedWay::Streamed => self.products.streams_packed(1),
            PackedWay::Skinny => self.shape.rows <= 8 && self.ends.is_none(),
            PackedWay::Unpacked => self.ends.is_none(),
            PackedWay::Fp8 => self.ends.is_none() && self.products.can_fp8(&self.parts, self.shape),
        }
    }

    fn enqueue(&mut self, way: PackedWay) -> Result<(), CudaError> {
        let io = [self.x.ptr(), self.y.ptr()];
        let (stream, shape, ends) = (&self.stream, self.shape, self.ends);
        // SAFETY: the buffers have the shape's sizes, live as long as `self`, and the callers wait
        // for the stream.
        unsafe {
            self.products
                .run_packed_as(way, stream, &self.parts, shape, io, ends)
        }
    }

    /// The inputs.
    pub fn x(&self) -> Result<Vec<bf16>, CudaError> {
        let mut x = vec![bf16::ZERO; self.x.len()];
        self.x.read(0, &mut x)?;
        Ok(x)
    }

    /// Makes the first `count` inputs of a row 0.
    pub fn clear(&mut self, row: usize, count: usize) -> Result<(), CudaError> {
        let zeros = vec![bf16::ZERO; count];
        self.x.write(row * self.shape.inputs, &zeros)
    }

    /// `[outputs][inputs]` as the device unpacks them.
    pub fn unpacked(&mut self) -> Result<Vec<bf16>, CudaError> {
        self.products.unpacked(&self.stream, &self.parts)
    }

    /// The outputs, computed in one of the ways; none if that way cannot.
    pub fn run(&mut self, way: PackedWay) -> Result<Option<Vec<f32>>, ProbeError> {
        if !self.can(way) {
            return Ok(None);
        }
        self.enqueue(way)?;
        self.stream.synchronize()?;
        let mut y = vec![0.0; self.y.len()];
        self.y.read(0, &mut y)?;
        if !self.shape.wide {
            let narrow: &[bf16] = bytemuck::cast_slice(&y);
            y = narrow[..y.len()].iter().map(|v| v.to_f32()).collect();
        }
        if self.ends.gated.is_some() {
            y.truncate(y.len() / 2);
        }
        Ok(Some(y))
    }

    /// Times `repeats` graph replays, each with a cold L2. Microseconds, sorted; none if that way
    /// cannot.
    pub fn time(&mut self, way: PackedWay, repeats: usize) -> Result<Option<Vec<f64>>, CudaError> {
        if !self.can(way) {
            return Ok(None);
        }
        self.enqueue(way)?; // makes the plan, which a capture cannot
        self.stream.synchronize()?;
        let stream = Stream::new(self.stream.device())?;
        let graph = stream.capture(|| {
            let io = [self.x.ptr(), self.y.ptr()];
            let (shape, ends) = (self.shape, self.ends);
            // SAFETY: the buffers have the shape's sizes and outlive the graph.
            unsafe {
                self.products
                    .run_packed_as(way, &stream, &self.parts, shape, io, ends)
            }
        })?;
        time_graph(&stream, &graph, repeats, ColdL2::Written).map(Some)
    }
}
