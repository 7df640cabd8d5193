//! Recurrent layers on their own, in chunks and row by row, against their definition in f64.

use std::sync::Arc;

use half::bf16;

use super::Rng;
use super::reference::relative_error;
use super::table::Report;
use crate::backend::SeqRows;
use crate::cuda::driver::Device;
use crate::cuda::probe::{ProbeError, RecurrentLayer, RecurrentProbe};
use crate::model::{GatedDeltaSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec};

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

/// A recurrence with states of heads.
#[derive(Debug, Clone, Copy)]
struct Shape {
    spec: RecurrentSpec,
    heads: usize,
    /// Channels of keys and of values: of Mamba-2's B and x.
    dims: [usize; 2],
    /// Where a row has all heads' keys, and their channels.
    keys: (usize, usize),
    /// Gates of a row, its last values.
    gates: usize,
    conv_bias: bool,
    norm: usize,
}

impl Shape {
    fn of_delta(delta: GatedDeltaSpec) -> Self {
        Self {
            spec: RecurrentSpec::GatedDelta(delta),
            heads: delta.v_heads,
            dims: [delta.k_dim, delta.v_dim],
            keys: (delta.k_width(), delta.k_width()),
            gates: 2 * delta.v_heads,
            conv_bias: false,
            norm: delta.v_dim,
        }
    }

    fn of_mamba(mamba: Mamba2Spec) -> Self {
        Self {
            spec: RecurrentSpec::Mamba2(mamba),
            heads: mamba.heads,
            dims: [mamba.state_dim, mamba.head_dim],
            keys: (mamba.width(), mamba.group_width()),
            gates: mamba.heads,
            conv_bias: mamba.conv_bias,
            norm: mamba.norm_parts.map_or(0, |_| mamba.width()),
        }
    }

    fn conv(&self) -> (usize, usize) {
        self.spec.conv(HIDDEN)
    }

    fn in_width(&self) -> usize {
        self.spec.in_width(HIDDEN)
    }

    fn out_width(&self) -> usize {
        self.spec.out_width(HIDDEN)
    }

    fn probe(
        &self,
        device: &Arc<Device>,
        size: (usize, usize),
        layer: &RecurrentLayer,
    ) -> Result<RecurrentProbe, ProbeError> {
        Ok(RecurrentProbe::new(device, self.spec, HIDDEN, size, layer)?)
    }
}

/// Of a stream that these layers do not read themselves.
const HIDDEN: usize = 64;

/// A sequence, token by token.
struct Sequence {
    /// Inputs of the convolution, the oldest first.
    before: Vec<Vec<f64>>,
    /// `[heads][key channels][value channels]`.
    state: Vec<f64>,
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

impl Sequence {
    fn new(shape: &Shape) -> Self {
        let (channels, taps) = shape.conv();
        Self {
            before: vec![vec![0.0; channels]; taps - 1],
            state: vec![0.0; shape.heads * shape.dims[0] * shape.dims[1]],
        }
    }

    /// What comes out at a row.
    fn row(&mut self, shape: &Shape, layer: &RecurrentLayer, row: &[bf16]) -> Vec<f64> {
        let (channels, taps) = shape.conv();
        let row: Vec<f64> = row.iter().map(|x| x.to_f64()).collect();
        let (convolved, others) = row.split_at(channels);
        self.before.push(convolved.to_vec());
        let weights = layer.conv.chunks_exact(taps).enumerate();
        let convolved = weights.map(|(channel, weights)| {
            let inputs = self.before.iter().map(|before| before[channel]);
            let sum: f64 = inputs.zip(weights).map(|(x, w)| x * w.to_f64()).sum();
            let bias = layer.conv_bias.get(channel).map_or(0.0, |b| b.to_f64());
            bf16::from_f64(silu(sum + bias)).to_f64()
        });
        let convolved: Vec<f64> = convolved.collect();
        self.before.remove(0);
        match &shape.spec {
            RecurrentSpec::GatedDelta(delta) => self.delta(delta, layer, &convolved, others),
            RecurrentSpec::Mamba2(mamba) => self.mamba(mamba, layer, &convolved, others),
            RecurrentSpec::ShortConv(_) => unreachable!("no states of heads"),
        }
    }

    fn delta(
        &mut self,
        delta: &GatedDeltaSpec,
        layer: &RecurrentLayer,
        convolved: &[f64],
        others: &[f64],
    ) -> Vec<f64> {
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
            let decay = (-layer.decay[head].to_f64().exp() * softplus(x)).exp();
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

    fn mamba(
        &mut self,
        mamba: &Mamba2Spec,
        layer: &RecurrentLayer,
        convolved: &[f64],
        others: &[f64],
    ) -> Vec<f64> {
        let (rows, columns) = (mamba.state_dim, mamba.head_dim);
        let (x, rest) = convolved.split_at(mamba.width());
        let (b, c) = rest.split_at(mamba.group_width());
        let (z, gates) = others.split_at(mamba.width());
        let [least, most] = mamba.time_steps.map(f64::from);
        let mut out = Vec::new();
        let states = self.state.chunks_exact_mut(rows * columns);
        for (head, state) in states.enumerate() {
            let group = head / (mamba.heads / mamba.groups) * rows;
            let step = softplus(gates[head] + layer.decay_bias[head].to_f64());
            let step = step.clamp(least, most);
            let decay = (-layer.decay[head].to_f64().exp() * step).exp();
            for column in 0..columns {
                let at = head * columns + column;
                let mut sum = layer.skip[head].to_f64() * x[at];
                for row in 0..rows {
                    let value = &mut state[row * columns + column];
                    *value = decay * *value + b[group + row] * step * x[at];
                    sum += *value * c[group + row];
                }
                out.push(sum * silu(z[at]));
            }
        }
        let Some(parts) = mamba.norm_parts else {
            return out;
        };
        let len = out.len() / parts;
        // What is normed was rounded where it lies.
        out.iter_mut()
            .for_each(|x| *x = bf16::from_f64(*x).to_f64());
        for (part, weight) in out.chunks_exact_mut(len).zip(layer.norm.chunks_exact(len)) {
            let mean = part.iter().map(|x| x * x).sum::<f64>() / len as f64;
            let scale = 1.0 / (mean + f64::from(RecurrentProbe::EPS)).sqrt();
            let normed = part.iter_mut().zip(weight);
            normed.for_each(|(x, w)| *x *= scale * w.to_f64());
        }
        out
    }

    /// The state, as it lies in memory.
    fn floats(&self) -> Vec<f64> {
        [self.before.concat(), self.state.clone()].concat()
    }
}

fn layer(shape: &Shape, gates: Gates, rng: &mut Rng) -> RecurrentLayer {
    let decay = match gates {
        Gates::Usual => rng.values(shape.heads, 0.5),
        // Of a logarithm of -600, which is beyond f32, or as a trained model's.
        Gates::Extreme => (0..shape.heads)
            .map(|head| bf16::from_f32(3.0 - 3.0 * (head % 2) as f32))
            .collect(),
    };
    let (channels, taps) = shape.conv();
    let is_mamba = matches!(shape.spec, RecurrentSpec::Mamba2(_));
    RecurrentLayer {
        conv: rng.values(channels * taps, 0.9),
        decay,
        decay_bias: rng.values(shape.heads, 0.5),
        norm: rng.values(shape.norm, 1.0),
        // Later ones are of Mamba-2, so that the delta rule's tests draw what they always have.
        conv_bias: rng.values(if shape.conv_bias { channels } else { 0 }, 0.5),
        skip: rng.values(if is_mamba { shape.heads } else { 0 }, 1.0),
    }
}

/// Rows that a layer reads.
fn inputs(shape: &Shape, rows: usize, (gates, keys): (Gates, Keys), rng: &mut Rng) -> Vec<bf16> {
    let (keys_at, k_width) = shape.keys;
    let key = rng.values(k_width, 1.0);
    let mut inputs = Vec::new();
    for _ in 0..rows {
        let mut row = rng.values(shape.in_width(), 1.0);
        if let Keys::Alike = keys {
            let of_keys = &mut row[keys_at..][..k_width];
            for (x, key) in of_keys.iter_mut().zip(&key) {
                *x = bf16::from_f32(key.to_f32() + x.to_f32() / 64.0);
            }
        }
        let gates_at = row.len() - shape.gates;
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
    shape: &Shape,
    kinds: (Gates, Keys),
    in_chunks: bool,
) -> Result<[f64; 2], ProbeError> {
    let mut rng = Rng(shape.dims[0] as u64);
    let layer = layer(shape, kinds.0, &mut rng);
    let rows = ROWS.map(|rows| rows.iter().sum::<u32>() as usize + 1);
    let size = (rows[0].max(rows[1]), ROWS[0].len());
    let mut probe = shape.probe(device, size, &layer)?;
    let mut sequences: Vec<_> = ROWS[0].iter().map(|_| Sequence::new(shape)).collect();
    let mut positions = [0; ROWS[0].len()];
    let mut worst = [0f64; 2];
    let (in_width, out_width) = (shape.in_width(), shape.out_width());
    for (of_step, rows) in ROWS.iter().zip(rows) {
        let seqs = step(of_step, &positions);
        let inputs = inputs(shape, rows, kinds, &mut rng);
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
            let want: Vec<f64> = want.flat_map(|r| sequence.row(shape, &layer, r)).collect();
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
fn cut_at_chunks(device: &Arc<Device>, shape: &Shape) -> Result<f64, ProbeError> {
    let mut rng = Rng(5);
    let layer = layer(shape, Gates::Usual, &mut rng);
    let (in_width, out_width) = (shape.in_width(), shape.out_width());
    let (rows, cut) = (212, 64);
    let inputs = inputs(shape, rows, (Gates::Usual, Keys::Random), &mut rng);
    let seq = |slot, first_row, rows, position| SeqRows {
        slot,
        first_row,
        rows,
        position,
    };
    let start = || shape.probe(device, (rows, 2), &layer);
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

/// Checks a shape; `kinds`: of gates and keys.
fn check_shape(
    device: &Arc<Device>,
    (what, shape): (&str, &Shape),
    kinds: &[(Gates, Keys)],
    report: &mut Report,
) -> Result<(), ProbeError> {
    let [k_dim, v_dim] = shape.dims;
    for &kind in kinds {
        for in_chunks in [false, true] {
            let [outputs, states] = compare(device, shape, kind, in_chunks)?;
            let how = if in_chunks { "in chunks" } else { "by rows" };
            let (gates, keys) = kind;
            let name = format!("{what} {k_dim} by {v_dim} {gates:?} {keys:?} {how}");
            report.check(&name, outputs, LIMIT);
            report.check(&format!("{name}: states"), states, STATE_LIMIT);
        }
    }
    if k_dim <= 128 {
        let name = format!("{what} {k_dim} by {v_dim} cut at multiples of 64");
        report.check(&name, cut_at_chunks(device, shape)?, 0.0);
    }
    Ok(())
}

/// `quick`: one shape of each.
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
    let count = if quick { 1 } else { 4 };
    for (k_heads, v_heads, k_dim, v_dim, taps) in shapes.into_iter().take(count) {
        let shape = Shape::of_delta(GatedDeltaSpec {
            k_heads,
            v_heads,
            k_dim,
            v_dim,
            taps,
            norm_eps: RecurrentProbe::EPS,
            doubled: false,
        });
        check_shape(device, ("delta rule", &shape), &kinds, report)?;
    }
    // Groups, heads, channels of B and of x, taps, parts that are normed, and time steps.
    let any = [0.0, f32::INFINITY];
    let shapes = [
        (2, 8, 48, 40, 4, Some(2), any),
        (1, 8, 128, 64, 4, Some(1), any),
        (8, 8, 16, 80, 2, None, [0.3, 0.8]),
        (1, 8, 256, 64, 4, Some(8), any),
    ];
    for (groups, heads, state_dim, head_dim, taps, norm_parts, time_steps) in
        shapes.into_iter().take(count)
    {
        let shape = Shape::of_mamba(Mamba2Spec {
            heads,
            head_dim,
            groups,
            state_dim,
            taps,
            conv_bias: norm_parts.is_some(),
            norm_parts,
            norm_eps: RecurrentProbe::EPS,
            time_steps,
        });
        check_shape(device, ("Mamba-2", &shape), &kinds, report)?;
    }
    for taps in [3, 8] {
        let name = format!("short convolution of {taps} in chunks");
        report.check(&name, short_in_chunks(device, taps)?, 0.0);
    }
    Ok(())
}
