//! A backend whose "model" is a hash of the tokens that it finds in the pages: whoever reads a
//! wrong page, or takes a wrong token, goes on differently.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ebb_kernels::backend::{
    Backend, BackendError, BlockTables, SampleRequest, SampledToken, SeqRows, StepInput,
    StepLimits, StepOutput, TableShape, pending_sample_of,
};
use ebb_kernels::kv::KvLayout;
use ebb_kernels::model::{ModelSpec, QkNorm, Rope, UniformModel};

use parking_lot::Mutex;

use super::{GEOMETRY, VOCAB};
use crate::sampling::reference;

/// A prompt that begins with this token makes the logits NaN.
pub(super) const POISON: u32 = 199;

const SUB_BLOCK: usize = 16;

/// How a step goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is refused.
    Submit,
    /// It comes back as an error, and what it should have written is not there.
    Wait,
    /// The device is lost while it runs.
    Lost,
}

/// What happens to each submission, by its number.
pub(super) type Script = dyn Fn(usize) -> Option<Trouble> + Send;

#[derive(Debug, Default)]
struct Done {
    logits: Vec<f32>,
    samples: Vec<SampledToken>,
    top: Vec<(u32, f32)>,
    error: Option<BackendError>,
}

/// The backend. Steps run when they are submitted, and are told about when they are waited for.
pub(super) struct Fake {
    spec: ModelSpec,
    layout: KvLayout,
    tables: BlockTables,
    depth: usize,
    samples: bool,
    /// By number of the submission.
    script: Box<Script>,
    submissions: usize,
    /// The tokens of every sub-block.
    pages: Vec<[u32; SUB_BLOCK]>,
    /// What the step submitted last sampled.
    sampled: Vec<u32>,
    in_flight: VecDeque<Done>,
    current: Done,
    /// The most steps that were ever in flight.
    pub(super) deepest: Arc<AtomicUsize>,
    /// How long a wait takes.
    pub(super) latency: Duration,
    /// What else a wait does.
    pub(super) on_wait: Box<dyn FnMut() + Send>,
    /// Waits last as long as somebody has locked this.
    pub(super) held: Arc<Mutex<()>>,
}

impl Fake {
    /// `depth` 0 leaves the sampling to the engine.
    pub(super) fn new(
        frames: u32,
        depth: usize,
        script: impl Fn(usize) -> Option<Trouble> + Send + 'static,
    ) -> Self {
        let half = GEOMETRY.head_dim / 2;
        let layout = KvLayout::sixteen_bit(GEOMETRY).expect("a geometry");
        let shape = TableShape::new(16, 4, &layout, frames);
        Self {
            spec: UniformModel {
                hidden: 16,
                layers: GEOMETRY.layers,
                q_heads: GEOMETRY.kv_heads,
                kv_heads: GEOMETRY.kv_heads,
                head_dim: GEOMETRY.head_dim,
                intermediate: 16,
                vocab: VOCAB,
                norm_eps: 1e-5,
                rope: Rope::new(vec![1.0; half], 1.0),
                qkv_bias: false,
                qk_norm: QkNorm::None,
                tied_embeddings: true,
                max_positions: 512,
                ..UniformModel::default()
            }
            .spec(),
            layout,
            tables: BlockTables::new(shape, frames),
            depth: depth.max(1),
            samples: depth > 0,
            script: Box::new(script),
            submissions: 0,
            pages: vec![[u32::MAX; SUB_BLOCK]; frames as usize],
            sampled: Vec::new(),
            in_flight: VecDeque::new(),
            current: Done::default(),
            deepest: Arc::default(),
            latency: Duration::ZERO,
            on_wait: Box::new(|| {}),
            held: Arc::default(),
        }
    }

    fn run(&mut self, input: &StepInput, done: &mut Done) {
        for copy in &input.copies {
            self.pages[copy.dst as usize] = self.pages[copy.src as usize];
        }
        let tokens: Vec<u32> = input
            .tokens
            .iter()
            .map(|&t| pending_sample_of(t).map_or(t, |sample| self.sampled[sample as usize]))
            .collect();
        let per_sub_block = self.layout.frame().frames_per_sub_block;
        let frame = |seq: &SeqRows, position: usize| {
            let sub_block = position / SUB_BLOCK;
            let block = self.tables.blocks_of(seq)[sub_block / 8];
            self.tables.block(block).1[sub_block % 8 * per_sub_block] as usize
        };
        let mut hashes = vec![0; tokens.len()];
        for seq in &input.seqs {
            for row in 0..seq.rows as usize {
                let position = seq.position as usize + row;
                let token = tokens[seq.first_row as usize + row];
                self.pages[frame(seq, position)][position % SUB_BLOCK] = token;
            }
        }
        for seq in &input.seqs {
            for row in 0..seq.rows as usize {
                let end = seq.position as usize + row;
                let context = (0..=end).map(|p| self.pages[frame(seq, p)][p % SUB_BLOCK]);
                let context: Vec<u32> = context.collect();
                let hash = context.iter().fold(1u64, |h, &t| {
                    (h ^ u64::from(t))
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        .rotate_left(23)
                });
                hashes[seq.first_row as usize + row] =
                    if context[0] == POISON { 0 } else { hash | 1 };
            }
        }
        for &row in &input.logit_rows {
            done.logits.extend(logits(hashes[row as usize]));
        }
        let before = std::mem::take(&mut self.sampled);
        for request in &input.samples {
            let row: Vec<f32> = logits(hashes[request.row as usize]).collect();
            let sampled = reference::sample(&row, request, &input.edits, &before, &mut done.top);
            self.sampled.push(sampled.token.unwrap_or(0));
            done.samples.push(sampled);
        }
    }
}

/// A row of logits, NaN for hash 0. A few tokens stand out, so that answers repeat some and now and
/// then end.
fn logits(hash: u64) -> impl Iterator<Item = f32> {
    (0..VOCAB as u64).map(move |id| {
        let mixed =
            (hash ^ id.wrapping_mul(0xd134_2543_de82_ef95)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let noise = (mixed >> 40) as f32 / (1 << 24) as f32 * 6.0;
        match hash {
            0 => f32::NAN,
            _ if id < 12 => noise + 2.0,
            _ => noise,
        }
    })
}

impl Backend for Fake {
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError> {
        assert!(
            self.in_flight.len() < self.depth,
            "more steps in flight than the backend takes"
        );
        let limits = StepLimits {
            vocab: VOCAB,
            layout: &self.layout,
            pool_frames: self.pages.len() as u32,
            samples_before: self.samples.then_some(self.sampled.len() as u32),
        };
        self.tables.apply(&self.layout, &input.deltas, |_| ())?;
        limits.check(input, &mut self.tables)?;
        self.submissions += 1;
        let trouble = (self.script)(self.submissions);
        let device = |lost| BackendError::Device {
            message: "scripted".into(),
            lost,
        };
        let mut done = Done::default();
        match trouble {
            Some(Trouble::Submit) => return Err(device(false)),
            Some(other) => {
                done.error = Some(device(other == Trouble::Lost));
                // Whoever takes a token of this step takes this one.
                self.sampled = vec![3; input.samples.len()];
            }
            None => self.run(input, &mut done),
        }
        self.in_flight.push_back(done);
        self.deepest
            .fetch_max(self.in_flight.len(), Ordering::Relaxed);
        Ok(())
    }

    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
        std::thread::sleep(self.latency);
        (self.on_wait)();
        drop(self.held.lock());
        self.current = self.in_flight.pop_front().expect("a step was submitted");
        if let Some(error) = self.current.error.take() {
            return Err(error);
        }
        Ok(StepOutput {
            logits: &self.current.logits,
            samples: &self.current.samples,
            top: &self.current.top,
            failed_shrinks: &[],
            shrink_time: Duration::ZERO,
        })
    }

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn samples(&self) -> bool {
        self.samples
    }
}

#[test]
fn the_fake_reads_its_pages() {
    use ebb_kernels::backend::TableBuilder;
    let mut fake = Fake::new(4, 2, |_| None);
    let (mut input, mut tables) = (StepInput::default(), TableBuilder::default());
    tables.set(0, 0, 0, &[2]);
    tables.take_deltas(&mut input.deltas);
    input.push_seq(0, 0, &[1, 2]);
    input.logit_rows.push(1);
    input.samples.push(SampleRequest::greedy(1));
    let first = fake.step(&input).expect("sound").logits.to_vec();
    input.tokens[0] = 5;
    let other = fake.step(&input).expect("sound").logits.to_vec();
    assert_ne!(first, other, "the last row depends on the first");
}
