//! Everything between the matrix products and the attention: launches of `cuda/ops`.

use std::sync::Arc;

use half::bf16;

use super::arena::DeviceArena;
use super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use super::step::{PageTable, StepBuffers};
use crate::model::ModelSpec;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct EmbedParams {
    tokens: DevicePtr,
    sampled: DevicePtr,
    table: DevicePtr,
    residual: DevicePtr,
    hidden: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::EmbedParams` of ops/embed.cu.
unsafe impl KernelParams for EmbedParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NormParams {
    delta: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    out: DevicePtr,
    selected: DevicePtr,
    hidden: u32,
    eps: f32,
}
// SAFETY: field for field `ebb::NormParams` of ops/norm.cu.
unsafe impl KernelParams for NormParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PostNormParams {
    delta: DevicePtr,
    post: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    out: DevicePtr,
    hidden: u32,
    eps: f32,
}
// SAFETY: field for field `ebb::PostNormParams` of ops/post_norm.cu.
unsafe impl KernelParams for PostNormParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RopeTableParams {
    positions: DevicePtr,
    inv_freq: DevicePtr,
    table: DevicePtr,
    half: u32,
    scale: f32,
}
// SAFETY: field for field `ebb::RopeTableParams` of ops/rope.cu.
unsafe impl KernelParams for RopeTableParams {}

/// Heads of Q, K and V as their projection left them, and what it takes to finish them:
/// `HeadParams` of ops/heads.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadParams {
    qkv: DevicePtr,
    bias: DevicePtr,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    table: DevicePtr,
    eps: f32,
    rotate_k: u32,
}
const _: () = assert!(size_of::<HeadParams>() == 48);

impl HeadParams {
    /// Of a kernel that is given finished ones.
    pub(super) const NONE: Self = Self {
        qkv: 0,
        bias: 0,
        q_norm: 0,
        k_norm: 0,
        table: 0,
        eps: 0.0,
        rotate_k: 0,
    };
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RopeAppendParams {
    pages: PageTable,
    heads: HeadParams,
    positions: DevicePtr,
    first_blocks: DevicePtr,
    row_count: DevicePtr,
    q: DevicePtr,
    layer: u32,
    q_heads: u32,
    kv_heads: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::RopeAppendParams` of ops/rope.cu.
unsafe impl KernelParams for RopeAppendParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SwigluParams {
    gate_up: DevicePtr,
    out: DevicePtr,
    intermediate: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::SwigluParams` of ops/swiglu.cu.
unsafe impl KernelParams for SwigluParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct FillParams {
    out: DevicePtr,
    count: u64,
    seed: u64,
    amplitude: f32,
    offset: f32,
}
// SAFETY: field for field `ebb::FillParams` of ops/fill.cu.
unsafe impl KernelParams for FillParams {}

/// Fills memory with random bf16 values.
#[derive(Debug)]
pub(super) struct Fill(Kernel<FillParams>);

impl Fill {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.kernel("fill_random", 0).map(Self)
    }

    /// Enqueues filling `values` values at `out` with values uniform in `offset ± amplitude`, a
    /// function of `seed` and index.
    ///
    /// # Safety
    /// `out` must be the address of that many bf16 values, alive until the stream has run this.
    pub(super) unsafe fn run(
        &self,
        stream: &Stream,
        out: DevicePtr,
        values: usize,
        seed: u64,
        amplitude: f32,
        offset: f32,
    ) -> Result<(), CudaError> {
        let params = FillParams {
            out,
            count: values as u64,
            seed,
            amplitude,
            offset,
        };
        let grid = values.div_ceil(256).min(132 * 32) as u32;
        // SAFETY: the caller's.
        unsafe { self.0.launch(stream, (grid, 1), 256, &params) }
    }
}

/// The small kernels of one model.
#[derive(Debug)]
pub(super) struct Ops {
    embed: Kernel<EmbedParams>,
    norm: Kernel<NormParams>,
    post_norm: Kernel<PostNormParams>,
    rope_table: Kernel<RopeTableParams>,
    rope_append: Kernel<RopeAppendParams>,
    swiglu: Kernel<SwigluParams>,
    hidden: usize,
    intermediate: usize,
    q_heads: usize,
    kv_heads: usize,
    half: usize,
    eps: f32,
    rope_scale: f32,
    inv_freq: DeviceBuffer<f32>,
    /// Whether queries and keys are multiplied by a Hadamard matrix behind RoPE.
    rotate_k: bool,
}

/// Weights that the rotation and append of one layer read; null where the model has none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RopeWeights {
    pub(super) bias: DevicePtr,
    pub(super) q_norm: DevicePtr,
    pub(super) k_norm: DevicePtr,
}

impl Ops {
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        rotate_k: bool,
    ) -> Result<Self, CudaError> {
        let unsupported = |what: String| Err(CudaError::Unsupported(what));
        let norms = [
            (2048, "norm_2048"),
            (4096, "norm_4096"),
            (8192, "norm_8192"),
            (16384, "norm_16384"),
        ];
        let Some((_, norm)) = norms.into_iter().find(|n| spec.hidden <= n.0) else {
            return unsupported(format!(
                "hidden size {}; the CUDA backend supports up to 16384",
                spec.hidden
            ));
        };
        let post_norm = match spec.hidden {
            ..=4096 => "post_norm_4096",
            _ => "post_norm_16384",
        };
        for (name, value) in [
            ("hidden", spec.hidden),
            ("intermediate", spec.intermediate_max()),
        ] {
            if value % 8 != 0 {
                return unsupported(format!("{name} size {value} is not a multiple of 8"));
            }
        }
        let rope_append = match spec.heads().head_dim {
            128 => "rope_append_d128",
            64 => "rope_append_d64",
            other => {
                return unsupported(format!(
                    "head_dim {other}: the CUDA backend has kernels for 64 and 128"
                ));
            }
        };
        Ok(Self {
            embed: device.kernel("embed", 0)?,
            norm: device.kernel(norm, 0)?,
            post_norm: device.kernel(post_norm, 0)?,
            rope_table: device.kernel("rope_table", 0)?,
            rope_append: device.kernel(rope_append, 0)?,
            swiglu: device.kernel("swiglu", 0)?,
            hidden: spec.hidden,
            intermediate: spec.intermediate_max(),
            q_heads: spec.heads().q_heads,
            kv_heads: spec.heads().kv_heads,
            half: spec.heads().head_dim / 2,
            eps: spec.norm_eps,
            rope_scale: spec.ropes[0].scale,
            inv_freq: DeviceBuffer::from_slice(
                device,
                spec.ropes[0].frequencies(spec.max_positions),
                "rotary frequencies",
            )?,
            rotate_k,
        })
    }

    // SAFETY of every launch below: the buffers are those of the backend, sized for the step's
    // capacity of rows; the step was checked against vocabulary and pool before it was loaded; work
    // of one stream runs in order.

    /// `residual[row] = table[token of row]`; tokens to come are looked up in `sampled`, the step
    /// before's.
    pub(super) fn embed(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        sampled: DevicePtr,
        table: &DeviceBuffer<bf16>,
        residual: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= residual.len());
        let params = EmbedParams {
            tokens: step.tokens(),
            sampled,
            table: table.ptr(),
            residual: residual.ptr(),
            hidden: self.hidden as u32,
            reserved: 0,
        };
        // SAFETY: see above.
        unsafe { self.embed.launch(stream, (rows as u32, 1), 256, &params) }
    }

    /// What norms add to the mean of squares.
    pub(super) fn eps(&self) -> f32 {
        self.eps
    }

    /// `residual += delta` (if any), then `out = norm(residual) * weight`, for all `rows` rows, or
    /// for `rows` selected ones.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn norm(
        &self,
        stream: &Stream,
        rows: usize,
        delta: Option<&DeviceBuffer<bf16>>,
        residual: &mut DeviceBuffer<f32>,
        weight: DevicePtr,
        out: &mut DeviceBuffer<bf16>,
        selected: Option<DevicePtr>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= out.len());
        let params = NormParams {
            delta: delta.map_or(0, |d| d.ptr()),
            residual: residual.ptr(),
            weight,
            out: out.ptr(),
            selected: selected.unwrap_or(0),
            hidden: self.hidden as u32,
            eps: self.eps,
        };
        // SAFETY: see above.
        unsafe { self.norm.launch(stream, (rows as u32, 1), 256, &params) }
    }

    /// `residual += delta / rms(delta) * post` (delta as it is where `post` is null), then
    /// `out = norm(residual) * weight`, or the residual where that is null.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn post_norm(
        &self,
        stream: &Stream,
        rows: usize,
        delta: Option<&DeviceBuffer<bf16>>,
        residual: &mut DeviceBuffer<f32>,
        [post, weight]: [DevicePtr; 2],
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= out.len());
        let params = PostNormParams {
            delta: delta.map_or(0, |d| d.ptr()),
            post,
            residual: residual.ptr(),
            weight,
            out: out.ptr(),
            hidden: self.hidden as u32,
            eps: self.eps,
        };
        // SAFETY: see above.
        unsafe {
            self.post_norm
                .launch(stream, (rows as u32, 1), 256, &params)
        }
    }

    /// Cosines and sines of every row's position, `table[rows][head_dim / 2]` pairs.
    pub(super) fn rope_table(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        table: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.half * 2 <= table.len());
        let params = RopeTableParams {
            positions: step.positions(),
            inv_freq: self.inv_freq.ptr(),
            table: table.ptr(),
            half: self.half as u32,
            scale: self.rope_scale,
        };
        // SAFETY: see above.
        unsafe {
            self.rope_table
                .launch(stream, (rows as u32, 1), 128, &params)
        }
    }

    /// The heads of `qkv`, `[rows][(q_heads + 2 * kv_heads) * head_dim]`, for whoever finishes
    /// them: bias, per-head norm, RoPE by `table`, Hadamard rotation.
    pub(super) fn heads(
        &self,
        rows: usize,
        weights: RopeWeights,
        table: &DeviceBuffer<f32>,
        qkv: &DeviceBuffer<bf16>,
    ) -> HeadParams {
        let heads = self.q_heads + 2 * self.kv_heads;
        assert!(rows * heads * self.half * 2 <= qkv.len());
        HeadParams {
            qkv: qkv.ptr(),
            bias: weights.bias,
            q_norm: weights.q_norm,
            k_norm: weights.k_norm,
            table: table.ptr(),
            eps: self.eps,
            rotate_k: u32::from(self.rotate_k),
        }
    }

    /// Finishes heads: Q to `q`, K and V to the pages of `layer`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn rope_append(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        arena: &mut DeviceArena,
        layer: usize,
        heads: HeadParams,
        q: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.q_heads * self.half * 2 <= q.len());
        let params = RopeAppendParams {
            pages: step.page_table(arena),
            heads,
            positions: step.positions(),
            first_blocks: step.first_blocks(),
            row_count: step.row_count(),
            q: q.ptr(),
            layer: layer as u32,
            q_heads: self.q_heads as u32,
            kv_heads: self.kv_heads as u32,
            reserved: 0,
        };
        let groups = (self.q_heads + 2 * self.kv_heads).div_ceil(8);
        let grid = (rows as u32, groups as u32);
        // SAFETY: see above.
        unsafe { self.rope_append.launch(stream, grid, 256, &params) }
    }

    /// `out = silu(gate) * up`, from rows of gate and up beside each other.
    pub(super) fn swiglu(
        &self,
        stream: &Stream,
        rows: usize,
        gate_up: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(
            rows * self.intermediate * 2 <= gate_up.len() && rows * self.intermediate <= out.len()
        );
        let params = SwigluParams {
            gate_up: gate_up.ptr(),
            out: out.ptr(),
            intermediate: self.intermediate as u32,
            reserved: 0,
        };
        let grid = (rows as u32, self.intermediate.div_ceil(2048) as u32);
        // SAFETY: see above.
        unsafe { self.swiglu.launch(stream, grid, 256, &params) }
    }
}
