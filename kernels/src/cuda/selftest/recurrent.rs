//! Recurrent layers on their own, in chunks and row by row, against their definition in f64.

use std::sync::Arc;

use half::bf16;

use super::Rng;
use super::reference::relative_error;
use super::table::Report;
use crate::backend::SeqRows;
use crate::cuda::driver::Device;
use crate::cuda::probe::{ProbeError, RecurrentLayer, RecurrentProbe};
use crate::model::{GatedDeltaSpec, RecurrentSpec, ShortConvSpec};

/// Outputs are rounded to bf16 once, by up to 2^-8 of a value; what has been convolved is on the
/// other side of a rounding here and there.
const LIMIT: f64 = 3.9e-3;
/// States are f32, and come of products within 2^-17 in chunks. But of few rows they tell where an
/// input, by another exponential function, is rounded the other way, by 2^-8 of it.
const STATE_LIMIT: f64 = 1e-3;

/// Rows of each sequence in two steps, one after the other: one row, and around multiples of a
/// chunk's. A sequence of the second goes on wherever the first one ended.
const ROWS: [[u32; 7]; 2] = [[1, 63, 64, 65, 130, 300, 16], [40, 1, 65, 200, 15, 64, 1]];

/// What gates are like.
#[derive(Debug, Clone, Copy)]
enum Gates {
    /// A trained model's.
    Usual,
    /// Decays of about 1, of 0 and between; strengths of about 0 and 1.
    Extreme,
}

/// What keys are like.
#[derive(Debug, Clone, Copy)]
enum Keys {
    Random,
    /// All tokens have about the same, which they take from the state again and again.
    Alike,
}

/// A sequence, token by token.
struct Sequence {
    /// Inputs of the convolution, the oldest first.
    before: Vec<Vec<f64>>,
    /// `[v_heads][k_dim][v_dim]`.
    state: Vec<f64>,
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

impl Sequence {
    fn new(delta: &GatedDeltaSpec) -> Self {
        Self {
            before: vec![vec![0.0; delta.conv_width()]; delta.taps - 1],
            state: vec![0.0; delta.v_heads * delta.k_dim * delta.v_dim],
        }
    }

    /// What comes out at a row.
    fn row(&mut self, delta: &GatedDeltaSpec, layer: &RecurrentLayer, row: &[bf16]) -> Vec<f64> {
        let row: Vec<f64> = row.iter().map(|x| x.to_f64()).collect();
        let (convolved, others) = row.split_at(delta.conv_width());
        self.before.push(convolved.to_vec());
        let weights = layer.conv.chunks_exact(delta.taps).enumerate();
        let convolved = weights.map(|(channel, weights)| {
            let inputs = self.before.iter().map(|before| before[channel]);
            let sum: f64 = inputs.zip(weights).map(|(x, w)| x * w.to_f64()).sum();
            bf16::from_f64(silu(sum)).to_f64()
        });
        let convolved: Vec<f64> = convolved.collect();
        self.before.remove(0);
        let (queries, rest) = convolved.split_at(delta.k_width());
        let (keys, values) = rest.split_at(delta.k_width());
        let (z, gates) = others.split_at(delta.v_width());
        let normed = |x: &[f64]| -> Vec<f64> {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect()
        };
        let mut out = Vec::new();
        let states = self.state.chunks_exact_mut(delta.k_dim * delta.v_dim);
        for (head, state) in states.enumerate() {
            let of_key = head / (delta.v_heads / delta.k_heads) * delta.k_dim;
            let q = normed(&queries[of_key..][..delta.k_dim]);
            let k = normed(&keys[of_key..][..delta.k_dim]);
            let v = &values[head * delta.v_dim..][..delta.v_dim];
            let strength = 1.0 / (1.0 + (-gates[head]).exp());
            let x = gates[delta.v_heads + head] + layer.decay_bias[head].to_f64();
            let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
            let decay = (-layer.decay[head].to_f64().exp() * softplus).exp();
            let mut put_out = vec![0.0; delta.v_dim];
            for (column, out) in put_out.iter_mut().enumerate() {
                let at = |channel: usize| channel * delta.v_dim + column;
                let known: f64 = (0..delta.k_dim).map(|c| decay * state[at(c)] * k[c]).sum();
                let change = (v[column] - known) * strength;
                for channel in 0..delta.k_dim {
                    let value = decay * state[at(channel)] + k[channel] * change;
                    state[at(channel)] = value;
                    *out += value * q[channel] / (delta.k_dim as f64).sqrt();
                }
            }
            let mean = put_out.iter().map(|x| x * x).sum::<f64>() / delta.v_dim as f64;
            let scale = 1.0 / (mean + f64::from(RecurrentProbe::EPS)).sqrt();
            let z = &z[head * delta.v_dim..];
            let opened = put_out.iter().zip(&layer.norm).zip(z);
            out.extend(opened.map(|((x, w), z)| x * scale * w.to_f64() * silu(*z)));
        }
        out
    }

    /// The state, as it lies in memory.
    fn floats(&self) -> Vec<f64> {
        [self.before.concat(), self.state.clone()].concat()
    }
}

fn layer(delta: &GatedDeltaSpec, gates: Gates, rng: &mut Rng) -> RecurrentLayer {
    let decay = match gates {
        Gates::Usual => rng.values(delta.v_heads, 0.5),
        // Of a logarithm of -600, which is beyond f32, or as a trained model's.
        Gates::Extreme => (0..delta.v_heads)
            .map(|head| bf16::from_f32(3.0 - 3.0 * (head % 2) as f32))
            .collect(),
    };
    RecurrentLayer {
        conv: rng.values(delta.conv_width() * delta.taps, 0.9),
        decay,
        decay_bias: rng.values(delta.v_heads, 0.5),
        norm: rng.values(delta.v_dim, 1.0),
    }
}

/// Rows that a layer reads.
fn inputs(
    delta: &GatedDeltaSpec,
    rows: usize,
    (gates, keys): (Gates, Keys),
    rng: &mut Rng,
) -> Vec<bf16> {
    let key = rng.values(delta.k_width(), 1.0);
    let mut inputs = Vec::new();
    for _ in 0..rows {
        let mut row = rng.values(delta.in_width(), 1.0);
        if let Keys::Alike = keys {
            let of_keys = &mut row[delta.k_width()..][..delta.k_width()];
            for (x, key) in of_keys.iter_mut().zip(&key) {
                *x = bf16::from_f32(key.to_f32() + x.to_f32() / 64.0);
            }
        }
        let gates_at = row.len() - 2 * delta.v_heads;
        if let Gates::Extreme = gates {
            for gate in &mut row[gates_at..] {
                *gate = bf16::from_f32([-30.0, 30.0, -4.0, gate.to_f32(), 8.0][rng.below(5)]);
            }
        }
        inputs.extend(row);
    }
    inputs
}

/// The sequences of a step in an order that is not their slots', behind a row that is nobody's.
fn step(rows: &[u32], positions: &[u32]) -> Vec<SeqRows> {
    let mut first_row = 1;
    let slots = (0..rows.len()).map(|i| (i * 3 + 1) % rows.len());
    let seqs = slots.map(|slot| {
        let seq = SeqRows {
            slot: slot as u32,
            first_row,
            rows: rows[slot],
            position: positions[slot],
        };
        first_row += seq.rows;
        seq
    });
    seqs.collect()
}

/// The largest relative error of a sequence's outputs, and of its state at the end of a step.
fn compare(
    device: &Arc<Device>,
    delta: &GatedDeltaSpec,
    kinds: (Gates, Keys),
    in_chunks: bool,
) -> Result<[f64; 2], ProbeError> {
    let mut rng = Rng(delta.k_dim as u64);
    let layer = layer(delta, kinds.0, &mut rng);
    let spec = RecurrentSpec::GatedDelta(*delta);
    let rows = ROWS.map(|rows| rows.iter().sum::<u32>() as usize + 1);
    let size = (rows[0].max(rows[1]), ROWS[0].len());
    let mut probe = RecurrentProbe::new(device, spec, 64, size, &layer)?;
    let mut sequences: Vec<_> = ROWS[0].iter().map(|_| Sequence::new(delta)).collect();
    let mut positions = [0; ROWS[0].len()];
    let mut worst = [0f64; 2];
    let (in_width, out_width) = (delta.in_width(), delta.v_width());
    for (of_step, rows) in ROWS.iter().zip(rows) {
        let seqs = step(of_step, &positions);
        let inputs = inputs(delta, rows, kinds, &mut rng);
        probe.load(&seqs, &inputs, in_chunks)?;
        let got = probe.run()?;
        if !got[..out_width].iter().all(|x| x.is_nan()) {
            worst[0] = f64::INFINITY;
        }
        for seq in &seqs {
            let sequence = &mut sequences[seq.slot as usize];
            let range = seq.first_row as usize..(seq.first_row + seq.rows) as usize;
            let own = &inputs[range.start * in_width..range.end * in_width];
            let want = own.chunks_exact(in_width);
            let want: Vec<f64> = want.flat_map(|r| sequence.row(delta, &layer, r)).collect();
            let got = &got[range.start * out_width..range.end * out_width];
            let error = relative_error(got.iter().map(|x| x.to_f64()), &want);
            worst[0] = worst[0].max(error);
            let state = probe.state(seq.slot as usize)?.into_iter().map(f64::from);
            worst[1] = worst[1].max(relative_error(state, &sequence.floats()));
            positions[seq.slot as usize] += seq.rows;
        }
    }
    Ok(worst)
}

/// Short convolutions in chunks have the bits of those that walk: infinitely far apart, if not.
fn short_in_chunks(device: &Arc<Device>, taps: usize) -> Result<f64, ProbeError> {
    let (hidden, mut rng) = (320, Rng(taps as u64));
    let layer = RecurrentLayer {
        conv: rng.values(hidden * taps, 0.9),
        ..RecurrentLayer::default()
    };
    let spec = RecurrentSpec::ShortConv(ShortConvSpec { taps, bias: false });
    let rows = ROWS.map(|rows| rows.iter().sum::<u32>() as usize + 1);
    let inputs = rows.map(|rows| rng.values(rows * 3 * hidden, 1.0));
    let size = (rows[0].max(rows[1]), ROWS[0].len());
    let mut results = Vec::new();
    for in_chunks in [false, true] {
        let mut probe = RecurrentProbe::new(device, spec, hidden, size, &layer)?;
        let mut result: (Vec<bf16>, Vec<f32>) = (Vec::new(), Vec::new());
        let mut positions = [0; ROWS[0].len()];
        for (rows, inputs) in ROWS.iter().zip(&inputs) {
            probe.load(&step(rows, &positions), inputs, in_chunks)?;
            result.0.extend(&probe.run()?[hidden..]);
            for (slot, rows) in rows.iter().enumerate() {
                positions[slot] += rows;
                result.1.extend(probe.state(slot)?);
            }
        }
        results.push(result);
    }
    Ok(if results[0] == results[1] {
        0.0
    } else {
        f64::INFINITY
    })
}

/// A prompt cut at multiples of a chunk's rows has the bits of one that is not, in any company:
/// infinitely far apart, if not.
fn cut_at_chunks(device: &Arc<Device>, delta: &GatedDeltaSpec) -> Result<f64, ProbeError> {
    let mut rng = Rng(5);
    let layer = layer(delta, Gates::Usual, &mut rng);
    let (in_width, out_width) = (delta.in_width(), delta.v_width());
    let (rows, cut) = (212, 64);
    let inputs = inputs(delta, rows, (Gates::Usual, Keys::Random), &mut rng);
    let spec = RecurrentSpec::GatedDelta(*delta);
    let seq = |slot, first_row, rows, position| SeqRows {
        slot,
        first_row,
        rows,
        position,
    };
    let start = || RecurrentProbe::new(device, spec, 64, (rows, 2), &layer);
    let (mut whole, mut parts) = (start()?, start()?);
    // Rows 192 and on are another sequence's.
    whole.load(&[seq(0, 0, 192, 0), seq(1, 192, 20, 0)], &inputs, true)?;
    let want = whole.run()?;
    parts.load(
        &[seq(0, 0, cut, 0)],
        &inputs[..cut as usize * in_width],
        true,
    )?;
    let mut got = parts.run()?;
    let rest = &inputs[cut as usize * in_width..192 * in_width];
    parts.load(&[seq(0, 0, 192 - cut, cut)], rest, true)?;
    got.extend(parts.run()?);
    let same = got == want[..192 * out_width] && whole.state(0)? == parts.state(0)?;
    Ok(if same { 0.0 } else { f64::INFINITY })
}

/// `quick`: one shape.
pub(super) fn check(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let shapes = [
        (2, 4, 48, 40, 4),
        (1, 4, 128, 128, 4),
        (2, 4, 32, 256, 2),
        // Wider than chunks know: walked.
        (1, 4, 256, 64, 8),
    ];
    let kinds = [
        (Gates::Usual, Keys::Random),
        (Gates::Extreme, Keys::Random),
        (Gates::Extreme, Keys::Alike),
    ];
    for (k_heads, v_heads, k_dim, v_dim, taps) in shapes.into_iter().take(if quick { 1 } else { 4 })
    {
        let delta = GatedDeltaSpec {
            k_heads,
            v_heads,
            k_dim,
            v_dim,
            taps,
            norm_eps: RecurrentProbe::EPS,
            doubled: false,
        };
        for kind in kinds {
            for in_chunks in [false, true] {
                let [outputs, states] = compare(device, &delta, kind, in_chunks)?;
                let how = if in_chunks { "in chunks" } else { "by rows" };
                let (gates, keys) = kind;
                let name = format!("delta rule {k_dim} by {v_dim} {gates:?} {keys:?} {how}");
                report.check(&name, outputs, LIMIT);
                report.check(&format!("{name}: states"), states, STATE_LIMIT);
            }
        }
        if k_dim <= 128 {
            let name = format!("delta rule {k_dim} by {v_dim} cut at multiples of 64");
            report.check(&name, cut_at_chunks(device, &delta)?, 0.0);
        }
    }
    for taps in [3, 8] {
        let name = format!("short convolution of {taps} in chunks");
        report.check(&name, short_in_chunks(device, taps)?, 0.0);
    }
    Ok(())
}
