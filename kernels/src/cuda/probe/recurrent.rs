//! A recurrent layer on its own.

use std::sync::Arc;

use half::bf16;

use super::{ColdL2, time_graph};
use crate::backend::SeqRows;
use crate::cuda::driver::{Device, DeviceBuffer, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::ops::{Recurrent, RecurrentIo, RecurrentWeights};
use crate::cuda::recurrence::{RecurrencePlan, RecurrenceStep, chunked_seqs_max, chunks_max};
use crate::cuda::step::StepCapacity;
use crate::model::{Mixer, ModelSpec, RecurrentSpec, UniformModel};

/// Weights of a recurrent layer beside its products; empty where it has none.
#[derive(Debug, Clone, Default)]
pub struct RecurrentLayer {
    /// `[channels][taps]`.
    pub conv: Vec<bf16>,
    /// `[channels]`.
    pub conv_bias: Vec<bf16>,
    /// `[v_heads]`, or as many as Mamba-2 has heads.
    pub decay: Vec<bf16>,
    /// Likewise.
    pub decay_bias: Vec<bf16>,
    /// `[v_dim]`, or of all heads' channels of Mamba-2.
    pub norm: Vec<bf16>,
    /// Of Mamba-2's heads.
    pub skip: Vec<bf16>,
}

/// A layer, the states of some sequences, and what goes through it.
#[derive(Debug)]
pub struct RecurrentProbe {
    stream: Stream,
    spec: RecurrentSpec,
    hidden: usize,
    recurrent: Recurrent,
    /// Of `RecurrentLayer`, in its order; the second halves of decays are zeros.
    weights: [DeviceBuffer<bf16>; 6],
    capacity: StepCapacity,
    /// What a step uploads: counts, then sequences, chunks, and sequences in chunks.
    words: DeviceBuffer<u32>,
    plan: RecurrencePlan,
    heads: DeviceBuffer<bf16>,
    out: DeviceBuffer<bf16>,
    rows: usize,
}

/// Words of the counts.
const COUNTS: usize = 4;

impl RecurrentProbe {
    /// What is added to the mean square in norms.
    pub const EPS: f32 = 1e-6;

    /// A layer of random weights for steps of so many rows and sequences; a slot for each.
    /// `hidden`: channels of a short convolution, which has no biases here.
    pub fn new(
        device: &Arc<Device>,
        spec: RecurrentSpec,
        hidden: usize,
        (rows, seqs): (usize, usize),
        layer: &RecurrentLayer,
    ) -> Result<Self, CudaError> {
        let capacity = StepCapacity {
            rows,
            seqs,
            blocks: 0,
        };
        let model = of_one_layer(spec, hidden);
        let Some(recurrent) = Recurrent::new(device, &model, seqs, &capacity, true)? else {
            unreachable!("a model whose layer is recurrent");
        };
        let buffer = |values: &[bf16]| DeviceBuffer::from_slice(device, values, "weights");
        let halves = |values: &[bf16]| [values, &vec![bf16::ZERO; values.len()]].concat();
        let narrow = |width| DeviceBuffer::filled(device, rows * width, 0xff, "activations");
        let chunks = chunks_max(rows, seqs) + chunked_seqs_max(rows, seqs);
        let words = COUNTS + 4 * (seqs + chunks);
        Ok(Self {
            stream: Stream::new(device)?,
            spec,
            hidden,
            recurrent,
            weights: [
                buffer(&layer.conv)?,
                buffer(&layer.conv_bias)?,
                buffer(&halves(&layer.decay))?,
                buffer(&halves(&layer.decay_bias))?,
                buffer(&layer.norm)?,
                buffer(&layer.skip)?,
            ],
            capacity,
            words: DeviceBuffer::filled(device, words, 0xff, "a step")?,
            plan: RecurrencePlan::default(),
            heads: narrow(spec.in_width(hidden))?,
            out: narrow(spec.out_width(hidden))?,
            rows: 0,
        })
    }

    /// Loads a step: rows of `heads`, `[rows][in width]`, in sequences whose slots are below the
    /// most sequences. `in_chunks`: those of many rows are taken so.
    pub fn load(
        &mut self,
        seqs: &[SeqRows],
        heads: &[bf16],
        in_chunks: bool,
    ) -> Result<(), CudaError> {
        let StepCapacity {
            rows, seqs: most, ..
        } = self.capacity;
        assert!(seqs.len() <= most && seqs.iter().all(|seq| (seq.slot as usize) < most));
        let chunked = if in_chunks {
            chunked_seqs_max(rows, most)
        } else {
            0
        };
        self.plan.plan(seqs, chunked);
        self.rows = heads.len() / self.spec.in_width(self.hidden);
        let ends = seqs.iter().map(|seq| (seq.first_row + seq.rows) as usize);
        assert!(ends.max().unwrap_or(0) <= self.rows && self.rows <= rows);
        let plan = &self.plan;
        let counts = [plan.seqs.len() as u32, plan.walked as u32, 0, 0];
        self.words.write(0, &counts)?;
        let [seqs_at, chunks_at, chunked_at] = places(plan);
        self.words.write(seqs_at, plan.seqs.as_flattened())?;
        self.words.write(chunks_at, plan.chunks.as_flattened())?;
        self.words.write(chunked_at, plan.chunked.as_flattened())?;
        self.heads.write(0, heads)
    }

    /// Runs the loaded step. What is put out, `[rows][out width]`.
    pub fn run(&mut self) -> Result<Vec<bf16>, CudaError> {
        let mut values = vec![bf16::NAN; self.rows * self.spec.out_width(self.hidden)];
        self.out.write(0, &values)?;
        let io = RecurrentIo {
            rows: self.rows,
            step: step(&self.words, &self.plan),
            heads: &mut self.heads,
            out: &mut self.out,
        };
        let weights = weights(&self.weights);
        self.recurrent
            .run(&self.stream, &self.spec, 0, weights, io)?;
        self.stream.synchronize()?;
        self.out.read(0, &mut values)?;
        Ok(values)
    }

    /// Times `repeats` graph replays of the loaded step, each with a cold L2, over what the one
    /// before has left. Microseconds, sorted.
    pub fn time(&mut self, repeats: usize, cold: ColdL2) -> Result<Vec<f64>, CudaError> {
        let (heads, out) = (&mut self.heads, &mut self.out);
        let io = RecurrentIo {
            rows: self.rows,
            step: step(&self.words, &self.plan),
            heads,
            out,
        };
        let weights = weights(&self.weights);
        let (stream, recurrent) = (&self.stream, &self.recurrent);
        let graph = stream.capture(|| recurrent.run(stream, &self.spec, 0, weights, io))?;
        time_graph(stream, &graph, repeats, cold)
    }

    /// The state of a slot.
    pub fn state(&mut self, slot: usize) -> Result<Vec<f32>, CudaError> {
        let mut state = vec![0.0; self.spec.state_floats(self.hidden)];
        let at = slot * state.len();
        self.recurrent.states_mut().read(at, &mut state)?;
        Ok(state)
    }
}

/// Where a plan's sequences, chunks, and sequences in chunks are, in words.
fn places(plan: &RecurrencePlan) -> [usize; 3] {
    let chunks_at = COUNTS + 4 * plan.seqs.len();
    [COUNTS, chunks_at, chunks_at + 4 * plan.chunks.len()]
}

fn step(words: &DeviceBuffer<u32>, plan: &RecurrencePlan) -> RecurrenceStep {
    let [seqs, chunks, chunked] = places(plan).map(|at| words.at(at));
    RecurrenceStep {
        seqs,
        chunks,
        chunked,
        seq_count: words.at(0),
        walked_count: words.at(1),
        walked: plan.walked,
        chunked_seqs: plan.chunked.len(),
        chunk_count: plan.chunks.len(),
    }
}

fn weights(buffers: &[DeviceBuffer<bf16>; 6]) -> RecurrentWeights {
    let address = |buffer: &DeviceBuffer<bf16>| match buffer.len() {
        0 => 0,
        _ => buffer.ptr(),
    };
    let [conv, conv_bias, decay, decay_bias, norm, skip] = buffers.each_ref().map(address);
    RecurrentWeights {
        conv,
        conv_bias,
        decay,
        decay_bias,
        norm,
        skip,
        ..RecurrentWeights::default()
    }
}

fn of_one_layer(spec: RecurrentSpec, hidden: usize) -> ModelSpec {
    let mut model = UniformModel {
        hidden,
        layers: 1,
        norm_eps: RecurrentProbe::EPS,
        ..UniformModel::default()
    }
    .spec();
    model.layers[0].mixer = Mixer::Recurrent(spec);
    model
}
