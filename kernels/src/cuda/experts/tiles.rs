//! Which kernel multiplies a step's tiles, and how it is launched.

use std::sync::Arc;

use super::ExpertsParams;
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::packed::{DeviceFormat, SLICE_OUTPUTS};

/// Rows of a tile: the first two are for few rows an expert, by one kernel, `experts/product.cuh`,
/// the others, by kernels of `experts/many.cuh`, for more and for many.
pub(in crate::cuda) const TILE_ROWS: [usize; 4] = [8, 16, 32, 128];

/// How many of [`TILE_ROWS`] are for few.
const FEW: usize = 2;

/// Which of [`TILE_ROWS`] a step takes for so many choices of its rows, with weights of a format:
/// by the rows that an expert has on average. Tiles of 8 and 16 read memory at its speed, but
/// unpack and multiply weights again for every 8 or 16 rows of an expert, where those of 16 divide
/// worse among warps; tiles of 32 and 128 do so less often, but pass everything through shared
/// memory and wait at barriers. On an H100 one is as fast as the next from here on (`ebb-bench
/// experts`; few rows in whole steps, `ebb-bench step`, where products begin while the kernel
/// before them ends).
pub(super) fn tile_of(choices: usize, experts: usize, format: Option<DeviceFormat>) -> usize {
    let from = match format {
        // Tiles of 8 gain nothing, and 16 do less where many rows go to few experts.
        None => [0, 4, 28],
        Some(format) if format.bits() == 4 => [4, 15, 40],
        Some(_) => [4, 10, 72],
    };
    from.iter().filter(|rows| choices > *rows * experts).count()
}

/// Warps of a CTA of the kernel for few, each of which takes slices of its own: `kExpertsWarps` of
/// experts/product.cuh.
const FEW_WARPS: usize = 8;

/// Bytes of a warp's ring: `kExpertsRing` of experts/product.cuh.
const FEW_RING: usize = 8 << 10;

/// Outputs and inputs of a stage of the kernels for many, their threads, the most stages of their
/// rings, and CTAs that a multiprocessor has registers for, with tiles of [`TILE_ROWS`]:
/// `experts/many_weights.cuh` and `experts/many.cuh`.
const MANY_OUTPUTS: usize = 256;
const MANY_INPUTS: usize = 64;
const MANY_THREADS: u32 = 256;
const STAGES: std::ops::RangeInclusive<usize> = 2..=4;
const MANY_CTAS: [usize; TILE_ROWS.len()] = [0, 0, 2, 1];

/// Bytes of shared memory that every CTA takes beside its own.
const OF_A_CTA: usize = 1 << 10;

/// Products of weights of a format.
#[derive(Debug)]
pub(super) struct ProductKernels {
    /// Those of [`TILE_ROWS`].
    kernels: [Kernel<ExpertsParams>; TILE_ROWS.len()],
    /// Of the rings of those for many: as many as shared memory holds.
    stages: [usize; TILE_ROWS.len()],
    /// CTAs of each that a multiprocessor holds.
    ctas: [usize; TILE_ROWS.len()],
    is_plain: bool,
}

impl ProductKernels {
    /// Of packed weights, or of bf16 if there is no `format`.
    pub(super) fn new(
        device: &Arc<Device>,
        format: Option<DeviceFormat>,
    ) -> Result<Self, CudaError> {
        debug_assert!(format.is_none_or(|format| format == format.of_experts()));
        let shared = device.shared_bytes_max();
        let few = FEW_WARPS * FEW_RING;
        // Those of 100 KiB of shared memory have room for one.
        let few_ctas = (shared / few).clamp(1, 2);
        let [mut stages, mut ctas] = [[0; TILE_ROWS.len()], [few_ctas; TILE_ROWS.len()]];
        let mut bytes = [few; TILE_ROWS.len()];
        for tile in FEW..TILE_ROWS.len() {
            let stage = stage_bytes(format, tile);
            let least = STAGES.start() * stage;
            let fit = (shared + OF_A_CTA) / (least + OF_A_CTA);
            ctas[tile] = fit.min(MANY_CTAS[tile]);
            if ctas[tile] == 0 {
                return Err(CudaError::Unsupported(format!(
                    "layers of experts on a device with {shared} bytes of shared memory a CTA, of \
                     which {least} are needed"
                )));
            }
            let each = (shared + OF_A_CTA) / ctas[tile] - OF_A_CTA;
            stages[tile] = (each / stage).min(*STAGES.end());
            bytes[tile] = stages[tile] * stage;
        }
        let names = product_names(format);
        let kernel = |tile: usize| device.kernel(names[tile], bytes[tile]);
        Ok(Self {
            kernels: [kernel(0)?, kernel(1)?, kernel(2)?, kernel(3)?],
            stages,
            ctas,
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
        let (each, threads) = match tile {
            ..FEW => (SLICE_OUTPUTS, 32 * FEW_WARPS as u32),
            _ => (MANY_OUTPUTS, MANY_THREADS),
        };
        let units = tiles * outputs.div_ceil(each);
        // Of bf16 half of a multiprocessor's warps are enough for memory, and the second product's
        // rings can fill beside those of the first.
        let is_little = tile < FEW && self.is_plain && units <= multiprocessors * FEW_WARPS;
        let ctas = if is_little { 1 } else { self.ctas[tile] };
        let most = ctas * multiprocessors;
        let params = ExpertsParams {
            stages: self.stages[tile] as u32,
            ..params
        };
        let grid = (units.min(most) as u32, 1);
        // SAFETY: as this function's.
        unsafe { self.kernels[tile].launch(stream, grid, threads, &params) }
    }
}

/// Bytes of a stage of a kernel for many: weights, and bf16 rows of a tile.
fn stage_bytes(format: Option<DeviceFormat>, tile: usize) -> usize {
    let row = 2 * MANY_INPUTS;
    let weights = match format {
        None => MANY_OUTPUTS * row,
        Some(format) => MANY_OUTPUTS / SLICE_OUTPUTS * format.half_slice_bytes(),
    };
    weights + TILE_ROWS[tile] * row
}

/// What the kernels of a format are called.
fn product_names(format: Option<DeviceFormat>) -> [&'static str; TILE_ROWS.len()] {
    macro_rules! names {
        ($($format:literal),*) => {
            match format.map_or("plain", DeviceFormat::name) {
                $($format => [
                    concat!("experts_", $format, "_16"),
                    concat!("experts_", $format, "_16"),
                    concat!("experts_", $format, "_32"),
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
