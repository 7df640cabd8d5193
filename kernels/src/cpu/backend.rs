//! The backend: what is loaded, and how a step runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attention::{Pages, Plans};
use super::experts::RowNeeds;
use super::forward::Forward;
use super::load::{self, LoadError, LoadOptions};
use super::program::{FEATURES, program, widths};
use super::recurrent::States;
use super::scratch::Scratch;
use super::shrink;
use super::simd::Isa;
use super::threads::{Pool, TaskPanic};
use super::weights::Weights;
use crate::backend::{
    Backend, BackendError, BlockTables, ShrinkFailure, StatePositions, StepInput, StepLimits,
    StepOutput, TableShape,
};
use crate::formats::rotation::Rotation;
use crate::kv::{KvArena, KvLayout};
use crate::model::ops::Buffer;
use crate::model::{KeyScaleError, KvPlace, ModelSpec, OnlineKeyScales, WeightSource};

/// Runs a model on the CPU's cores; see [`crate::cpu`] for what it promises about bits. It takes
/// steps of any size.
#[derive(Debug)]
pub struct CpuBackend {
    spec: ModelSpec,
    layout: KvLayout,
    /// Of each layer, if it has attention: where its keys and values lie.
    kv_places: Vec<Option<KvPlace>>,
    weights: Weights,
    arena: KvArena,
    isa: Isa,
    pool: Pool,
    plans: Plans,
    scratch: Scratch,
    tables: BlockTables,
    states: States,
    state_positions: StatePositions,
    /// Shrinks of the last step that failed.
    failed: Vec<ShrinkFailure>,
    done: Option<Result<Done, TaskPanic>>,
    rotation: Rotation,
    /// Whether values are rotated as they are appended, and attention's output is rotated back.
    rotate_v_online: bool,
    /// Of each layer, if keys are scaled in every step ([`OnlineKeyScales::factors`]).
    key_factors: Option<Vec<Vec<f32>>>,
}

/// A step that was run and not waited for.
#[derive(Debug)]
struct Done {
    logit_rows: usize,
    shrink_time: Duration,
}

/// What a [`CpuBackend`] can be made with besides its model.
#[derive(Debug, Clone)]
pub struct CpuOptions {
    /// Compute threads, the caller of `step` included.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// Where pages lie at every precision level; when absent, blocks stay at 16 bit.
    pub layout: Option<KvLayout>,
    /// What is rotated (see [`crate::formats::rotation`]); needs a head_dim that is a power of two.
    pub rotation: Rotation,
    /// Whether V's rotation is computed in every step although it could be folded into the weights:
    /// what weights that cannot be changed need.
    pub rotate_v_online: bool,
    /// Keys are divided by this, and queries multiplied, in every step: it is not in the weights.
    pub scale_k_online: Option<Arc<OnlineKeyScales>>,
    /// Whether packed weights are expanded to bf16 and multiplied in f32 as plain ones are: larger
    /// and slower. Otherwise activations are quantised to two bytes each for products with packed
    /// integers.
    pub expand_weights: bool,
}

impl CpuOptions {
    /// 16-bit pages, this machine's instruction set, weights as the source has them.
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            isa: Isa::detect(),
            layout: None,
            rotation: Rotation::NONE,
            rotate_v_online: false,
            scale_k_online: None,
            expand_weights: false,
        }
    }
}

impl CpuBackend {
    /// Loads a model and starts `threads` compute threads (the caller of `step` included).
    ///
    /// `arena` must have been made with the frame layout of the spec's KV geometry. Tensors are
    /// loaded one at a time; `progress(done, total)` counts their bytes.
    pub fn new<W: WeightSource>(
        spec: ModelSpec,
        weights: &W,
        arena: KvArena,
        threads: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        Self::with_options(spec, weights, arena, CpuOptions::new(threads), progress)
    }

    /// [`CpuBackend::new`] on a chosen instruction set.
    pub fn with_isa<W: WeightSource>(
        spec: ModelSpec,
        weights: &W,
        arena: KvArena,
        threads: usize,
        isa: Isa,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        let options = CpuOptions {
            isa,
            ..CpuOptions::new(threads)
        };
        Self::with_options(spec, weights, arena, options, progress)
    }

    /// [`CpuBackend::new`] with every choice open. The arena's frames must be those of the layout.
    pub fn with_options<W: WeightSource>(
        spec: ModelSpec,
        weights: &W,
        arena: KvArena,
        options: CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        spec.validate()?;
        let CpuOptions {
            threads,
            isa,
            layout,
            rotation,
            rotate_v_online,
            scale_k_online,
            expand_weights,
        } = options;
        let rotate_v_online = rotation.v && (rotate_v_online || !spec.can_fold_v());
        spec.refuse_beyond("the CPU backend", &FEATURES)?;
        rotation.check(spec.kv_geometry().head_dim)?;
        let of_layers = |scales: Arc<OnlineKeyScales>| {
            scales.check(&spec)?;
            let layers = spec.attentions().enumerate();
            let factors = layers.map(|(at, _)| scales.factors(&spec, at));
            Ok::<_, KeyScaleError>(factors.collect())
        };
        let key_factors = scale_k_online.map(of_layers).transpose()?;
        let geometry = spec.kv_geometry();
        let layout = match layout {
            Some(layout) => layout,
            None => KvLayout::sixteen_bit(geometry)?,
        };
        if layout.geometry() != geometry {
            return Err(LoadError::Geometry {
                expected: geometry,
                actual: layout.geometry(),
            });
        }
        let frame_bytes = layout.frame().frame_bytes;
        if arena.frame_bytes() != frame_bytes {
            return Err(LoadError::Frames {
                expected: frame_bytes,
                actual: arena.frame_bytes(),
            });
        }
        let mut pool = Pool::new(threads).map_err(LoadError::Threads)?;
        let program = program(&spec, rotate_v_online);
        let widths = widths(&spec, &program);
        let load_options = LoadOptions {
            fold_v: rotation.v && !rotate_v_online,
            expand: expand_weights,
        };
        let weights = load::load(&spec, program, weights, &mut pool, load_options, progress)?;
        let shapes = || spec.attentions().map(|(_, attention)| attention.heads());
        let widest = shapes().map(|heads| heads.head_dim).max().unwrap_or(0);
        let group = shapes().map(|heads| heads.group()).max().unwrap_or(0);
        let scratch = Scratch::new(
            ((widest, geometry.head_dim), group),
            widths,
            weights.quantised_inputs_max(),
            RowNeeds::of(&spec, weights.experts_quantised_inputs_max()),
            spec.ropes.len(),
            pool.threads(),
        );
        let shape = TableShape::of_pool(&layout, arena.frames());
        Ok(Self {
            tables: BlockTables::new(shape, arena.frames()),
            kv_places: spec.kv_places(),
            layout,
            weights,
            arena,
            isa,
            pool,
            plans: Plans::new(
                spec.attentions()
                    .map(|(_, attention)| (attention.seen(), attention.heads().into())),
            ),
            states: States::new(&spec),
            state_positions: StatePositions::default(),
            scratch,
            failed: Vec::new(),
            done: None,
            rotation,
            rotate_v_online,
            key_factors,
            spec,
        })
    }

    /// The KV pages, to look at.
    pub fn arena(&self) -> &KvArena {
        &self.arena
    }

    /// The KV pages, to write; for tests that fill unused memory.
    pub fn arena_mut(&mut self) -> &mut KvArena {
        &mut self.arena
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Compute threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes of weights that a step of one row reads: everything but experts that are not chosen
    /// and the embedding table (of which it reads one row).
    pub fn weight_bytes_per_step(&self) -> u64 {
        let linears = self.weights.linears.iter();
        let dense: u64 = linears.map(|linear| linear.bytes() as u64).sum();
        let layers = self.spec.layers.iter().zip(&self.weights.experts);
        let experts = layers.filter_map(|(layer, experts)| {
            Some(experts.as_ref()?.bytes_per_row(layer.experts()?) as u64)
        });
        dense + experts.sum::<u64>()
    }

    /// Runs a checked step that there is scratch for.
    fn run(&mut self, input: &StepInput) -> Result<Done, TaskPanic> {
        for copy in &input.copies {
            self.arena.copy_frame(copy.src, copy.dst);
        }
        self.states.copy(&input.state_copies);
        self.failed.clear();
        let began = Instant::now();
        if !input.shrinks.is_empty() {
            self.failed = shrink::run(&mut self.pool, &mut self.arena, &self.layout, input)?;
        }
        let shrink_time = began.elapsed();
        if !input.tokens.is_empty() {
            let taken_back = shrink::take_back(&mut self.tables, input, &self.layout, &self.failed);
            let result = self.forward(input);
            shrink::restore(&mut self.tables, &taken_back);
            result?;
        }
        Ok(Done {
            logit_rows: input.logit_rows.len(),
            shrink_time,
        })
    }

    fn forward(&mut self, input: &StepInput) -> Result<(), TaskPanic> {
        let Self {
            spec,
            layout,
            weights,
            arena,
            tables,
            states,
            isa,
            pool,
            plans,
            scratch,
            rotation,
            rotate_v_online,
            key_factors,
            kv_places,
            ..
        } = self;
        let forward = Forward {
            spec,
            isa: *isa,
            pool,
            weights,
            plans,
            pages: Pages {
                arena,
                geometry: layout.geometry(),
                layout,
                tables,
            },
            states,
            input,
            scratch,
            rows: input.tokens.len(),
            rotate_k: rotation.k,
            rotate_v: *rotate_v_online,
            kv_places,
            key_factors: key_factors.as_deref(),
        };
        forward.run()
    }
}

impl Backend for CpuBackend {
    /// Runs the step to its end.
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError> {
        assert!(self.done.is_none(), "a step has not been waited for");
        let limits = StepLimits {
            vocab: self.spec.vocab,
            layout: &self.layout,
            pool_frames: self.arena.frames(),
            samples_before: None,
        };
        self.tables.apply(limits.layout, &input.deltas, |_| ())?;
        limits.check(input, &mut self.tables)?;
        self.plans.build(input, self.pool.threads());
        let logit_rows = input.logit_rows.len();
        let partials = self.plans.partial_floats();
        self.scratch
            .reserve(input.tokens.len(), logit_rows, partials)?;
        let slots = self.states.is_needed().then_some(usize::MAX);
        self.state_positions.apply(input, slots)?;
        if slots.is_some() {
            let reserved = self.states.reserve(input, self.state_positions.len());
            reserved.inspect_err(|_| self.state_positions.take_back())?;
        }
        let done = self.run(input);
        if done.is_err() {
            self.state_positions
                .lose(input.seqs.iter().map(|seq| seq.slot));
        }
        self.done = Some(done);
        Ok(())
    }

    fn weight_bytes(&self) -> Vec<(String, u64)> {
        self.weights.bytes_by_format()
    }

    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
        let done = self.done.take().expect("a step was submitted");
        let done = done.map_err(|panic| BackendError::Panicked(panic.0))?;
        Ok(StepOutput {
            logits: self.scratch.rows(Buffer::Logits, done.logit_rows),
            samples: &[],
            top: &[],
            failed_shrinks: &self.failed,
            shrink_time: done.shrink_time,
        })
    }

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }
}
