//! Two products and the norm between them.

use std::sync::Arc;

use half::bf16;

use crate::cuda::driver::{Device, DeviceBuffer, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::ops::Fill;
use crate::cuda::params::GemmShape;
use crate::cuda::products::{Ends, Products, Residual, squares_len};
use crate::model::Activation;

/// What is added to the mean of squares.
const EPS: f32 = 1e-5;

/// A product that is added to a residual stream, and one of what comes of that, normed.
#[derive(Debug)]
pub struct NormsProbe {
    stream: Stream,
    products: Products,
    /// `[rows][inputs] -> [rows][hidden] -> [rows][outputs]`.
    shapes: [GemmShape; 2],
    gated: bool,
    x: DeviceBuffer<bf16>,
    w: [DeviceBuffer<bf16>; 2],
    weight: DeviceBuffer<bf16>,
    residual: DeviceBuffer<f32>,
    squares: DeviceBuffer<f32>,
    scaled: DeviceBuffer<bf16>,
    y: DeviceBuffer<bf16>,
}

/// What went in and what came out.
#[derive(Debug, Clone)]
pub struct Normed {
    /// `[rows][inputs]`.
    pub x: Vec<bf16>,
    /// `[hidden][inputs]` and `[outputs][hidden]`.
    pub w: [Vec<bf16>; 2],
    /// The norm's, `[hidden]`.
    pub weight: Vec<bf16>,
    /// What is added to the mean of squares.
    pub eps: f64,
    /// The residual stream before and after, `[rows][hidden]`.
    pub residual: [Vec<f32>; 2],
    /// `[rows][outputs]`, or half as many if gated.
    pub y: Vec<bf16>,
}

impl NormsProbe {
    /// Random factors for (rows, inputs, hidden, outputs); outputs all NaN.
    pub fn new(
        device: &Arc<Device>,
        (rows, inputs, hidden, outputs): (usize, usize, usize, usize),
        gated: bool,
    ) -> Result<Self, CudaError> {
        let shape = |inputs, outputs| GemmShape {
            rows,
            inputs,
            outputs,
            wide: false,
        };
        let buffer = |len: usize| DeviceBuffer::<bf16>::filled(device, len, 0xff, "factors");
        let single = |len: usize| DeviceBuffer::<f32>::filled(device, len, 0xff, "sums");
        let mut this = Self {
            stream: Stream::new(device)?,
            products: Products::new(device, false)?,
            shapes: [shape(inputs, hidden), shape(hidden, outputs)],
            gated,
            x: buffer(rows * inputs)?,
            w: [buffer(hidden * inputs)?, buffer(outputs * hidden)?],
            weight: buffer(hidden)?,
            residual: single(rows * hidden)?,
            squares: single(squares_len(hidden))?,
            scaled: buffer(rows * hidden)?,
            y: buffer(rows * outputs)?,
        };
        let fill = Fill::new(device)?;
        let random = [&this.x, &this.w[0], &this.w[1], &this.weight];
        for (seed, buffer) in (1..).zip(random) {
            // SAFETY: the buffers live as long as `this`, and the stream is waited for.
            unsafe { fill.run(&this.stream, buffer.ptr(), buffer.len(), seed, 1.0, 0.0)? };
        }
        this.stream.synchronize()?;
        // A row's values are of one size, and other rows' of others: sums of squares must not be
        // mixed up.
        let values = (0..rows * hidden).map(|i| {
            let (row, column) = (i / hidden, i % hidden);
            (1 << (row % 7)) as f32 * (column as f32 * 0.37 + row as f32).sin()
        });
        this.residual.write(0, &values.collect::<Vec<_>>())?;
        Ok(this)
    }

    /// Runs both; none if the device has no such products.
    pub fn run(&mut self) -> Result<Option<Normed>, CudaError> {
        let [first, second] = self.shapes;
        if !self.products.norms([first, first, second, first]) {
            return Ok(None);
        }
        let residual = self.read(&self.residual)?;
        let to_residual = Ends {
            residual: Some(Residual {
                stream: self.residual.ptr(),
                weight: self.weight.ptr(),
                squares: self.squares.ptr(),
            }),
            ..Ends::default()
        };
        let from_norm = Ends {
            gated: self.gated.then_some(Activation::Silu),
            norms: Some((self.squares.ptr(), EPS)),
            ..Ends::default()
        };
        let (x, scaled, y) = (self.x.ptr(), self.scaled.ptr(), self.y.ptr());
        let w = [self.w[0].ptr(), self.w[1].ptr()];
        let stream = &self.stream;
        // SAFETY: the buffers have the shapes' sizes, live as long as `self`, and the stream is
        // waited for.
        unsafe {
            self.products
                .run_to(to_residual, stream, first, [x, w[0], scaled])?;
            self.products
                .run_to(from_norm, stream, second, [scaled, w[1], y])?;
        }
        self.stream.synchronize()?;
        let mut y = self.read(&self.y)?;
        y.truncate(y.len() / if self.gated { 2 } else { 1 });
        Ok(Some(Normed {
            x: self.read(&self.x)?,
            w: [self.read(&self.w[0])?, self.read(&self.w[1])?],
            weight: self.read(&self.weight)?,
            eps: f64::from(EPS),
            residual: [residual, self.read(&self.residual)?],
            y,
        }))
    }

    fn read<T: bytemuck::Pod>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::zeroed(); buffer.len()];
        buffer.read(0, &mut values)?;
        Ok(values)
    }
}
