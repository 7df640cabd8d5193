//! A model's weights in device memory, as the matrix products read them.

mod drawn;
mod fill;
mod load;
mod plan;
#[cfg(all(test, feature = "cuda-emulator"))]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;

use super::driver::{Device, DeviceBuffer, Stream};
use super::error::CudaError;
use super::experts::ExpertWeights;
use super::linear::{Linear, Weight};
use super::ops::{Fill, NormWeights, RopeWeights};
use super::packed::{DeviceFormat, PackedPart};
use crate::model::ops::{LinearName, Op, forward};
use crate::model::{LayerTensor, ModelSpec, QkNorm, SpecError, TensorName, Uniform, WeightSource};
use crate::weight_formats::Quantisation;
pub(super) use drawn::{pack_experts, pack_tensor};
use load::Staging;
pub(super) use plan::PackPlan;

/// A model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E: std::error::Error + 'static> {
    /// The model's shapes are impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A tensor could not be read.
    #[error("cannot read the {name} tensor: {source}")]
    Source {
        /// Which.
        name: TensorName,
        /// Why.
        source: E,
    },
    /// A tensor does not have the shape that the model's configuration implies.
    #[error(
        "the {name} tensor has shape {actual:?}, the model's configuration implies {expected:?}"
    )]
    Shape {
        /// Which.
        name: TensorName,
        /// The shape needed.
        expected: Vec<usize>,
        /// The shape found.
        actual: Vec<usize>,
    },
    /// The device failed, or has too little memory.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// What weights that are not packed are.
pub(super) const PLAIN: &str = "bf16";

/// All weights: linear layers, and vectors such as those of norms, in load order.
#[derive(Debug)]
pub(super) struct Weights {
    /// None if the embedding is the output projection too.
    embedding: Option<DeviceBuffer<bf16>>,
    /// Of inputs of layers, if they have such.
    per_layer_embedding: Option<DeviceBuffer<bf16>>,
    linears: Vec<Linear>,
    /// Weights of norms, each with its bias behind them if norms have one.
    vectors: Vec<DeviceBuffer<bf16>>,
    /// Values before the bias of a norm, if norms have one.
    norm_bias_at: Option<usize>,
    /// Query norm, then key norm, of layers that have them.
    qk_norms: HashMap<usize, DeviceBuffer<bf16>>,
    /// By layer.
    experts: HashMap<usize, ExpertWeights>,
    linear_places: HashMap<LinearName, usize>,
    vector_places: HashMap<TensorName, usize>,
}

impl Weights {
    /// `[vocab][hidden]`.
    pub(super) fn embedding(&self) -> &DeviceBuffer<bf16> {
        let tied = || self.expanded(LinearName::LmHead);
        self.embedding.as_ref().unwrap_or_else(tied)
    }

    /// `[vocab][layers * width]`, of a model whose layers have inputs of their own.
    pub(super) fn per_layer_embedding(&self) -> Option<&DeviceBuffer<bf16>> {
        self.per_layer_embedding.as_ref()
    }

    /// The linear layer of this index.
    pub(super) fn linear(&self, index: usize) -> &Linear {
        &self.linears[index]
    }

    /// The linear layer of this name.
    pub(super) fn named(&self, name: LinearName) -> &Linear {
        &self.linears[self.linear_index(name)]
    }

    /// `[out][in]` of a linear layer of expanded weights.
    pub(super) fn expanded(&self, name: LinearName) -> &DeviceBuffer<bf16> {
        let plain = self.named(name).plain();
        plain.expect("weights were loaded to be expanded")
    }

    /// Where a linear layer of the model is.
    pub(super) fn linear_index(&self, name: LinearName) -> usize {
        self.linear_places[&name]
    }

    /// The vector of this index.
    pub(super) fn vector(&self, index: usize) -> &DeviceBuffer<bf16> {
        &self.vectors[index]
    }

    /// Weights and bias of the norm of this index.
    pub(super) fn of_norm(&self, index: usize) -> NormWeights {
        let vector = self.vector(index);
        NormWeights {
            weight: vector.ptr(),
            bias: self.norm_bias_at.map_or(0, |at| vector.at(at)),
        }
    }

    /// Where the weights of a norm of the model are.
    pub(super) fn vector_index(&self, name: TensorName) -> usize {
        self.vector_places[&name]
    }

    /// A layer's vector.
    pub(super) fn of_layer(&self, layer: usize, tensor: LayerTensor) -> &DeviceBuffer<bf16> {
        self.vector(self.vector_index(TensorName::Layer(layer, tensor)))
    }

    /// Query norm, then key norm, of layers that have them.
    pub(super) fn qk_norm(&self, layer: usize) -> Option<&DeviceBuffer<bf16>> {
        self.qk_norms.get(&layer)
    }

    /// The sinks of a layer that has them, `[q_heads]`.
    pub(super) fn sinks(&self, spec: &ModelSpec, layer: usize) -> Option<&DeviceBuffer<bf16>> {
        let has_sinks = spec.attention(layer).sinks;
        has_sinks.then(|| self.of_layer(layer, LayerTensor::Sinks))
    }

    /// What finishing a layer's heads reads.
    pub(super) fn of_heads(&self, spec: &ModelSpec, layer: usize) -> RopeWeights {
        let queries = TensorName::Layer(layer, LayerTensor::QNorm).shape(spec)[0];
        let norms = self.qk_norm(layer);
        RopeWeights {
            bias: self
                .named(LinearName::Qkv(layer))
                .bias()
                .map_or(0, |b| b.ptr()),
            q_norm: norms.map_or(0, |n| n.ptr()),
            k_norm: match spec.attention(layer).kv_from {
                Some(_) => 0,
                None => norms.map_or(0, |n| n.at(queries)),
            },
            key_factors: 0,
        }
    }

    /// The formats of packed parts.
    pub(super) fn packed_formats(&self) -> impl Iterator<Item = DeviceFormat> + Clone + '_ {
        let parts = self.linears.iter().flat_map(Linear::parts);
        parts.map(|part| part.format)
    }

    /// The most weights of a packed linear layer that is not the output projection, and of that.
    pub(super) fn packed_values(&self) -> [usize; 2] {
        let values = |linear: &Linear| {
            let parts = linear.parts().iter();
            parts.map(|part| part.inputs * part.outputs).sum()
        };
        let lm_head = self.linear_index(LinearName::LmHead);
        let layers = self.linears.iter().enumerate();
        let layers = layers.filter(|(index, _)| *index != lm_head);
        let most = layers.map(|(_, linear)| values(linear)).max();
        [most.unwrap_or(0), values(&self.linears[lm_head])]
    }

    /// Whether the gates of every layer that has an MLP, and what they open, are packed as one.
    pub(super) fn packs_gates(&self, spec: &ModelSpec) -> bool {
        let layers = 0..spec.layers.len();
        let gates = layers.filter_map(|layer| self.find(LinearName::GateUp(layer)));
        let mut parts = gates.map(Linear::parts);
        parts.all(|parts| parts.len() == 1 && parts[0].gated)
    }

    /// The linear layer of this name, if the model has it.
    pub(super) fn find(&self, name: LinearName) -> Option<&Linear> {
        let place = self.linear_places.get(&name)?;
        Some(&self.linears[*place])
    }

    /// The experts of a layer that has some.
    pub(super) fn experts(&self, layer: usize) -> &ExpertWeights {
        &self.experts[&layer]
    }

    /// What the experts' weights are: the format of packed ones.
    pub(super) fn expert_formats(&self) -> impl Iterator<Item = Option<DeviceFormat>> + '_ {
        let of_layer = |experts: &'_ ExpertWeights| {
            [&experts.gate_up, &experts.down].map(|weight| match weight {
                Weight::Plain(_) => None,
                Weight::Packed(parts) => parts.first().map(|part| part.format),
            })
        };
        self.experts.values().flat_map(of_layer)
    }

    /// All packed parts, to be filled.
    fn packed_parts(&mut self) -> impl Iterator<Item = (LinearName, &mut [PackedPart])> {
        let mut names: Vec<_> = self.linear_places.iter().collect();
        names.sort_unstable_by_key(|(_, place)| **place);
        let names = names.into_iter().map(|(name, _)| *name);
        let linears = self.linears.iter_mut().map(Linear::parts_mut);
        let of_experts = self.experts.iter_mut().flat_map(|(layer, experts)| {
            let first = match experts.gated {
                true => LinearName::ExpertGateUp(*layer),
                false => LinearName::ExpertUp(*layer),
            };
            let names = [first, LinearName::ExpertDown(*layer)];
            let weights = [&mut experts.gate_up, &mut experts.down];
            names.into_iter().zip(weights.map(Weight::parts_mut))
        });
        names.zip(linears).chain(of_experts)
    }

    /// Bytes of the weights by what they are, the most first.
    pub(super) fn bytes(&self) -> Vec<(&'static str, usize)> {
        let mut all = std::collections::BTreeMap::new();
        let mut count = |title, bytes| *all.entry(title).or_insert(0) += bytes;
        let plain = |buffer: &DeviceBuffer<bf16>| buffer.bytes();
        let vectors = self.vectors.iter().chain(self.qk_norms.values());
        let biases = self.linears.iter().filter_map(Linear::bias);
        let matrices = self.linears.iter().filter_map(Linear::plain);
        let of_experts = self.experts.values().flat_map(ExpertWeights::plain);
        let tables = self.embedding.iter().chain(&self.per_layer_embedding);
        let buffers = vectors.chain(tables).chain(biases).chain(matrices);
        count(PLAIN, buffers.chain(of_experts).map(plain).sum());
        let of_experts = self.experts.values();
        let of_experts = of_experts.flat_map(|experts| [&experts.gate_up, &experts.down]);
        let of_experts = of_experts.flat_map(Weight::parts);
        for part in self
            .linears
            .iter()
            .flat_map(Linear::parts)
            .chain(of_experts)
        {
            count(part.format.title(), part.bytes());
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        all
    }

    /// Allocates the weights of a valid spec and fills each plain tensor through `fill(name,
    /// buffer, offset)`. Linear layers that `plan` names are packed, and left to be filled.
    fn build<E>(
        device: &Arc<Device>,
        spec: &ModelSpec,
        plan: &PackPlan,
        mut fill: impl FnMut(TensorName, &mut DeviceBuffer<bf16>, usize) -> Result<(), E>,
    ) -> Result<Self, E>
    where
        E: From<CudaError>,
    {
        let values = |name: &TensorName| name.shape(spec).iter().product::<usize>();
        // Tensors one behind the other.
        let mut fill_all = |names: &[TensorName], buffer: &mut DeviceBuffer<bf16>| {
            let mut offset = 0;
            for name in names {
                fill(*name, buffer, offset)?;
                offset += values(name);
            }
            assert_eq!(offset, buffer.len());
            Ok::<_, E>(())
        };
        let mut tensor = |names: &[TensorName]| -> Result<DeviceBuffer<bf16>, E> {
            let len = names.iter().map(values).sum();
            let mut buffer = DeviceBuffer::new(device, len, "the weights")?;
            fill_all(names, &mut buffer)?;
            Ok(buffer)
        };
        // The weights and the bias of a linear layer.
        type Tensor<'a, E> = dyn FnMut(&[TensorName]) -> Result<DeviceBuffer<bf16>, E> + 'a;
        let product = |linear: LinearName, tensor: &mut Tensor<'_, E>| {
            let weight = match plan.parts(linear) {
                Some(parts) => Weight::Packed(
                    parts
                        .iter()
                        .map(|part| part.allocate(device))
                        .collect::<Result<_, _>>()?,
                ),
                None => Weight::Plain(tensor(&linear.weights(spec))?),
            };
            let biases = linear.biases(spec);
            let bias = match biases.is_empty() {
                true => None,
                false => Some(tensor(&biases)?),
            };
            Ok::<_, E>((weight, bias))
        };
        let mut this = Self {
            embedding: match spec.tied_embeddings {
                true => None,
                false => Some(tensor(&[TensorName::Embedding])?),
            },
            per_layer_embedding: match spec.per_layer_inputs {
                None => None,
                Some(_) => Some(tensor(&[TensorName::PerLayerEmbedding])?),
            },
            linears: Vec::new(),
            vectors: Vec::new(),
            norm_bias_at: spec.norms.bias.then_some(spec.hidden),
            qk_norms: HashMap::new(),
            experts: HashMap::new(),
            linear_places: HashMap::new(),
            vector_places: HashMap::new(),
        };
        for op in forward(spec) {
            match op {
                Op::Norm { weight, .. } => {
                    this.vector_places.insert(weight, this.vectors.len());
                    let bias = weight.norm_bias().filter(|_| spec.norms.bias);
                    let names: Vec<_> = std::iter::once(weight).chain(bias).collect();
                    this.vectors.push(tensor(&names)?);
                }
                Op::Linear { linear, .. } => {
                    this.linear_places.insert(linear, this.linears.len());
                    let (weight, bias) = product(linear, &mut tensor)?;
                    let linear = Linear::new(weight, bias, linear.shape(spec));
                    this.linears.push(linear);
                }
                Op::Experts { layer, .. } => {
                    let Some(of_layer) = spec.layers[layer].experts() else {
                        unreachable!("an operation of layers of experts");
                    };
                    let name = |tensor| TensorName::Layer(layer, tensor);
                    let has_score = of_layer.shared.is_some_and(|shared| shared.gated);
                    let mut vector = |tensor_name, is_there: bool| {
                        is_there.then(|| tensor(&[name(tensor_name)])).transpose()
                    };
                    let router_bias = vector(LayerTensor::RouterBias, of_layer.router_bias)?;
                    let has_correction = of_layer.routing.correction;
                    let correction = vector(LayerTensor::RouterCorrection, has_correction)?;
                    let scales = vector(LayerTensor::ExpertScale, of_layer.weight_scales)?;
                    let score = vector(LayerTensor::SharedScore, has_score)?;
                    let router = tensor(&[name(LayerTensor::Router)])?;
                    let first = LinearName::first_of_experts(layer, of_layer);
                    let gate_up = product(first, &mut tensor)?;
                    let down = product(LinearName::ExpertDown(layer), &mut tensor)?;
                    let experts = ExpertWeights {
                        gated: of_layer.activation.is_gated(),
                        router,
                        router_bias,
                        correction,
                        scales,
                        score,
                        gate_up: gate_up.0,
                        gate_up_bias: gate_up.1,
                        down: down.0,
                        down_bias: down.1,
                    };
                    this.experts.insert(layer, experts);
                }
                Op::FinishHeads(layer) => {
                    let has_norms = spec.attention(layer).qk_norm != QkNorm::None;
                    let names = [LayerTensor::QNorm, LayerTensor::KNorm];
                    let names = names.map(|tensor| TensorName::Layer(layer, tensor));
                    let count = match spec.attention(layer).kv_from {
                        Some(_) => 1,
                        None => 2,
                    };
                    if has_norms {
                        this.qk_norms.insert(layer, tensor(&names[..count])?);
                    }
                    if spec.attention(layer).sinks {
                        let sinks = TensorName::Layer(layer, LayerTensor::Sinks);
                        this.vector_places.insert(sinks, this.vectors.len());
                        this.vectors.push(tensor(&[sinks])?);
                    }
                }
                Op::FinishLayerInputs | Op::ScaleResidual(_) => {
                    let name = match op {
                        Op::ScaleResidual(layer) => {
                            TensorName::Layer(layer, LayerTensor::OutputScale)
                        }
                        _ => TensorName::PerLayerNorm,
                    };
                    this.vector_places.insert(name, this.vectors.len());
                    this.vectors.push(tensor(&[name])?);
                }
                Op::JoinBranches(layer) => {
                    let norms = [LayerTensor::SharedPostNorm, LayerTensor::ExpertPostNorm];
                    for name in norms.map(|norm| TensorName::Layer(layer, norm)) {
                        this.vector_places.insert(name, this.vectors.len());
                        this.vectors.push(tensor(&[name])?);
                    }
                }
                Op::Recur(layer) => {
                    for name in TensorName::of_recurrence(spec, layer) {
                        this.vector_places.insert(name, this.vectors.len());
                        this.vectors.push(tensor(&[name])?);
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }

    /// Loads every tensor of a valid spec; packed ones as they are, unless they are to be expanded
    /// to bf16. `progress(done, total)` counts bytes.
    pub(super) fn load<W: WeightSource>(
        device: &Arc<Device>,
        spec: &ModelSpec,
        source: &W,
        expand: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        let plan = match expand {
            true => PackPlan::default(),
            false => PackPlan::of_source(spec, source)?,
        };
        let staging = Staging::of_this_machine();
        load::load(device, spec, source, &plan, staging, progress)
    }

    /// [`RandomWeights`](crate::model::RandomWeights) of a valid spec, drawn on the device. Linear
    /// layers but the output projection are quantised, if asked for; those are not the weights that
    /// a source would quantise.
    pub(super) fn random(
        device: &Arc<Device>,
        spec: &ModelSpec,
        seed: u64,
        quantisation: Option<Quantisation>,
    ) -> Result<Self, CudaError> {
        let stream = Stream::new(device)?;
        let fill = Fill::new(device)?;
        let plan = match quantisation {
            Some(quantisation) => PackPlan::of_quantised(spec, quantisation),
            None => PackPlan::default(),
        };
        let mut weights = Self::build::<CudaError>(device, spec, &plan, |name, buffer, offset| {
            let Uniform {
                seed,
                amplitude,
                center,
            } = Uniform::of(spec, name, seed);
            let values = name.shape(spec).iter().product();
            // SAFETY: the buffer holds that many values from `offset` on, and lives until the
            // stream is waited for below: it moves into `weights`, or its release waits for the
            // device.
            unsafe { fill.run(&stream, buffer.at(offset), values, seed, amplitude, center) }
        })?;
        stream.synchronize()?;
        if let Some(quantisation) = quantisation {
            weights.draw_packed(spec, quantisation, seed)?;
        }
        Ok(weights)
    }
}
