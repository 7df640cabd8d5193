//! Kernels on their own: for comparison with a reference, and for timing.

mod cold;
mod experts;
mod heads;
mod norms;
mod packed;
mod polar;
mod recurrent;
mod sample;

use std::sync::Arc;

use half::bf16;

use super::arena::DeviceArena;
use super::attention::{Attention, DecodeVariant, DecodeWork, Queries, ScoreSpec, ScoredLayer};
use super::codecs::PageTable;
use super::driver::{Device, DeviceBuffer, Stream};
use super::error::CudaError;
use super::ops::{Fill, HeadSpec};
use super::params::GemmShape;
use super::plan::{SplitRule, Spread};
use super::prefill::PrefillVariant;
use super::products::{Ends, Products, Way};
use super::step::{StepBuffers, StepCapacity};
use crate::backend::{BackendError, BlockTables, StepInput, StepLimits};
use crate::kv::{FrameLayout, KvGeometry, KvLayout};
use crate::model::Activation;

pub use cold::ColdL2;
use cold::time_graph;
pub use experts::ExpertsProbe;
pub(super) use heads::{EPS, HeadOptions, HeadsProbe};
pub use norms::{Normed, NormsProbe};
pub use packed::PackedProbe;
pub use polar::{PolarProbe, PolarWay};
pub use recurrent::{RecurrentLayer, RecurrentProbe};
pub use sample::{SampleOutput, SampleProbe};

/// Attention over a pool of its own.
#[derive(Debug)]
pub struct AttentionProbe {
    stream: Stream,
    arena: DeviceArena,
    /// Those of `step`, on the host.
    tables: BlockTables,
    step: StepBuffers,
    attention: Attention,
    /// Formats and places of shrunk blocks, if the pool has such.
    pages: Option<PageTable>,
    q: DeviceBuffer<bf16>,
    out: DeviceBuffer<bf16>,
    row: usize,
    heads: HeadSpec,
    /// Whether steps are cut as a backend cuts them ([`Self::as_served`]).
    is_served: bool,
    /// Rows of a sequence that decodes, at most.
    rows: usize,
    scores: ScoreSpec,
    /// `[q_heads]`, if there are any.
    sinks: DeviceBuffer<bf16>,
}

/// Why a probe could not run.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The step contradicts itself or the pool.
    #[error(transparent)]
    Input(#[from] BackendError),
}

impl AttentionProbe {
    /// A pool of `frames` frames whose bytes are all `0xff` (NaN), for steps up to `capacity`.
    pub fn new(
        device: &Arc<Device>,
        geometry: KvGeometry,
        layout: FrameLayout,
        frames: u32,
        q_heads: usize,
        capacity: StepCapacity,
        variant: Option<DecodeVariant>,
    ) -> Result<Self, CudaError> {
        let arena = DeviceArena::new(device, geometry, layout, frames)?;
        Self::over(device, arena, None, (q_heads, 1), capacity, variant)
    }

    /// The same over blocks that may stand at any position of `pages`, for decode attention of
    /// sequences of up to `rows` rows. An error if the device has no kernel for their formats.
    pub fn with_pages(
        device: &Arc<Device>,
        pages: &KvLayout,
        frames: u32,
        q_heads: usize,
        rows: usize,
        capacity: StepCapacity,
    ) -> Result<Self, CudaError> {
        let arena = DeviceArena::of_layout(device, pages, frames, 0)?;
        Self::over(device, arena, Some(pages), (q_heads, rows), capacity, None)
    }

    fn over(
        device: &Arc<Device>,
        arena: DeviceArena,
        pages: Option<&KvLayout>,
        (q_heads, rows): (usize, usize),
        capacity: StepCapacity,
        variant: Option<DecodeVariant>,
    ) -> Result<Self, CudaError> {
        let geometry = arena.geometry();
        let row = q_heads * geometry.head_dim;
        let heads = HeadSpec::plain(geometry, q_heads);
        let rule = SplitRule::default();
        let size = (capacity.seqs, capacity.blocks);
        let scores = ScoreSpec::default();
        let mut attention = Attention::new(
            device,
            geometry,
            heads,
            &[scores],
            size,
            rows,
            rule,
            (variant, None),
        )?;
        if pages.is_some_and(|pages| !attention.take_formats(pages)) {
            let what = "decode attention over pages of these formats";
            return Err(CudaError::Unsupported(what.into()));
        }
        let shape = capacity.tables(arena.pages(), arena.frames());
        let tables = (shape, Default::default());
        Ok(Self {
            stream: Stream::new(device)?,
            tables: BlockTables::new(shape, arena.frames()),
            arena,
            pages: pages
                .map(|pages| PageTable::new(device, pages))
                .transpose()?,
            step: StepBuffers::new(device, capacity, tables, rule, &attention)?,
            attention,
            q: DeviceBuffer::filled(device, capacity.rows * row, 0, "queries")?,
            out: DeviceBuffer::filled(device, capacity.rows * row, 0xff, "attention outputs")?,
            row,
            heads,
            is_served: false,
            rows,
            scores,
            sinks: DeviceBuffer::filled(device, q_heads, 0, "sinks")?,
        })
    }

    /// The pages.
    pub fn arena_mut(&mut self) -> &mut DeviceArena {
        &mut self.arena
    }

    /// The prefill kernel in use.
    pub fn prefill_variant(&self) -> PrefillVariant {
        self.attention.prefill_variant()
    }

    /// Whether the kernel that reads shrunk blocks knows polar keys.
    pub(crate) fn knows_polar(&self) -> Option<bool> {
        self.attention.knows_polar()
    }

    /// The decode kernel in use.
    pub fn variant(&self) -> DecodeVariant {
        self.attention.variant()
    }

    /// Uses another compiled decode kernel and another rule; the step must be loaded again, with
    /// deltas that describe all tables.
    pub fn configure(&mut self, variant: DecodeVariant, rule: SplitRule) -> Result<(), CudaError> {
        self.use_kernels(Some(variant), rule, self.attention.prefill_variant())
    }

    /// Uses another compiled prefill kernel; the step must be loaded again, with deltas that
    /// describe all tables.
    pub fn configure_prefill(&mut self, prefill: PrefillVariant) -> Result<(), CudaError> {
        self.use_kernels(Some(self.attention.variant()), self.step.rule, prefill)
    }

    /// Multiplies scores with `scale`; the step must be loaded again.
    pub(super) fn scale(&mut self, scale: f32) -> Result<(), CudaError> {
        self.heads.scale = Some(scale);
        let (decode, prefill) = (self.attention.variant(), self.attention.prefill_variant());
        self.use_kernels(Some(decode), self.step.rule, prefill)
    }

    /// Does with scores what `scores` says, with the preferred decode kernel for that; the step
    /// must be loaded again, with deltas that describe all tables. `sinks`: of each query head, if
    /// there are to be any.
    pub fn score(&mut self, scores: ScoreSpec, sinks: &[bf16]) -> Result<(), CudaError> {
        self.scores = scores;
        if scores.sinks {
            self.sinks.write(0, sinks)?;
        }
        let prefill = self.attention.prefill_variant();
        self.use_kernels(None, self.step.rule, prefill)
    }

    fn scored(&self, layer: usize) -> ScoredLayer {
        ScoredLayer {
            index: layer,
            scores: self.scores,
            sinks: if self.scores.sinks {
                self.sinks.ptr()
            } else {
                0
            },
        }
    }

    fn use_kernels(
        &mut self,
        variant: Option<DecodeVariant>,
        rule: SplitRule,
        prefill: PrefillVariant,
    ) -> Result<(), CudaError> {
        let c = self.step.capacity();
        let device = self.stream.device().clone();
        let geometry = self.arena.geometry();
        let size = (c.seqs, c.blocks);
        let tables = (self.tables.shape(), Default::default());
        self.attention = Attention::new(
            &device,
            geometry,
            self.heads,
            &[self.scores],
            size,
            self.rows,
            rule,
            (variant, Some(prefill)),
        )?;
        if self.pages.is_some() {
            self.attention.take_formats(self.arena.pages());
        }
        self.step = StepBuffers::new(&device, c, tables, rule, &self.attention)?;
        Ok(())
    }

    /// Cuts sequences as if `units` units of a KV head could be under way at once, and takes the
    /// kernel for few units if they are cut; the step must be loaded again.
    pub fn spread(&mut self, units: usize) {
        let spread = self.attention.spread();
        self.step.spread = Spread { units, ..spread };
    }

    /// Cuts sequences, and chooses kernels, as a backend does that need not be batch-invariant; the
    /// step must be loaded again.
    pub fn as_served(&mut self) {
        self.step.spread = self.attention.spread();
        self.is_served = true;
    }

    /// Fills all pages and queries with random values, uniform in ±1 and ±2.
    pub fn fill_random(&mut self, seed: u64) -> Result<(), CudaError> {
        self.arena.fill_random(seed)?;
        let fill = Fill::new(self.stream.device())?;
        // SAFETY: the buffer lives as long as `self`, and the call waits for the stream.
        unsafe { fill.run(&self.stream, self.q.ptr(), self.q.len(), seed ^ 1, 2.0, 0.0)? };
        self.stream.synchronize()
    }

    /// Checks and loads a step; its tokens and logit rows do not matter.
    pub fn load(&mut self, input: &StepInput) -> Result<(), ProbeError> {
        let limits = StepLimits {
            vocab: usize::MAX,
            layout: self.arena.pages(),
            pool_frames: self.arena.frames(),
            samples_before: None,
        };
        let applied = |delta: &_| self.step.tables.apply(delta);
        self.tables
            .apply(limits.layout, &input.deltas, applied)
            .and_then(|()| limits.check(input, &mut self.tables))
            .map_err(BackendError::from)?;
        self.step.load(
            &self.stream,
            input,
            &input.logit_rows,
            input.tokens.len(),
            (self.pages.is_some(), &[]),
        )?;
        Ok(self.stream.synchronize()?)
    }

    /// Runs the loaded step's attention in `layer` on `q`, `[rows][q_heads * head_dim]`, and
    /// returns the outputs. They are NaN where nothing was written.
    pub fn run(&mut self, layer: usize, q: &[bf16]) -> Result<Vec<bf16>, CudaError> {
        assert_eq!(q.len(), self.step.rows * self.row);
        self.q.write(0, q)?;
        self.out.write(0, &vec![bf16::NAN; q.len()])?;
        let scored = self.scored(layer);
        enqueue(
            &self.stream,
            &mut self.attention,
            &self.step,
            &self.arena,
            self.pages.as_ref(),
            (&scored, self.is_served),
            &self.q,
            &mut self.out,
        )?;
        self.stream.synchronize()?;
        let mut out = vec![bf16::ZERO; q.len()];
        self.out.read(0, &mut out)?;
        Ok(out)
    }

    /// Cuts every sequence of more than `blocks` blocks and a half of as many into units of about
    /// so many; the step must be loaded again. For steps over pages of any format.
    pub fn cut_finely(&mut self, blocks: usize) {
        self.step.mixed_rule = SplitRule {
            blocks_min: blocks,
            blocks_max: blocks,
            ..SplitRule::MIXED
        };
    }

    /// The same outputs before they are rounded, of sequences that are all cut: their units'
    /// partial results, put together here. NaN where a sequence is not cut.
    pub fn run_unrounded(&mut self, layer: usize, q: &[bf16]) -> Result<Vec<f64>, CudaError> {
        self.run(layer, q)?;
        let head_dim = self.arena.geometry().head_dim;
        let q_heads = self.row / head_dim;
        let (o, ml) = self.attention.partials();
        let plan = &self.step.plan.decode[0];
        let partials = plan.partials;
        let (mut outputs, mut sums) = (
            vec![0f32; partials * self.row],
            vec![0f32; partials * q_heads * 2],
        );
        o.read(0, &mut outputs)?;
        ml.read(0, &mut sums)?;
        let mut out = vec![f64::NAN; q.len()];
        for row in plan.rows.iter().filter(|r| r.splits > 1) {
            let units = row.partial as usize..(row.partial + row.splits) as usize;
            for head in 0..q_heads {
                let of = |unit: usize| {
                    let at = unit * q_heads + head;
                    (f64::from(sums[2 * at]), f64::from(sums[2 * at + 1]))
                };
                let top = units.clone().map(|u| of(u).0).fold(f64::MIN, f64::max);
                let weight = |unit: usize| (of(unit).0 - top).exp2();
                let sum: f64 = units.clone().map(|u| weight(u) * of(u).1).sum();
                for d in 0..head_dim {
                    let value = |u: usize| {
                        let x = outputs[(u * q_heads + head) * head_dim + d];
                        weight(u) * f64::from(x)
                    };
                    let at = row.row as usize * self.row + head * head_dim + d;
                    out[at] = units.clone().map(value).sum::<f64>() / sum;
                }
            }
        }
        Ok(out)
    }

    /// Times `repeats` graph replays of the loaded step's attention in `layer`, each with a cold
    /// L2. Microseconds, sorted.
    pub fn time(
        &mut self,
        layer: usize,
        repeats: usize,
        cold: ColdL2,
    ) -> Result<Vec<f64>, CudaError> {
        let scored = self.scored(layer);
        let graph = {
            let (stream, attention, step, arena) =
                (&self.stream, &mut self.attention, &self.step, &self.arena);
            stream.capture(|| {
                enqueue(
                    stream,
                    attention,
                    step,
                    arena,
                    self.pages.as_ref(),
                    (&scored, self.is_served),
                    &self.q,
                    &mut self.out,
                )
            })?
        };
        time_graph(&self.stream, &graph, repeats, cold)
    }
}

/// One matrix product `y = x · wᵀ` on its own.
#[derive(Debug)]
pub struct ProductProbe {
    stream: Stream,
    products: Products,
    shape: GemmShape,
    x: DeviceBuffer<bf16>,
    w: DeviceBuffer<bf16>,
    y: DeviceBuffer<f32>,
}

/// The factors of a product, and what it was computed to be.
#[derive(Debug, Clone)]
pub struct Product {
    /// `[rows][inputs]`.
    pub x: Vec<bf16>,
    /// `[outputs][inputs]`.
    pub w: Vec<bf16>,
    /// `[rows][outputs]`.
    pub y: Vec<f32>,
}

impl ProductProbe {
    /// `x` `[rows][inputs]`, `w` `[outputs][inputs]`, both random, and `y` all NaN, f32 if `wide`
    /// and else bf16. The first rows of a larger `x` are those of a smaller one.
    pub fn new(
        device: &Arc<Device>,
        (rows, inputs, outputs): (usize, usize, usize),
        wide: bool,
    ) -> Result<Self, CudaError> {
        let this = Self {
            stream: Stream::new(device)?,
            products: Products::new(device, false)?,
            shape: GemmShape {
                rows,
                inputs,
                outputs,
                wide,
            },
            x: DeviceBuffer::new(device, rows * inputs, "inputs")?,
            w: DeviceBuffer::new(device, outputs * inputs, "weights")?,
            y: DeviceBuffer::filled(device, rows * outputs, 0xff, "outputs")?,
        };
        let fill = Fill::new(device)?;
        // SAFETY: the buffers live as long as `this`, and the stream is waited for.
        unsafe {
            fill.run(&this.stream, this.x.ptr(), this.x.len(), 1, 1.0, 0.0)?;
            fill.run(&this.stream, this.w.ptr(), this.w.len(), 2, 1.0, 0.0)?;
        }
        this.stream.synchronize()?;
        Ok(this)
    }

    /// Makes all inputs of a row the NaN of which all bits are ones.
    pub fn poison(&mut self, row: usize) -> Result<(), CudaError> {
        let inputs = self.shape.inputs;
        let nan = vec![bf16::from_bits(0xffff); inputs];
        self.x.write(row * inputs, &nan)
    }

    /// The product computed in one of the ways; none if that way cannot run the shape.
    pub fn run(&mut self, way: Way) -> Result<Option<Product>, CudaError> {
        if !self.products.can(way, self.shape) {
            return Ok(None);
        }
        self.enqueue(way)?;
        self.read().map(Some)
    }

    fn read(&mut self) -> Result<Product, CudaError> {
        self.stream.synchronize()?;
        let mut x = vec![bf16::ZERO; self.x.len()];
        let mut w = vec![bf16::ZERO; self.w.len()];
        let mut y = vec![0.0; self.y.len()];
        self.x.read(0, &mut x)?;
        self.w.read(0, &mut w)?;
        self.y.read(0, &mut y)?;
        if !self.shape.wide {
            let narrow: &[bf16] = bytemuck::cast_slice(&y);
            y = narrow[..y.len()].iter().map(|v| v.to_f32()).collect();
        }
        Ok(Product { x, w, y })
    }

    /// The product gated, its outputs `[rows][outputs / 2]`; none if that cannot be.
    pub fn run_gated(&mut self) -> Result<Option<Product>, CudaError> {
        if !self.products.gates(self.shape) {
            return Ok(None);
        }
        let (x, w, y) = (self.x.ptr(), self.w.ptr(), self.y.ptr());
        let gated = Ends {
            gated: Some(Activation::Silu),
            ..Ends::default()
        };
        let stream = &self.stream;
        // SAFETY: the buffers have the shape's sizes, live as long as `self`, and the stream is
        // waited for.
        unsafe { self.products.run_to(gated, stream, self.shape, [x, w, y])? };
        let mut product = self.read()?;
        product.y.truncate(product.y.len() / 2);
        Ok(Some(product))
    }

    /// Times `repeats` graph replays, each with a cold L2. Microseconds, sorted; none if that way
    /// cannot run the shape.
    pub fn time(&mut self, way: Way, repeats: usize) -> Result<Option<Vec<f64>>, CudaError> {
        if !self.products.can(way, self.shape) {
            return Ok(None);
        }
        self.enqueue(way)?; // makes the plan, which a capture cannot
        let stream = Stream::new(self.stream.device())?;
        self.stream.synchronize()?;
        let graph = stream.capture(|| {
            let (x, w, y) = (self.x.ptr(), self.w.ptr(), self.y.ptr());
            // SAFETY: the buffers have the shape's sizes and outlive the graph.
            unsafe { self.products.run_as(way, &stream, self.shape, x, w, y) }
        })?;
        time_graph(&stream, &graph, repeats, ColdL2::Written).map(Some)
    }

    fn enqueue(&mut self, way: Way) -> Result<(), CudaError> {
        let (x, w, y) = (self.x.ptr(), self.w.ptr(), self.y.ptr());
        // SAFETY: the buffers have the shape's sizes, live as long as `self`, and the callers wait
        // for the stream.
        unsafe { self.products.run_as(way, &self.stream, self.shape, x, w, y) }
    }
}

/// The matrix products of some layers one after the other, as a step runs them but for what lies
/// between them. Each layer has weights of its own.
#[derive(Debug)]
pub struct LayersProbe {
    stream: Stream,
    products: Products,
    /// (inputs, outputs) of a layer's products.
    shapes: Vec<(usize, usize)>,
    /// `[layers][shapes]`.
    weights: Vec<DeviceBuffer<bf16>>,
    x: DeviceBuffer<bf16>,
    y: DeviceBuffer<bf16>,
    rows_max: usize,
}

impl LayersProbe {
    /// Random weights of `layers` layers, for up to `rows_max` rows.
    pub fn new(
        device: &Arc<Device>,
        layers: usize,
        shapes: &[(usize, usize)],
        rows_max: usize,
    ) -> Result<Self, CudaError> {
        let stream = Stream::new(device)?;
        let fill = Fill::new(device)?;
        let most = |pick: fn(&(usize, usize)) -> usize| shapes.iter().map(pick).max().unwrap_or(0);
        let x = DeviceBuffer::new(device, rows_max * most(|s| s.0), "inputs")?;
        let y = DeviceBuffer::new(device, rows_max * most(|s| s.1), "outputs")?;
        let mut weights = Vec::with_capacity(layers * shapes.len());
        for _ in 0..layers {
            for (inputs, outputs) in shapes {
                weights.push(DeviceBuffer::new(device, inputs * outputs, "weights")?);
            }
        }
        for (seed, buffer) in (1..).zip(weights.iter().chain([&x])) {
            // SAFETY: the buffer outlives the work: the stream is waited for below, and dropping a
            // buffer waits for the device.
            unsafe { fill.run(&stream, buffer.ptr(), buffer.len(), seed << 40, 1.0, 0.0)? };
        }
        stream.synchronize()?;
        Ok(Self {
            products: Products::new(device, false)?,
            stream,
            shapes: shapes.to_vec(),
            weights,
            x,
            y,
            rows_max,
        })
    }

    fn shapes(&self, rows: usize) -> Vec<GemmShape> {
        let shape = |&(inputs, outputs): &(usize, usize)| GemmShape {
            rows,
            inputs,
            outputs,
            wide: false,
        };
        self.shapes.iter().map(shape).collect()
    }

    /// Times `repeats` replays of a graph of all layers, their products in one of the ways, tuned.
    /// Microseconds of all layers, sorted; none if that way cannot run a shape.
    pub fn time(
        &mut self,
        way: Way,
        rows: usize,
        repeats: usize,
    ) -> Result<Option<Vec<f64>>, CudaError> {
        assert!(rows <= self.rows_max);
        let shapes = self.shapes(rows);
        if shapes.iter().any(|s| !self.products.can(way, *s)) {
            return Ok(None);
        }
        let (x, y) = (self.x.ptr(), self.y.ptr());
        for (index, shape) in shapes.iter().enumerate() {
            let layers = self.weights.iter().skip(index).step_by(shapes.len());
            let weights: Vec<_> = layers.map(|w| w.ptr()).collect();
            // SAFETY: the buffers have the shapes' sizes and live as long as `self`; tuning waits
            // for the stream.
            unsafe { self.products.tune(&self.stream, *shape, x, &weights, y)? };
        }
        let graph = self.stream.capture(|| {
            for (shape, w) in shapes.iter().cycle().zip(&self.weights) {
                // SAFETY: as above; the graph is run and waited for below.
                unsafe {
                    self.products
                        .run_as(way, &self.stream, *shape, x, w.ptr(), y)?
                };
            }
            Ok::<_, CudaError>(())
        })?;
        time_graph(&self.stream, &graph, repeats, ColdL2::Written).map(Some)
    }
}

#[allow(clippy::too_many_arguments)]
fn enqueue(
    stream: &Stream,
    attention: &mut Attention,
    step: &StepBuffers,
    arena: &DeviceArena,
    pages: Option<&PageTable>,
    (layer, is_served): (&ScoredLayer, bool),
    q: &DeviceBuffer<bf16>,
    out: &mut DeviceBuffer<bf16>,
) -> Result<(), CudaError> {
    if !step.plan.decode[0].units.is_empty() {
        let work = decode_work(step, pages.is_some(), is_served);
        let (pages, queries) = (pages.map(PageTable::places), Queries::Finished(q));
        attention.decode(stream, work, step, arena, pages, layer, queries, out)?;
    }
    attention.prefill(stream, step, arena, (layer, 0), q, out)
}

/// `is_served`: [`AttentionProbe::as_served`].
fn decode_work(step: &StepBuffers, mixed: bool, is_served: bool) -> DecodeWork {
    let plan = &step.plan.decode[0];
    let cut = plan.partials > 0;
    DecodeWork {
        seqs: plan.rows.len(),
        cut,
        // Else also more than that; only then would it be slow.
        at_once: cut
            && !mixed
            && step.spread.units > 0
            && (!is_served || plan.units.len() <= step.spread.units),
        mixed,
    }
}
