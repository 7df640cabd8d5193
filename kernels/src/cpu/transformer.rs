//! The layer loop.

use std::time::{Duration, Instant};

use super::attention::{Attention, Heads, Pages, Plan};
use super::gemm::{Epilogue, PackedMatrix, Product};
use super::ops::{HeadOps, RowPlace, for_rows, rms_norm_rows};
use super::scratch::Scratch;
use super::shared::SharedSlice;
use super::shrink;
use super::simd::Isa;
use super::threads::{Pool, TaskPanic};
use super::weights::{self, Layer, LoadError, Weights};
use crate::BLOCK_TOKENS;
use crate::backend::{
    Backend, BackendError, CheckScratch, ShrinkFailure, StepInput, StepLimits, StepOutput,
};
use crate::formats::rotation::Rotation;
use crate::kv::{KvArena, KvLayout};
use crate::model::{TransformerSpec, WeightSource};

/// Runs a model on the CPU's cores; see [`crate::cpu`] for what it promises about bits.
#[derive(Debug)]
pub struct CpuBackend {
    spec: TransformerSpec,
    layout: KvLayout,
    weights: Weights,
    arena: KvArena,
    isa: Isa,
    pool: Pool,
    plan: Plan,
    scratch: Scratch,
    check: CheckScratch,
    /// Shrinks of the last step that failed.
    failed: Vec<ShrinkFailure>,
    done: Option<Done>,
    /// Whether keys and queries are rotated behind RoPE.
    rotate_k: bool,
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
    /// Where pages lie at every schedule position; when absent, blocks stay at 16 bit.
    pub layout: Option<KvLayout>,
    /// What is rotated (see [`crate::formats::rotation`]); needs a head_dim that is a power of two.
    pub rotation: Rotation,
}

impl CpuOptions {
    /// 16-bit pages, this machine's instruction set.
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            isa: Isa::detect(),
            layout: None,
            rotation: Rotation::NONE,
        }
    }
}

impl CpuBackend {
    /// Loads a model and starts `threads` compute threads (the caller of `step` included).
    ///
    /// `arena` must have been made with the frame layout of the spec's KV geometry. Tensors are
    /// loaded one at a time; `progress(done, total)` counts their bytes.
    pub fn new<W: WeightSource>(
        spec: TransformerSpec,
        weights: &W,
        arena: KvArena,
        threads: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        Self::with_options(spec, weights, arena, CpuOptions::new(threads), progress)
    }

    /// [`CpuBackend::new`] on a chosen instruction set.
    pub fn with_isa<W: WeightSource>(
        spec: TransformerSpec,
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
        spec: TransformerSpec,
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
        } = options;
        rotation.check(spec.head_dim)?;
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
        let weights = weights::load(&spec, weights, &mut pool, rotation.v, progress)?;
        let scratch = Scratch::new(&spec, pool.threads());
        Ok(Self {
            layout,
            weights,
            arena,
            isa,
            pool,
            plan: Plan::default(),
            scratch,
            check: CheckScratch::default(),
            failed: Vec::new(),
            done: None,
            rotate_k: rotation.k,
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

    /// Bytes of weights that a step of one row reads: everything but the embedding table (of which
    /// it reads one row).
    pub fn weight_bytes_per_step(&self) -> u64 {
        let spec = &self.spec;
        let qkv = spec.q_width() + 2 * spec.kv_width();
        let layer = spec.hidden * (qkv + spec.q_width() + 3 * spec.intermediate);
        2 * (layer * spec.layers + spec.hidden * spec.vocab) as u64
    }

    fn forward(&mut self, input: &StepInput) -> Result<(), TaskPanic> {
        let Self {
            spec,
            layout,
            weights,
            arena,
            isa,
            pool,
            plan,
            scratch,
            rotate_k,
            ..
        } = self;
        let mut forward = Forward {
            spec,
            isa: *isa,
            pool,
            plan,
            pages: Pages {
                arena,
                geometry: spec.kv_geometry(),
                layout,
                input,
            },
            scratch,
            rows: input.tokens.len(),
            rotate_k: *rotate_k,
        };
        forward.embed(weights)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            forward.attention(index, layer)?;
            let next = weights.layers.get(index + 1);
            if next.is_none() {
                forward.keep_logit_rows();
            }
            forward.mlp(layer, next.map_or(&weights.lm_head, |next| &next.qkv))?;
        }
        forward.logits(weights)
    }
}

impl Backend for CpuBackend {
    /// Runs it to its end.
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError> {
        assert!(self.done.is_none(), "a step has not been waited for");
        let limits = StepLimits {
            vocab: self.spec.vocab,
            layout: &self.layout,
            pool_frames: self.arena.frames(),
            drawn: None,
        };
        limits.check(input, &mut self.check)?;
        let spec = &self.spec;
        self.plan.build(input, heads(spec), self.pool.threads());
        let logit_rows = input.logit_rows.len();
        self.scratch.reserve(
            spec,
            input.tokens.len(),
            logit_rows,
            self.plan.partial_floats(),
        )?;
        for copy in &input.copies {
            self.arena.copy_frame(copy.src, copy.dst);
        }
        let panicked = |panic: TaskPanic| BackendError::Panicked(panic.0);
        self.failed.clear();
        let began = Instant::now();
        if !input.shrinks.is_empty() {
            let failed = shrink::run(&mut self.pool, &mut self.arena, &self.layout, input);
            self.failed = failed.map_err(panicked)?;
        }
        let shrink_time = began.elapsed();
        if !input.tokens.is_empty() {
            if self.failed.is_empty() {
                self.forward(input).map_err(panicked)?;
            } else {
                let input = shrink::without(input, &self.layout, &self.failed);
                self.forward(&input).map_err(panicked)?;
            }
        }
        self.done = Some(Done {
            logit_rows,
            shrink_time,
        });
        Ok(())
    }

    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
        let done = self.done.take().expect("a step was submitted");
        Ok(StepOutput {
            logits: &self.scratch.logits[..done.logit_rows * self.spec.vocab],
            draws: &[],
            top: &[],
            failed_shrinks: &self.failed,
            shrink_time: done.shrink_time,
        })
    }

    fn spec(&self) -> &TransformerSpec {
        &self.spec
    }
}

fn heads(spec: &TransformerSpec) -> Heads {
    Heads {
        kv_heads: spec.kv_heads,
        group: spec.q_heads / spec.kv_heads,
        head_dim: spec.head_dim,
    }
}

/// One pass over the layers.
struct Forward<'a> {
    spec: &'a TransformerSpec,
    isa: Isa,
    pool: &'a mut Pool,
    plan: &'a Plan,
    pages: Pages<'a>,
    scratch: &'a mut Scratch,
    /// Rows of `x`: those of the step, and after the last attention those with logits.
    rows: usize,
    rotate_k: bool,
}

impl Forward<'_> {
    /// `x` = embeddings; also the rows' places and angles, which every layer uses.
    fn embed(&mut self, weights: &Weights) -> Result<(), TaskPanic> {
        let (hidden, input) = (self.spec.hidden, self.pages.input);
        let scratch = &mut *self.scratch;
        let positions = |s: &crate::backend::SeqRows| s.position..s.position + s.rows;
        let all = input.seqs.iter().flat_map(positions);
        scratch.rope.fill(&self.spec.rope, all);
        scratch.places.clear();
        for s in &input.seqs {
            scratch.places.extend(positions(s).map(|position| {
                let block = s.first_block as usize + position as usize / BLOCK_TOKENS;
                RowPlace {
                    first_frame: input.blocks[block].first_frame,
                    token: position % BLOCK_TOKENS as u32,
                }
            }));
        }
        let x = SharedSlice::new(&mut scratch.x);
        for_rows(self.pool, self.rows, hidden, |first, end| {
            for row in first..end {
                let token = input.tokens[row] as usize;
                // SAFETY: ranges of rows are disjoint.
                let x = unsafe { x.slice(row * hidden, hidden) };
                match &weights.embedding {
                    Some(table) => {
                        let values = &table[token * hidden..][..hidden];
                        x.iter_mut().zip(values).for_each(|(x, v)| *x = v.to_f32());
                    }
                    None => weights.lm_head.column(token, x),
                }
            }
        })
    }

    /// `x += W_o attention(norm(x))`.
    fn attention(&mut self, index: usize, layer: &Layer) -> Result<(), TaskPanic> {
        let (spec, isa, rows) = (self.spec, self.isa, self.rows);
        let Scratch {
            x,
            normed,
            qkv,
            attended,
            partials,
            attention,
            rope,
            places,
            ..
        } = &mut *self.scratch;
        let width = rows * spec.hidden;
        rms_norm_rows(
            self.pool,
            isa,
            &x[..width],
            &layer.attn_norm,
            spec.norm_eps,
            &mut normed[..width],
        )?;
        let epilogue = match &layer.qkv_bias {
            Some(bias) => Epilogue::Bias(bias),
            None => Epilogue::Store,
        };
        let product = Product {
            rows,
            a: normed,
            w: &layer.qkv,
            epilogue,
            next: Some(&layer.o),
        };
        product.run(self.pool, isa, qkv)?;
        let ops = HeadOps {
            spec,
            rope,
            pages: self.pages,
            places,
            layer: index,
            qk_norm: layer.qk_norm.as_ref().map(|(q, k)| (&q[..], &k[..])),
            rotate_k: self.rotate_k,
        };
        ops.run(self.pool, isa, qkv)?;
        let attend = Attention {
            pages: self.pages,
            plan: self.plan,
            layer: index,
            heads: heads(spec),
            queries: qkv,
            query_stride: spec.q_width() + 2 * spec.kv_width(),
        };
        attend.run(self.pool, isa, attention, partials, attended)?;
        let product = Product {
            rows,
            a: attended,
            w: &layer.o,
            epilogue: Epilogue::Add,
            next: Some(&layer.gate_up),
        };
        product.run(self.pool, isa, x)
    }

    /// `x += W_down (silu(W_gate norm(x)) * W_up norm(x))`; `next` is multiplied with after that.
    fn mlp(&mut self, layer: &Layer, next: &PackedMatrix) -> Result<(), TaskPanic> {
        let (spec, isa, rows) = (self.spec, self.isa, self.rows);
        let Scratch { x, normed, mlp, .. } = &mut *self.scratch;
        let width = rows * spec.hidden;
        rms_norm_rows(
            self.pool,
            isa,
            &x[..width],
            &layer.mlp_norm,
            spec.norm_eps,
            &mut normed[..width],
        )?;
        let product = Product {
            rows,
            a: normed,
            w: &layer.gate_up,
            epilogue: Epilogue::SwiGlu,
            next: Some(&layer.down),
        };
        product.run(self.pool, isa, mlp)?;
        let product = Product {
            rows,
            a: mlp,
            w: &layer.down,
            epilogue: Epilogue::Add,
            next: Some(next),
        };
        product.run(self.pool, isa, x)
    }

    /// Nothing after the last attention is needed of rows without logits.
    fn keep_logit_rows(&mut self) {
        let hidden = self.spec.hidden;
        let wanted = &self.pages.input.logit_rows;
        for (to, from) in wanted.iter().enumerate() {
            let from = *from as usize * hidden;
            self.scratch.x.copy_within(from..from + hidden, to * hidden);
        }
        self.rows = wanted.len();
    }

    fn logits(&mut self, weights: &Weights) -> Result<(), TaskPanic> {
        let (spec, isa, rows) = (self.spec, self.isa, self.rows);
        let Scratch {
            x, normed, logits, ..
        } = &mut *self.scratch;
        let width = rows * spec.hidden;
        rms_norm_rows(
            self.pool,
            isa,
            &x[..width],
            &weights.final_norm,
            spec.norm_eps,
            &mut normed[..width],
        )?;
        let product = Product {
            rows,
            a: normed,
            w: &weights.lm_head,
            epilogue: Epilogue::Store,
            next: None,
        };
        product.run(self.pool, isa, logits)
    }
}
