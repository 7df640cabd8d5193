//! Whole models: the CUDA backend against the CPU backend, step by step over the same pages.

mod families;

use std::convert::Infallible;
use std::sync::Arc;

use half::bf16;

use super::online::{Online, Reference, start};
use super::reference::relative_error;
use super::table::Report;
use super::{Pages, Rng};
use crate::backend::{
    Backend, LogitEdit, SampleRequest, StateCopy, StepInput, TableDelta, pending_sample,
};
use crate::cuda::driver::Device;
use crate::cuda::probe::ProbeError;
use crate::cuda::step::StepCapacity;
use crate::cuda::{CudaBackend, CudaConfig, CudaError};
use crate::kv::{KvLayout, Side};
use crate::model::{
    Activation, ExpertActivation, ExpertsSpec, GatedDeltaSpec, LayerTensor, Mixer, Mlp, ModelSpec,
    OutputGate, QkNorm, RecurrentSpec, Rope, Routing, SharedExpert, ShortConvSpec, TensorName,
    UniformModel, WeightSource,
};
pub(super) use families::gemma4;
use families::{FAMILIES, mamba_2, put_branches, without_gates};

/// Of models of three layers. The CPU keeps activations in f32, the device in bf16: some roundings
/// of 2^-9 per layer.
const LOGITS_LIMIT: f64 = 2.5e-2;

/// Of the first layer's keys and values: the products that they come from are rounded to bf16, the
/// CPU's to f32, and both to bf16 at the end.
const ROWS_LIMIT: f64 = 5e-3;
/// The same where scales and offsets of packed weights are rounded to bf16 as well.
const PACKED_ROWS_LIMIT: f64 = 7e-3;
/// The same of inputs quantised to eight-bit floats.
const QUANTISED_ROWS_LIMIT: f64 = 3.2e-2;

/// Sequences of the script: tokens of the prompt.
const PROMPTS: [usize; 3] = [37, 150, 1];
/// Decode steps after the prompts.
const DECODE_STEPS: usize = 4;

/// Random weights, of the scale of a trained model's; the same in whatever order they are loaded.
pub(super) struct RandomWeights<'a>(pub(super) &'a ModelSpec);

impl WeightSource for RandomWeights<'_> {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        Ok(name.shape(self.0))
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        use LayerTensor as L;
        let shape = name.shape(self.0);
        let values = shape.iter().product();
        let index = TensorName::all(self.0).iter().position(|n| *n == name);
        let mut rng = Rng(index.unwrap_or(0) as u64 + 1);
        let is_scale = matches!(name, TensorName::Layer(_, L::ExpertScale));
        let (width, whole) = match (&shape[..], name) {
            (
                [.., width],
                TensorName::Layer(
                    _,
                    L::RouterBias | L::ExpertGateBias | L::ExpertUpBias | L::ExpertDownBias,
                ),
            ) => (*width, rng.values(values, 0.5)),
            ([.., _, inputs], _) => (*inputs, rng.values(values, (3.0 / *inputs as f32).sqrt())),
            _ if !(name.is_norm() || is_scale) => (0, rng.values(values, 0.5)),
            _ if self.0.norms.from_one && !is_scale => (0, rng.values(values, 0.2)),
            _ => {
                let near = rng.values(values, 0.2);
                let one = near.iter().map(|v| bf16::from_f32(1.0 + v.to_f32()));
                (0, one.collect())
            }
        };
        out.copy_from_slice(&whole[first_row * width..][..out.len()]);
        Ok(())
    }
}

pub(super) fn spec(head_dim: usize, kv_heads: usize, group: usize, extras: bool) -> ModelSpec {
    let half = head_dim / 2;
    UniformModel {
        hidden: 192,
        layers: 3,
        q_heads: kv_heads * group,
        kv_heads,
        head_dim,
        intermediate: 328,
        vocab: 500,
        norm_eps: 1e-5,
        rope: Rope::new(
            (0..half)
                .map(|i| 10_000f32.powf(-(i as f32) / half as f32))
                .collect(),
            if extras { 1.1 } else { 1.0 },
        ),
        qkv_bias: extras,
        qk_norm: if extras {
            QkNorm::PerHead
        } else {
            QkNorm::None
        },
        tied_embeddings: !extras,
        max_positions: 4096,
        ..UniformModel::default()
    }
    .spec()
}

/// The steps of one test: prompts in chunks beside each other, then decode, every page at a place
/// of its own. The first one describes the block tables of all.
struct Script {
    steps: Vec<StepInput>,
    pages: Pages,
    frames: u32,
}

fn script(spec: &ModelSpec, rng: &mut Rng) -> Script {
    let layout = spec.kv_geometry().frame_layout();
    let lengths = PROMPTS.map(|p| p + DECODE_STEPS);
    let frames = Pages::frames_for(layout, lengths) + 7;
    // The final block tables; a step needs those of its tokens and may see more.
    let mut pages = Pages::new(layout, frames, rng);
    for length in lengths {
        pages.add(length - 1, 1);
    }
    let mut known = [0; PROMPTS.len()];
    let mut steps = Vec::new();
    let mut step = |rows: [usize; PROMPTS.len()], rng: &mut Rng| {
        let mut input = StepInput::default();
        for (seq, rows) in rows.into_iter().enumerate().filter(|s| s.1 > 0) {
            let tokens: Vec<u32> = (0..rows).map(|_| rng.below(spec.vocab) as u32).collect();
            input.push_seq(seq as u32, known[seq], &tokens);
            known[seq] += rows as u32;
            input.logit_rows.push(input.tokens.len() as u32 - 1);
        }
        steps.push(input);
    };
    step([37, 60, 0], rng);
    // two decode, one goes on with its prompt; the third is a prompt of one token
    step([1, 90, 1], rng);
    for _ in 1..DECODE_STEPS {
        step([1, 1, 1], rng);
    }
    // The first prompts are scored, too: more rows than are computed at once.
    steps[0].logit_rows = (0..steps[0].tokens.len() as u32).collect();
    steps[0].deltas.clone_from(&pages.input.deltas);
    if spec.is_recurrent() {
        // The last token but one of a sequence is taken back: its state was kept before that.
        let [.., before, last] = &mut steps[..] else {
            unreachable!("a script has more steps");
        };
        let [seq, kept] = [1, PROMPTS.len() as u32];
        before.state_copies.push(StateCopy {
            src: seq,
            dst: kept,
        });
        last.state_copies.push(StateCopy {
            src: kept,
            dst: seq,
        });
        last.seqs[seq as usize].position -= 1;
    }
    Script {
        steps,
        pages,
        frames,
    }
}

fn last_rows(step: &StepInput) -> impl Iterator<Item = u32> + '_ {
    step.seqs.iter().map(|s| s.first_row + s.rows - 1)
}

/// The tokens of a script's decode steps, one step after the other, and two in flight, where each
/// step takes tokens that the one before it has yet to sample. The same, or infinitely far apart.
fn in_flight(device: &Arc<Device>, spec: &ModelSpec, recorded: bool) -> Result<f64, ProbeError> {
    let mut script = script(spec, &mut Rng(head_seed(spec)));
    for step in &mut script.steps {
        step.logit_rows.clear();
        step.samples = last_rows(step).map(SampleRequest::greedy).collect();
    }
    // From the third step on every sequence decodes what the step before sampled.
    let decode = 2;
    let mut apart: Vec<Vec<u32>> = Vec::new();
    let mut backend = started(device, spec, &script, recorded)?;
    for (i, step) in script.steps.iter().enumerate() {
        let mut step = step.clone();
        if i >= decode {
            step.tokens.clone_from(&apart[i - 1]);
        }
        let samples = backend.step(&step)?.samples;
        apart.push(samples.iter().map(|d| d.token.unwrap_or(0)).collect());
    }
    let mut same = true;
    for described_anew in [false, true] {
        let mut together: Vec<Vec<u32>> = Vec::new();
        let mut backend = started(device, spec, &script, recorded)?;
        for (i, step) in script.steps.iter().enumerate() {
            let mut step = step.clone();
            if i >= decode {
                step.tokens = (0..step.tokens.len() as u32).map(pending_sample).collect();
            }
            if described_anew {
                step.deltas.clone_from(&script.pages.input.deltas);
                // States stay in their slots.
                if i % 2 == 1 && !spec.is_recurrent() {
                    turn(&mut step);
                }
            }
            if described_anew && i % 3 == 2 {
                // The deltas of a step that is refused have taken effect.
                let mut wrong = step.clone();
                wrong.tokens[0] = spec.vocab as u32;
                same &= backend.submit(&wrong).is_err();
                step.deltas.clear();
            }
            backend.submit(&step)?;
            if i > 0 {
                let samples = backend.wait()?.samples;
                together.push(samples.iter().map(|d| d.token.unwrap_or(0)).collect());
            }
        }
        let samples = backend.wait()?.samples;
        together.push(samples.iter().map(|d| d.token.unwrap_or(0)).collect());
        same &= apart == together;
    }
    Ok(if same { 0.0 } else { f64::INFINITY })
}

/// Numbers slots and blocks from the end: a step after one that is not turned finds every table
/// changed, while the other may still read it.
fn turn(step: &mut StepInput) {
    let blocks = step.deltas.iter().map(|delta| match delta {
        TableDelta::Row { block, .. }
        | TableDelta::Block { block, .. }
        | TableDelta::Frame { block, .. } => block + 1,
    });
    let (slots, blocks) = (PROMPTS.len() as u32, blocks.max().unwrap_or(0));
    for seq in &mut step.seqs {
        seq.slot = slots - 1 - seq.slot;
    }
    for delta in &mut step.deltas {
        match delta {
            TableDelta::Row { slot, block, .. } => {
                (*slot, *block) = (slots - 1 - *slot, blocks - 1 - *block);
            }
            TableDelta::Block { block, .. } | TableDelta::Frame { block, .. } => {
                *block = blocks - 1 - *block;
            }
        }
    }
}

/// Compares the logits of every step of a script.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for (head_dim, kv_heads, group, extras) in [
        (64, 3, 3, false),
        (128, 2, 4, true),
        (64, 1, 8, true),
        (128, 1, 1, false),
        (96, 2, 2, true),
        (256, 1, 2, false),
    ] {
        let spec = spec(head_dim, kv_heads, group, extras);
        let kind = if extras {
            "bias and head norms"
        } else {
            "plain"
        };
        let name = format!("model head_dim {head_dim} group {group} {kind}");
        for recorded in [true, false] {
            let found = compare(device, &spec, recorded, Online::NONE)?;
            let how = if recorded { "recorded" } else { "eager" };
            let limits = (LOGITS_LIMIT, ROWS_LIMIT);
            report_apart(report, &format!("{name}, {how}"), &found, limits);
            let name = format!("two steps in flight, head_dim {head_dim}, {how}");
            report.check(&name, in_flight(device, &spec, recorded)?, 0.0);
        }
        if head_dim.is_power_of_two() {
            check_online(device, report, (&spec, &name), &Online::ROTATIONS)?;
        }
        // The test folds scales into projections, which is no use in front of a norm.
        let scales = if extras { 1 } else { 2 };
        check_online(device, report, (&spec, &name), &Online::SCALES[..scales])?;
    }
    for (head_dim, extras) in [(64, true), (128, false)] {
        let spec = spec(head_dim, 2, 2, extras);
        let name = format!("model head_dim {head_dim} group 2");
        check_online(device, report, (&spec, &name), &Online::PACKED)?;
    }
    let mut arcee = spec(64, 2, 2, false);
    without_gates(&mut arcee, Activation::Relu2, false);
    check_online(
        device,
        report,
        (&arcee, "model without gates"),
        &Online::PACKED,
    )?;
    for head_dim in [16, 32] {
        let spec = spec(head_dim, 2, 3, false);
        let name = format!("model head_dim {head_dim} group 3 plain");
        check_online(device, report, (&spec, &name), &Online::ROTATIONS)?;
    }
    for (name, head_dim, change) in FAMILIES {
        let mut spec = spec(head_dim, 2, 2, false);
        change(&mut spec);
        let found = compare(device, &spec, true, Online::NONE)?;
        let limits = (LOGITS_LIMIT, ROWS_LIMIT);
        report_apart(report, &format!("model like {name}"), &found, limits);
    }
    Ok(())
}

/// Six layers for each three that the limits are for: gates multiply what was rounded.
const LAYERS_OF_THREE: f64 = 2.0;

/// A model of every kind of recurrence, between layers whose attention is gated.
pub(super) fn check_recurrent(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let mut spec = spec(64, 2, 2, false);
    let delta = |k_heads, v_heads, k_dim, v_dim, taps| {
        RecurrentSpec::GatedDelta(GatedDeltaSpec {
            k_heads,
            v_heads,
            k_dim,
            v_dim,
            taps,
            norm_eps: 1e-5,
            doubled: false,
        })
    };
    let short = |taps, bias| RecurrentSpec::ShortConv(ShortConvSpec { taps, bias });
    spec.layers[0].attention_mut().output_gate = Some(OutputGate::SIGMOIDS);
    let attention = spec.layers[0].clone();
    let recurrences = [
        delta(2, 4, 48, 40, 4),
        short(3, true),
        delta(1, 4, 128, 128, 2),
        delta(1, 4, 256, 64, 3),
        // A state of few keys amplifies rounding: those of one head alone would be further apart.
        delta(4, 4, 32, 256, 2),
        short(8, false),
        // What is normed at once is of several groups: where that of one nearly cancels, rounding
        // is all that is left.
        mamba_2(8, 16, 48, 40, Some(2)),
        mamba_2(4, 8, 128, 64, Some(1)),
        mamba_2(8, 16, 64, 32, None),
    ];
    let of_all = [0, 1, 2, 5].map(|index| recurrences[index]);
    let layer = |recurrence| {
        let mut layer = attention.clone();
        layer.mixer = Mixer::Recurrent(recurrence);
        layer
    };
    for (index, recurrence) in recurrences.into_iter().enumerate() {
        spec.layers = vec![attention.clone(), layer(recurrence), attention.clone()];
        let mut rows_limit = ROWS_LIMIT;
        if let RecurrentSpec::Mamba2(_) = recurrence {
            // It multiplies four values that all come of what it reads, whose roundings come out
            // three times as large, and an MLP makes as much of them again: it stands first and
            // without one, and keys come behind it.
            spec.layers.remove(0);
            spec.layers[0].mlp = Mlp::None;
            rows_limit = LOGITS_LIMIT;
            let eager = compare(device, &spec, false, Online::NONE)?;
            let name = format!("model with recurrence {index}, eager");
            report_apart(report, &name, &eager, (LOGITS_LIMIT, rows_limit));
            for recorded in [true, false] {
                let name = format!("two steps in flight, {name}, recorded: {recorded}");
                report.check(&name, in_flight(device, &spec, recorded)?, 0.0);
            }
        }
        let found = compare(device, &spec, true, Online::NONE)?;
        let name = format!("model with recurrence {index}");
        report_apart(report, &name, &found, (LOGITS_LIMIT, rows_limit));
    }
    spec.layers = vec![attention.clone()];
    spec.layers.extend(of_all.map(layer));
    spec.layers.push(attention.clone());
    let name = "model with recurrent layers";
    for recorded in [true, false] {
        let found = compare(device, &spec, recorded, Online::NONE)?;
        let name = format!("{name}, recorded: {recorded}");
        let limit = LAYERS_OF_THREE * LOGITS_LIMIT;
        report_apart(report, &name, &found, (limit, ROWS_LIMIT));
        let name = format!("two steps in flight, {name}");
        report.check(&name, in_flight(device, &spec, recorded)?, 0.0);
    }
    spec.layers = vec![attention.clone(), layer(recurrences[2]), attention];
    // Nothing can be folded into the weights.
    check_online(device, report, (&spec, name), &Online::ROTATIONS[..2])?;
    check_online(device, report, (&spec, name), &Online::SCALES[..1])
}

/// Models with experts beside dense MLPs.
fn check_branches(
    device: &Arc<Device>,
    report: &mut Report,
    experts: &ExpertsSpec,
) -> Result<(), ProbeError> {
    let plain = spec(64, 2, 2, false);
    let hidden = plain.hidden;
    let mut of_gemma = plain.clone();
    gemma4(&mut of_gemma);
    // The limit has no room for the roundings of both inputs of layers and branches of experts.
    of_gemma.per_layer_inputs = None;
    of_gemma.layers.truncate(3);
    let layers = of_gemma.layers.iter_mut();
    layers.for_each(|layer| put_branches(layer, hidden, experts));
    for recorded in [true, false] {
        let found = compare(device, &of_gemma, recorded, Online::NONE)?;
        let name = format!("model like Gemma 4 with experts, recorded: {recorded}");
        report_apart(report, &name, &found, (LOGITS_LIMIT, ROWS_LIMIT));
        let name = format!("two steps in flight, {name}");
        report.check(&name, in_flight(device, &of_gemma, recorded)?, 0.0);
    }
    let mut packed = plain;
    put_branches(&mut packed.layers[1], hidden, experts);
    let name = "model with experts beside a dense MLP";
    check_online(device, report, (&packed, name), &Online::PACKED)
}

/// Models with experts, all of which are chosen: so no decision depends on rounding.
pub(super) fn check_experts(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let mut spec = spec(64, 2, 2, false);
    let experts = ExpertsSpec::plain(4, 4, 72, Routing::SOFTMAX_OF_CHOSEN);
    spec.layers[1].mlp = Mlp::Experts(ExpertsSpec {
        router_bias: true,
        biases: true,
        activation: ExpertActivation::Clamped {
            limit: 7.0,
            alpha: 1.702,
        },
        ..experts.clone()
    });
    spec.layers[2].mlp = Mlp::Experts(ExpertsSpec {
        shared: Some(SharedExpert {
            intermediate: 40,
            gated: true,
        }),
        ..experts.clone()
    });
    for recorded in [true, false] {
        let found = compare(device, &spec, recorded, Online::NONE)?;
        let name = format!("model with experts, recorded: {recorded}");
        report_apart(report, &name, &found, (LOGITS_LIMIT, ROWS_LIMIT));
    }
    check_branches(device, report, &experts)?;
    check_online(
        device,
        report,
        (&spec, "model with experts"),
        &Online::PACKED,
    )
}

/// A model that rotates or scales in every step.
fn check_online(
    device: &Arc<Device>,
    report: &mut Report,
    (spec, name): (&ModelSpec, &str),
    ways: &[(&str, Online)],
) -> Result<(), ProbeError> {
    for (how, online) in ways {
        let limit = online.limit(LOGITS_LIMIT);
        let rows_limit = match online {
            online if online.quantises_rows() => QUANTISED_ROWS_LIMIT,
            online if online.has_offsets() => PACKED_ROWS_LIMIT,
            _ => ROWS_LIMIT,
        };
        let found = compare(device, spec, true, *online)?;
        report_apart(
            report,
            &format!("{name}, {how}"),
            &found,
            (limit, rows_limit),
        );
    }
    Ok(())
}

fn report_apart(report: &mut Report, name: &str, found: &Apart, (limit, rows_limit): (f64, f64)) {
    report.check(name, found.logits, limit);
    for (what, error) in [("keys", found.keys), ("values", found.values)] {
        report.check(&format!("{name}: first {what}"), error, rows_limit);
    }
}

/// What a backend for the steps of a script is started for.
fn config(script: &Script, recorded: bool) -> CudaConfig {
    let rows = script.steps.iter().map(|s| s.tokens.len()).max();
    CudaConfig {
        frames: script.frames,
        capacity: StepCapacity {
            rows: rows.unwrap_or(0),
            ..script.pages.capacity()
        },
        states: script.pages.capacity().seqs + 1,
        logit_rows: 4,
        graph_rows_max: if recorded { 4 } else { 0 },
        tune: false,
        batch_invariant: false,
        rotate_k: false,
        rotate_v_online: false,
        scale_k_online: None,
        expand_weights: false,
    }
}

/// A backend for the steps of a script.
fn started(
    device: &Arc<Device>,
    spec: &ModelSpec,
    script: &Script,
    recorded: bool,
) -> Result<CudaBackend, CudaError> {
    let (of, config) = (spec.clone(), config(script, recorded));
    let started = CudaBackend::new(device, of, config, &RandomWeights(spec), &mut |_, _| ());
    started.map_err(|e| CudaError::Unsupported(e.to_string()))
}

/// How far the device is from its reference.
struct Apart {
    /// The largest relative error of any row of logits.
    logits: f64,
    /// The relative error of the first layer's keys.
    keys: f64,
    /// Of its values.
    values: f64,
}

/// Runs a script on both.
fn compare(
    device: &Arc<Device>,
    spec: &ModelSpec,
    recorded: bool,
    online: Online,
) -> Result<Apart, ProbeError> {
    let mut rng = Rng(head_seed(spec));
    let script = script(spec, &mut rng);
    let geometry = spec.kv_geometry();
    let layout = KvLayout::unshrunk(geometry, geometry.frame_layout());
    let config = config(&script, recorded);
    let (mut cuda, mut reference) = start(device, spec, config, &layout, online)?;
    let mut worst: f64 = 0.0;
    for (i, input) in script.steps.iter().enumerate() {
        let want = reference.backend().step(input)?.logits;
        let mut sampling = input.clone();
        sampling.samples = last_rows(input).map(SampleRequest::greedy).collect();
        // Every other step one token is made the likeliest: logits come back as they were before.
        let favoured = (i % 2 == 1).then_some(3);
        sampling.edits.extend(favoured.map(|id| LogitEdit {
            id,
            bias: 100.0,
            count: 0,
            masked: false,
            in_prompt: false,
        }));
        for sample in &mut sampling.samples {
            sample.edits.len = sampling.edits.len() as u32;
        }
        let output = cuda.step(&sampling)?;
        let got = output.logits;
        for (got, want) in got
            .chunks_exact(spec.vocab)
            .zip(want.chunks_exact(spec.vocab))
        {
            let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
            worst = worst.max(relative_error(got.iter().map(|v| f64::from(*v)), &want));
        }
        // The greedy token must be the largest logit of the row, to the bit.
        for (row, sampled) in last_rows(input).zip(output.samples) {
            let place = input.logit_rows.iter().position(|r| *r == row).unwrap_or(0);
            let row = &got[place * spec.vocab..][..spec.vocab];
            let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let largest = row.iter().position(|l| *l == top).map(|id| id as u32);
            if sampled.token.ok() != favoured.or(largest) {
                worst = f64::INFINITY;
            }
        }
    }
    let of_side =
        |side, cuda: &mut _, reference: &mut _| first_rows(spec, &script, side, (cuda, reference));
    Ok(Apart {
        logits: worst,
        keys: of_side(Side::K, &mut cuda, &mut reference)?,
        values: of_side(Side::V, &mut cuda, &mut reference)?,
    })
}

/// The relative error of the keys or values of the first layer in all of a script's pages.
fn first_rows(
    spec: &ModelSpec,
    script: &Script,
    side: Side,
    (cuda, reference): (&mut CudaBackend, &mut Reference),
) -> Result<f64, ProbeError> {
    let geometry = spec.kv_geometry();
    let row_bytes = 2 * geometry.head_dim;
    let values = |bytes: &[u8]| -> Vec<f64> {
        let pairs = bytes.chunks_exact(2);
        pairs
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect()
    };
    let (mut got, mut want) = (Vec::new(), Vec::new());
    let last = script.steps.last().into_iter().flat_map(|s| &s.seqs);
    for seq in last {
        for token in 0..(seq.position + seq.rows) as usize {
            for head in 0..geometry.kv_heads {
                let record = geometry.record(0, side, head);
                let bytes = geometry.sub_record_bytes();
                let pages = &script.pages;
                let (frame, at) = pages.row_place(seq.slot as usize, token, record, bytes);
                let row = at..at + row_bytes;
                got.extend(values(&cuda.arena_mut().read_frame(frame)?[row.clone()]));
                want.extend(values(&reference.frame(frame)?[row]));
            }
        }
    }
    Ok(relative_error(got, &want))
}

fn head_seed(spec: &ModelSpec) -> u64 {
    (spec.heads().head_dim * 1000 + spec.heads().q_heads) as u64
}
