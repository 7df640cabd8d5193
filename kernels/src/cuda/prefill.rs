//! Chunked-prefill attention: its kernels, and the launch of the one that suits the device.

use std::sync::Arc;

use half::bf16;

use super::arena::DeviceArena;
use super::attention::{ScoreParams, Scored, ScoredLayer, tile_row_bytes};
use super::driver::{Device, DeviceBuffer, Kernel, Stream, TensorMap};
use super::error::CudaError;
use super::ops::{HEAD_DIM_MAX, HeadSpec};
use super::params::{DevicePtr, KernelParams, TensorDim};
use super::step::{PageTable, StepBuffers};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct MmaParams {
    pages: PageTable,
    q: DevicePtr,
    out: DevicePtr,
    tiles: DevicePtr,
    layer: u32,
    q_heads: u32,
    kv_heads: u32,
    q_stride: u32,
    scale_log2: f32,
    reserved: u32,
    scores: ScoreParams,
}
// SAFETY: field for field `ebb::PrefillParams` of attention/prefill.cuh.
unsafe impl KernelParams for MmaParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct WgmmaParams {
    queries: TensorMap,
    keys: TensorMap,
    values: TensorMap,
    pages: PageTable,
    out: DevicePtr,
    tiles: DevicePtr,
    work: DevicePtr,
    tile_count: u32,
    layer: u32,
    q_heads: u32,
    kv_heads: u32,
    scale_log2: f32,
    reserved: u32,
    scores: ScoreParams,
    reserved2: [u32; 4],
}
// SAFETY: field for field `ebb::PrefillWgmmaParams` of attention/prefill_wgmma.cuh.
unsafe impl KernelParams for WgmmaParams {}

/// Which instructions a prefill kernel multiplies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// `mma.sync`, on every device.
    Mma,
    /// `wgmma`, on compute capability 9.x, with a ring of that many stages of 128 keys.
    Wgmma { stages: usize },
}

/// A compiled shape of a prefill kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillVariant {
    /// Name of the kernel.
    pub name: &'static str,
    /// Channels per head.
    pub head_dim: usize,
    means: Means,
    /// Name of the same kernel for scores of any kind, if there is one.
    any: Option<&'static str>,
}

/// Every compiled prefill kernel, the preferred ones first.
pub const PREFILL_VARIANTS: &[PrefillVariant] = &[
    wgmma("prefill_wgmma_d128_s2", 128, 2).with("prefill_wgmma_d128_s2_any"),
    wgmma("prefill_wgmma_d128_s3", 128, 3),
    wgmma("prefill_wgmma_d64_s2", 64, 2).with("prefill_wgmma_d64_s2_any"),
    wgmma("prefill_wgmma_d64_s4", 64, 4),
    mma("prefill_d128", 128).with("prefill_d128_any"),
    mma("prefill_d64", 64).with("prefill_d64_any"),
    mma("prefill_d16", 16).with("prefill_d16_any"),
    mma("prefill_d32", 32).with("prefill_d32_any"),
    mma("prefill_d48", 48).with("prefill_d48_any"),
    mma("prefill_d80", 80).with("prefill_d80_any"),
    mma("prefill_d96", 96).with("prefill_d96_any"),
    mma("prefill_d112", 112).with("prefill_d112_any"),
    mma("prefill_d144", 144).with("prefill_d144_any"),
    mma("prefill_d160", 160).with("prefill_d160_any"),
    mma("prefill_d176", 176).with("prefill_d176_any"),
    mma("prefill_d192", 192).with("prefill_d192_any"),
    mma("prefill_d208", 208).with("prefill_d208_any"),
    mma("prefill_d224", 224).with("prefill_d224_any"),
    mma("prefill_d240", 240).with("prefill_d240_any"),
    mma("prefill_d256", 256).with("prefill_d256_any"),
];

const fn wgmma(name: &'static str, head_dim: usize, stages: usize) -> PrefillVariant {
    let means = Means::Wgmma { stages };
    PrefillVariant {
        name,
        head_dim,
        means,
        any: None,
    }
}

const fn mma(name: &'static str, head_dim: usize) -> PrefillVariant {
    let means = Means::Mma;
    PrefillVariant {
        name,
        head_dim,
        means,
        any: None,
    }
}

impl PrefillVariant {
    /// The same, of which there is a kernel for scores of any kind.
    const fn with(self, any: &'static str) -> Self {
        Self {
            any: Some(any),
            ..self
        }
    }

    /// Whether there is a kernel for scores of any kind.
    pub fn takes_any_scores(&self) -> bool {
        self.any.is_some()
    }

    /// (token, head) rows of a tile; `kRows` of the kernel.
    pub(super) fn tile_rows(&self) -> usize {
        match self.means {
            Means::Mma => super::plan::PREFILL_TILE_ROWS_MIN,
            Means::Wgmma { .. } => 128,
        }
    }

    /// Threads of a CTA; `kThreads` of the kernel.
    fn threads(&self) -> u32 {
        match self.means {
            Means::Mma => 128,
            Means::Wgmma { .. } => 384,
        }
    }

    /// Bytes of shared memory; `kSharedBytes` of the kernel.
    fn shared_bytes(&self) -> usize {
        match self.means {
            Means::Mma => {
                let keys = if self.head_dim <= 160 { 64 } else { 32 }; // `kKeys`
                2 * 2 * keys * tile_row_bytes(self.head_dim)
            }
            Means::Wgmma { stages } => (2 * stages * 128 + 128) * 2 * self.head_dim + 256,
        }
    }

    /// Whether it is made for this shape and runs on this device.
    pub fn fits(&self, device: &Device, head_dim: usize) -> bool {
        let runs = match self.means {
            Means::Mma => true,
            Means::Wgmma { .. } => device.capability().major == 9,
        };
        runs && self.head_dim == head_dim && self.shared_bytes() <= device.shared_bytes_max()
    }
}

/// A loaded prefill kernel.
#[derive(Debug)]
enum Loaded {
    Mma {
        kernel: Kernel<MmaParams>,
    },
    Wgmma {
        kernel: Kernel<WgmmaParams>,
        work: DeviceBuffer<u32>,
        multiprocessors: usize,
    },
}

impl Loaded {
    fn new(
        device: &Arc<Device>,
        variant: PrefillVariant,
        name: &'static str,
    ) -> Result<Self, CudaError> {
        let shared_bytes = variant.shared_bytes();
        Ok(match variant.means {
            Means::Mma => Self::Mma {
                kernel: device.kernel(name, shared_bytes)?,
            },
            Means::Wgmma { .. } => Self::Wgmma {
                kernel: device.kernel(name, shared_bytes)?,
                work: DeviceBuffer::filled(device, 2, 0, "the prefill work counter")?,
                multiprocessors: device.multiprocessors(),
            },
        })
    }
}

/// Prefill attention of one model shape.
#[derive(Debug)]
pub(super) struct Prefill {
    variant: PrefillVariant,
    loaded: Scored<Loaded>,
    heads: HeadSpec,
}

impl Prefill {
    /// Loads `variant`, the first that fits if `None`; also for scores of `any` kind, if asked for.
    pub(super) fn new(
        device: &Arc<Device>,
        heads: HeadSpec,
        variant: Option<PrefillVariant>,
        any: bool,
    ) -> Result<Self, CudaError> {
        let head_dim = heads.head_dim;
        let fits = |v: &PrefillVariant| v.fits(device, head_dim);
        let variant = variant
            .or_else(|| PREFILL_VARIANTS.iter().copied().find(fits))
            .filter(fits)
            .ok_or_else(|| {
                CudaError::Unsupported(format!(
                    "{} has too little shared memory per CTA",
                    device.name()
                ))
            })?;
        heads.check(HEAD_DIM_MAX)?;
        let loaded = Scored::load(any, |is_plain| {
            let none = || CudaError::Unsupported(format!("{} for any scores", variant.name));
            let name = match is_plain {
                true => variant.name,
                false => variant.any.ok_or_else(none)?,
            };
            Loaded::new(device, variant, name)
        })?;
        Ok(Self {
            loaded,
            variant,
            heads,
        })
    }

    pub(super) fn variant(&self) -> PrefillVariant {
        self.variant
    }

    /// Enqueues the attention of all tiles of one turn of the loaded step, which was planned for
    /// this kernel's tiles.
    pub(super) fn run(
        &mut self,
        stream: &Stream,
        step: &StepBuffers,
        arena: &DeviceArena,
        (layer, turn): (&ScoredLayer, usize),
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert_eq!(step.plan.tile_rows, self.variant.tile_rows());
        let HeadSpec {
            q_heads,
            kv_heads,
            head_dim,
            ..
        } = self.heads;
        let tiles = step.plan.turns[turn].len();
        if tiles == 0 {
            return Ok(());
        }
        let threads = self.variant.threads();
        match self.loaded.of(layer.scores.is_plain()) {
            Loaded::Mma { kernel } => {
                let params = MmaParams {
                    pages: step.page_table(arena),
                    q: q.ptr(),
                    out: out.ptr(),
                    tiles: step.tiles(turn),
                    layer: arena.geometry().layer_place(layer.index) as u32,
                    q_heads: q_heads as u32,
                    kv_heads: kv_heads as u32,
                    q_stride: (q_heads * head_dim) as u32,
                    scale_log2: self.heads.scale_log2(),
                    reserved: 0,
                    scores: layer.params(),
                };
                let grid = (kv_heads as u32, tiles as u32);
                // SAFETY: the step was checked against the pool before it was loaded, so every
                // block, frame and row is in range of the arena, q and out. Work of one stream runs
                // in order.
                unsafe { kernel.launch(stream, grid, threads, &params) }
            }
            Loaded::Wgmma {
                kernel,
                work,
                multiprocessors,
            } => {
                let maps = arena.maps().ok_or_else(|| {
                    CudaError::Unsupported("the KV cache has no tensor maps".into())
                })?;
                let params = WgmmaParams {
                    queries: self.query_map(q)?,
                    keys: maps.half,
                    values: maps.whole,
                    pages: step.page_table(arena),
                    out: out.ptr(),
                    tiles: step.tiles(turn),
                    work: work.ptr(),
                    tile_count: tiles as u32,
                    layer: arena.geometry().layer_place(layer.index) as u32,
                    q_heads: q_heads as u32,
                    kv_heads: kv_heads as u32,
                    scale_log2: self.heads.scale_log2(),
                    reserved: 0,
                    scores: layer.params(),
                    reserved2: [0; 4],
                };
                let grid = (tiles * kv_heads).min(*multiprocessors) as u32;
                // SAFETY: as above; the maps describe the arena and q, and the counters are zero
                // between launches.
                unsafe { kernel.launch(stream, (grid, 1), threads, &params) }
            }
        }
    }

    /// Queries, `[rows][q_heads][head_dim]`, as the copy engine sees them: a copy at (0, head, row,
    /// half) brings one half of the channels of a tile's heads and rows.
    fn query_map(&self, q: &DeviceBuffer<bf16>) -> Result<TensorMap, CudaError> {
        let HeadSpec {
            q_heads,
            kv_heads,
            head_dim,
            ..
        } = self.heads;
        let head_bytes = 2 * head_dim;
        let row_bytes = q_heads * head_bytes;
        let group = q_heads / kv_heads;
        let dim = |len: usize, stride: usize, tile: usize| TensorDim {
            len: len as u64,
            stride_bytes: stride as u64,
            tile: tile as u32,
        };
        TensorMap::new(
            q.ptr(),
            &[
                dim(64, 2, 64),
                dim(q_heads, head_bytes, group),
                dim(
                    q.bytes() / row_bytes,
                    row_bytes,
                    self.variant.tile_rows() / group,
                ),
                dim(head_dim / 64, 128, 1),
            ],
        )
    }
}
