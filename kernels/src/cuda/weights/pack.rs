//! Packed weights from a source to the device: which linear layers stay packed, and how threads
//! pack them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use half::bf16;

use super::{LoadError, Weights};
use crate::cuda::driver::{Device, DeviceBuffer};
use crate::cuda::error::CudaError;
use crate::cuda::packed::{
    CHUNK_INPUTS, ChunkFormat, PackedPart, SLICE_OUTPUTS, output_of, pack_slice,
};
use crate::model::ops::{LinearName, Op, forward};
use crate::model::{ModelSpec, RandomWeights, TensorName, Uniform, WeightSource};
use crate::weight_formats::{PackedTensor, Quantisation, QuantisedWeights, WeightFormat};

/// Slices that are packed and sent together.
const PIECE_SLICES: usize = 64;

/// Tensors beside each other that are packed alike.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct PartPlan {
    format: ChunkFormat,
    inputs: usize,
    outputs: usize,
    gated: bool,
    /// With their rows and formats.
    tensors: Vec<(TensorName, usize, WeightFormat)>,
}

impl PartPlan {
    fn bytes(&self) -> usize {
        self.format.bytes(self.inputs, self.outputs)
    }

    fn slices(&self) -> usize {
        self.outputs.div_ceil(SLICE_OUTPUTS)
    }

    fn steps(&self) -> usize {
        self.inputs.div_ceil(CHUNK_INPUTS)
    }

    pub(super) fn allocate(&self, device: &Arc<Device>) -> Result<PackedPart, CudaError> {
        let what = "the packed weights";
        Ok(PackedPart {
            format: self.format,
            inputs: self.inputs,
            outputs: self.outputs,
            gated: self.gated,
            chunks: DeviceBuffer::new(device, self.bytes(), what)?,
            factors: DeviceBuffer::new(device, self.slices() * SLICE_OUTPUTS, what)?,
        })
    }

    /// The tensor and row of an output.
    fn row(&self, output: usize) -> (usize, usize) {
        let mut row = output;
        for (index, (_, rows, _)) in self.tensors.iter().enumerate() {
            if row < *rows {
                return (index, row);
            }
            row -= rows;
        }
        unreachable!("output {output} of {}", self.outputs)
    }
}

/// Which linear layers are packed, in which parts.
#[derive(Debug, Clone, Default)]
pub(in crate::cuda) struct PackPlan {
    parts: HashMap<LinearName, Vec<PartPlan>>,
}

impl PackPlan {
    /// Of all that a source has packed and that kernels can read as it is.
    pub(in crate::cuda) fn of_source<W: WeightSource>(
        spec: &ModelSpec,
        source: &W,
    ) -> Result<Self, LoadError<W::Error>> {
        let mut parts = HashMap::new();
        for op in forward(spec) {
            let Op::Linear { linear, .. } = op else {
                continue;
            };
            // The embedding is looked up, too.
            if linear == LinearName::LmHead && spec.tied_embeddings {
                continue;
            }
            let packed = |name| {
                let packed = source.packed(name);
                packed.map_err(|source| LoadError::Source { name, source })
            };
            if let Some(of_linear) = of_linear(linear, spec, packed)? {
                parts.insert(linear, of_linear);
            }
        }
        Ok(Self { parts })
    }

    /// Of a plain model whose layers' linear layers are quantised.
    pub(super) fn of_quantised(spec: &ModelSpec, quantisation: Quantisation) -> Self {
        let source = QuantisedWeights::new(
            RandomWeights {
                spec: spec.clone(),
                seed: 0,
            },
            quantisation,
        );
        match Self::of_source(spec, &source) {
            Ok(plan) => plan,
            Err(_) => unreachable!("random weights can be read"),
        }
    }

    /// The parts of a linear layer, if it is packed.
    pub(super) fn parts(&self, linear: LinearName) -> Option<&[PartPlan]> {
        self.parts.get(&linear).map(Vec::as_slice)
    }

    /// Bytes of all packed weights.
    pub(in crate::cuda) fn bytes(&self) -> u64 {
        let parts = self.parts.values().flatten();
        parts.map(|part| part.bytes() as u64).sum()
    }

    /// The tensors that are packed.
    pub(in crate::cuda) fn tensors(&self) -> impl Iterator<Item = TensorName> + '_ {
        let parts = self.parts.values().flatten();
        parts.flat_map(|part| part.tensors.iter().map(|(name, ..)| *name))
    }

    /// Bytes of every buffer of packed weights, and what they are.
    pub(in crate::cuda) fn buffers(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        let parts = self.parts.values().flatten();
        parts.flat_map(|part| {
            let title = part.format.title();
            [
                (title, part.bytes()),
                (title, 4 * part.slices() * SLICE_OUTPUTS),
            ]
        })
    }

    /// The most weights of a layer's linear layer, and of the output projection.
    pub(in crate::cuda) fn values(&self) -> [usize; 2] {
        let mut most = [0, 0];
        for (linear, parts) in &self.parts {
            let values: usize = parts.iter().map(|part| part.inputs * part.outputs).sum();
            let of = &mut most[usize::from(*linear == LinearName::LmHead)];
            *of = values.max(*of);
        }
        most
    }
}

/// The parts of a linear layer; none if some of it has to be plain.
fn of_linear<E>(
    linear: LinearName,
    spec: &ModelSpec,
    packed: impl Fn(TensorName) -> Result<Option<WeightFormat>, E>,
) -> Result<Option<Vec<PartPlan>>, E> {
    let gated = matches!(linear, LinearName::GateUp(_));
    let mut parts: Vec<PartPlan> = Vec::new();
    for name in linear.weights(spec) {
        let shape = name.shape(spec);
        let (rows, inputs) = (shape[0], shape[1]);
        let Some(stored) = packed(name)? else {
            return Ok(None);
        };
        // The kernels copy 16 bytes at a time.
        let can = inputs.is_multiple_of(8) && rows.is_multiple_of(8);
        let Some(format) = ChunkFormat::of(stored, inputs).filter(|_| can) else {
            return Ok(None);
        };
        match parts.last_mut() {
            Some(last) if last.format == format => {
                last.outputs += rows;
                last.tensors.push((name, rows, stored));
            }
            _ => parts.push(PartPlan {
                format,
                inputs,
                outputs: rows,
                gated,
                tensors: vec![(name, rows, stored)],
            }),
        }
    }
    // Gates and what they open are packed in turns, which takes one format.
    Ok((!gated || parts.len() == 1).then_some(parts))
}

/// A tensor that is already at hand, on the device; none if no kernel reads its format.
pub(in crate::cuda) fn pack_tensor(
    device: &Arc<Device>,
    tensor: &PackedTensor,
    gated: bool,
) -> Result<Option<PackedPart>, CudaError> {
    let Some(format) = ChunkFormat::of(tensor.format(), tensor.inputs()) else {
        return Ok(None);
    };
    let plan = PartPlan {
        format,
        inputs: tensor.inputs(),
        outputs: tensor.rows(),
        gated,
        tensors: Vec::new(),
    };
    let mut part = plan.allocate(device)?;
    let (steps, slices, bytes) = (plan.steps(), plan.slices(), format.slice_bytes());
    let mut chunks = vec![0; plan.bytes()];
    for slice in 0..slices {
        let rows = std::array::from_fn(|row| {
            let output = output_of(slice, row, plan.outputs, gated);
            output.map(|output| (tensor, output))
        });
        let mut packed = vec![0; steps * bytes];
        let mut of_steps = packed.chunks_exact_mut(bytes);
        let factors = pack_slice(format, &rows, steps, |_| {
            of_steps.next().expect("a chunk a step")
        });
        for (step, chunk) in packed.chunks_exact(bytes).enumerate() {
            chunks[(step * slices + slice) * bytes..][..bytes].copy_from_slice(chunk);
        }
        part.factors.write(slice * SLICE_OUTPUTS, &factors)?;
    }
    part.chunks.write(0, &chunks)?;
    Ok(Some(part))
}

/// Slices of random weights that are drawn; the others are the same again.
const DRAWN_SLICES: usize = 16;

impl Weights {
    /// Fills packed parts with random weights, quantised: of each the first few slices again and
    /// again, as nobody reads what they say.
    pub(super) fn draw_packed(
        &mut self,
        spec: &ModelSpec,
        quantisation: Quantisation,
        seed: u64,
    ) -> Result<(), CudaError> {
        let mut drawn = HashMap::new();
        let places: Vec<_> = self.linear_places.iter().map(|(n, i)| (*n, *i)).collect();
        for (linear, place) in places {
            for part in self.linears[place].parts_mut() {
                let slices = drawn
                    .entry((part.format, part.inputs))
                    .or_insert_with(|| draw(part, spec, linear, quantisation, seed));
                part.repeat(slices)?;
            }
        }
        Ok(())
    }
}

/// Random slices: chunks of all steps, and factors, of each.
fn draw(
    part: &PackedPart,
    spec: &ModelSpec,
    linear: LinearName,
    quantisation: Quantisation,
    seed: u64,
) -> Vec<(Vec<u8>, [f32; SLICE_OUTPUTS])> {
    let uniform = Uniform::of(spec, linear.weights(spec)[0], seed);
    let mut weights = vec![bf16::ZERO; DRAWN_SLICES * SLICE_OUTPUTS * part.inputs];
    uniform.fill(0, &mut weights);
    let weights: Vec<f32> = weights.iter().map(|w| w.to_f32()).collect();
    let tensor = quantisation.tensor(part.inputs, &weights);
    let (steps, bytes) = (
        part.inputs.div_ceil(CHUNK_INPUTS),
        part.format.slice_bytes(),
    );
    let slices = (0..DRAWN_SLICES).map(|slice| {
        let rows = std::array::from_fn(|row| Some((&tensor, slice * SLICE_OUTPUTS + row)));
        let mut chunks = vec![0; steps * bytes];
        let mut of_steps = chunks.chunks_exact_mut(bytes);
        let factors = pack_slice(part.format, &rows, steps, |_| {
            of_steps.next().expect("a chunk a step")
        });
        (chunks, factors)
    });
    slices.collect()
}

impl PackedPart {
    /// Makes a part of these slices, again and again.
    fn repeat(&mut self, drawn: &[(Vec<u8>, [f32; SLICE_OUTPUTS])]) -> Result<(), CudaError> {
        let bytes = self.format.slice_bytes();
        let slices = self.outputs.div_ceil(SLICE_OUTPUTS);
        let of = |slice: usize| &drawn[slice % drawn.len()];
        for step in 0..self.inputs.div_ceil(CHUNK_INPUTS) {
            let chunks = (0..slices).flat_map(|slice| &of(slice).0[step * bytes..][..bytes]);
            let chunks: Vec<u8> = chunks.copied().collect();
            self.chunks.write(step * slices * bytes, &chunks)?;
        }
        let factors: Vec<f32> = (0..slices).flat_map(|slice| of(slice).1).collect();
        self.factors.write(0, &factors)
    }
}

/// Some slices of a part, packed.
struct Piece {
    first: usize,
    slices: usize,
    /// `[steps][slices]` chunks.
    chunks: Vec<u8>,
    factors: Vec<f32>,
}

impl Weights {
    /// Fills the packed parts that `plan` names. `progress` is told of bytes.
    pub(super) fn fill_packed<W: WeightSource>(
        &mut self,
        plan: &PackPlan,
        source: &W,
        threads: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), LoadError<W::Error>> {
        let places: Vec<_> = self.linear_places.iter().map(|(n, i)| (*n, *i)).collect();
        for (linear, place) in places {
            let Some(plans) = plan.parts(linear) else {
                continue;
            };
            for (plan, part) in plans.iter().zip(self.linears[place].parts_mut()) {
                fill_part(plan, part, source, threads)?;
                progress(plan.bytes() as u64);
            }
        }
        Ok(())
    }
}

/// Has threads pack a part, and sends it piece by piece.
fn fill_part<W: WeightSource>(
    plan: &PartPlan,
    part: &mut PackedPart,
    source: &W,
    threads: usize,
) -> Result<(), LoadError<W::Error>> {
    let slices = plan.slices();
    let pieces = slices.div_ceil(PIECE_SLICES);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (sender, packed) = sync_channel(threads);
        for _ in 0..threads.min(pieces) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let first = next.fetch_add(1, Ordering::Relaxed) * PIECE_SLICES;
                    if first >= slices {
                        break;
                    }
                    let piece = pack_piece(plan, source, first, PIECE_SLICES.min(slices - first));
                    let is_error = piece.is_err();
                    // Nobody listens any more once another piece has failed.
                    if sender.send(piece).is_err() || is_error {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let bytes = plan.format.slice_bytes();
        for piece in packed {
            let piece = piece?;
            let of_step = piece.chunks.chunks_exact(piece.slices * bytes);
            for (step, chunks) in of_step.enumerate() {
                part.chunks
                    .write((step * slices + piece.first) * bytes, chunks)?;
            }
            part.factors
                .write(piece.first * SLICE_OUTPUTS, &piece.factors)?;
        }
        Ok(())
    })
}

/// Packs `slices` slices from `first` on.
fn pack_piece<W: WeightSource>(
    plan: &PartPlan,
    source: &W,
    first: usize,
    slices: usize,
) -> Result<Piece, LoadError<W::Error>> {
    let (steps, bytes) = (plan.steps(), plan.format.slice_bytes());
    let mut piece = Piece {
        first,
        slices,
        chunks: vec![0; steps * slices * bytes],
        factors: Vec::with_capacity(slices * SLICE_OUTPUTS),
    };
    for slice in 0..slices {
        // Of each output of the slice: its tensor and row.
        let rows: [Option<(usize, usize)>; SLICE_OUTPUTS] = std::array::from_fn(|row| {
            let output = output_of(first + slice, row, plan.outputs, plan.gated);
            output.map(|output| plan.row(output))
        });
        let mut read = Vec::with_capacity(2);
        for (tensor, (name, _, format)) in plan.tensors.iter().enumerate() {
            let wanted = || rows.iter().flatten().filter(|row| row.0 == tensor);
            let (Some(from), Some(to)) = (
                wanted().map(|row| row.1).min(),
                wanted().map(|row| row.1).max(),
            ) else {
                continue;
            };
            let mut part = PackedTensor::new(*format, to + 1 - from, plan.inputs);
            let out = part.rows_mut(0, to + 1 - from);
            source
                .read_packed(*name, from, out)
                .map_err(|source| LoadError::Source {
                    name: *name,
                    source,
                })?;
            read.push((tensor, from, part));
        }
        let rows = rows.map(|row| {
            let (tensor, row) = row?;
            let found = read.iter().find(|(index, ..)| *index == tensor)?;
            Some((&found.2, row - found.1))
        });
        let mut rest = piece.chunks.as_mut_slice();
        // The chunk of each step.
        let mut of_steps = Vec::with_capacity(steps);
        for _ in 0..steps {
            let (of_step, behind) = rest.split_at_mut(slices * bytes);
            of_steps.push(&mut of_step[slice * bytes..][..bytes]);
            rest = behind;
        }
        let mut of_steps = of_steps.into_iter();
        let factors = pack_slice(plan.format, &rows, steps, |_| {
            of_steps.next().expect("a chunk a step")
        });
        piece.factors.extend(factors);
    }
    Ok(piece)
}
