//! Recurrent layers, token by token in order: the same bits however a prompt is cut into chunks.

use super::floats::Floats;
use super::math;
use super::ops::for_rows;
use super::shared::SharedSlice;
use super::simd::{Isa, Kernel, Simd};
use super::threads::{Pool, TaskPanic};
use crate::backend::{BackendError, SeqRows, StateCopy, StepInput};
use crate::model::{GatedDeltaSpec, Mamba2Spec, ModelSpec, RecurrentSpec, TAPS_MAX};

/// What is added to the sum of squares where queries and keys of the delta rule are normalised.
const DELTA_EPS: f32 = 1e-6;

/// Channels that a task convolves.
const CHANNELS: usize = 256;

/// States of sequences, by slot: those of all recurrent layers one behind the other.
#[derive(Debug)]
pub(super) struct States {
    floats: usize,
    slots: Vec<Floats>,
    /// Where the state of each layer begins.
    layers: Vec<usize>,
}

impl States {
    pub(super) fn new(spec: &ModelSpec) -> Self {
        Self {
            floats: spec.state_floats(),
            slots: Vec::new(),
            layers: spec.state_places(),
        }
    }

    /// Whether there are any.
    pub(super) fn is_needed(&self) -> bool {
        self.floats > 0
    }

    /// Makes room for the states that a checked step reads and writes, of slots below `slots`.
    pub(super) fn reserve(&mut self, input: &StepInput, slots: usize) -> Result<(), BackendError> {
        if self.slots.len() < slots {
            self.slots.resize_with(slots, Floats::default);
        }
        let copied = input.state_copies.iter().flat_map(|c| [c.src, c.dst]);
        for slot in copied.chain(input.seqs.iter().map(|seq| seq.slot)) {
            let bytes = self.floats * size_of::<f32>();
            let rows = input.tokens.len();
            let grown = self.slots[slot as usize].grow(self.floats);
            grown.map_err(|_| BackendError::OutOfMemory { bytes, rows })?;
        }
        Ok(())
    }

    /// Copies states.
    pub(super) fn copy(&mut self, copies: &[StateCopy]) {
        for copy in copies {
            let (src, dst) = (copy.src as usize, copy.dst as usize);
            if let Ok([src, dst]) = self.slots.get_disjoint_mut([src, dst]) {
                dst.copy_from_slice(src);
            }
        }
    }

    /// Empties the states of sequences that begin.
    pub(super) fn begin(&mut self, seqs: &[SeqRows]) {
        for seq in seqs.iter().filter(|seq| seq.position == 0) {
            self.slots[seq.slot as usize].fill(0.0);
        }
    }

    /// A layer's states of a step's sequences, in their order.
    fn of_layer(
        &mut self,
        layer: usize,
        len: usize,
        seqs: &[SeqRows],
    ) -> Vec<SharedSlice<'_, f32>> {
        let first = self.layers[layer];
        let mut slots: Vec<_> = self.slots.iter_mut().map(Some).collect();
        let states = seqs.iter().map(|seq| {
            let state = slots[seq.slot as usize].take();
            let state = state.expect("sequences of a step have slots of their own");
            SharedSlice::new(&mut state[first..first + len])
        });
        states.collect()
    }
}

/// Weights of a recurrent layer beside its products, in f32.
#[derive(Debug)]
pub(super) struct RecurrentWeights {
    /// `[taps][channels]`.
    pub(super) conv: Vec<f32>,
    pub(super) conv_bias: Option<Vec<f32>>,
    /// `-exp(decay)` of each value head of the delta rule, or head of Mamba-2; empty without, as
    /// are the following.
    pub(super) decay: Vec<f32>,
    /// Likewise; of Mamba-2 that of time steps.
    pub(super) decay_bias: Vec<f32>,
    /// `[v_dim]`, or of all heads' channels.
    pub(super) norm: Vec<f32>,
    /// Of each head of Mamba-2.
    pub(super) skip: Vec<f32>,
}

/// A recurrence over a step's rows.
pub(super) struct Recurrence<'a> {
    pub(super) spec: RecurrentSpec,
    pub(super) hidden: usize,
    pub(super) layer: usize,
    pub(super) weights: &'a RecurrentWeights,
    pub(super) seqs: &'a [SeqRows],
}

impl Recurrence<'_> {
    /// `input`: `[rows][in width]`, of which what is convolved is overwritten; `output`:
    /// `[rows][out width]`.
    pub(super) fn run(
        &self,
        (pool, isa): (&mut Pool, Isa),
        states: &mut States,
        input: &mut [f32],
        output: &mut [f32],
    ) -> Result<(), TaskPanic> {
        let seqs = self.seqs;
        let states = states.of_layer(self.layer, self.spec.state_floats(self.hidden), seqs);
        let (channels, taps) = self.spec.conv(self.hidden);
        let (in_width, out_width) = (
            self.spec.in_width(self.hidden),
            self.spec.out_width(self.hidden),
        );
        let (input, output) = (SharedSlice::new(input), SharedSlice::new(output));
        let each = channels.div_ceil(CHANNELS);
        pool.run(seqs.len() * each, |task, _| {
            let (seq, first) = (task / each, task % each * CHANNELS);
            isa.run(Conv {
                layer: self,
                rows: seqs[seq],
                first,
                width: CHANNELS.min(channels - first),
                channels,
                taps,
                state: states[seq],
                input: (input, in_width),
                output: (output, out_width),
            });
        })?;
        let matrices = (taps - 1) * channels;
        let (input, output) = ((input, in_width), (output, out_width));
        match self.spec {
            RecurrentSpec::ShortConv(_) => Ok(()),
            RecurrentSpec::GatedDelta(spec) => pool.run(seqs.len() * spec.v_heads, |task, _| {
                let (seq, head) = (task / spec.v_heads, task % spec.v_heads);
                let (rows, state) = (seqs[seq], states[seq]);
                isa.run(Head {
                    layer: self,
                    spec,
                    rows,
                    head,
                    state,
                    matrices,
                    input,
                    output,
                });
            }),
            RecurrentSpec::Mamba2(spec) => {
                pool.run(seqs.len() * spec.heads, |task, _| {
                    let (seq, head) = (task / spec.heads, task % spec.heads);
                    let (rows, state) = (seqs[seq], states[seq]);
                    isa.run(Head {
                        layer: self,
                        spec,
                        rows,
                        head,
                        state,
                        matrices,
                        input,
                        output,
                    });
                })?;
                let rows = seqs.iter().map(|seq| seq.rows as usize).sum();
                for_rows(pool, rows, out_width, |first, end| {
                    for row in first..end {
                        let z = row * in_width + spec.conv_width();
                        // SAFETY: ranges of rows are disjoint.
                        let (z, output) = unsafe {
                            let output = output.0.slice(row * out_width, out_width);
                            (input.0.slice(z, out_width), output)
                        };
                        let weight = &self.weights.norm;
                        isa.run(MambaOut {
                            mamba: spec,
                            weight,
                            z,
                            output,
                        });
                    }
                })
            }
        }
    }
}

/// The convolution of some channels of a sequence.
struct Conv<'a> {
    layer: &'a Recurrence<'a>,
    rows: SeqRows,
    first: usize,
    width: usize,
    channels: usize,
    taps: usize,
    state: SharedSlice<'a, f32>,
    input: (SharedSlice<'a, f32>, usize),
    output: (SharedSlice<'a, f32>, usize),
}

impl Kernel for Conv<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            layer,
            rows,
            first,
            width,
            channels,
            taps,
            state,
            ..
        } = self;
        let weights = layer.weights;
        // The tokens before, oldest first, and behind them the one at hand.
        let mut before = [[0.0; CHANNELS]; TAPS_MAX];
        for (tap, before) in before.iter_mut().enumerate().take(taps - 1) {
            // SAFETY: tasks of a sequence have channels of their own.
            let state = unsafe { state.slice(tap * channels + first, width) };
            before[..width].copy_from_slice(state);
        }
        let hidden = layer.hidden;
        for row in rows.first_row as usize..(rows.first_row + rows.rows) as usize {
            // SAFETY: as above, and rows of sequences are disjoint.
            let part = |at: usize| unsafe { self.input.0.slice(row * self.input.1 + at, width) };
            let own = &mut before[taps - 1][..width];
            match layer.spec {
                RecurrentSpec::GatedDelta(_) | RecurrentSpec::Mamba2(_) => {
                    own.copy_from_slice(part(first));
                }
                RecurrentSpec::ShortConv(_) => {
                    let (b, x) = (part(first), part(2 * hidden + first));
                    own.iter_mut()
                        .zip(b)
                        .zip(x)
                        .for_each(|((o, b), x)| *o = *b * *x);
                }
            }
            let mut sums = [0.0; CHANNELS];
            let sums = &mut sums[..width];
            if let Some(bias) = &weights.conv_bias {
                sums.copy_from_slice(&bias[first..first + width]);
            }
            for (tap, before) in before.iter().enumerate().take(taps) {
                let weight = &weights.conv[tap * channels + first..][..width];
                for ((sum, x), w) in sums.iter_mut().zip(before).zip(weight) {
                    *sum += x * w;
                }
            }
            match layer.spec {
                RecurrentSpec::GatedDelta(_) | RecurrentSpec::Mamba2(_) => {
                    math::map(s, &math::Silu, sums);
                    part(first).copy_from_slice(sums);
                }
                RecurrentSpec::ShortConv(_) => {
                    // SAFETY: as above.
                    let output = unsafe { self.output.0.slice(row * self.output.1 + first, width) };
                    let opened = output.iter_mut().zip(sums).zip(part(hidden + first));
                    opened.for_each(|((o, sum), c)| *o = *sum * *c);
                }
            }
            before[..taps].rotate_left(1);
        }
        for (tap, before) in before.iter().enumerate().take(taps - 1) {
            // SAFETY: as above.
            let state = unsafe { state.slice(tap * channels + first, width) };
            state.copy_from_slice(&before[..width]);
        }
    }
}

/// One head of a sequence that has a matrix for its state: a value head of the delta rule, or one
/// of Mamba-2.
struct Head<'a, T> {
    layer: &'a Recurrence<'a>,
    spec: T,
    rows: SeqRows,
    head: usize,
    state: SharedSlice<'a, f32>,
    /// Where the matrices begin in the state.
    matrices: usize,
    input: (SharedSlice<'a, f32>, usize),
    output: (SharedSlice<'a, f32>, usize),
}

impl Kernel for Head<'_, GatedDeltaSpec> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            spec: delta, head, ..
        } = self;
        let (k_dim, v_dim) = (delta.k_dim, delta.v_dim);
        let k_head = head / (delta.v_heads / delta.k_heads);
        let (k_width, v_width) = (delta.k_width(), delta.v_width());
        let weights = self.layer.weights;
        let strength_max = if delta.doubled { 2.0 } else { 1.0 };
        // SAFETY: a task has a matrix of its own.
        let state = unsafe {
            let first = self.matrices + head * k_dim * v_dim;
            self.state.slice(first, k_dim * v_dim)
        };
        let (mut q, mut k) = (vec![0.0; k_dim], vec![0.0; k_dim]);
        let mut change = vec![0.0; v_dim];
        let first = self.rows.first_row as usize;
        for row in first..first + self.rows.rows as usize {
            // SAFETY: nobody writes the input any more.
            let input = |at, len| unsafe { &*self.input.0.slice(row * self.input.1 + at, len) };
            let value = |at| input(at, 1)[0];
            normalise(s, input(k_head * k_dim, k_dim), &mut q);
            normalise(s, input(k_width + k_head * k_dim, k_dim), &mut k);
            let scale = 1.0 / (k_dim as f32).sqrt();
            q.iter_mut().for_each(|q| *q *= scale);
            let v = input(2 * k_width + head * v_dim, v_dim);
            let z = input(2 * k_width + v_width + head * v_dim, v_dim);
            let b = strength_max / (1.0 + (-value(2 * k_width + 2 * v_width + head)).exp());
            let a = value(2 * k_width + 2 * v_width + delta.v_heads + head);
            let decay = (weights.decay[head] * math::softplus(a + weights.decay_bias[head])).exp();

            change.fill(0.0);
            for (line, k) in state.chunks_exact_mut(v_dim).zip(&k) {
                for (state, sum) in line.iter_mut().zip(&mut change) {
                    *state *= decay;
                    *sum += *state * k;
                }
            }
            change
                .iter_mut()
                .zip(v)
                .for_each(|(change, v)| *change = (v - *change) * b);
            // SAFETY: a task has rows and a head of its own.
            let output = unsafe {
                let first = row * self.output.1 + head * v_dim;
                self.output.0.slice(first, v_dim)
            };
            output.fill(0.0);
            for ((line, k), q) in state.chunks_exact_mut(v_dim).zip(&k).zip(&q) {
                for ((state, change), sum) in line.iter_mut().zip(&change).zip(&mut *output) {
                    *state += k * change;
                    *sum += *state * q;
                }
            }
            let mean = math::sum_of_squares(s, output) / v_dim as f32;
            let scale = 1.0 / (mean + delta.norm_eps).sqrt();
            change.copy_from_slice(z);
            math::map(s, &math::Silu, &mut change);
            let opened = output.iter_mut().zip(&weights.norm).zip(&change);
            opened.for_each(|((o, w), z)| *o = *o * scale * w * z);
        }
    }
}

impl Kernel for Head<'_, Mamba2Spec> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self {
            spec: mamba, head, ..
        } = self;
        let (state_dim, head_dim) = (mamba.state_dim, mamba.head_dim);
        let group = head / (mamba.heads / mamba.groups) * state_dim;
        let (width, group_width) = (mamba.width(), mamba.group_width());
        let weights = self.layer.weights;
        let [least, most] = mamba.time_steps;
        // SAFETY: a task has a matrix of its own.
        let state = unsafe {
            let first = self.matrices + head * state_dim * head_dim;
            self.state.slice(first, state_dim * head_dim)
        };
        let mut written = vec![0.0; head_dim];
        let first = self.rows.first_row as usize;
        for row in first..first + self.rows.rows as usize {
            // SAFETY: nobody writes the input any more.
            let input = |at, len| unsafe { &*self.input.0.slice(row * self.input.1 + at, len) };
            let x = input(head * head_dim, head_dim);
            let b = input(width + group, state_dim);
            let c = input(width + group_width + group, state_dim);
            let time = input(mamba.conv_width() + width + head, 1)[0];
            let time = math::softplus(time + weights.decay_bias[head]).clamp(least, most);
            let decay = (weights.decay[head] * time).exp();
            written.iter_mut().zip(x).for_each(|(w, x)| *w = time * x);
            // SAFETY: a task has rows and a head of its own.
            let output = unsafe {
                let first = row * self.output.1 + head * head_dim;
                self.output.0.slice(first, head_dim)
            };
            let skip = weights.skip[head];
            output.iter_mut().zip(x).for_each(|(o, x)| *o = skip * x);
            for ((line, b), c) in state.chunks_exact_mut(head_dim).zip(b).zip(c) {
                for ((state, written), sum) in line.iter_mut().zip(&written).zip(&mut *output) {
                    *state = decay * *state + b * written;
                    *sum += *state * c;
                }
            }
        }
    }
}

/// Opens a row of what all heads of Mamba-2 put out, and normalises it.
struct MambaOut<'a> {
    mamba: Mamba2Spec,
    weight: &'a [f32],
    z: &'a mut [f32],
    output: &'a mut [f32],
}

impl Kernel for MambaOut<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        math::map(s, &math::Silu, self.z);
        self.output
            .iter_mut()
            .zip(self.z)
            .for_each(|(o, z)| *o *= *z);
        let Some(parts) = self.mamba.norm_parts else {
            return;
        };
        let len = self.output.len() / parts;
        let outputs = self.output.chunks_exact_mut(len);
        for (output, weight) in outputs.zip(self.weight.chunks_exact(len)) {
            let mean = math::sum_of_squares(s, output) / len as f32;
            let scale = 1.0 / (mean + self.mamba.norm_eps).sqrt();
            let normed = output.iter_mut().zip(weight);
            normed.for_each(|(o, w)| *o = *o * scale * w);
        }
    }
}

/// To length 1.
#[inline(always)]
fn normalise<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    let scale = 1.0 / (math::sum_of_squares(s, x) + DELTA_EPS).sqrt();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
}
