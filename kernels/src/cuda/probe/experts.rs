//! A layer's products of experts on their own.

use std::sync::Arc;

use half::bf16;

use super::{ColdL2, ProbeError, time_graph};
use crate::cuda::driver::{Device, DeviceBuffer, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::experts::{ExpertWeights, Experts, ExpertsIo, TILE_ROWS};
use crate::cuda::linear::Weight;
use crate::cuda::ops::Fill;
use crate::cuda::products::Products;
use crate::cuda::weights::pack_experts;
use crate::model::{ExpertsSpec, Mlp, ModelSpec, UniformModel};
use crate::weight_formats::PackedTensor;

/// Weights are uniform in plus or minus this, as are biases.
const AMPLITUDE: f32 = 0.03;

/// Random rows through a layer of experts with random weights.
#[derive(Debug)]
pub struct ExpertsProbe {
    stream: Stream,
    products: Products,
    experts: Experts,
    spec: ExpertsSpec,
    weights: ExpertWeights,
    hidden: usize,
    /// `[rows][hidden]`.
    x: DeviceBuffer<bf16>,
    out: DeviceBuffer<bf16>,
}

impl ExpertsProbe {
    /// For up to `rows` rows of `hidden`. `packed`: every expert's gate and up
    /// `[2 intermediate][hidden]`, and down `[hidden][intermediate]`; else they are random bf16.
    ///
    /// # Errors
    /// When the device fails, or has no kernels for the tensors' formats.
    pub fn new(
        device: &Arc<Device>,
        spec: &ExpertsSpec,
        (rows, hidden): (usize, usize),
        packed: Option<[&PackedTensor; 2]>,
    ) -> Result<Self, CudaError> {
        let stream = Stream::new(device)?;
        let fill = Fill::new(device)?;
        let mut seed = 0;
        let mut random = |len: usize, amplitude: f32| {
            let buffer = DeviceBuffer::<bf16>::new(device, len, "a probe of experts")?;
            seed += 1;
            // SAFETY: the stream is waited for while the buffer lives.
            unsafe { fill.run(&stream, buffer.ptr(), len, seed, amplitude, 0.0)? };
            stream.synchronize()?;
            Ok::<_, CudaError>(buffer)
        };
        let (experts, inner) = (spec.experts, spec.intermediate);
        let gated = spec.activation.is_gated();
        let first = if gated { 2 * inner } else { inner };
        let [gate_up, down] = match packed {
            Some([gate_up, down]) => [
                pack(device, gate_up, experts, gated)?,
                pack(device, down, experts, false)?,
            ],
            None => [
                Weight::Plain(random(experts * first * hidden, AMPLITUDE)?),
                Weight::Plain(random(experts * hidden * inner, AMPLITUDE)?),
            ],
        };
        let formats = [&gate_up, &down].map(|weight| weight.parts().first().map(|p| p.format));
        let mut bias = |len: usize| match spec.biases {
            true => random(len, AMPLITUDE).map(Some),
            false => Ok(None),
        };
        let biases = [bias(experts * first)?, bias(experts * hidden)?];
        let [gate_up_bias, down_bias] = biases;
        let model = model(spec, hidden);
        let missing = || CudaError::Unsupported("a model without experts".to_owned());
        Ok(Self {
            products: Products::new(device, false)?,
            experts: Experts::new(device, &model, rows, formats.into_iter())?
                .ok_or_else(missing)?,
            weights: ExpertWeights {
                gated,
                router: random(experts * hidden, 1.0)?,
                router_bias: None,
                correction: None,
                scales: None,
                score: None,
                gate_up,
                gate_up_bias,
                down,
                down_bias,
            },
            x: random(rows * hidden, 1.0)?,
            out: DeviceBuffer::filled(device, rows * hidden, 0, "a probe's outputs")?,
            spec: spec.clone(),
            hidden,
            stream,
        })
    }

    /// Rows of a tile, on which kernels depend.
    pub const TILE_ROWS: [usize; 4] = TILE_ROWS;

    /// Times `repeats` graph replays of both products of the first `rows` rows, each with a cold
    /// L2, by tiles of [`Self::TILE_ROWS`]`[tile]`. Microseconds, sorted.
    ///
    /// # Errors
    /// When the device fails.
    pub fn time(
        &mut self,
        rows: usize,
        tile: usize,
        repeats: usize,
    ) -> Result<Vec<f64>, ProbeError> {
        self.experts.take_tile(tile);
        self.products
            .prepare(Experts::router_shape(&self.spec, self.hidden, rows))?;
        let io = ExpertsIo {
            rows,
            x: &self.x,
            router: &self.x,
            out: Some(&mut self.out),
            norms: None,
        };
        let (spec, weights) = (&self.spec, &self.weights);
        // Routes and sorts the rows.
        self.experts
            .run(&self.stream, &mut self.products, spec, weights, io)?;
        self.stream.synchronize()?;
        let stream = Stream::new(self.stream.device())?;
        let graph = stream.capture(|| {
            self.experts
                .run_products(&stream, spec, weights, (rows, &self.x))
        })?;
        Ok(time_graph(&stream, &graph, repeats, ColdL2::Written)?)
    }
}

/// As many experts with a tensor's weights.
fn pack(
    device: &Arc<Device>,
    tensor: &PackedTensor,
    experts: usize,
    gated: bool,
) -> Result<Weight, CudaError> {
    let part = pack_experts(device, std::slice::from_ref(tensor), experts, gated)?;
    let missing = || CudaError::Unsupported(format!("experts of {:?}", tensor.format()));
    Ok(Weight::Packed(vec![part.ok_or_else(missing)?]))
}

/// A model of one layer, this one.
fn model(spec: &ExpertsSpec, hidden: usize) -> ModelSpec {
    let mut model = UniformModel {
        hidden,
        layers: 1,
        ..UniformModel::default()
    }
    .spec();
    for layer in &mut model.layers {
        layer.mlp = Mlp::Experts(spec.clone());
    }
    model
}
