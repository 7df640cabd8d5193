//! Launches of `cuda/gradients` and of products, on one stream.

use std::sync::Arc;

use half::bf16;

use crate::cuda::driver::{Device, DeviceBuffer, GemmF32, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, KernelParams, MatrixLayout, ProductShape};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct WidenParams {
    from: DevicePtr,
    to: DevicePtr,
    count: u64,
}
// SAFETY: field for field `ebb::GradWidenParams` of gradients/rows.cu.
unsafe impl KernelParams for WidenParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct EmbedParams {
    tokens: DevicePtr,
    table: DevicePtr,
    out: DevicePtr,
    hidden: u64,
}
// SAFETY: field for field `ebb::GradEmbedParams` of gradients/rows.cu.
unsafe impl KernelParams for EmbedParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BiasParams {
    x: DevicePtr,
    bias: DevicePtr,
    width: u64,
}
// SAFETY: field for field `ebb::GradBiasParams` of gradients/rows.cu.
unsafe impl KernelParams for BiasParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RopeParams {
    x: DevicePtr,
    table: DevicePtr,
    stride: u64,
    heads: u32,
    dim: u32,
    sign: f32,
    reserved: u32,
}
// SAFETY: field for field `ebb::GradRopeParams` of gradients/rows.cu.
unsafe impl KernelParams for RopeParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SwigluParams {
    gate_up: DevicePtr,
    act: DevicePtr,
    width: u64,
}
// SAFETY: field for field `ebb::GradSwigluParams` of gradients/rows.cu.
unsafe impl KernelParams for SwigluParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NormParams {
    x: DevicePtr,
    weight: DevicePtr,
    out: DevicePtr,
    grad: DevicePtr,
    add: DevicePtr,
    x_stride: u64,
    out_stride: u64,
    grad_stride: u64,
    heads: u32,
    width: u32,
    eps: f32,
    reserved: u32,
}
// SAFETY: field for field `ebb::GradNormParams` of gradients/norm.cu.
unsafe impl KernelParams for NormParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SoftmaxParams {
    scores: DevicePtr,
    grads: DevicePtr,
    rows: u32,
    keys: u32,
    first: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::GradSoftmaxParams` of gradients/softmax.cu.
unsafe impl KernelParams for SoftmaxParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LossParams {
    logits: DevicePtr,
    targets: DevicePtr,
    nats: DevicePtr,
    vocab: u32,
    scale: f32,
}
// SAFETY: field for field `ebb::GradLossParams` of gradients/softmax.cu.
unsafe impl KernelParams for LossParams {}

/// Threads of every kernel here.
const THREADS: u32 = 256;

/// A matrix, or a batch of them, in a buffer of f32.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    at: DevicePtr,
    layout: MatrixLayout,
    /// Values from `at` to the end of the buffer.
    room: usize,
}

impl Matrix {
    /// From value `first` of a buffer on, rows `row` values apart.
    pub(super) fn new(buffer: &DeviceBuffer<f32>, first: usize, row: usize) -> Self {
        Self {
            at: buffer.at(first),
            layout: MatrixLayout::new(row, 0),
            room: buffer.len() - first,
        }
    }

    /// The first of matrices `matrix` values apart.
    pub(super) fn each(mut self, matrix: usize) -> Self {
        self.layout.matrix = matrix;
        self
    }

    /// The same memory read as the transpose.
    pub(super) fn t(mut self) -> Self {
        self.layout = self.layout.transposed();
        self
    }

    /// Panics if the buffer ends before such matrices do.
    fn check(&self, rows: usize, columns: usize, batch: usize) {
        let (rows, columns) = if self.layout.transposed {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let end = (batch - 1) * self.layout.matrix + (rows - 1) * self.layout.row + columns;
        assert!(end <= self.room, "{end} values in {}", self.room);
    }
}

/// Kernels, products, and the stream that they run on.
#[derive(Debug)]
pub(super) struct Ops {
    stream: Stream,
    gemm: GemmF32,
    widen: Kernel<WidenParams>,
    embed: Kernel<EmbedParams>,
    bias: Kernel<BiasParams>,
    rope: Kernel<RopeParams>,
    swiglu: Kernel<SwigluParams>,
    swiglu_back: Kernel<SwigluParams>,
    norm: Kernel<NormParams>,
    norm_back: Kernel<NormParams>,
    softmax: Kernel<SoftmaxParams>,
    softmax_back: Kernel<SoftmaxParams>,
    loss: Kernel<LossParams>,
}

impl Ops {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(device)?,
            gemm: GemmF32::new(device)?,
            widen: device.kernel("grad_widen", 0)?,
            embed: device.kernel("grad_embed", 0)?,
            bias: device.kernel("grad_bias", 0)?,
            rope: device.kernel("grad_rope", 0)?,
            swiglu: device.kernel("grad_swiglu", 0)?,
            swiglu_back: device.kernel("grad_swiglu_back", 0)?,
            norm: device.kernel("grad_norm", 0)?,
            norm_back: device.kernel("grad_norm_back", 0)?,
            softmax: device.kernel("grad_softmax", 0)?,
            softmax_back: device.kernel("grad_softmax_back", 0)?,
            loss: device.kernel("grad_loss", 0)?,
        })
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.stream.device()
    }

    /// Waits for all that was enqueued.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }

    /// Enqueues filling a buffer with zeros.
    pub(super) fn clear(&self, buffer: &mut DeviceBuffer<f32>) -> Result<(), CudaError> {
        self.stream.fill(buffer, 0)
    }

    // SAFETY of every launch below: extents are checked against the buffers here; work of one
    // stream runs in order, and freeing a buffer waits for the device.

    /// Enqueues `to[first..] = from`, `count` values of weights.
    pub(super) fn widen(
        &self,
        from: DevicePtr,
        count: usize,
        to: &mut DeviceBuffer<f32>,
        first: usize,
    ) -> Result<(), CudaError> {
        assert!(first + count <= to.len());
        let params = WidenParams {
            from,
            to: to.at(first),
            count: count as u64,
        };
        let grid_max = 32 * self.device().multiprocessors();
        let grid = count.div_ceil(THREADS as usize).min(grid_max) as u32;
        // SAFETY: see above; the caller has as many weights there.
        unsafe { self.widen.launch(&self.stream, (grid, 1), THREADS, &params) }
    }

    /// Enqueues `out[token] = table[ids[token]]`.
    pub(super) fn embed(
        &self,
        ids: &DeviceBuffer<u32>,
        table: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        let params = EmbedParams {
            tokens: ids.ptr(),
            table: table.ptr(),
            out: out.ptr(),
            hidden: (out.len() / ids.len()) as u64,
        };
        let grid = (ids.len() as u32, 1);
        // SAFETY: see above; the caller has checked the tokens.
        unsafe { self.embed.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues adding a bias to every token's row.
    pub(super) fn bias(
        &self,
        x: &mut DeviceBuffer<f32>,
        bias: &DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let params = BiasParams {
            x: x.ptr(),
            bias: bias.ptr(),
            width: bias.len() as u64,
        };
        let grid = ((x.len() / bias.len()) as u32, 1);
        // SAFETY: see above.
        unsafe { self.bias.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues rotating the first `heads` heads of every token by its angles, or `back`.
    pub(super) fn rope(
        &self,
        x: &mut DeviceBuffer<f32>,
        angles: &DeviceBuffer<f32>,
        (heads, dim): (usize, usize),
        back: bool,
    ) -> Result<(), CudaError> {
        let tokens = angles.len() / dim;
        let stride = x.len() / tokens;
        assert!(heads * dim <= stride);
        let params = RopeParams {
            x: x.ptr(),
            table: angles.ptr(),
            stride: stride as u64,
            heads: heads as u32,
            dim: dim as u32,
            sign: if back { -1.0 } else { 1.0 },
            reserved: 0,
        };
        let grid = (tokens as u32, 1);
        // SAFETY: see above.
        unsafe { self.rope.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues `act = silu(gate) * up`, rows of `width`; or `back`, from the gradient in `act` to
    /// those in `gate_up`.
    pub(super) fn swiglu(
        &self,
        gate_up: &mut DeviceBuffer<f32>,
        act: &mut DeviceBuffer<f32>,
        width: usize,
        back: bool,
    ) -> Result<(), CudaError> {
        assert_eq!(gate_up.len(), 2 * act.len());
        let params = SwigluParams {
            gate_up: gate_up.ptr(),
            act: act.ptr(),
            width: width as u64,
        };
        let kernel = if back {
            &self.swiglu_back
        } else {
            &self.swiglu
        };
        let grid = ((act.len() / width) as u32, 1);
        // SAFETY: see above.
        unsafe { kernel.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues `out = norm(x) * weight[first..]` of `(tokens, heads, width)`, heads of a token one
    /// after the other.
    pub(super) fn norm(
        &self,
        x: Matrix,
        weight: &DeviceBuffer<bf16>,
        first: usize,
        out: Matrix,
        shape: (usize, usize, usize),
        eps: f32,
    ) -> Result<(), CudaError> {
        let params = norm_params(x, weight, first, out, shape, eps);
        let grid = ((shape.0 * shape.1) as u32, 1);
        // SAFETY: see above.
        unsafe { self.norm.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues the way back: from the gradient of the normed, `grad`, to that of `x`, plus `add`
    /// if given. `out` may be any of them.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn norm_back(
        &self,
        x: Matrix,
        weight: &DeviceBuffer<bf16>,
        first: usize,
        grad: Matrix,
        add: Option<Matrix>,
        out: Matrix,
        shape: (usize, usize, usize),
        eps: f32,
    ) -> Result<(), CudaError> {
        let (tokens, heads, width) = shape;
        grad.check(tokens, heads * width, 1);
        if let Some(add) = add {
            add.check(tokens, heads * width, 1);
            assert_eq!(add.layout, out.layout);
        }
        let params = NormParams {
            grad: grad.at,
            grad_stride: grad.layout.row as u64,
            add: add.map_or(0, |a| a.at),
            ..norm_params(x, weight, first, out, shape, eps)
        };
        let grid = ((tokens * heads) as u32, 1);
        // SAFETY: see above.
        unsafe { self.norm_back.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues causal weights of the scores of tokens from `first` on, `[heads][rows][first +
    /// rows]`.
    pub(super) fn softmax(
        &self,
        scores: &mut DeviceBuffer<f32>,
        (heads, rows, first): (usize, usize, usize),
    ) -> Result<(), CudaError> {
        let params = softmax_params(scores, scores, (heads, rows, first));
        let grid = ((heads * rows) as u32, 1);
        // SAFETY: see above.
        unsafe { self.softmax.launch(&self.stream, grid, THREADS, &params) }
    }

    /// Enqueues the way back: gradients of weights become those of scores.
    pub(super) fn softmax_back(
        &self,
        weights: &DeviceBuffer<f32>,
        grads: &mut DeviceBuffer<f32>,
        (heads, rows, first): (usize, usize, usize),
    ) -> Result<(), CudaError> {
        let params = softmax_params(weights, grads, (heads, rows, first));
        let grid = ((heads * rows) as u32, 1);
        // SAFETY: see above.
        unsafe {
            self.softmax_back
                .launch(&self.stream, grid, THREADS, &params)
        }
    }

    /// Enqueues the cross entropies `nats[first..]` of `(rows, vocab)` logits, which become their
    /// gradients when each counts `scale`. `targets` is the address of as many tokens.
    pub(super) fn loss(
        &self,
        logits: &mut DeviceBuffer<f32>,
        targets: DevicePtr,
        nats: &mut DeviceBuffer<f32>,
        first: usize,
        (rows, vocab): (usize, usize),
        scale: f32,
    ) -> Result<(), CudaError> {
        assert!(rows * vocab <= logits.len() && first + rows <= nats.len());
        let params = LossParams {
            logits: logits.ptr(),
            targets,
            nats: nats.at(first),
            vocab: vocab as u32,
            scale,
        };
        // SAFETY: see above.
        unsafe {
            self.loss
                .launch(&self.stream, (rows as u32, 1), THREADS, &params)
        }
    }

    /// Enqueues `c = scale · a · b`, plus `c`'s own values or those at `add` if given; `a` is rows
    /// x inner, `b` inner x columns.
    pub(super) fn product(
        &mut self,
        (rows, inner, columns): (usize, usize, usize),
        scale: f32,
        a: Matrix,
        b: Matrix,
        add: Option<Matrix>,
        c: Matrix,
    ) -> Result<(), CudaError> {
        self.products((rows, inner, columns), 1, scale, a, b, add, c)
    }

    /// Of `batch` matrices each.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn products(
        &mut self,
        (rows, inner, columns): (usize, usize, usize),
        batch: usize,
        scale: f32,
        a: Matrix,
        b: Matrix,
        add: Option<Matrix>,
        c: Matrix,
    ) -> Result<(), CudaError> {
        a.check(rows, inner, batch);
        b.check(inner, columns, batch);
        c.check(rows, columns, batch);
        if let Some(add) = add {
            add.check(rows, columns, batch);
            assert_eq!(add.layout, c.layout);
        }
        let shape = ProductShape {
            rows,
            inner,
            columns,
            batch,
            a: a.layout,
            b: b.layout,
            c: c.layout,
        };
        let add = add.map(|m| m.at);
        // SAFETY: see above; no caller's result is its factor.
        unsafe {
            self.gemm
                .run(&self.stream, shape, scale, a.at, b.at, add, c.at)
        }
    }
}

fn norm_params(
    x: Matrix,
    weight: &DeviceBuffer<bf16>,
    first: usize,
    out: Matrix,
    (tokens, heads, width): (usize, usize, usize),
    eps: f32,
) -> NormParams {
    x.check(tokens, heads * width, 1);
    out.check(tokens, heads * width, 1);
    assert!(first + width <= weight.len());
    NormParams {
        x: x.at,
        weight: weight.at(first),
        out: out.at,
        grad: 0,
        add: 0,
        x_stride: x.layout.row as u64,
        out_stride: out.layout.row as u64,
        grad_stride: 0,
        heads: heads as u32,
        width: width as u32,
        eps,
        reserved: 0,
    }
}

fn softmax_params(
    scores: &DeviceBuffer<f32>,
    grads: &DeviceBuffer<f32>,
    (heads, rows, first): (usize, usize, usize),
) -> SoftmaxParams {
    let keys = first + rows;
    assert!(heads * rows * keys <= scores.len().min(grads.len()));
    SoftmaxParams {
        scores: scores.ptr(),
        grads: grads.ptr(),
        rows: rows as u32,
        keys: keys as u32,
        first: first as u32,
        reserved: 0,
    }
}
