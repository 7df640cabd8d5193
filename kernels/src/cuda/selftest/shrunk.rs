//! Whole models whose blocks shrink while they are read: the CUDA backend against the CPU backend
//! over the same pages.

use std::sync::Arc;

use half::bf16;

use super::Rng;
use super::model::{gemma4, spec};
use super::online::{Online, start};
use super::records::{put, ranges};
use super::reference::relative_error;
use super::table::Report;
use crate::backend::{Backend, StepInput, TableBuilder};
use crate::cuda::driver::Device;
use crate::cuda::probe::ProbeError;
use crate::cuda::step::StepCapacity;
use crate::cuda::{CudaConfig, CudaError};
use crate::formats::FormatId as F;
use crate::kv::KvLayout;
use crate::model::ModelSpec;

/// As of whole models at 16 bit (activations in bf16), and decoded values rounded to bf16: 2^-9 of
/// each.
const LOGITS_LIMIT: f64 = 2.5e-2;

/// Formats of keys and values at the positions after the first.
type Schedule = [(F, F); 6];

const LADDER: Schedule = [
    (F::Int8, F::F16),
    (F::Int8, F::Int8),
    (F::Int4, F::Int4),
    (F::Kitty25c, F::Int4),
    (F::Kitty12c, F::Int2c),
    (F::Int2c, F::Int2c),
];

/// Static formats. Decode attention reads some of them in place and the others in scratch; where a
/// schedule has one of these, all are read there. Of the moves of the script none leads from one of
/// them to another.
const STATIC: [(&str, Schedule); 6] = [
    ("polar44 and int4t keys", with_static(F::Polar44, F::Int4t)),
    ("polar42 and int2t keys", with_static(F::Polar42, F::Int2t)),
    (
        "polar44grid and int3 keys",
        with_static(F::Polar44Grid, F::Int3),
    ),
    (
        "polar44g64 and polar42g64 keys",
        with_static(F::Polar44G64, F::Polar42G64),
    ),
    (
        "polar44g128 and polar44 keys",
        with_static(F::Polar44G128, F::Polar44),
    ),
    (
        "groups of 32",
        [
            (F::F16, F::F16),
            (F::Int2g32, F::Kvmix11),
            (F::F16, F::Int4),
            (F::Int4g32, F::Int4),
            (F::Int2g32, F::Kvmix11),
            (F::Int2g32, F::Kvmix11),
        ],
    ),
];

/// The values' ladder beside static keys.
const fn with_static(some: F, others: F) -> Schedule {
    [
        (F::F16, F::Int8),
        (some, F::Int8),
        (F::F16, F::Int4),
        (others, F::Int4),
        (some, F::Int4),
        (some, F::Int2),
    ]
}

/// A sequence of the script: tokens so far, its blocks, and where each stands.
#[derive(Default)]
struct Sequence {
    tokens: u32,
    /// Positions and frames.
    blocks: Vec<(u16, Vec<u32>)>,
}

struct Script {
    layout: KvLayout,
    free: Vec<u32>,
    seqs: Vec<Sequence>,
    tables: TableBuilder,
    vocab: usize,
}

/// The same once it is there: its position and its frames.
type Moved = (usize, usize, (u16, Vec<u32>));
/// A block of a sequence and the position it goes to.
type Move = (usize, usize, u16);

impl Script {
    fn take(&mut self, frames: u32) -> Vec<u32> {
        let rest = self.free.len() - frames as usize;
        self.free.drain(rest..).collect()
    }

    /// A step of `rows` rows for each sequence, with `moves`; `after`: its rows read the new frames
    /// already.
    fn step(&mut self, rows: &[u32], moves: &[Move], after: bool, rng: &mut Rng) -> StepInput {
        let mut input = StepInput::default();
        let full = self.layout.frames(0);
        let mut moved = Vec::new();
        for &(seq, block, to) in moves {
            let target = self.take(self.layout.frames(to));
            let (from, source) = &self.seqs[seq].blocks[block];
            input.push_shrink((*from, source), (to, &target));
            moved.push((seq, block, (to, target)));
        }
        if after {
            self.apply(&moved);
        }
        for (seq, &rows) in rows.iter().enumerate().filter(|s| *s.1 > 0) {
            let end = self.seqs[seq].tokens + rows;
            while (self.seqs[seq].blocks.len() as u32) < end.div_ceil(128) {
                let frames = self.take(full);
                self.seqs[seq].blocks.push((0, frames));
            }
            let s = &mut self.seqs[seq];
            for (index, (position, frames)) in s.blocks.iter().enumerate() {
                self.tables.set(seq as u32, index, *position, frames);
            }
            let vocab = self.vocab;
            let tokens: Vec<u32> = (0..rows).map(|_| rng.below(vocab) as u32).collect();
            input.push_seq(seq as u32, s.tokens, &tokens);
            input.logit_rows.push(input.tokens.len() as u32 - 1);
            s.tokens = end;
        }
        if !after {
            self.apply(&moved);
        }
        self.tables.take_deltas(&mut input.deltas);
        input
    }

    fn apply(&mut self, moved: &[Moved]) {
        for (seq, block, to) in moved {
            self.seqs[*seq].blocks[*block] = to.clone();
        }
    }
}

/// What backends for these steps are started for.
fn config(frames: u32) -> CudaConfig {
    CudaConfig {
        frames,
        capacity: StepCapacity {
            rows: 400,
            seqs: 3,
            blocks: 12,
        },
        states: 0,
        logit_rows: 4,
        graph_rows_max: 4,
        tune: false,
        batch_invariant: false,
        rotate_k: false,
        rotate_v_online: false,
        scale_k_online: None,
        expand_weights: false,
    }
}

/// What the steps of a script came to.
struct Run {
    /// The largest relative error of any row of logits.
    logits: f64,
    /// Bytes of shrunk blocks that differ, given the same pool before.
    bytes: usize,
    /// Steps whose failed shrinks were not the reference's, and failed shrinks.
    failures: (usize, usize),
}

fn run(
    device: &Arc<Device>,
    spec: &ModelSpec,
    schedule: &Schedule,
    spoil: bool,
    online: Online,
) -> Result<Run, ProbeError> {
    let geometry = spec.kv_geometry();
    let shrunk: Vec<Vec<F>> = schedule
        .iter()
        .map(|(k, v)| [*k, *v].repeat(geometry.layers))
        .collect();
    let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk)
        .map_err(|e| CudaError::Unsupported(e.to_string()))?;
    let mut rng = Rng(spec.heads().head_dim as u64 + 7);
    let frames = 40 * layout.frames(0);
    let mut free: Vec<u32> = (0..frames).collect();
    rng.shuffle(&mut free);
    let mut script = Script {
        layout: layout.clone(),
        free,
        seqs: (0..3).map(|_| Sequence::default()).collect(),
        tables: TableBuilder::default(),
        vocab: spec.vocab,
    };
    let rng = &mut rng;
    let mut steps = vec![
        script.step(&[300, 40, 0], &[], false, rng),
        // Shrinks beside rows that read the old frames.
        script.step(&[1, 1, 0], &[(0, 0, 1)], false, rng),
        script.step(&[1, 1, 0], &[(0, 0, 2), (0, 1, 3)], false, rng),
    ];
    if spoil {
        // Rows that name the new frames read the old ones when the shrink fails.
        let (to, target) = &script.seqs[0].blocks[1];
        script.tables.set(0, 1, *to, target);
        script.tables.take_deltas(&mut steps[2].deltas);
    }
    // A prompt goes on over shrunk blocks; a sequence shares two of them.
    script.step(&[0, 0, 0], &[], false, rng);
    script.seqs[2].tokens = 256;
    script.seqs[2].blocks = script.seqs[0].blocks[..2].to_vec();
    steps.push(script.step(&[120, 1, 30], &[], false, rng));
    // Rows that read the new frames at once.
    steps.push(script.step(&[1, 100, 1], &[(0, 2, 4)], true, rng));
    script.seqs[2].blocks[1] = script.seqs[0].blocks[1].clone();
    steps.push(script.step(&[1, 1, 0], &[(0, 0, 5), (1, 0, 6)], true, rng));
    steps.push(script.step(&[1, 1, 0], &[(0, 0, 6), (0, 1, 4)], false, rng));
    steps.push(script.step(&[1, 1, 0], &[], false, rng));
    // More shrunk blocks than scratch has room for: prompts take turns.
    steps.push(script.step(&[20, 30, 20], &[], false, rng));

    let (mut cuda, mut reference) = start(device, spec, config(frames), &layout, online)?;
    let mut run = Run {
        logits: 0.0,
        bytes: 0,
        failures: (0, 0),
    };
    for (i, step) in steps.iter().enumerate() {
        // Both begin with the pages that the device wrote; codes would tell their last bits apart.
        let mut pool = Vec::new();
        for frame in 0..frames {
            let mut bytes = cuda.arena_mut().read_frame(frame)?;
            if i == 0 {
                bytes.fill(0);
            }
            pool.extend(bytes);
        }
        if spoil && i == 2 {
            // A value of the block that moves second which has no code at int4 but attention can
            // bear.
            let source = step.shrinks[1].frames(&layout, step).0;
            let mut rows = vec![0; 256 * geometry.head_dim];
            rows[130..132].copy_from_slice(&bf16::from_f32(-70_000.0).to_le_bytes());
            put(
                &mut pool,
                &ranges(&layout, 0, geometry.kv_heads, source),
                &rows,
            );
        }
        cuda.arena_mut().write_all(&pool)?;
        reference.write(&pool)?;
        let want = reference.backend().step(step)?;
        let (want_logits, want_failures) = (want.logits.to_vec(), want.failed_shrinks.to_vec());
        let got = cuda.step(step)?;
        let rows = got.logits.chunks_exact(spec.vocab);
        for (got, want) in rows.zip(want_logits.chunks_exact(spec.vocab)) {
            let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
            let error = relative_error(got.iter().map(|v| f64::from(*v)), &want);
            run.logits = run.logits.max(error);
        }
        let differ = format!("{:?}", got.failed_shrinks) != format!("{want_failures:?}");
        run.failures.0 += usize::from(differ);
        run.failures.1 += want_failures.len();
        for (shrink, s) in step.shrinks.iter().enumerate() {
            if want_failures.iter().any(|f| f.shrink == shrink) {
                continue;
            }
            for &frame in s.frames(&layout, step).1 {
                let got = cuda.arena_mut().read_frame(frame)?;
                // The end of the last frame belongs to nobody.
                let want = reference.frame(frame)?;
                run.bytes += got.iter().zip(&want).filter(|(a, b)| a != b).count();
            }
        }
        if !want_failures.is_empty() {
            // What comes after takes the move for done.
            return Ok(run);
        }
    }
    Ok(run)
}

/// Logits, shrunk pages and failures of every step.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    // One KV head for all query heads, and one for each.
    for (head_dim, kv_heads, group) in [(64, 1, 8), (128, 4, 1)] {
        let mut spec = spec(head_dim, kv_heads, group, false);
        if kv_heads == 1 {
            // A 16-bit record of a shrunk block takes a frame of eight: two for each layer.
            spec.layers.push(spec.layers[0].clone());
        }
        let done = run(device, &spec, &LADDER, false, Online::NONE)?;
        let name = |what: &str| {
            format!("model with shrinks, head_dim {head_dim} KV heads {kv_heads}: {what}")
        };
        report.check(&name("logits"), done.logits, LOGITS_LIMIT);
        report.check(&name("bytes of pages"), done.bytes as f64, 0.0);
        report.check(&name("failures"), done.failures.0 as f64, 0.0);
    }
    let mut parts = spec(64, 2, 2, false);
    gemma4(&mut parts);
    for (how, online) in [("plain", Online::NONE)]
        .into_iter()
        .chain(Online::ROTATIONS)
    {
        let done = run(device, &parts, &LADDER, false, online)?;
        let name = format!("model with shrinks, {how}, heads in parts");
        let limit = online.limit(LOGITS_LIMIT);
        report.check(&format!("{name}: logits"), done.logits, limit);
        report.check(&format!("{name}: bytes of pages"), done.bytes as f64, 0.0);
    }
    for (head_dim, kv_heads, group) in [(64, 3, 3), (128, 2, 4), (256, 2, 2)] {
        let spec = spec(head_dim, kv_heads, group, false);
        for spoil in [false, true] {
            let done = run(device, &spec, &LADDER, spoil, Online::NONE)?;
            let name = |what: &str| {
                let kind = if spoil {
                    "a shrink that fails"
                } else {
                    "shrinks"
                };
                format!("model with {kind}, head_dim {head_dim}: {what}")
            };
            report.check(&name("logits"), done.logits, LOGITS_LIMIT);
            report.check(&name("bytes of pages"), done.bytes as f64, 0.0);
            let wrong = done.failures.0 + done.failures.1.abs_diff(usize::from(spoil));
            report.check(&name("failures"), wrong as f64, 0.0);
        }
        for (how, online) in Online::ROTATIONS.into_iter().chain([Online::SCALES[0]]) {
            let limit = online.limit(LOGITS_LIMIT);
            let done = run(device, &spec, &LADDER, false, online)?;
            let name = format!("model with shrinks, {how}, head_dim {head_dim}");
            report.check(&format!("{name}: logits"), done.logits, limit);
            report.check(&format!("{name}: bytes of pages"), done.bytes as f64, 0.0);
        }
        for (formats, schedule) in STATIC.iter().filter(|_| head_dim <= 128) {
            let done = run(device, &spec, schedule, false, Online::NONE)?;
            let name = |what: &str| format!("model with {formats}, head_dim {head_dim}: {what}");
            report.check(&name("logits"), done.logits, LOGITS_LIMIT);
            report.check(&name("bytes of pages"), done.bytes as f64, 0.0);
            let wrong = done.failures.0 + done.failures.1;
            report.check(&name("failures"), wrong as f64, 0.0);
        }
    }
    Ok(())
}
