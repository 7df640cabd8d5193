//! Which kernel multiplies a step's tiles, and how it is launched.

use std::sync::Arc;

use super::ExpertsParams;
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::packed::{DeviceFormat, SLICE_OUTPUTS};

/// Rows of a tile, for each kernel of products: the last, `experts/many.cuh`, is for many rows an
/// expert, the others, `experts/product.cuh`, for few.
pub(super) const TILE_ROWS: [usize; 4] = [8, 32, 64, 128];

/// Which of [`TILE_ROWS`] is for many.
const MANY: usize = TILE_ROWS.len() - 1;

/// Choices of all rows from which on a step takes the kernel for many, with weights of a format.
/// That for few reads rows again for every 16 outputs; the other reads both for 256 outputs at a
/// time, but holds a multiprocessor for each, and packed weights wait there to be unpacked. On an
/// H100 the two are as fast where experts have half a row on average in bf16, 1 to 3 rows of 8-bit
/// codes, and 8 of 4-bit ones (`ebb-bench experts`).
pub(super) fn many_from(format: Option<DeviceFormat>, experts: usize) -> usize {
    match format.map(DeviceFormat::bits) {
        None => experts.div_ceil(2),
        Some(8) => 3 * experts,
        Some(_) => 8 * experts,
    }
}

/// Warps of a CTA of the kernels for few, each of which takes slices of its own: `kExpertsWarps` of
/// experts/product.cuh.
const FEW_WARPS: usize = 8;

/// Outputs and inputs of a stage of the kernel for many, its threads, and the most stages of its
/// ring: `experts/many_weights.cuh`.
const MANY_OUTPUTS: usize = 256;
const MANY_INPUTS: usize = 64;
const MANY_THREADS: u32 = 256;
const STAGES: std::ops::RangeInclusive<usize> = 2..=4;

/// Which of [`TILE_ROWS`] a step takes, by the rows that an expert has on average; that for many
/// from `many` choices on.
pub(super) fn tile_of(choices: usize, experts: usize, many: usize) -> usize {
    match choices.div_ceil(experts) {
        _ if choices >= many => MANY,
        0..=4 => 0,
        5..=24 => 1,
        _ => 2,
    }
}

/// Products of weights of a format.
#[derive(Debug)]
pub(super) struct ProductKernels {
    /// Those of [`TILE_ROWS`].
    kernels: [Kernel<ExpertsParams>; TILE_ROWS.len()],
    /// Of the ring of the kernel for many: as many as the device's shared memory holds.
    stages: usize,
}

impl ProductKernels {
    /// Of packed weights, or of bf16 if there is no `format`.
    pub(super) fn new(
        device: &Arc<Device>,
        format: Option<DeviceFormat>,
    ) -> Result<Self, CudaError> {
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
        let few = |index: usize| device.kernel(names[index], 0);
        Ok(Self {
            kernels: [
                few(0)?,
                few(1)?,
                few(2)?,
                device.kernel(names[MANY], stages * stage)?,
            ],
            stages,
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
            _ => (
                tiles * outputs.div_ceil(SLICE_OUTPUTS),
                2 * multiprocessors,
                32 * FEW_WARPS as u32,
            ),
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
                    concat!("experts_", $format, "_32"),
                    concat!("experts_", $format, "_64"),
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
