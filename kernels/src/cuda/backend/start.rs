//! Starting a backend: memory first, then weights, then graphs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::activations::Activations;
use super::{CudaBackend, Forward, LogitRows};
use crate::backend::{BlockTables, StatePositions};
use crate::cuda::arena::DeviceArena;
use crate::cuda::attention::{Attention, DecodeWork, Parts, ScoreSpec, unit_columns, whole_heads};
use crate::cuda::codecs::{Codecs, Scratch};
use crate::cuda::driver::{Device, Event, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::experts::Experts;
use crate::cuda::ops::{HeadSpec, Ops, Recurrent};
use crate::cuda::plan::{SplitRule, Windows};
use crate::cuda::products::Products;
use crate::cuda::program::Program;
use crate::cuda::sample::Sampling;
use crate::cuda::step::{StepBuffers, StepCapacity};
use crate::cuda::weights::{LoadError, Weights};
use crate::formats::rotation::Rotation;
use crate::kv::KvLayout;
use crate::model::ops::{Buffer, LinearName};
use crate::model::{Feature, ModelSpec, OnlineKeyScales, WeightSource};
use crate::weight_formats::Quantisation;

/// Batches up to this are recorded at every size that cuBLASLt treats apart; beyond, in steps of 8.
const SMALL_BUCKETS: [usize; 4] = [1, 2, 4, 8];

/// Layers whose products are timed one after the other, so that none is in a cache.
const TUNED_LAYERS: usize = 4;

/// What a backend is started for.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaConfig {
    /// Frames of the KV pool.
    pub frames: u32,
    /// The largest step.
    pub capacity: StepCapacity,
    /// Slots of states, where a model has recurrent layers.
    pub states: usize,
    /// Logit rows computed at once: the most rows that a step samples from. A step may ask for more
    /// that come back.
    pub logit_rows: usize,
    /// Largest decode batch that is replayed from a graph.
    pub graph_rows_max: usize,
    /// Time cuBLASLt's candidates for the decode batches at start, instead of taking its first
    /// suggestion.
    pub tune: bool,
    /// A row's bits do not depend on how many rows share its step, at some cost in speed.
    pub batch_invariant: bool,
    /// Keys and queries are rotated behind RoPE (see [`crate::formats::rotation`]).
    pub rotate_k: bool,
    /// Values are rotated as they are appended, and attention's output is rotated back, in every
    /// step: what weights that cannot be changed need. Otherwise V's rotation is in the weights
    /// ([`Rotated`](crate::model::Rotated)), which must be as they are here.
    pub rotate_v_online: bool,
    /// Keys are divided by this, and queries multiplied, in every step: it is not in the weights.
    pub scale_k_online: Option<Arc<OnlineKeyScales>>,
    /// Packed weights are expanded to bf16 as they are loaded.
    pub expand_weights: bool,
}

impl CudaConfig {
    /// The small kernels for a model, if there are.
    fn ops(&self, device: &Arc<Device>, spec: &ModelSpec) -> Result<Ops, CudaError> {
        let online = Rotation {
            k: self.rotate_k,
            v: self.rotate_v_online,
        };
        Ops::new(device, spec, online, self.scale_k_online.as_deref())
    }
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
        spec: ModelSpec,
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
        spec: ModelSpec,
        config: CudaConfig,
        pages: &KvLayout,
        weights: &W,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        spec.validate()?;
        spec.refuse_beyond("the CUDA backend", &Feature::ON_GPU)?;
        device.bind()?;
        // Refuses what it cannot run before anything is read.
        config.ops(device, &spec)?;
        let weights = Weights::load(device, &spec, weights, config.expand_weights, progress)?;
        Ok(Self::with_weights(device, spec, config, pages, weights)?)
    }

    /// A model of random weights: any shape can be measured without files. Linear layers but the
    /// output projection are quantised, if asked for.
    pub fn random(
        device: &Arc<Device>,
        spec: ModelSpec,
        config: CudaConfig,
        seed: u64,
        quantisation: Option<Quantisation>,
    ) -> Result<Self, LoadError<std::convert::Infallible>> {
        let pages = unshrunk(&spec);
        Self::random_with_pages(device, spec, config, &pages, seed, quantisation)
    }

    /// The same, with blocks that may stand at any position of `pages`.
    pub fn random_with_pages(
        device: &Arc<Device>,
        spec: ModelSpec,
        config: CudaConfig,
        pages: &KvLayout,
        seed: u64,
        quantisation: Option<Quantisation>,
    ) -> Result<Self, LoadError<std::convert::Infallible>> {
        spec.validate()?;
        spec.refuse_beyond("the CUDA backend", &Feature::ON_GPU)?;
        device.bind()?;
        let weights = Weights::random(device, &spec, seed, quantisation)?;
        Ok(Self::with_weights(device, spec, config, pages, weights)?)
    }

    fn with_weights(
        device: &Arc<Device>,
        spec: ModelSpec,
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
        let at_once = layers_at_once(&spec);
        let scratch = Scratch::of(pages, config.frames, &capacity, at_once);
        let attentions = || spec.attentions().map(|(_, attention)| attention);
        let scores: Vec<_> = attentions().map(ScoreSpec::of).collect();
        let mut attention = Attention::new(
            device,
            geometry,
            base_heads(&spec),
            &scores,
            (capacity.seqs, capacity.blocks),
            // No scheduler drafts tokens yet.
            1,
            SplitRule::default(),
            (None, None),
        )?;
        let arena = DeviceArena::of_layout(device, pages, config.frames, scratch.frames())?;
        let tables = capacity.tables(arena.pages(), config.frames);
        let parts = Parts::new(device, &spec, attention.room(0))?;
        // Heads in parts are read at 16 bit alone.
        let reads = parts.is_none() && attention.take_formats(pages);
        let codecs = Codecs::new(device, pages, config.frames, scratch, reads)?;
        let mut step = StepBuffers::new(
            device,
            capacity,
            (tables, scratch.shape),
            SplitRule::default(),
            &attention,
        )?;
        if !config.batch_invariant {
            step.spread = attention.spread();
        }
        if let Some(codecs) = &codecs {
            codecs.place_scratch(&mut step.tables);
        }
        let mut products = Products::new(device, config.batch_invariant)?;
        products.take_packed(device, weights.packed_formats(), weights.packed_values())?;
        let formats = weights.expert_formats();
        let experts = Experts::new(device, &spec, capacity.rows, formats)?;
        let forward = Forward {
            experts,
            recurrent: Recurrent::new(
                device,
                &spec,
                config.states,
                &capacity,
                !config.batch_invariant,
            )?,
            program: Program::new(&spec, &weights, config.rotate_v_online),
            weights,
            step,
            attention,
            parts,
            ops: config.ops(device, &spec)?,
            products,
            activations: Activations::new(device, &spec, capacity.rows, config.logit_rows)?,
            arena,
            codecs,
            sampling: Sampling::new(device, spec.vocab, config.logit_rows, samples_max(&config))?,
            spec,
        };
        let mut this = Self {
            graphs: HashMap::new(),
            stream: Stream::new(device)?,
            buckets: buckets(&config),
            forward,
            tables: BlockTables::new(tables, config.frames),
            state_positions: StatePositions::default(),
            in_flight: VecDeque::new(),
            turn: 0,
            ended: [Event::new(device)?, Event::new(device)?],
            samples_before: 0,
            logit_rows: LogitRows::default(),
            batch_invariant: config.batch_invariant,
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
                let can = !at_once || bucket <= this.forward.step.spread.units;
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
            activations: a,
            spec,
            ..
        } = &mut self.forward;
        let layers = 0..spec.layers.len();
        type Name = fn(usize) -> LinearName;
        // Of each product some of its weights, its inputs, and its outputs.
        let all: [(Name, Buffer, Buffer); 7] = [
            (LinearName::Qkv, Buffer::Normed, Buffer::Heads),
            (LinearName::Recurrent, Buffer::Normed, Buffer::Heads),
            (LinearName::OutputGate, Buffer::Normed, Buffer::OutputGate),
            (LinearName::O, Buffer::Attended, Buffer::Branch),
            (LinearName::Up, Buffer::Normed, Buffer::Gated),
            (LinearName::Down, Buffer::Gated, Buffer::Branch),
            (LinearName::GateUp, Buffer::Normed, Buffer::GateUp),
        ];
        for &rows in &self.buckets {
            for (name, x, y) in all {
                // Packed ones are streamed whatever takes how long.
                let linears = layers.clone().filter_map(|l| weights.find(name(l)));
                let linears: Vec<_> = linears.filter(|l| l.plain().is_some()).collect();
                let mut shapes: Vec<_> = linears.iter().map(|l| l.shape(rows, false)).collect();
                shapes.sort_unstable_by_key(|shape| (shape.inputs, shape.outputs));
                shapes.dedup();
                for shape in shapes {
                    if y == Buffer::GateUp && products.gates(shape) {
                        continue;
                    }
                    let alike = linears.iter().filter(|l| l.shape(rows, false) == shape);
                    let plain = alike.filter_map(|l| l.plain()).take(TUNED_LAYERS);
                    let weights: Vec<_> = plain.map(|weight| weight.ptr()).collect();
                    let (x, y) = (a.narrow(x).ptr(), a.narrow(y).ptr());
                    // SAFETY: the activations hold at least `rows` rows; a bucket is never larger
                    // than the step's capacity or the rows of logits. Nothing else runs yet.
                    unsafe { products.tune(&self.stream, shape, x, &weights, y)? };
                }
            }
            let lm_head = weights.named(LinearName::LmHead);
            let Some(w) = lm_head.plain() else {
                continue;
            };
            let (shape, w) = (lm_head.shape(rows, true), w.ptr());
            // SAFETY: see above.
            unsafe { products.tune(&self.stream, shape, a.normed.ptr(), &[w], a.logits.ptr())? };
        }
        Ok(())
    }

    /// Bytes of the buffers that a backend of `spec` allocates beside the weights and the KV pool.
    pub(super) fn overhead_bytes(device: &Device, spec: &ModelSpec, config: &CudaConfig) -> usize {
        let geometry = spec.kv_geometry();
        let pages = KvLayout::unshrunk(geometry, geometry.frame_layout());
        let tables = config.capacity.tables(&pages, config.frames);
        let (q_heads, windows) = (base_heads(spec).q_heads, Windows::of_model(spec));
        let size = (config.capacity.seqs, config.capacity.blocks);
        let columns = unit_columns(geometry, q_heads, 1);
        let units = windows.room(0, SplitRule::default(), size, columns);
        StepBuffers::bytes(&config.capacity, &tables, (geometry, q_heads), &windows)
            + Attention::scratch_bytes(
                spec.kv_geometry(),
                q_heads,
                &windows,
                (config.capacity.seqs, config.capacity.blocks),
            )
            + Parts::bytes(spec, units)
            + Recurrent::bytes(
                spec,
                config.states,
                &config.capacity,
                !config.batch_invariant,
            )
            + Experts::bytes(spec, config.capacity.rows)
            + Activations::bytes(spec, config.capacity.rows, config.logit_rows)
            + Sampling::bytes(spec.vocab, config.logit_rows, samples_max(config))
            + Products::bytes(device)
            + config
                .scale_k_online
                .as_ref()
                .map_or(0, |_| Ops::key_factor_bytes(spec))
    }
}

/// The most layers of the KV cache that attention of one layer reads.
pub(super) fn layers_at_once(spec: &ModelSpec) -> usize {
    let places = spec.kv_places().into_iter().flatten();
    places.map(|place| place.layers()).max().unwrap_or(1)
}

/// The heads that plans and kernels are made for ([`whole_heads`]). Where all are in parts, of
/// records that share as many query heads as a KV head has at most.
fn base_heads(spec: &ModelSpec) -> HeadSpec {
    let whole = whole_heads(spec);
    let mut attentions = spec.attentions();
    if let Some((_, attention)) = attentions.find(|(_, a)| Some(a.heads()) == whole) {
        return HeadSpec::of(attention, &spec.ropes);
    }
    let groups = spec
        .attentions()
        .map(|(_, attention)| attention.heads().group());
    let geometry = spec.kv_geometry();
    let group = groups.max().unwrap_or(1);
    HeadSpec::plain(geometry, geometry.kv_heads * group)
}

/// A valid model's pages at 16 bit.
fn unshrunk(spec: &ModelSpec) -> KvLayout {
    let geometry = spec.kv_geometry();
    KvLayout::unshrunk(geometry, geometry.frame_layout())
}

/// Samples of a step at most: one for each choice that runs.
fn samples_max(config: &CudaConfig) -> usize {
    config.capacity.seqs.max(config.logit_rows)
}

#[cfg(all(test, feature = "cuda-emulator"))]
mod tests {
    use super::*;
    use crate::model::{Rope, TensorName, UniformModel};

    fn config() -> CudaConfig {
        CudaConfig {
            frames: 32,
            capacity: StepCapacity {
                rows: 1,
                seqs: 1,
                blocks: 1,
            },
            states: 0,
            logit_rows: 1,
            graph_rows_max: 0,
            tune: false,
            batch_invariant: false,
            rotate_k: false,
            rotate_v_online: false,
            scale_k_online: None,
            expand_weights: false,
        }
    }

    #[test]
    fn heads_that_cannot_be_rotated_are_refused() {
        let device = Device::open(0).unwrap();
        let start = |rotate_k, rotate_v_online| {
            let config = CudaConfig {
                rotate_k,
                rotate_v_online,
                ..config()
            };
            let spec = UniformModel {
                hidden: 64,
                layers: 1,
                q_heads: 2,
                kv_heads: 1,
                head_dim: 96,
                intermediate: 64,
                vocab: 100,
                rope: Rope::new(vec![1.0; 48], 1.0),
                max_positions: 64,
                ..UniformModel::default()
            };
            CudaBackend::random(&device, spec.spec(), config, 1, None)
        };
        assert!(start(false, false).is_ok());
        for (k, v) in [(true, false), (false, true)] {
            let error = start(k, v).unwrap_err().to_string();
            assert!(error.contains("power of two, got 96"), "{error}");
        }
    }

    /// Weights that nobody may read.
    struct Unread;

    impl WeightSource for Unread {
        type Error = std::fmt::Error;

        fn shape(&self, _: TensorName) -> Result<Vec<usize>, std::fmt::Error> {
            Err(std::fmt::Error)
        }

        fn read_rows(
            &self,
            _: TensorName,
            _: usize,
            _: &mut [half::bf16],
        ) -> Result<(), std::fmt::Error> {
            Err(std::fmt::Error)
        }
    }

    #[test]
    fn more_query_heads_than_a_tile_has_rows_are_refused_before_weights_are_read() {
        let device = Device::open(0).unwrap();
        let refusal = |q_heads, kv_heads| {
            let spec = UniformModel {
                hidden: 64,
                layers: 1,
                q_heads,
                kv_heads,
                head_dim: 64,
                intermediate: 64,
                vocab: 100,
                rope: Rope::new(vec![1.0; 32], 1.0),
                max_positions: 64,
                ..UniformModel::default()
            };
            let started = CudaBackend::new(&device, spec.spec(), config(), &Unread, &mut |_, _| ());
            started.unwrap_err().to_string()
        };
        for (q_heads, kv_heads) in [(65, 1), (130, 2)] {
            let error = refusal(q_heads, kv_heads);
            assert!(
                error.contains("65 query heads share a KV head") && error.contains("--device cpu"),
                "{error}"
            );
        }
        // As many as fit get as far as the weights.
        assert!(!refusal(64, 1).contains("KV head"));
    }
}
