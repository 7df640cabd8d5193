//! A model's weights in device memory, as the matrix products read them.

mod load;
#[cfg(all(test, feature = "cuda-emulator"))]
mod tests;

use std::sync::Arc;

use half::bf16;

use super::driver::{Device, DeviceBuffer, Stream};
use super::error::CudaError;
use super::ops::{Fill, RopeWeights};
use super::params::DevicePtr;
use crate::model::{LayerTensor, ModelSpec, SpecError, TensorName, Uniform, WeightSource};
use load::Staging;

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

/// A layer's weights. Matrices are `[out][in]`.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attn_norm: DeviceBuffer<bf16>,
    /// Queries, keys and values, one after the other.
    pub(super) qkv: DeviceBuffer<bf16>,
    /// Of the same.
    pub(super) qkv_bias: Option<DeviceBuffer<bf16>>,
    /// Query norm, then key norm.
    pub(super) qk_norm: Option<DeviceBuffer<bf16>>,
    pub(super) o: DeviceBuffer<bf16>,
    pub(super) mlp_norm: DeviceBuffer<bf16>,
    /// Gate, then up.
    pub(super) gate_up: DeviceBuffer<bf16>,
    pub(super) down: DeviceBuffer<bf16>,
}

impl Layer {
    /// What the rotation of Q and K reads.
    pub(super) fn rope_weights(&self, head_dim: usize) -> RopeWeights {
        RopeWeights {
            bias: self.qkv_bias.as_ref().map_or(0, |b| b.ptr()),
            q_norm: self.qk_norm.as_ref().map_or(0, |n| n.ptr()),
            k_norm: self.qk_norm.as_ref().map_or(0, |n| n.at(head_dim)),
        }
    }
}

/// All weights.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) embedding: DeviceBuffer<bf16>,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: DeviceBuffer<bf16>,
    /// None if the embedding is the output projection too.
    lm_head: Option<DeviceBuffer<bf16>>,
}

impl Weights {
    /// Address of the output projection, `[vocab][hidden]`.
    pub(super) fn lm_head(&self) -> DevicePtr {
        self.lm_head.as_ref().unwrap_or(&self.embedding).ptr()
    }

    /// Allocates the weights of a valid spec and fills each tensor through `fill(name, buffer,
    /// offset)`.
    fn build<E>(
        device: &Arc<Device>,
        spec: &ModelSpec,
        mut fill: impl FnMut(TensorName, &mut DeviceBuffer<bf16>, usize) -> Result<(), E>,
    ) -> Result<Self, E>
    where
        E: From<CudaError>,
    {
        let mut tensor = |names: &[TensorName]| -> Result<DeviceBuffer<bf16>, E> {
            let values = |name: &TensorName| name.shape(spec).iter().product::<usize>();
            let mut buffer =
                DeviceBuffer::new(device, names.iter().map(values).sum(), "the weights")?;
            let mut offset = 0;
            for name in names {
                fill(*name, &mut buffer, offset)?;
                offset += values(name);
            }
            Ok(buffer)
        };
        use LayerTensor as L;
        let embedding = tensor(&[TensorName::Embedding])?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for index in 0..spec.layers.len() {
            let mut of = |tensors: &[L]| {
                let names: Vec<_> = tensors
                    .iter()
                    .map(|t| TensorName::Layer(index, *t))
                    .collect();
                tensor(&names)
            };
            layers.push(Layer {
                attn_norm: of(&[L::AttnNorm])?,
                qkv: of(&[L::Q, L::K, L::V])?,
                qkv_bias: if spec.attention(0).qkv_bias {
                    Some(of(&[L::QBias, L::KBias, L::VBias])?)
                } else {
                    None
                },
                qk_norm: if spec.qk_norm {
                    Some(of(&[L::QNorm, L::KNorm])?)
                } else {
                    None
                },
                o: of(&[L::O])?,
                mlp_norm: of(&[L::MlpNorm])?,
                gate_up: of(&[L::Gate, L::Up])?,
                down: of(&[L::Down])?,
            });
        }
        Ok(Self {
            embedding,
            layers,
            final_norm: tensor(&[TensorName::FinalNorm])?,
            lm_head: if spec.tied_embeddings {
                None
            } else {
                Some(tensor(&[TensorName::LmHead])?)
            },
        })
    }

    /// Loads every tensor of a valid spec. `progress(done, total)` counts bytes.
    pub(super) fn load<W: WeightSource>(
        device: &Arc<Device>,
        spec: &ModelSpec,
        source: &W,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        load::load(device, spec, source, Staging::of_this_machine(), progress)
    }

    /// [`RandomWeights`](crate::model::RandomWeights) of a valid spec, drawn on the device.
    pub(super) fn random(
        device: &Arc<Device>,
        spec: &ModelSpec,
        seed: u64,
    ) -> Result<Self, CudaError> {
        let stream = Stream::new(device)?;
        let fill = Fill::new(device)?;
        let weights = Self::build::<CudaError>(device, spec, |name, buffer, offset| {
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
        Ok(weights)
    }
}
