//! Heads of Q, K and V between their projection and attention: launches of `cuda/ops/rope*.cu`.

use std::sync::Arc;

use half::bf16;

use super::super::arena::DeviceArena;
use super::super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::super::error::CudaError;
use super::super::params::{DevicePtr, KernelParams};
use super::super::plan::PREFILL_TILE_ROWS_MIN;
use super::super::step::{PageTable, StepBuffers};
use crate::formats::rotation::Rotation;
use crate::kv::KvGeometry;
use crate::model::{AttentionSpec, KvPlace, QkNorm, QueryGrowth, Rope};

/// The widest head that is one record.
pub(in crate::cuda) const HEAD_DIM_MAX: usize = 256;

/// What a layer does with its heads before their scores, and with the scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct HeadSpec {
    pub(in crate::cuda) q_heads: usize,
    pub(in crate::cuda) kv_heads: usize,
    /// Channels of a head: a multiple of 16 up to 256, or 512 where heads are in parts.
    pub(in crate::cuda) head_dim: usize,
    /// Channels that rotate, the first of a head: channel `i` with channel `i + rotary_dim / 2`.
    /// 0 in layers without RoPE.
    pub(in crate::cuda) rotary_dim: usize,
    /// How Q and K are normed.
    pub(in crate::cuda) norm: QkNorm,
    /// How Q grows with its position.
    pub(in crate::cuda) growth: Option<QueryGrowth>,
    /// What scores are multiplied with, more than 0; `None`: `1 / sqrt(head_dim)`.
    pub(in crate::cuda) scale: Option<f32>,
}

impl HeadSpec {
    /// Heads that rotate and are not normed.
    pub(in crate::cuda) fn plain(geometry: KvGeometry, q_heads: usize) -> Self {
        Self {
            q_heads,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            rotary_dim: geometry.head_dim,
            norm: QkNorm::None,
            growth: None,
            scale: None,
        }
    }

    /// Of a layer's attention, in a model with these rotary embeddings.
    pub(in crate::cuda) fn of(attention: &AttentionSpec, ropes: &[Rope]) -> Self {
        let default = AttentionSpec::default_scale(attention.head_dim);
        Self {
            q_heads: attention.q_heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            rotary_dim: attention.rope.map_or(0, |rope| ropes[rope].rotary_dim()),
            norm: attention.qk_norm,
            growth: attention.query_growth,
            scale: (attention.scale != default).then_some(attention.scale),
        }
    }

    /// Says what there are no kernels for, of heads of up to `most` channels.
    pub(in crate::cuda) fn check(&self, most: usize) -> Result<(), CudaError> {
        let (head_dim, rotary_dim) = (self.head_dim, self.rotary_dim);
        let unsupported = |what| Err(CudaError::Unsupported(what));
        if !head_dim.is_multiple_of(16) || !(16..=most).contains(&head_dim) {
            return unsupported(format!(
                "head_dim {head_dim}: the CUDA backend has kernels for multiples of 16 up to {most}"
            ));
        }
        if !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
            return unsupported(format!(
                "{rotary_dim} rotary channels of a head of {head_dim}"
            ));
        }
        let group = self.q_heads / self.kv_heads;
        if group > PREFILL_TILE_ROWS_MIN {
            return unsupported(format!(
                "{group} query heads share a KV head; the CUDA backend has kernels for up to \
                 {PREFILL_TILE_ROWS_MIN}, the CPU backend (--device cpu) for any number"
            ));
        }
        if let Some(scale) = self.scale
            && !(scale.is_finite() && scale > 0.0)
        {
            return unsupported(format!("scores multiplied with {scale}"));
        }
        Ok(())
    }

    /// Whether the kernels made for 64 and 128 channels a head finish them: all channels rotate,
    /// norms are a head's own and before RoPE, Q does not grow.
    pub(in crate::cuda) fn is_tuned(&self) -> bool {
        matches!(self.head_dim, 64 | 128)
            && self.rotary_dim == self.head_dim
            && matches!(self.norm, QkNorm::None | QkNorm::PerHead)
            && self.growth.is_none()
    }

    /// What scores are multiplied with so that their exponentials are powers of two.
    pub(in crate::cuda) fn scale_log2(&self) -> f32 {
        use std::f32::consts::LOG2_E;
        match self.scale {
            None => LOG2_E / (self.head_dim as f32).sqrt(),
            Some(scale) => LOG2_E * scale,
        }
    }

    /// Heads of a row's projection.
    fn heads(&self) -> usize {
        self.q_heads + 2 * self.kv_heads
    }
}

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
pub(in crate::cuda) struct HeadParams {
    qkv: DevicePtr,
    bias: DevicePtr,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    table: DevicePtr,
    factors: DevicePtr,
    eps: f32,
    rotate_k: u8,
    rotate_v: u8,
    norm_from_one: u16,
}
const _: () = assert!(size_of::<HeadParams>() == 56);

impl HeadParams {
    /// Of a kernel that is given finished ones.
    pub(in crate::cuda) const NONE: Self = Self {
        qkv: 0,
        bias: 0,
        q_norm: 0,
        k_norm: 0,
        table: 0,
        factors: 0,
        eps: 0.0,
        rotate_k: 0,
        rotate_v: 0,
        norm_from_one: 0,
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
// SAFETY: field for field `ebb::RopeAppendParams` of ops/rope.cuh.
unsafe impl KernelParams for RopeAppendParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct AnyRopeAppendParams {
    append: RopeAppendParams,
    head_dim: u32,
    rotary_half: u32,
    whole_norms: u32,
    norms_behind_rope: u32,
    growth_beta: f32,
    growth_interval: u32,
    growth_offset: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::AnyRopeAppendParams` of ops/rope_any.cu.
unsafe impl KernelParams for AnyRopeAppendParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PartsAppendParams {
    append: RopeAppendParams,
    head_dim: u32,
    rotary_half: u32,
    records: u32,
    parts: u32,
    norm_values: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::PartsAppendParams` of ops/rope_parts.cu.
unsafe impl KernelParams for PartsAppendParams {}

/// Heads that the other kernels do not finish: where their keys and values go, if they have any,
/// and whether values are normed.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct HeadParts {
    pub(in crate::cuda) place: KvPlace,
    pub(in crate::cuda) has_kv: bool,
    pub(in crate::cuda) norms_values: bool,
}

impl HeadParts {
    /// Of a layer whose keys and values lie at `place`, if it needs that kernel.
    pub(in crate::cuda) fn of(attention: &AttentionSpec, place: KvPlace) -> Option<Self> {
        let this = Self {
            place,
            has_kv: attention.kv_from.is_none(),
            norms_values: attention.v_norm,
        };
        let is_needed = !place.is_whole() || !this.has_kv || this.norms_values;
        is_needed.then_some(this)
    }
}

/// Weights that the rotation and append of one layer read; null where the model has none.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cuda) struct RopeWeights {
    pub(in crate::cuda) bias: DevicePtr,
    pub(in crate::cuda) q_norm: DevicePtr,
    pub(in crate::cuda) k_norm: DevicePtr,
    /// Factors of pairs of channels of Q and K ([`crate::model::OnlineKeyScales`]).
    pub(in crate::cuda) key_factors: DevicePtr,
}

/// Rotary frequencies on the device. A model has one for each set that its layers use.
#[derive(Debug)]
pub(in crate::cuda) struct Rotary {
    /// Of each pair of channels that rotates.
    inv_freq: DeviceBuffer<f32>,
    /// Of cosine and sine.
    scale: f32,
}

impl Rotary {
    pub(in crate::cuda) fn new(
        device: &Arc<Device>,
        inv_freq: &[f32],
        scale: f32,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            inv_freq: DeviceBuffer::from_slice(device, inv_freq, "rotary frequencies")?,
            scale,
        })
    }
}

/// The kernels that finish and append heads.
#[derive(Debug)]
pub(in crate::cuda) struct HeadOps {
    table: Kernel<RopeTableParams>,
    /// For 64 and for 128 channels a head ([`HeadSpec::is_tuned`]).
    tuned: [Kernel<RopeAppendParams>; 2],
    any: Kernel<AnyRopeAppendParams>,
    parts: Kernel<PartsAppendParams>,
    /// What norms add to the mean of squares.
    eps: f32,
    /// Whether their weights count from 1.
    norm_from_one: bool,
    /// Whether queries and keys are multiplied by a Hadamard matrix behind RoPE, and whether values
    /// are.
    rotation: Rotation,
}

/// Heads of a row that a CTA finishes, a warp each.
const CTA_HEADS: usize = 8;

impl HeadOps {
    pub(in crate::cuda) fn new(
        device: &Arc<Device>,
        (eps, norm_from_one): (f32, bool),
        rotation: Rotation,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            table: device.kernel("rope_table", 0)?,
            tuned: [
                device.kernel("rope_append_d64", 0)?,
                device.kernel("rope_append_d128", 0)?,
            ],
            any: device.kernel("rope_append_any", 0)?,
            parts: device.kernel("rope_append_parts", 0)?,
            eps,
            norm_from_one,
            rotation,
        })
    }

    // SAFETY of every launch below: the buffers are those of the backend, sized for the step's
    // capacity of rows; the step was checked against vocabulary and pool before it was loaded; work
    // of one stream runs in order.

    /// Cosines and sines of every row's position, `table[rows][rotary_dim / 2]` pairs.
    pub(in crate::cuda) fn rope_table(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        rotary: &Rotary,
        table: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        let half = rotary.inv_freq.len();
        assert!(rows * half * 2 <= table.len());
        let params = RopeTableParams {
            positions: step.positions(),
            inv_freq: rotary.inv_freq.ptr(),
            table: table.ptr(),
            half: half as u32,
            scale: rotary.scale,
        };
        // SAFETY: see above.
        unsafe { self.table.launch(stream, (rows as u32, 1), 128, &params) }
    }

    /// The heads of `qkv`, `[rows][(q_heads + 2 * kv_heads) * head_dim]`, for whoever finishes
    /// them: bias, norm, RoPE by `table`, factors, Hadamard rotation.
    pub(in crate::cuda) fn params(
        &self,
        rows: usize,
        spec: &HeadSpec,
        weights: RopeWeights,
        table: &DeviceBuffer<f32>,
        qkv: &DeviceBuffer<bf16>,
    ) -> HeadParams {
        assert!(rows * spec.heads() * spec.head_dim <= qkv.len());
        assert!(rows * spec.rotary_dim <= table.len());
        HeadParams {
            qkv: qkv.ptr(),
            bias: weights.bias,
            q_norm: weights.q_norm,
            k_norm: weights.k_norm,
            table: table.ptr(),
            factors: weights.key_factors,
            eps: self.eps,
            rotate_k: u8::from(self.rotation.k),
            rotate_v: u8::from(self.rotation.v),
            norm_from_one: u16::from(self.norm_from_one),
        }
    }

    /// Finishes heads: Q to `q`, K and V, if there are any, to the pages of their parts.
    pub(in crate::cuda) fn append_parts(
        &self,
        stream: &Stream,
        rows: usize,
        (step, arena): (&StepBuffers, &mut DeviceArena),
        parts: &HeadParts,
        (spec, heads): (&HeadSpec, HeadParams),
        q: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * spec.q_heads * spec.head_dim <= q.len());
        let kv_heads = if parts.has_kv { spec.kv_heads } else { 0 };
        let geometry = arena.geometry();
        let params = PartsAppendParams {
            append: RopeAppendParams {
                pages: step.page_table(arena),
                heads,
                positions: step.positions(),
                first_blocks: step.first_blocks(),
                row_count: step.row_count(),
                q: q.ptr(),
                layer: geometry.layer_place(parts.place.first_layer) as u32,
                q_heads: spec.q_heads as u32,
                kv_heads: kv_heads as u32,
                reserved: 0,
            },
            head_dim: spec.head_dim as u32,
            rotary_half: spec.rotary_dim as u32 / 2,
            records: geometry.kv_heads as u32,
            parts: parts.place.parts() as u32,
            norm_values: u32::from(parts.norms_values),
            reserved: 0,
        };
        let heads = spec.q_heads + 2 * kv_heads;
        let grid = (rows as u32, heads.div_ceil(CTA_HEADS) as u32);
        // SAFETY: see above.
        unsafe {
            self.parts
                .launch(stream, grid, CTA_HEADS as u32 * 32, &params)
        }
    }

    /// Finishes heads: Q to `q`, K and V to the pages of `layer`.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::cuda) fn append(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        arena: &mut DeviceArena,
        layer: usize,
        (spec, heads): (&HeadSpec, HeadParams),
        q: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * spec.q_heads * spec.head_dim <= q.len());
        let append = RopeAppendParams {
            pages: step.page_table(arena),
            heads,
            positions: step.positions(),
            first_blocks: step.first_blocks(),
            row_count: step.row_count(),
            q: q.ptr(),
            layer: arena.geometry().layer_place(layer) as u32,
            q_heads: spec.q_heads as u32,
            kv_heads: spec.kv_heads as u32,
            reserved: 0,
        };
        let grid = (rows as u32, spec.heads().div_ceil(CTA_HEADS) as u32);
        let threads = CTA_HEADS as u32 * 32;
        // SAFETY: see above.
        unsafe {
            if spec.is_tuned() {
                let tuned = &self.tuned[usize::from(spec.head_dim == 128)];
                return tuned.launch(stream, grid, threads, &append);
            }
            let params = AnyRopeAppendParams {
                append,
                head_dim: spec.head_dim as u32,
                rotary_half: spec.rotary_dim as u32 / 2,
                whole_norms: u32::from(spec.norm == QkNorm::Whole),
                norms_behind_rope: u32::from(spec.norm == QkNorm::PerHeadBehindRope),
                growth_beta: spec.growth.map_or(0.0, |growth| growth.beta),
                growth_interval: spec.growth.map_or(0, |growth| growth.interval),
                growth_offset: spec.growth.map_or(0, |growth| growth.from_one.into()),
                reserved: 0,
            };
            self.any.launch(stream, grid, threads, &params)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head_dim: usize) -> HeadSpec {
        let geometry = KvGeometry {
            layers: 1,
            kv_heads: 2,
            head_dim,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        HeadSpec::plain(geometry, 8)
    }

    #[test]
    fn multiples_of_16_up_to_256_have_kernels_and_64_and_128_their_own() {
        for head_dim in 0..=512 {
            let is = head_dim % 16 == 0 && (16..=256).contains(&head_dim);
            assert_eq!(of(head_dim).check(HEAD_DIM_MAX).is_ok(), is, "{head_dim}");
            assert_eq!(of(head_dim).is_tuned(), matches!(head_dim, 64 | 128));
        }
        let rotary = |rotary_dim| HeadSpec {
            rotary_dim,
            ..of(128)
        };
        let is_sound = |dim: &usize| rotary(*dim).check(HEAD_DIM_MAX).is_ok();
        assert!([0, 96].iter().all(is_sound));
        assert!(![97, 130].iter().any(is_sound));
        assert!(!rotary(0).is_tuned() && !rotary(96).is_tuned());
        for norm in [QkNorm::Whole, QkNorm::PerHeadBehindRope] {
            let normed = HeadSpec { norm, ..of(128) };
            assert!(normed.check(HEAD_DIM_MAX).is_ok() && !normed.is_tuned());
        }
        let growth = QueryGrowth {
            beta: 0.1,
            interval: 16,
            from_one: false,
        };
        let growing = HeadSpec {
            growth: Some(growth),
            ..of(128)
        };
        assert!(!growing.is_tuned());
    }

    #[test]
    fn scores_are_scaled_as_told() {
        use std::f32::consts::LOG2_E;
        assert_eq!(of(64).scale_log2(), LOG2_E / 8.0);
        let scaled = HeadSpec {
            scale: Some(0.25),
            ..of(96)
        };
        assert_eq!(scaled.scale_log2(), LOG2_E / 4.0);
        let of_zero = HeadSpec {
            scale: Some(0.0),
            ..scaled
        };
        assert!(scaled.check(HEAD_DIM_MAX).is_ok() && of_zero.check(HEAD_DIM_MAX).is_err());
    }
}
