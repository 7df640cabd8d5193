//! Loads a model: every tensor read once, packed by all threads, and let go.

mod error;
mod experts;
mod parts;

pub use error::LoadError;

use half::bf16;

use super::gemm::{Columns, PackedMatrix, WeightMemory};
use super::linear::Linear;
use super::math::{Xielu, softplus};
use super::packed::{self, QuantisedMatrix};
use super::program::{NamedOp, Op};
use super::recurrent::RecurrentWeights;
use super::threads::Pool;
use super::weights::{Embedding, Weights};
use crate::formats::rotation::{RotationError, fold_o, fold_v};
use crate::model::ops::LinearName;
use crate::model::{
    Activation, LayerTensor, LayerTensor as L, ModelSpec, QkNorm, RecurrentSpec, TensorName,
    WeightSource,
};
use crate::weight_formats::{PackedRows, WeightFormat};
use parts::{Part, format_of, packed_bytes, parts_of, shape};

/// What becomes of weights while they are loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadOptions {
    /// V's Hadamard rotation is folded in.
    pub(super) fold_v: bool,
    /// Packed weights are expanded to bf16.
    pub(super) expand: bool,
}

struct Loader<'a, W: WeightSource> {
    spec: &'a ModelSpec,
    source: &'a W,
    pool: &'a mut Pool,
    memory: WeightMemory,
    options: LoadOptions,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

/// Loads all weights that the program of a valid spec names. `progress(done, total)` counts bytes
/// of bf16.
pub(super) fn load<W: WeightSource>(
    spec: &ModelSpec,
    program: Vec<NamedOp>,
    source: &W,
    pool: &mut Pool,
    options: LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Weights, LoadError<W::Error>> {
    // All shapes first: a model that does not fit its configuration fails before anything is read.
    let mut total = 0;
    for name in TensorName::all(spec) {
        let expected = name.shape(spec);
        let actual = source
            .shape(name)
            .map_err(|source| LoadError::Source { name, source })?;
        if actual != expected {
            return Err(LoadError::Shape {
                name,
                expected,
                actual,
            });
        }
        total += 2 * expected.iter().product::<usize>() as u64;
    }
    let mut bytes = 0usize;
    for op in &program {
        match op {
            Op::Linear { linear, .. } => {
                let is_gated = linear.is_gated();
                for part in parts_of(spec, source, options, *linear, is_gated)? {
                    bytes = bytes.saturating_add(part.bytes(spec, is_gated));
                }
            }
            Op::Experts { layer, .. } => {
                let more = experts::bytes(spec, source, options, *layer)?;
                bytes = bytes.saturating_add(more);
            }
            _ => {}
        }
    }
    for table in embeddings(spec) {
        if let Some(format) = format_of(spec, source, options, table)? {
            let table = packed_bytes(spec, table, format);
            bytes = bytes.saturating_add(table.unwrap_or(0));
        }
    }
    let memory = WeightMemory::new(bytes).map_err(|_| LoadError::OutOfMemory { bytes })?;
    let mut loader = Loader {
        spec,
        source,
        pool,
        memory,
        options,
        progress,
        done: 0,
        total,
    };
    loader.load(program)
}

/// The tables that are looked up and nothing else.
fn embeddings(spec: &ModelSpec) -> impl Iterator<Item = TensorName> {
    let own = (!spec.tied_embeddings).then_some(TensorName::Embedding);
    let inputs = spec.per_layer_inputs.map(|_| TensorName::PerLayerEmbedding);
    own.into_iter().chain(inputs)
}

impl<W: WeightSource> Loader<'_, W> {
    /// Loads what each operation names, in order.
    fn load(&mut self, program: Vec<NamedOp>) -> Result<Weights, LoadError<W::Error>> {
        let mut weights = Weights {
            embedding: None,
            per_layer_embedding: None,
            linears: Vec::new(),
            norms: Vec::new(),
            qk_norms: self.of_layers(),
            sinks: self.of_layers(),
            output_scales: self.of_layers(),
            xielus: self.of_layers(),
            recurrent: self.of_layers(),
            experts: self.of_layers(),
            ops: Vec::with_capacity(program.len()),
        };
        for name in embeddings(self.spec) {
            let format = format_of(self.spec, self.source, self.options, name)?;
            let table = match format {
                Some(format) => Embedding::Packed(self.packed(name, format)?),
                None => Embedding::Plain(self.tensor(name)?),
            };
            match name {
                TensorName::Embedding => weights.embedding = Some(table),
                _ => weights.per_layer_embedding = Some(table),
            }
        }
        for op in program {
            weights.ops.push(match op {
                Op::Norm {
                    weight,
                    bias,
                    input,
                    output,
                } => {
                    weights.norms.push(self.norm(weight)?);
                    let weight = weights.norms.len() - 1;
                    let bias = match bias {
                        Some(bias) => {
                            weights.norms.push(self.vector(bias)?);
                            Some(weight + 1)
                        }
                        None => None,
                    };
                    Op::Norm {
                        weight,
                        bias,
                        input,
                        output,
                    }
                }
                Op::Linear {
                    linear,
                    input,
                    output,
                    then,
                    next,
                } => {
                    weights.linears.push(self.linear(linear)?);
                    Op::Linear {
                        linear: weights.linears.len() - 1,
                        input,
                        output,
                        then,
                        next: next.map(|_| weights.linears.len()),
                    }
                }
                Op::FinishHeads(layer) => {
                    weights.qk_norms[layer] = self.qk_norm(layer)?;
                    Op::FinishHeads(layer)
                }
                Op::Embed => Op::Embed,
                Op::Attend(layer) => {
                    let sinks = TensorName::Layer(layer, LayerTensor::Sinks);
                    let has_sinks = self.spec.attention(layer).sinks;
                    weights.sinks[layer] = has_sinks.then(|| self.vector(sinks)).transpose()?;
                    Op::Attend(layer)
                }
                Op::Experts {
                    layer,
                    input,
                    router,
                    output,
                } => {
                    weights.experts[layer] = Some(self.experts(layer)?);
                    Op::Experts {
                        layer,
                        input,
                        router,
                        output,
                    }
                }
                Op::Join => Op::Join,
                Op::RotateBack(layer) => Op::RotateBack(layer),
                Op::FinishLayerInputs(norm) => {
                    weights.norms.push(self.vector(norm)?);
                    Op::FinishLayerInputs(weights.norms.len() - 1)
                }
                Op::OpenLayerInput(layer) => Op::OpenLayerInput(layer),
                Op::ScaleResidual(layer) => {
                    let scale = self.vector(TensorName::Layer(layer, L::OutputScale))?;
                    weights.output_scales[layer] = scale.first().copied();
                    Op::ScaleResidual(layer)
                }
                Op::OpenAttended(layer) => Op::OpenAttended(layer),
                Op::Activate(layer) => {
                    if self.spec.layers[layer].activation() == Activation::Xielu {
                        weights.xielus[layer] = Some(self.xielu(layer)?);
                    }
                    Op::Activate(layer)
                }
                Op::Recur(layer) => {
                    weights.recurrent[layer] = self.recurrent(layer)?;
                    Op::Recur(layer)
                }
                Op::Add => Op::Add,
                Op::SelectRows => Op::SelectRows,
                Op::FinishLogits => Op::FinishLogits,
            });
        }
        Ok(weights)
    }

    /// Nothing yet, of each layer.
    fn of_layers<T>(&self) -> Vec<Option<T>> {
        self.spec.layers.iter().map(|_| None).collect()
    }

    /// What a recurrence has beside its products.
    fn recurrent(&mut self, layer: usize) -> Result<Option<RecurrentWeights>, LoadError<W::Error>> {
        let Some(spec) = self.spec.layers[layer].recurrent().copied() else {
            return Ok(None);
        };
        let name = |tensor| TensorName::Layer(layer, tensor);
        let (channels, taps) = spec.conv(self.spec.hidden);
        let conv = self.vector(name(match spec {
            RecurrentSpec::GatedDelta(_) => L::DeltaConv,
            RecurrentSpec::Mamba2(_) => L::MambaConv,
            RecurrentSpec::ShortConv(_) => L::Conv,
        }))?;
        let at = (0..taps * channels).map(|i| conv[i % channels * taps + i / channels]);
        let mut weights = RecurrentWeights {
            conv: at.collect(),
            conv_bias: None,
            decay: Vec::new(),
            decay_bias: Vec::new(),
            norm: Vec::new(),
            skip: Vec::new(),
        };
        match spec {
            RecurrentSpec::GatedDelta(_) => {
                weights.decay = self.decays(name(L::DeltaDecay))?;
                weights.decay_bias = self.in_halves(name(L::DeltaDecayBias))?;
                weights.norm = self.vector(name(L::DeltaNorm))?;
            }
            RecurrentSpec::Mamba2(mamba) => {
                weights.decay = self.decays(name(L::MambaDecay))?;
                weights.decay_bias = self.in_halves(name(L::MambaDtBias))?;
                weights.skip = self.vector(name(L::MambaSkip))?;
                if mamba.conv_bias {
                    weights.conv_bias = Some(self.vector(name(L::MambaConvBias))?);
                }
                if mamba.norm_parts.is_some() {
                    weights.norm = self.vector(name(L::MambaNorm))?;
                }
            }
            RecurrentSpec::ShortConv(conv) if conv.bias => {
                weights.conv_bias = Some(self.vector(name(L::ConvBias))?);
            }
            RecurrentSpec::ShortConv(_) => {}
        }
        Ok(Some(weights))
    }

    /// `-exp(decay)` of each head.
    fn decays(&mut self, name: TensorName) -> Result<Vec<f32>, LoadError<W::Error>> {
        let decays = self.in_halves(name)?.into_iter();
        Ok(decays.map(|decay| -decay.exp()).collect())
    }

    /// A vector in two rows: rounded, and what that leaves.
    fn in_halves(&mut self, name: TensorName) -> Result<Vec<f32>, LoadError<W::Error>> {
        let both = self.vector(name)?;
        let (rounded, rest) = both.split_at(both.len() / 2);
        Ok(rounded.iter().zip(rest).map(|(a, b)| a + b).collect())
    }

    fn linear(&mut self, name: LinearName) -> Result<Linear, LoadError<W::Error>> {
        let (inputs, _) = name.shape(self.spec);
        let mut biases = Vec::new();
        for name in name.biases(self.spec) {
            biases.extend(self.vector(name)?);
        }
        let mut rest = &biases[..];
        let mut bias = |outputs: usize| {
            let (first, others) = rest.split_at_checked(outputs)?;
            rest = others;
            Some(first.to_vec())
        };
        let mut linear = Linear::new(inputs);
        for part in parts_of(self.spec, self.source, self.options, name, name.is_gated())? {
            match part {
                Part::Expanded(names) => {
                    let matrix = self.expanded(&names, name.is_gated())?;
                    let bias = bias(matrix.outputs());
                    linear.push_expanded(matrix, bias);
                }
                Part::Packed(tensors) => {
                    let mut matrices = Vec::with_capacity(tensors.len());
                    for (name, format) in tensors {
                        matrices.push(self.packed(name, format)?);
                    }
                    let bias = bias(matrices[0].outputs());
                    let weights = match <[_; 2]>::try_from(matrices) {
                        Ok(both) => packed::Weights::Gated(both),
                        Err(mut one) => packed::Weights::Plain(one.remove(0)),
                    };
                    linear.push_packed(weights, bias);
                }
            }
        }
        Ok(linear)
    }

    /// Reads tensors into one bf16 matrix.
    fn expanded(
        &mut self,
        names: &[TensorName],
        is_gated: bool,
    ) -> Result<PackedMatrix, LoadError<W::Error>> {
        let (inputs, outputs) = shape(self.spec, names);
        let outputs = if is_gated { outputs / 2 } else { outputs };
        let mut matrix = self.memory.matrix(inputs, outputs, is_gated);
        let mut first = 0;
        for name in names {
            let columns = match name {
                TensorName::Layer(_, L::Gate | L::SharedGate) => Columns::Gate,
                TensorName::Layer(_, L::Up | L::SharedUp) if is_gated => Columns::Up,
                _ => Columns::From(first),
            };
            let rows = self.tensor(*name)?;
            matrix.fill(self.pool, columns, &rows)?;
            first += rows.len() / inputs;
        }
        Ok(matrix)
    }

    /// Reads a tensor as it is packed.
    fn packed(
        &mut self,
        name: TensorName,
        format: WeightFormat,
    ) -> Result<QuantisedMatrix, LoadError<W::Error>> {
        let shape = name.shape(self.spec);
        let mut matrix = QuantisedMatrix::new(&mut self.memory, format, shape[1], shape[0]);
        let source = self.source;
        let read = |first, rows: PackedRows<'_>| source.read_packed(name, first, rows);
        let filled = matrix.fill(self.pool, read)?;
        filled.map_err(|source| LoadError::Source { name, source })?;
        self.finish(name, shape[0] * shape[1]);
        Ok(matrix)
    }

    /// Tells the source and who follows the progress that a tensor was read.
    fn finish(&mut self, name: TensorName, values: usize) {
        self.source.done_reading(name);
        self.done += 2 * values as u64;
        (self.progress)(self.done, self.total);
    }

    #[allow(clippy::type_complexity)]
    fn qk_norm(
        &mut self,
        layer: usize,
    ) -> Result<Option<(Vec<f32>, Vec<f32>)>, LoadError<W::Error>> {
        if self.spec.attention(layer).qk_norm == QkNorm::None {
            return Ok(None);
        }
        let name = |tensor| TensorName::Layer(layer, tensor);
        let q = self.vector(name(LayerTensor::QNorm))?;
        let k = match self.spec.attention(layer).kv_from {
            Some(_) => Vec::new(),
            None => self.vector(name(LayerTensor::KNorm))?,
        };
        Ok(Some((q, k)))
    }

    /// The numbers of a layer's xIELU.
    fn xielu(&mut self, layer: usize) -> Result<Xielu, LoadError<W::Error>> {
        let mut number = |tensor| {
            let values = self.vector(TensorName::Layer(layer, tensor))?;
            Ok::<_, LoadError<W::Error>>(values.first().copied().unwrap_or(0.0))
        };
        let beta = number(L::XieluBeta)?;
        Ok(Xielu {
            positive: softplus(number(L::XieluPositive)?),
            negative: beta + softplus(number(L::XieluNegative)?),
            beta,
            eps: number(L::XieluEps)?,
        })
    }

    /// Weights of a norm. A router's own have its multiplier in them.
    fn norm(&mut self, name: TensorName) -> Result<Vec<f32>, LoadError<W::Error>> {
        let mut weights = self.vector(name)?;
        if let TensorName::Layer(layer, L::RouterNorm) = name {
            let experts = self.spec.layers[layer].experts();
            let norm = experts.and_then(|experts| experts.router_norm);
            let multiplier = norm.map_or(1.0, |norm| norm.multiplier);
            weights.iter_mut().for_each(|weight| *weight *= multiplier);
        }
        Ok(weights)
    }

    fn vector(&mut self, name: TensorName) -> Result<Vec<f32>, LoadError<W::Error>> {
        let counts_from = match name.is_norm() && self.spec.norms.from_one {
            true => 1.0,
            false => 0.0,
        };
        let values = self.tensor(name)?;
        Ok(values.iter().map(|x| counts_from + x.to_f32()).collect())
    }

    fn tensor(&mut self, name: TensorName) -> Result<Vec<bf16>, LoadError<W::Error>> {
        let mut tensor = self
            .source
            .load(name)
            .map_err(|source| LoadError::Source { name, source })?;
        self.finish(name, tensor.len());
        if self.options.fold_v {
            self.rotate(name, &mut tensor)?;
        }
        Ok(tensor)
    }

    /// Folds V's rotation into the tensors that produce values and consume their sums.
    fn rotate(&self, name: TensorName, tensor: &mut [bf16]) -> Result<(), RotationError> {
        let (dim, hidden) = (self.spec.kv_geometry().head_dim, self.spec.hidden);
        match name {
            TensorName::Layer(_, LayerTensor::V) => fold_v(tensor, dim, hidden),
            TensorName::Layer(_, LayerTensor::VBias) => fold_v(tensor, dim, 1),
            TensorName::Layer(_, LayerTensor::O) => fold_o(tensor, dim),
            _ => Ok(()),
        }
    }
}
