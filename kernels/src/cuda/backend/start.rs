//! Starting a backend: memory first, then weights, then graphs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::activations::Activations;
use super::{CudaBackend, Forward, LogitRows, Shapes};
use crate::backend::{CheckScratch, KeptTables};
use crate::cuda::arena::DeviceArena;
use crate::cuda::attention::{Attention, DecodeWork};
use crate::cuda::codecs::{Codecs, Scratch};
use crate::cuda::driver::{Device, Event, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::ops::{HeadSpec, Ops};
use crate::cuda::params::DevicePtr;
use crate::cuda::plan::SplitRule;
use crate::cuda::products::Products;
use crate::cuda::sample::Sampling;
use crate::cuda::step::{StepBuffers, StepCapacity};
use crate::cuda::weights::{Layer, LoadError, Weights};
use crate::kv::KvLayout;
use crate::model::{TransformerSpec, WeightSource};

/// Batches up to this are recorded at every size that cuBLASLt treats apart; beyond, in steps of 8.
const SMALL_BUCKETS: [usize; 4] = [1, 2, 4, 8];

/// What a backend is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaConfig {
    /// Frames of the KV pool.
    pub frames: u32,
    /// The largest step.
    pub capacity: StepCapacity,
    /// Logit rows computed at once: the most rows that a step draws from. A step may ask for more
    /// that come back.
    pub logit_rows: usize,
    /// Largest decode batch that is replayed from a graph.
    pub graph_rows_max: usize,
    /// Time cuBLASLt's candidates for the decode batches at start, instead of taking its first
    /// suggestion.
    pub tune: bool,
    /// A row's bits do not depend on how many rows share its step, at some cost in speed.
    pub batch_invariant: bool,
    /// Keys and queries are rotated behind RoPE (see [`crate::formats::rotation`]); values are in
    /// the weights.
    pub rotate_k: bool,
}

/// The batches that are recorded.
pub(super) fn buckets(config: &CudaConfig) -> Vec<usize> {
    let largest = config
        .graph_rows_max
        .min(config.capacity.rows)
        .min(config.logit_rows);
    SMALL_BUCKETS
        .into_iter()
        .chain((16..).step_by(8))
        .take_while(|b| *b <= largest)
        .collect()
}

/// The kinds of steps that are recorded for a bucket, if they can be: cut, at once, mixed
/// ([`DecodeWork`]).
pub(super) const RECORDED: [(bool, bool, bool); 5] = [
    (false, false, false),
    (true, false, false),
    (true, true, false),
    (false, false, true),
    (true, false, true),
];

impl CudaBackend {
    /// Loads a model whose blocks never shrink. `progress(done, total)` counts bytes of weights.
    pub fn new<W: WeightSource>(
        device: &Arc<Device>,
        spec: TransformerSpec,
        config: CudaConfig,
        weights: &W,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        let pages = unshrunk(&spec);
        Self::with_pages(device, spec, config, &pages, weights, progress)
    }

    /// Loads a model whose blocks may stand at any position of `pages`, a layout of its geometry.
    pub fn with_pages<W: WeightSource>(
        device: &Arc<Device>,
        spec: TransformerSpec,
        config: CudaConfig,
        pages: &KvLayout,
        weights: &W,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        spec.validate()?;
        device.bind()?;
        // Refuses what it cannot run before anything is read.
        Ops::new(device, &spec, config.rotate_k)?;
        let weights = Weights::load(device, &spec, weights, progress)?;
        Ok(Self::with_weights(device, spec, config, pages, weights)?)
    }

    /// A model of random weights: any shape can be measured without files.
    pub fn random(
        device: &Arc<Device>,
        spec: TransformerSpec,
        config: CudaConfig,
        seed: u64,
    ) -> Result<Self, LoadError<std::convert::Infallible>> {
        let pages = unshrunk(&spec);
        Self::random_with_pages(device, spec, config, &pages, seed)
    }

    /// The same, with blocks that may stand at any position of `pages`.
    pub fn random_with_pages(
        device: &Arc<Device>,
        spec: TransformerSpec,
        config: CudaConfig,
        pages: &KvLayout,
        seed: u64,
    ) -> Result<Self, LoadError<std::convert::Infallible>> {
        spec.validate()?;
        device.bind()?;
        let weights = Weights::random(device, &spec, seed)?;
        Ok(Self::with_weights(device, spec, config, pages, weights)?)
    }

    fn with_weights(
        device: &Arc<Device>,
        spec: TransformerSpec,
        config: CudaConfig,
        pages: &KvLayout,
        weights: Weights,
    ) -> Result<Self, CudaError> {
        let capacity = config.capacity;
        let geometry = spec.kv_geometry();
        if pages.geometry() != geometry {
            return Err(CudaError::Unsupported(format!(
                "pages of {:?} for a model of {geometry:?}",
                pages.geometry()
            )));
        }
        let scratch = Scratch::of(pages, config.frames, &capacity);
        let mut attention = Attention::new(
            device,
            geometry,
            HeadSpec::of(&spec),
            (capacity.seqs, capacity.blocks),
            // No scheduler drafts tokens yet.
            1,
            SplitRule::default(),
            (None, None),
        )?;
        let arena = DeviceArena::of_layout(device, pages, config.frames, scratch.frames())?;
        let tables = capacity.tables(arena.pages(), config.frames);
        let reads = attention.take_formats(pages);
        let codecs = Codecs::new(device, pages, config.frames, scratch, reads)?;
        let mut step = StepBuffers::new(
            device,
            capacity,
            (tables, scratch.shape),
            SplitRule::default(),
            &attention,
        )?;
        if !config.batch_invariant {
            step.spread = attention.at_once();
        }
        if let Some(codecs) = &codecs {
            codecs.place_scratch(&mut step.tables);
        }
        let forward = Forward {
            weights,
            step,
            attention,
            ops: Ops::new(device, &spec, config.rotate_k)?,
            products: Products::new(device, config.batch_invariant)?,
            shapes: Shapes::new(&spec),
            activations: Activations::new(device, &spec, capacity.rows, config.logit_rows)?,
            arena,
            codecs,
            sampling: Sampling::new(device, spec.vocab, config.logit_rows, draws_max(&config))?,
        };
        let mut this = Self {
            graphs: HashMap::new(),
            stream: Stream::new(device)?,
            buckets: buckets(&config),
            forward,
            check: CheckScratch::default(),
            kept: KeptTables::new(tables, config.frames),
            is_kept: true,
            in_flight: VecDeque::new(),
            turn: 0,
            ended: [Event::new(device)?, Event::new(device)?],
            drawn: 0,
            logit_rows: LogitRows::default(),
            batch_invariant: config.batch_invariant,
            spec,
        };
        if config.tune && !config.batch_invariant {
            this.tune()?;
        }
        for bucket in this.buckets.clone() {
            for (cut, at_once, mixed) in RECORDED {
                let work = DecodeWork {
                    seqs: bucket,
                    cut,
                    at_once,
                    mixed,
                };
                let can = !at_once || bucket <= this.forward.step.spread;
                if can && (!mixed || this.reads_shrunk()) {
                    this.record(work)?;
                }
            }
        }
        Ok(this)
    }

    /// Picks the fastest algorithm for the products of every bucket.
    fn tune(&mut self) -> Result<(), CudaError> {
        let Forward {
            weights,
            products,
            shapes,
            activations: a,
            ..
        } = &mut self.forward;
        let layers = &weights.layers[..weights.layers.len().min(4)];
        for &rows in &self.buckets {
            let [qkv, o, gate_up, down] = shapes.layer(rows);
            let of = |pick: fn(&Layer) -> DevicePtr| layers.iter().map(pick).collect::<Vec<_>>();
            let (normed, delta) = (a.normed.ptr(), a.delta.ptr());
            // Of each product its inputs, some of its weights, and its outputs.
            let mut all = vec![
                (qkv, normed, of(|l| l.qkv.ptr()), a.qkv.ptr()),
                (o, a.attended.ptr(), of(|l| l.o.ptr()), delta),
                (down, a.mlp.ptr(), of(|l| l.down.ptr()), delta),
                (
                    shapes.logits(rows),
                    normed,
                    vec![weights.lm_head()],
                    a.logits.ptr(),
                ),
            ];
            if !products.gates(gate_up) {
                all.push((gate_up, normed, of(|l| l.gate_up.ptr()), a.gate_up.ptr()));
            }
            for (shape, x, weights, y) in all {
                // SAFETY: the activations hold at least `rows` rows; a bucket is never larger than
                // the step's capacity or the rows of logits. Nothing else runs yet.
                unsafe { products.tune(&self.stream, shape, x, &weights, y)? };
            }
        }
        Ok(())
    }

    /// Bytes of the buffers that a backend of `spec` allocates beside the weights and the KV pool.
    pub(super) fn overhead_bytes(
        device: &Device,
        spec: &TransformerSpec,
        config: &CudaConfig,
    ) -> usize {
        let geometry = spec.kv_geometry();
        let pages = KvLayout::unshrunk(geometry, geometry.frame_layout());
        let tables = config.capacity.tables(&pages, config.frames);
        StepBuffers::bytes(&config.capacity, &tables, (geometry, spec.q_heads))
            + Attention::scratch_bytes(
                spec.kv_geometry(),
                spec.q_heads,
                (config.capacity.seqs, config.capacity.blocks),
            )
            + Activations::bytes(spec, config.capacity.rows, config.logit_rows)
            + Sampling::bytes(spec.vocab, config.logit_rows, draws_max(config))
            + Products::bytes(device)
    }
}

/// A valid model's pages at 16 bit.
fn unshrunk(spec: &TransformerSpec) -> KvLayout {
    let geometry = spec.kv_geometry();
    KvLayout::unshrunk(geometry, geometry.frame_layout())
}

/// Draws of a step at most: one for each choice that runs.
fn draws_max(config: &CudaConfig) -> usize {
    config.capacity.seqs.max(config.logit_rows)
}
