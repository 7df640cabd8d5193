//! Which kernel multiplies a step's tiles, and how it is launched.

use std::sync::Arc;

use super::ExpertsParams;
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::packed::{DeviceFormat, SLICE_OUTPUTS};

/// Rows of a tile, for each kernel of products: the first, `experts/product.cuh`, is for few rows
/// an expert, the other, `experts/many.cuh`, for many.
pub(super) const TILE_ROWS: [usize; 2] = [8, 128];

/// Which of [`TILE_ROWS`] is for few, and which for many.
const FEW: usize = 0;
const MANY: usize = 1;

/// Choices of all rows from which on a step takes the kernel for many, with weights of a format.
/// That for few reads memory at its speed, but multiplies by weights again for every eight rows of
/// an expert; the other does so for 128 rows at a time, but holds a multiprocessor for 256 outputs,
/// and packed weights wait there to be unpacked. On an H100 the two are as fast where experts have
/// 4 rows on average in bf16 (in whole steps, `ebb-bench step`; alone and with a cold L2 somewhat
/// less), 9 of E4M3 in rows, and 15 of chunks (`ebb-bench experts`).
pub(super) fn many_from(format: Option<DeviceFormat>, experts: usize) -> usize {
    match format {
        None => 4 * experts + 1,
        Some(format) if format.is_fp8_rows() => 9 * experts,
        Some(_) => 15 * experts,
    }
}

/// Warps of a CTA of the kernel for few, each of which takes slices of its own: `kExpertsWarps` of
/// experts/product.cuh.
const FEW_WARPS: usize = 8;

/// Bytes of a warp's ring: `kExpertsRing` of experts/product.cuh.
const FEW_RING: usize = 8 << 10;

/// Outputs and inputs of a stage of the kernel for many, its threads, and the most stages of its
/// ring: `experts/many_weights.cuh`.
const MANY_OUTPUTS: usize = 256;
const MANY_INPUTS: usize = 64;
const MANY_THREADS: u32 = 256;
const STAGES: std::ops::RangeInclusive<usize> = 2..=4;

/// Which of [`TILE_ROWS`] a step takes: that for many from `many` choices on.
pub(super) fn tile_of(choices: usize, many: usize) -> usize {
    if choices >= many { MANY } else { FEW }
}

/// Products of weights of a format.
#[derive(Debug)]
pub(super) struct ProductKernels {
    /// Those of [`TILE_ROWS`].
    kernels: [Kernel<ExpertsParams>; TILE_ROWS.len()],
    /// Of the ring of the kernel for many: as many as the device's shared memory holds.
    stages: usize,
    /// CTAs of the kernel for few that a multiprocessor holds: those of 100 KiB of shared memory
    /// have room for one.
    few_ctas: usize,
    is_plain: bool,
}

impl ProductKernels {
    /// Of packed weights, or of bf16 if there is no `format`.
    pub(super) fn new(
        device: &Arc<Device>,
        format: Option<DeviceFormat>,
    ) -> Result<Self, CudaError> {
        debug_assert!(format.is_none_or(|format| format == format.of_experts()));
        let names = product_names(format);
        let stage = stage_bytes(format);
        let stages = (device.shared_bytes_max() / stage).min(*STAGES.end());
        if !STAGES.contains(&stages) {
            return Err(CudaError::Unsupported(format!(
                "layers of experts on a device with {} bytes of shared memory a CTA, of which {} \
                 are needed",
                device.shared_bytes_max(),
                STAGES.start() * stage
            )));
        }
        Ok(Self {
            kernels: [
                device.kernel(names[FEW], FEW_WARPS * FEW_RING)?,
                device.kernel(names[MANY], stages * stage)?,
            ],
            stages,
            few_ctas: (device.shared_bytes_max() / (FEW_WARPS * FEW_RING)).clamp(1, 2),
            is_plain: format.is_none(),
        })
    }

    /// Enqueues the products of at most `tiles` tiles of [`TILE_ROWS`]`[tile]` rows. The grid has
    /// as many CTAs as there can be work for, and no more than run at once.
    ///
    /// # Safety
    /// The buffers of `params` have the sizes that it tells and live until the stream has run this,
    /// and tiles are cut for that many rows.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        tile: usize,
        tiles: usize,
        multiprocessors: usize,
        params: ExpertsParams,
    ) -> Result<(), CudaError> {
        let outputs = params.outputs as usize;
        let (units, most, threads) = match tile {
            MANY => (
                tiles * outputs.div_ceil(MANY_OUTPUTS),
                multiprocessors,
                MANY_THREADS,
            ),
            _ => {
                let units = tiles * outputs.div_ceil(SLICE_OUTPUTS);
                // Of bf16 half of a multiprocessor's warps are enough for memory, and the second
                // product's rings can fill beside those of the first.
                let is_little = self.is_plain && units <= multiprocessors * FEW_WARPS;
                let ctas = if is_little { 1 } else { self.few_ctas };
                (units, ctas * multiprocessors, 32 * FEW_WARPS as u32)
            }
        };
        let params = ExpertsParams {
            stages: self.stages as u32,
            ..params
        };
        let grid = (units.min(most) as u32, 1);
        // SAFETY: as this function's.
        unsafe { self.kernels[tile].launch(stream, grid, threads, &params) }
    }
}

/// Bytes of a stage of the kernel for many: weights, and bf16 rows of a tile.
fn stage_bytes(format: Option<DeviceFormat>) -> usize {
    let row = 2 * MANY_INPUTS;
    let weights = match format {
        None => MANY_OUTPUTS * row,
        Some(format) => MANY_OUTPUTS / SLICE_OUTPUTS * format.half_slice_bytes(),
    };
    weights + TILE_ROWS[MANY] * row
}

/// What the kernels of a format are called.
fn product_names(format: Option<DeviceFormat>) -> [&'static str; TILE_ROWS.len()] {
    macro_rules! names {
        ($($format:literal),*) => {
            match format.map_or("plain", DeviceFormat::name) {
                $($format => [
                    concat!("experts_", $format, "_8"),
                    concat!("experts_", $format, "_128"),
                ],)*
                other => unreachable!("no weights are of {other}"),
            }
        };
    }
    names!(
        "plain", "int4_1", "int4_2", "int4_4", "int4_8", "fp4_4", "fp4_8", "int8_0", "int8_1",
        "int8_4", "int8_8", "fp8_0", "fp8_1"
    )
}
