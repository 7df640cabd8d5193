//! Paged attention at 16 bit: launches of `cuda/attention`.

use std::sync::Arc;

use half::bf16;

use super::arena::DeviceArena;
use super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use super::plan::SplitRule;
use super::prefill::{Prefill, PrefillVariant};
use super::step::{PageTable, StepBuffers};
use crate::kv::KvGeometry;

/// Query heads that one decode unit serves: the n = 8 side of its matrix instructions.
const UNIT_HEADS: usize = 8;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DecodeParams {
    pages: PageTable,
    q: DevicePtr,
    out: DevicePtr,
    units: DevicePtr,
    unit_count: DevicePtr,
    partial_o: DevicePtr,
    partial_ml: DevicePtr,
    counters: DevicePtr,
    work: DevicePtr,
    layer: u32,
    q_heads: u32,
    kv_heads: u32,
    q_stride: u32,
    scale_log2: f32,
    reserved: u32,
}
// SAFETY: field for field `ebb::DecodeParams` of attention/decode.cuh.
unsafe impl KernelParams for DecodeParams {}

/// A compiled shape of the decode kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeVariant {
    /// Name of the kernel.
    pub name: &'static str,
    /// Channels per head.
    pub head_dim: usize,
    /// Warps of a CTA.
    pub warps: usize,
    /// Tiles of 16 tokens in each warp's ring.
    pub stages: usize,
}

impl DecodeVariant {
    /// Bytes of shared memory; `kSharedBytes` of decode.cuh.
    fn shared_bytes(&self) -> usize {
        self.warps * self.stages * 64 * self.head_dim + self.warps * (8 * UNIT_HEADS + 4) + 16
    }
}

/// Every compiled decode kernel, the preferred ones first.
pub const DECODE_VARIANTS: &[DecodeVariant] = &[
    variant("decode_d128_w4_s2", 128, 4, 2),
    variant("decode_d128_w4_s3", 128, 4, 3),
    variant("decode_d128_w2_s3", 128, 2, 3),
    variant("decode_d128_w2_s4", 128, 2, 4),
    variant("decode_d128_w8_s3", 128, 8, 3),
    variant("decode_d64_w4_s4", 64, 4, 4),
    variant("decode_d64_w4_s6", 64, 4, 6),
];

const fn variant(
    name: &'static str,
    head_dim: usize,
    warps: usize,
    stages: usize,
) -> DecodeVariant {
    DecodeVariant {
        name,
        head_dim,
        warps,
        stages,
    }
}

/// Decode and prefill attention of one model shape, with the scratch of split sequences.
#[derive(Debug)]
pub struct Attention {
    decode: Kernel<DecodeParams>,
    variant: DecodeVariant,
    decode_grid: u32,
    prefill: Prefill,
    geometry: KvGeometry,
    q_heads: usize,
    partial_o: DeviceBuffer<f32>,
    partial_ml: DeviceBuffer<f32>,
    counters: DeviceBuffer<u32>,
    work: DeviceBuffer<u32>,
}

impl Attention {
    /// Prepares for steps of up to `seqs` sequences with `blocks` blocks in all. `variant` and `prefill` are the first
    /// that fit if `None`.
    pub fn new(
        device: &Arc<Device>,
        geometry: KvGeometry,
        q_heads: usize,
        (seqs, blocks): (usize, usize),
        rule: SplitRule,
        variant: Option<DecodeVariant>,
        prefill: Option<PrefillVariant>,
    ) -> Result<Self, CudaError> {
        let head_dim = geometry.head_dim;
        let group = q_heads / geometry.kv_heads;
        let fits = |v: &&DecodeVariant| {
            v.head_dim == head_dim && v.shared_bytes() <= device.shared_bytes_max()
        };
        let variant = variant
            .or_else(|| DECODE_VARIANTS.iter().find(fits).copied())
            .ok_or_else(|| {
                CudaError::Unsupported(format!(
                    "{} has too little shared memory per CTA",
                    device.name()
                ))
            })?;
        let decode = device.kernel(variant.name, variant.shared_bytes())?;
        let ctas = decode.ctas_per_multiprocessor(variant.warps as u32 * 32)?;
        let units = rule.units_max(seqs, blocks);
        let unit_heads = geometry.kv_heads * group.div_ceil(UNIT_HEADS);
        Ok(Self {
            decode,
            variant,
            decode_grid: (ctas * device.multiprocessors()) as u32,
            prefill: Prefill::new(device, geometry, q_heads, prefill)?,
            geometry,
            q_heads,
            partial_o: DeviceBuffer::new(
                device,
                units * q_heads * head_dim,
                "partial attention results",
            )?,
            partial_ml: DeviceBuffer::new(device, units * q_heads * 2, "partial attention sums")?,
            counters: DeviceBuffer::filled(device, seqs * unit_heads, 0, "attention counters")?,
            work: DeviceBuffer::filled(device, 2, 0, "the work counter")?,
        })
    }

    /// The prefill kernel in use; steps must be planned for its tiles.
    pub fn prefill_variant(&self) -> PrefillVariant {
        self.prefill.variant()
    }

    /// The decode kernel in use.
    pub fn variant(&self) -> DecodeVariant {
        self.variant
    }

    /// Bytes of scratch that `new` allocates on the device.
    pub(super) fn scratch_bytes(
        geometry: KvGeometry,
        q_heads: usize,
        (seqs, blocks): (usize, usize),
    ) -> usize {
        let units = SplitRule::default().units_max(seqs, blocks);
        4 * (units * q_heads * (geometry.head_dim + 2) + seqs * q_heads + 2)
    }

    /// Enqueues the attention of all single-row sequences of the loaded step; the number of units is read on the device.
    pub(super) fn decode(
        &mut self,
        stream: &Stream,
        step: &StepBuffers,
        arena: &DeviceArena,
        layer: usize,
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let params = DecodeParams {
            pages: step.page_table(arena),
            q: q.ptr(),
            out: out.ptr(),
            units: step.units(),
            unit_count: step.unit_count(),
            partial_o: self.partial_o.ptr(),
            partial_ml: self.partial_ml.ptr(),
            counters: self.counters.ptr(),
            work: self.work.ptr(),
            layer: layer as u32,
            q_heads: self.q_heads as u32,
            kv_heads: self.geometry.kv_heads as u32,
            q_stride: (self.q_heads * self.geometry.head_dim) as u32,
            scale_log2: self.scale_log2(),
            reserved: 0,
        };
        // SAFETY: the step was checked against the pool before it was loaded, so every block, frame and row is in range of
        // the arena, q and out; the scratch was sized for the step's capacity. Work of one stream runs in order.
        unsafe {
            self.decode.launch(
                stream,
                (self.decode_grid, 1),
                self.variant.warps as u32 * 32,
                &params,
            )
        }
    }

    /// Enqueues the attention of all sequences of several rows of the loaded step.
    pub(super) fn prefill(
        &mut self,
        stream: &Stream,
        step: &StepBuffers,
        arena: &DeviceArena,
        layer: usize,
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        self.prefill.run(stream, step, arena, layer, q, out)
    }

    fn scale_log2(&self) -> f32 {
        scale_log2(self.geometry.head_dim)
    }
}

/// What scores are multiplied with so that their exponentials are powers of two.
pub(super) fn scale_log2(head_dim: usize) -> f32 {
    std::f32::consts::LOG2_E / (head_dim as f32).sqrt()
}
