//! Layers of experts: launches of `cuda/experts`.
//!
//! A step's rows are routed, sorted by expert and cut into tiles on the device. What follows walks
//! the tiles that it finds there, so that no launch depends on what was chosen, and steps can be
//! recorded.

mod norms;
mod routing;
mod tiles;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use half::bf16;

use super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::error::CudaError;
use super::linear::Weight;
use super::ops::activation_code;
use super::packed::DeviceFormat;
use super::params::{DevicePtr, GemmShape, KernelParams};
use super::products::Products;
use crate::model::{ExpertActivation, ExpertsSpec, LayerSpec, ModelSpec};
use norms::NormKernels;
pub(super) use norms::{ExpertNorms, NormBefore};
use routing::RoutingKernels;
pub(super) use tiles::TILE_ROWS;
use tiles::{ProductKernels, tile_of};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ExpertsParams {
    x: DevicePtr,
    sorted: DevicePtr,
    tiles: DevicePtr,
    weights: DevicePtr,
    factors: DevicePtr,
    bias: DevicePtr,
    y: DevicePtr,
    packed_each: u64,
    factors_each: u32,
    experts: u32,
    inputs: u32,
    outputs: u32,
    gated: u32,
    limit: f32,
    alpha: f32,
    stages: u32,
    plain: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::ExpertsParams` of experts/product.cuh.
unsafe impl KernelParams for ExpertsParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct CombineParams {
    y: DevicePtr,
    places: DevicePtr,
    weights: DevicePtr,
    x: DevicePtr,
    score: DevicePtr,
    out: DevicePtr,
    hidden: u32,
    per_token: u32,
    has_shared: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::CombineParams` of experts/combine.cu.
unsafe impl KernelParams for CombineParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct WeighParams {
    x: DevicePtr,
    places: DevicePtr,
    weights: DevicePtr,
    out: DevicePtr,
    hidden: u32,
    per_token: u32,
}
// SAFETY: field for field `ebb::WeighParams` of experts/combine.cu.
unsafe impl KernelParams for WeighParams {}

/// Threads of a CTA that adds up: `kCombineThreads` of experts/combine.cu.
const COMBINE_THREADS: u32 = 256;

/// The weights of a layer of experts, stacked.
#[derive(Debug)]
pub(super) struct ExpertWeights {
    /// Whether the first product is of gates and of what they open; else of the latter alone.
    pub(super) gated: bool,
    /// `[experts][hidden]`.
    pub(super) router: DeviceBuffer<bf16>,
    /// `[experts]`.
    pub(super) router_bias: Option<DeviceBuffer<bf16>>,
    /// `[2][experts]`: rounded, and what that leaves.
    pub(super) correction: Option<DeviceBuffer<bf16>>,
    /// `[experts]`, of the weights of a choice.
    pub(super) scales: Option<DeviceBuffer<bf16>>,
    /// `[hidden]`: what scores the shared expert.
    pub(super) score: Option<DeviceBuffer<bf16>>,
    /// All gates, then all that they open; or both packed in turns, in one part.
    pub(super) gate_up: Weight,
    /// In that order.
    pub(super) gate_up_bias: Option<DeviceBuffer<bf16>>,
    pub(super) down: Weight,
    pub(super) down_bias: Option<DeviceBuffer<bf16>>,
}

impl ExpertWeights {
    /// Buffers of bf16.
    pub(super) fn plain(&self) -> impl Iterator<Item = &DeviceBuffer<bf16>> {
        let optional = [
            &self.router_bias,
            &self.correction,
            &self.scales,
            &self.score,
            &self.gate_up_bias,
            &self.down_bias,
        ];
        let matrices = [&self.gate_up, &self.down].into_iter();
        let matrices = matrices.filter_map(|weight| match weight {
            Weight::Plain(weight) => Some(weight),
            Weight::Packed(_) => None,
        });
        let optional = optional.into_iter().flatten();
        std::iter::once(&self.router)
            .chain(optional)
            .chain(matrices)
    }
}

/// The kernels and the buffers of layers of experts.
#[derive(Debug)]
pub(super) struct Experts {
    routing: RoutingKernels,
    combine: Kernel<CombineParams>,
    norms: NormKernels,
    weigh: Kernel<WeighParams>,
    /// Of each format, none being bf16.
    products: HashMap<Option<DeviceFormat>, ProductKernels>,
    multiprocessors: usize,
    /// Which of [`TILE_ROWS`] is taken, if it is not rows and format that decide.
    tile: Option<usize>,
    /// `[rows][experts]`.
    scores: DeviceBuffer<f32>,
    /// `[rows][per_token]`: experts, their weights, and their places in the sorted order.
    chosen: DeviceBuffer<u32>,
    weights: DeviceBuffer<f32>,
    places: DeviceBuffer<u32>,
    /// Of each place its row.
    sorted: DeviceBuffer<u32>,
    /// Four words a tile, behind four that count them.
    tiles: DeviceBuffer<u32>,
    /// `[places][intermediate]`.
    gated: DeviceBuffer<bf16>,
    /// `[places][hidden]`; also weighted inputs, until they are multiplied.
    outputs: DeviceBuffer<bf16>,
}

/// Values of the buffers, the most of any layer.
struct Room {
    scores: usize,
    choices: usize,
    tiles: usize,
    gated: usize,
    outputs: usize,
}

impl Room {
    fn of(spec: &ModelSpec, rows: usize) -> Self {
        let layers = || spec.layers.iter().filter_map(LayerSpec::experts);
        let most = |of: fn(&ExpertsSpec) -> usize| layers().map(of).max().unwrap_or(0);
        let choices = rows * most(|spec| spec.per_token);
        Self {
            scores: rows * most(|spec| spec.experts),
            choices,
            // An expert has at most one tile that is not full, whatever goes to it.
            tiles: 4 * (1 + choices / TILE_ROWS[0] + most(|spec| spec.experts)),
            gated: rows * most(|spec| spec.per_token * spec.intermediate),
            outputs: choices * spec.hidden,
        }
    }
}

/// What a layer of experts reads and writes.
pub(super) struct ExpertsIo<'a> {
    pub(super) rows: usize,
    /// `[rows][hidden]`.
    pub(super) x: &'a DeviceBuffer<bf16>,
    /// `[rows][hidden]`: what the router reads.
    pub(super) router: &'a DeviceBuffer<bf16>,
    /// `[rows][hidden]`: what the shared expert has put out, if it is added to that; none where
    /// nothing is to be read or written.
    pub(super) out: Option<&'a mut DeviceBuffer<bf16>>,
    /// Joined to the layer: what it puts out then goes to the residual stream, not to `out`.
    pub(super) norms: Option<ExpertNorms<'a>>,
}

/// A layer over the rows of a step.
struct Run<'a> {
    spec: &'a ExpertsSpec,
    weights: &'a ExpertWeights,
    hidden: usize,
    rows: usize,
    /// Pairs of a row and an expert that it goes to.
    choices: usize,
    /// Which of [`TILE_ROWS`].
    tile: usize,
}

impl<'a> Run<'a> {
    fn new(
        spec: &'a ExpertsSpec,
        weights: &'a ExpertWeights,
        rows: usize,
        tile: Option<usize>,
    ) -> Self {
        let choices = rows * spec.per_token;
        let format = weights.gate_up.parts().first().map(|part| part.format);
        Self {
            spec,
            weights,
            hidden: weights.router.len() / spec.experts,
            rows,
            choices,
            tile: tile.unwrap_or_else(|| tile_of(choices, spec.experts, format)),
        }
    }
}

impl Experts {
    /// For steps of up to `rows` rows, and weights of `formats`; none for a model without experts.
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        rows: usize,
        formats: impl Iterator<Item = Option<DeviceFormat>>,
    ) -> Result<Option<Self>, CudaError> {
        if spec.layers.iter().all(|layer| layer.experts().is_none()) {
            return Ok(None);
        }
        let mut products = HashMap::new();
        for format in formats {
            if let Entry::Vacant(place) = products.entry(format) {
                place.insert(ProductKernels::new(device, format)?);
            }
        }
        let room = Room::of(spec, rows);
        let what = "activations of experts";
        let words = |len| DeviceBuffer::<u32>::filled(device, len, 0, what);
        let narrow = |len| DeviceBuffer::<bf16>::filled(device, len, 0, what);
        let single = |len| DeviceBuffer::<f32>::filled(device, len, 0, what);
        Ok(Some(Self {
            routing: RoutingKernels::new(device, spec)?,
            combine: device.kernel("experts_combine", 0)?,
            norms: NormKernels::new(device, spec.hidden)?,
            weigh: device.kernel("experts_weigh", 0)?,
            products,
            multiprocessors: device.multiprocessors(),
            tile: None,
            scores: single(room.scores)?,
            chosen: words(room.choices)?,
            weights: single(room.choices)?,
            places: words(room.choices)?,
            sorted: words(room.choices)?,
            tiles: words(room.tiles)?,
            gated: narrow(room.gated)?,
            outputs: narrow(room.outputs)?,
        }))
    }

    /// Takes one of [`TILE_ROWS`] for every step; for tests and timings.
    pub(super) fn take_tile(&mut self, tile: usize) {
        self.tile = Some(tile);
    }

    /// Bytes that `new` allocates.
    pub(super) fn bytes(spec: &ModelSpec, rows: usize) -> usize {
        let room = Room::of(spec, rows);
        let words = room.scores + 4 * room.choices;
        match room.choices {
            0 => 0,
            _ => 4 * (words + room.tiles) + 2 * (room.gated + room.outputs),
        }
    }

    /// The router's product.
    pub(super) fn router_shape(spec: &ExpertsSpec, hidden: usize, rows: usize) -> GemmShape {
        GemmShape {
            rows,
            inputs: hidden,
            outputs: spec.experts,
            wide: true,
        }
    }

    // SAFETY of every launch below: the buffers are this type's, sized for the step's rows, and the
    // backend's; weights have the spec's shapes; a router's choices are experts, whatever its
    // scores; work of one stream runs in order.

    /// Enqueues a layer of experts.
    pub(super) fn run(
        &mut self,
        stream: &Stream,
        products: &mut Products,
        spec: &ExpertsSpec,
        weights: &ExpertWeights,
        io: ExpertsIo<'_>,
    ) -> Result<(), CudaError> {
        let ExpertsIo {
            rows,
            x,
            router: read,
            out,
            norms,
        } = io;
        if rows == 0 {
            return Ok(());
        }
        let of = Run::new(spec, weights, rows, self.tile);
        assert!(of.choices <= self.chosen.len());
        if let Some((norms, before)) = norms.and_then(|norms| Some((norms, norms.before?))) {
            self.normed_router(stream, &of, (norms, before))?;
        } else {
            let shape = Self::router_shape(spec, of.hidden, rows);
            let router = weights.router.ptr();
            // SAFETY: see above.
            unsafe { products.run(stream, shape, read.ptr(), router, self.scores.ptr())? };
        }
        self.route(stream, &of)?;
        if spec.weighted_input {
            self.weigh(stream, &of, x)?;
        }
        self.multiply_both(stream, &of, x)?;
        self.combine(stream, &of, x, (out, norms))
    }

    /// Enqueues the products of the rows that [`Self::run`] had last, alone; for timings.
    pub(super) fn run_products(
        &self,
        stream: &Stream,
        spec: &ExpertsSpec,
        weights: &ExpertWeights,
        (rows, x): (usize, &DeviceBuffer<bf16>),
    ) -> Result<(), CudaError> {
        self.multiply_both(stream, &Run::new(spec, weights, rows, self.tile), x)
    }

    /// Enqueues both products.
    fn multiply_both(
        &self,
        stream: &Stream,
        of: &Run<'_>,
        x: &DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let gate_up = self.gate_up(of, x);
        self.multiply(stream, of, &of.weights.gate_up, gate_up)?;
        self.multiply(stream, of, &of.weights.down, self.down(of, gate_up))
    }

    /// Enqueues what experts read that have weighted inputs.
    fn weigh(
        &self,
        stream: &Stream,
        of: &Run<'_>,
        x: &DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(of.rows * of.hidden <= x.len() && of.choices * of.hidden <= self.outputs.len());
        let params = WeighParams {
            x: x.ptr(),
            places: self.places.ptr(),
            weights: self.weights.ptr(),
            out: self.outputs.ptr(),
            hidden: of.hidden as u32,
            per_token: of.spec.per_token as u32,
        };
        let grid = (of.choices as u32, 1);
        // SAFETY: see above.
        unsafe { self.weigh.launch(stream, grid, COMBINE_THREADS, &params) }
    }

    /// Of the gates and of what they open, or of experts without gates.
    fn gate_up(&self, of: &Run<'_>, x: &DeviceBuffer<bf16>) -> ExpertsParams {
        let (limit, alpha) = match of.spec.activation {
            ExpertActivation::SwiGlu | ExpertActivation::GeGlu | ExpertActivation::Relu2 => {
                (0.0, 1.0)
            }
            ExpertActivation::Clamped { limit, alpha } => (limit, alpha),
        };
        let activation = activation_code(of.spec.activation.of_gates());
        let inner = of.spec.intermediate as u32;
        let (outputs, gated, plain) = match of.spec.activation.is_gated() {
            true => (2 * inner, activation, 0),
            false => (inner, 0, 1),
        };
        let (x, sorted) = match of.spec.weighted_input {
            true => (self.outputs.ptr(), 0),
            false => (x.ptr(), self.sorted.ptr()),
        };
        ExpertsParams {
            x,
            sorted,
            tiles: self.tiles.ptr(),
            weights: 0,
            factors: 0,
            bias: address(&of.weights.gate_up_bias),
            y: self.gated.ptr(),
            packed_each: 0,
            factors_each: 0,
            experts: of.spec.experts as u32,
            inputs: of.hidden as u32,
            outputs,
            gated,
            limit,
            alpha,
            stages: 0,
            plain,
            reserved: 0,
        }
    }

    /// Of what gates have let through.
    fn down(&self, of: &Run<'_>, gate_up: ExpertsParams) -> ExpertsParams {
        ExpertsParams {
            x: self.gated.ptr(),
            sorted: 0,
            bias: address(&of.weights.down_bias),
            y: self.outputs.ptr(),
            inputs: of.spec.intermediate as u32,
            outputs: of.hidden as u32,
            gated: 0,
            plain: 0,
            ..gate_up
        }
    }

    /// Enqueues the sum of what a row's experts have put out.
    fn combine(
        &self,
        stream: &Stream,
        of: &Run<'_>,
        x: &DeviceBuffer<bf16>,
        (out, norms): (Option<&mut DeviceBuffer<bf16>>, Option<ExpertNorms<'_>>),
    ) -> Result<(), CudaError> {
        assert!(out.is_some() || norms.is_some() && !of.spec.adds_to_shared());
        assert!(
            out.as_ref()
                .is_none_or(|out| of.rows * of.hidden <= out.len())
        );
        let params = CombineParams {
            y: self.outputs.ptr(),
            places: self.places.ptr(),
            weights: match of.spec.weighted_input {
                true => 0,
                false => self.weights.ptr(),
            },
            x: x.ptr(),
            score: address(&of.weights.score),
            out: out.map_or(0, |out| out.ptr()),
            hidden: of.hidden as u32,
            per_token: of.spec.per_token as u32,
            has_shared: u32::from(of.spec.adds_to_shared()),
            reserved: 0,
        };
        if let Some(norms) = norms {
            return self.combine_norm(stream, of, params, norms);
        }
        let (grid, threads) = ((of.rows as u32, 1), COMBINE_THREADS);
        // SAFETY: see above.
        unsafe { self.combine.launch(stream, grid, threads, &params) }
    }

    /// Enqueues a product of every tile with its expert.
    fn multiply(
        &self,
        stream: &Stream,
        of: &Run<'_>,
        weight: &Weight,
        params: ExpertsParams,
    ) -> Result<(), CudaError> {
        let (format, params) = match weight {
            Weight::Plain(weight) => {
                let weights = weight.ptr();
                (None, ExpertsParams { weights, ..params })
            }
            Weight::Packed(parts) => {
                let [part] = &parts[..] else {
                    return Err(CudaError::Unsupported(
                        "experts in several parts".to_owned(),
                    ));
                };
                let packed = ExpertsParams {
                    weights: part.codes.ptr(),
                    factors: part.factors.ptr(),
                    packed_each: (part.codes.len() / part.experts) as u64,
                    factors_each: (part.factors.len() / part.experts) as u32,
                    ..params
                };
                (Some(part.format), packed)
            }
        };
        let missing = || CudaError::Unsupported(format!("experts of {format:?}"));
        let kernels = self.products.get(&format).ok_or_else(missing)?;
        // An expert has at most one tile that is not full, and no tile is empty.
        let tiles = of.choices.div_ceil(TILE_ROWS[of.tile]) + of.spec.experts;
        let tiles = tiles.min(of.choices);
        // SAFETY: see above.
        unsafe { kernels.launch(stream, of.tile, tiles, self.multiprocessors, params) }
    }
}

/// A buffer's, or null.
fn address(buffer: &Option<DeviceBuffer<bf16>>) -> DevicePtr {
    buffer.as_ref().map_or(0, |buffer| buffer.ptr())
}
