//! The kernel for few rows of devices of compute capability 9.x: `cuda/product/stream.cuh`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cuda::driver::{Device, DeviceBuffer, Kernel, Stream, TensorMap};
use crate::cuda::error::CudaError;
use crate::cuda::ops::activation_code;
use crate::cuda::packed::{CHUNK_INPUTS, PackedPart, row_bytes};
use crate::cuda::params::{DevicePtr, GemmShape, KernelParams, TensorDim};
use crate::model::Activation;

/// Rows that it takes, of plain weights.
pub(super) const ROWS_MAX: usize = 64;
/// Rows that it takes, of packed weights.
pub(super) const PACKED_ROWS_MAX: usize = 128;
/// Rows of products that take part in norms.
const NORM_ROWS_MAX: usize = 64;
/// Inputs of a unit of plain weights; `kStreamInputs` of the kernel.
const UNIT_INPUTS: usize = 64;
/// Bytes of an empty partial sum; `kEmpty` of the kernel.
const EMPTY: u8 = 0xff;
/// Fewer units are not worth a CTA: their partial sums take longer than they do.
const UNITS_MIN: usize = 4;
/// Outputs of a slice, which a warp sums up.
const SLICE_OUTPUTS: usize = 16;
/// Most CTAs that share a tile and wait for each other.
const PARTS_MAX: usize = 8;

/// A compiled kernel, by the rows that it takes: the n side of its matrix instruction.
#[derive(Debug, Clone, Copy)]
struct Size {
    rows: usize,
    /// Warps that have a slice of a tile each, and so the most slices of a tile; `kConsumerWarps`.
    warps: usize,
    /// CTAs of a multiprocessor; `kCtas`.
    ctas: usize,
    /// `kSharedBytes` of the kernel.
    shared_bytes: usize,
    /// Slices that a tile may have, the most first. Where rows are few, partial sums are short, and
    /// runs of equal length are better by 1 % than parts of smaller tiles; where they are many,
    /// CTAs that all have one part are better by as much. (Fewer slices have x read too often.)
    slices: &'static [usize],
    /// The part of the longest run that may be added to it so that each run is a part of one tile:
    /// partial sums are the longer the more rows there are.
    parts_cost: f64,
}

impl Size {
    const fn new(rows: usize, slices: &'static [usize], parts_cost: f64) -> Self {
        Self {
            rows,
            warps: 8,
            ctas: 2,
            shared_bytes: (108 << 10) + 256 + 4 * 64 * 9,
            slices,
            parts_cost,
        }
    }

    /// `kThreads` of the kernel.
    fn threads(&self) -> u32 {
        (self.warps as u32 + 1) * 32
    }

    /// Outputs of a tile.
    fn outputs(&self) -> usize {
        self.warps * SLICE_OUTPUTS
    }

    /// Room for partial sums: those of the tile that a CTA begins in.
    fn partials(&self, multiprocessors: usize) -> usize {
        self.ctas * multiprocessors * self.outputs() * self.rows
    }
}

/// By rows; the last for packed weights only.
const SIZES: [Size; 5] = [
    Size::new(8, &[8], 0.03),
    Size::new(16, &[8], 0.03),
    Size::new(32, &[8, 7, 6, 5], 0.2),
    Size::new(64, &[8, 7, 6, 5], 0.2),
    Size {
        warps: 12,
        ctas: 1,
        shared_bytes: (216 << 10) + 256,
        ..Size::new(PACKED_ROWS_MAX, &[12], 0.2)
    },
];
/// Rows of a matrix that are neighbours in a tile of gated products.
const GATED_ROWS: usize = 8;
/// Inputs and outputs come in multiples of this: 16 bytes.
const ALIGNMENT: usize = 8;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct StreamParams {
    x: TensorMap,
    w: TensorMap,
    y: DevicePtr,
    partial: DevicePtr,
    rows: u32,
    inputs: u32,
    outputs: u32,
    wide: u32,
    gated: u32,
    parts: u32,
    slices: u32,
    stride: u32,
    residual: DevicePtr,
    weight: DevicePtr,
    squares: DevicePtr,
    norms: DevicePtr,
    eps: f32,
    reserved0: u32,
    packed: DevicePtr,
    factors: DevicePtr,
    reserved: [u32; 6],
}
// SAFETY: field for field `ebb::StreamParams` of product/stream_params.cuh.
unsafe impl KernelParams for StreamParams {}

/// What a streamed product does with its sums beside storing them.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cuda) struct Ends {
    /// Of the gates `g` and the rest `u` of the outputs, its halves, it stores `activation(g) ⊙ u`.
    pub(in crate::cuda) gated: Option<Activation>,
    /// It adds its outputs to a residual stream, and stores what comes of that, not divided yet,
    /// for a norm.
    pub(in crate::cuda) residual: Option<Residual>,
    /// Its inputs come from such a product, whose sums of squares these are (for all inputs), and
    /// are yet to be divided. The number is added to the mean of the squares.
    pub(in crate::cuda) norms: Option<(DevicePtr, f32)>,
}

impl Ends {
    /// Whether sums are stored and nothing else.
    pub(in crate::cuda) fn is_none(&self) -> bool {
        self.gated.is_none() && self.residual.is_none() && self.norms.is_none()
    }
}

/// A residual stream and the norm behind it.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Residual {
    /// `[rows][outputs]` f32.
    pub(in crate::cuda) stream: DevicePtr,
    /// The norm's weights, `[outputs]` bf16.
    pub(in crate::cuda) weight: DevicePtr,
    /// [`squares_len`] f32 for the sums of the stream's squares.
    pub(in crate::cuda) squares: DevicePtr,
}

/// Values that sums of the squares of so many outputs take: one for each slice of tiles, for each
/// of 64 rows.
pub(in crate::cuda) fn squares_len(outputs: usize) -> usize {
    outputs.next_multiple_of(SIZES[0].outputs()) / SLICE_OUTPUTS * NORM_ROWS_MAX
}

/// How a product is divided: a function of its columns, of which of [`SIZES`] its rows fit and of
/// the device alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    ctas: usize,
    /// CTAs of a tile, or 0: each has a run of as many units as the others, whatever tiles that
    /// crosses.
    parts: usize,
    /// Sixteens of outputs of a tile.
    slices: usize,
}

impl Cut {
    /// Of weights that come `unit` inputs at a time.
    fn new(
        multiprocessors: usize,
        size: &Size,
        (inputs, outputs): (usize, usize),
        unit: usize,
    ) -> Self {
        let most = size.ctas * multiprocessors;
        let steps = inputs.div_ceil(unit);
        let tiles = |slices: usize| outputs.div_ceil(SLICE_OUTPUTS * slices);
        let units = tiles(size.warps) * steps;
        let ctas = (units / UNITS_MIN).clamp(1, most);
        let runs = Self {
            ctas,
            parts: 0,
            slices: size.warps,
        };
        let parts = size.slices.iter().map(|&slices| Self {
            ctas: ctas / tiles(slices) * tiles(slices),
            parts: ctas / tiles(slices),
            slices,
        });
        // What the slowest CTA reads, in slices of a unit.
        let longest = |cut: &Self| cut.slices * steps.div_ceil(cut.parts);
        let most = (units.div_ceil(ctas) * size.warps) as f64 * (1.0 + size.parts_cost);
        let parts = parts.filter(|cut| (1..=PARTS_MAX.min(steps)).contains(&cut.parts));
        let best = parts.min_by_key(longest);
        best.filter(|cut| longest(cut) as f64 <= most)
            .unwrap_or(runs)
    }
}

/// The kernels of a weight format, one for each of [`SIZES`], or for the first few.
#[derive(Debug)]
pub(super) struct StreamKernels(Vec<Kernel<StreamParams>>);

impl StreamKernels {
    pub(super) fn load(device: &Arc<Device>, names: &[&'static str]) -> Result<Self, CudaError> {
        let load = |(name, size): (&&'static str, &Size)| device.kernel(name, size.shared_bytes);
        let kernels = names.iter().zip(&SIZES).map(load);
        Ok(Self(kernels.collect::<Result<_, _>>()?))
    }
}

/// What is multiplied by.
#[derive(Debug, Clone, Copy)]
pub(super) enum StreamedWeights<'a> {
    /// `[outputs][inputs]` bf16.
    Plain(DevicePtr),
    /// Packed ones, and the kernels of their format.
    Packed(&'a PackedPart, &'a StreamKernels),
}

/// What one product has beside its shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Io {
    /// `[rows][inputs]` bf16.
    pub(super) x: DevicePtr,
    /// The outputs.
    pub(super) y: DevicePtr,
    /// From a row of `y` to the next, in values.
    pub(super) stride: usize,
}

/// The kernels, what they share between launches, and the maps of the weights they have run on.
#[derive(Debug)]
pub(super) struct Streamed {
    plain: StreamKernels,
    multiprocessors: usize,
    partial: DeviceBuffer<f32>,
    /// By address, inputs, outputs, slices of a tile and whether they are gated: a map says no more
    /// than that.
    maps: HashMap<(DevicePtr, usize, usize, usize, bool), TensorMap>,
}

impl Streamed {
    /// Loads the kernels; none if the device cannot run them.
    pub(super) fn new(device: &Arc<Device>) -> Result<Option<Self>, CudaError> {
        let shared_bytes = SIZES.iter().map(|size| size.shared_bytes).max();
        if device.capability().major != 9 || shared_bytes > Some(device.shared_bytes_max()) {
            return Ok(None);
        }
        let multiprocessors = device.multiprocessors();
        let names = [
            "product_stream_n8",
            "product_stream_n16",
            "product_stream_n32",
            "product_stream_n64",
        ];
        Ok(Some(Self {
            plain: StreamKernels::load(device, &names)?,
            multiprocessors,
            partial: DeviceBuffer::filled(
                device,
                Self::partials(multiprocessors),
                EMPTY,
                "partial sums of matrix products",
            )?,
            maps: HashMap::new(),
        }))
    }

    /// Room for partial sums.
    fn partials(multiprocessors: usize) -> usize {
        let each = SIZES.iter().map(|size| size.partials(multiprocessors));
        each.max().unwrap_or_default()
    }

    /// Bytes that `new` allocates on the device.
    pub(super) fn bytes(device: &Device) -> usize {
        match device.capability().major {
            9 => 4 * Self::partials(device.multiprocessors()),
            _ => 0,
        }
    }

    /// Whether it can run a shape, of plain weights.
    pub(super) fn can(shape: GemmShape) -> bool {
        shape.rows <= ROWS_MAX && Self::can_packed(shape)
    }

    /// Whether it can run a shape, of packed weights.
    fn can_packed(shape: GemmShape) -> bool {
        (1..=PACKED_ROWS_MAX).contains(&shape.rows)
            && shape.inputs > 0
            && shape.outputs > 0
            && shape.inputs.is_multiple_of(ALIGNMENT)
            && shape.outputs.is_multiple_of(ALIGNMENT)
            && PACKED_ROWS_MAX * shape.outputs <= u32::MAX as usize
    }

    /// Whether it can run a shape gated.
    pub(super) fn can_gate(shape: GemmShape) -> bool {
        Self::can(shape) && Self::has_gates(shape)
    }

    fn has_gates(shape: GemmShape) -> bool {
        !shape.wide && shape.outputs.is_multiple_of(2 * GATED_ROWS)
    }

    /// Whether it can run a shape with a residual stream or behind one.
    pub(super) fn can_norm(shape: GemmShape) -> bool {
        Self::can(shape) && !shape.wide && shape.rows <= NORM_ROWS_MAX
    }

    /// Enqueues `y = x · wᵀ`, and what `ends` says.
    ///
    /// # Safety
    /// As for `Products::run`, for a shape that it can run; if gated, `y` has half as many columns.
    /// The addresses in `ends` must hold what they say, and overlap nothing else.
    pub(super) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        ends: Ends,
        weights: StreamedWeights<'_>,
        Io { x, y, stride }: Io,
    ) -> Result<(), CudaError> {
        let GemmShape {
            rows,
            inputs,
            outputs,
            wide,
        } = shape;
        let can = match weights {
            StreamedWeights::Plain(_) => Self::can(shape),
            StreamedWeights::Packed(..) => Self::can_packed(shape),
        };
        let norms = ends.residual.is_some() || ends.norms.is_some();
        let can = can
            && (ends.gated.is_none() || Self::has_gates(shape))
            && (!norms || Self::can_norm(shape));
        let index = SIZES.iter().position(|size| rows <= size.rows);
        let Some((index, size)) = index.filter(|_| can).map(|index| (index, &SIZES[index])) else {
            return Err(CudaError::Unsupported(format!(
                "a streamed product of {shape:?} with {ends:?}"
            )));
        };
        let gated = ends.gated.is_some();
        let unit = match weights {
            StreamedWeights::Plain(_) => UNIT_INPUTS,
            StreamedWeights::Packed(..) => CHUNK_INPUTS,
        };
        let cut = Cut::new(self.multiprocessors, size, (inputs, outputs), unit);
        let Cut {
            ctas,
            parts,
            slices,
        } = cut;
        let map = match weights {
            StreamedWeights::Plain(w) => self.map(w, (inputs, outputs), slices, gated)?,
            StreamedWeights::Packed(part, _) => {
                assert_eq!((part.inputs, part.outputs), (inputs, outputs));
                assert_eq!(part.gated, gated, "packed gates are streamed gated");
                match part.format.is_fp8_rows() {
                    // Two codes to the copy engine are a bf16.
                    true => {
                        let shape = (row_bytes(inputs) / 2, outputs);
                        self.map(part.codes.ptr(), shape, slices, gated)?
                    }
                    false => TensorMap::NONE,
                }
            }
        };
        let (packed, factors) = match weights {
            StreamedWeights::Plain(_) => (0, 0),
            StreamedWeights::Packed(part, _) => (part.codes.ptr(), part.factors.ptr()),
        };
        assert!(size.partials(self.multiprocessors) <= self.partial.len());
        let params = StreamParams {
            x: matrix_map(x, rows, inputs, size.rows)?,
            w: map,
            y,
            partial: self.partial.ptr(),
            rows: rows as u32,
            inputs: inputs as u32,
            outputs: outputs as u32,
            wide: u32::from(wide),
            gated: ends.gated.map_or(0, activation_code),
            parts: parts as u32,
            slices: slices as u32,
            stride: stride as u32,
            residual: ends.residual.map_or(0, |r| r.stream),
            weight: ends.residual.map_or(0, |r| r.weight),
            squares: ends.residual.map_or(0, |r| r.squares),
            norms: ends.norms.map_or(0, |n| n.0),
            eps: ends.norms.map_or(0.0, |n| n.1),
            reserved0: 0,
            packed,
            factors,
            reserved: [0; 6],
        };
        let kernels = match weights {
            StreamedWeights::Plain(_) => &self.plain,
            StreamedWeights::Packed(_, kernels) => kernels,
        };
        // SAFETY: the matrices are the caller's, and the maps describe them; every CTA has its
        // partial sums, which are empty between launches. Work of one stream runs in order.
        unsafe { kernels.0[index].launch(stream, (ctas as u32, 1), size.threads(), &params) }
    }

    /// The map of weights in rows.
    fn map(
        &mut self,
        w: DevicePtr,
        (inputs, outputs): (usize, usize),
        slices: usize,
        gated: bool,
    ) -> Result<TensorMap, CudaError> {
        let key = (w, inputs, outputs, slices, gated);
        if let Some(map) = self.maps.get(&key) {
            return Ok(*map);
        }
        let map = match gated {
            true => gated_map(w, outputs, inputs, slices)?,
            false => matrix_map(w, outputs, inputs, slices * SLICE_OUTPUTS)?,
        };
        self.maps.insert(key, map);
        Ok(map)
    }
}

/// `len` elements `stride` bytes apart, of which a copy brings `tile`.
fn dim(len: usize, stride: usize, tile: usize) -> TensorDim {
    TensorDim {
        len: len as u64,
        stride_bytes: stride as u64,
        tile: tile as u32,
    }
}

/// A matrix `[rows][columns]` as the copy engine sees it: a copy brings 64 columns of `tile` rows,
/// zeros beyond the edges.
fn matrix_map(
    address: DevicePtr,
    rows: usize,
    columns: usize,
    tile: usize,
) -> Result<TensorMap, CudaError> {
    TensorMap::new(
        address,
        &[
            dim(columns, 2, UNIT_INPUTS),
            dim(rows, 2 * columns, tile),
            dim(1, 2 * columns * rows, 1),
        ],
    )
}

/// Gates `[rows / 2][columns]` and what they open behind them: a copy brings 64 columns of the
/// gates' next eight rows, of the same eight of the other half, and so on.
fn gated_map(
    address: DevicePtr,
    rows: usize,
    columns: usize,
    slices: usize,
) -> Result<TensorMap, CudaError> {
    let (row, groups) = (2 * columns, rows / 2 / GATED_ROWS);
    TensorMap::new(
        address,
        &[
            dim(columns, 2, UNIT_INPUTS),
            dim(GATED_ROWS, row, GATED_ROWS),
            dim(2, rows / 2 * row, 2),
            dim(groups, GATED_ROWS * row, slices),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(size: usize, shape: (usize, usize), unit: usize) -> (usize, usize, usize) {
        let Cut {
            ctas,
            parts,
            slices,
        } = Cut::new(132, &SIZES[size], shape, unit);
        (ctas, parts, slices)
    }

    /// (inputs, outputs) of Llama-3.1-8B: no CTA of an H200 has much more to read than the others.
    #[test]
    fn products_are_cut_evenly() {
        for (shape, few, many) in [
            ((4096, 6144), (264, 0, 8), (256, 4, 6)),
            ((4096, 4096), (256, 8, 8), (256, 8, 8)),
            ((4096, 28_672), (264, 0, 8), (256, 1, 7)),
            ((14_336, 4096), (256, 8, 8), (256, 8, 8)),
            ((4096, 128_256), (264, 0, 8), (264, 0, 8)),
        ] {
            for (size, want) in [few, few, many, many].into_iter().enumerate() {
                assert_eq!(cut(size, shape, UNIT_INPUTS), want, "{shape:?}");
            }
        }
    }

    #[test]
    fn tiles_of_many_rows_are_cut_for_whole_multiprocessors() {
        for (shape, want) in [
            ((4096, 6144), (128, 4, 12)),
            ((4096, 4096), (132, 6, 12)),
            ((4096, 28_672), (132, 0, 12)),
            ((14_336, 4096), (132, 6, 12)),
        ] {
            assert_eq!(cut(4, shape, CHUNK_INPUTS), want, "{shape:?}");
        }
    }

    #[test]
    fn small_products_take_few_ctas() {
        assert_eq!(cut(0, (8, 8), UNIT_INPUTS), (1, 1, 8));
        assert_eq!(cut(3, (8, 8), UNIT_INPUTS), (1, 1, 5));
        let (ctas, parts, _) = cut(0, (576, 576), UNIT_INPUTS);
        assert!((8..=11).contains(&ctas) && parts >= 1); // 36 slices of 9 units
        assert_eq!(cut(0, (576, 49_152), UNIT_INPUTS).0, 264);
        // Eight wait for each other at most.
        assert_eq!(cut(0, (14_336, 128), UNIT_INPUTS), (56, 0, 8));
    }
}
