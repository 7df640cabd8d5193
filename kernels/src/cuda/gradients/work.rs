//! Buffers of one text, and the weights of one layer at a time.

use std::sync::Arc;

use super::ops::{Matrix, Ops};
use crate::cuda::driver::{Device, DeviceBuffer};
use crate::cuda::error::CudaError;
use crate::cuda::weights::Weights;
use crate::model::ops::LinearName;
use crate::model::{ModelSpec, QkNorm, Rope};

/// Query rows whose attention is computed at once; bounds the memory of scores.
pub(super) const ROWS: usize = 512;

/// What a layer computes of a text, row-major by token. A prefix `d_` means the loss gradient with
/// respect to it.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) tokens: usize,
    hidden: usize,
    pub(super) ids: Vec<u32>,
    pub(super) device_ids: DeviceBuffer<u32>,
    /// Cosine and sine of every token's angles, times the rope's scale: `[tokens][head_dim /
    /// 2][2]`.
    pub(super) angles: Vec<DeviceBuffer<f32>>,
    /// The normed input of attention; also what `output` of attention is written to.
    pub(super) normed: DeviceBuffer<f32>,
    /// Queries, keys and values, the first two rotated.
    pub(super) qkv: DeviceBuffer<f32>,
    pub(super) d_qkv: DeviceBuffer<f32>,
    /// Before the norms of heads, in models that have them.
    pub(super) raw_qkv: Option<DeviceBuffer<f32>>,
    pub(super) attended: DeviceBuffer<f32>,
    pub(super) d_attended: DeviceBuffer<f32>,
    /// The residual stream between attention and MLP.
    pub(super) middle: DeviceBuffer<f32>,
    pub(super) d_middle: DeviceBuffer<f32>,
    pub(super) mlp_normed: DeviceBuffer<f32>,
    pub(super) d_normed: DeviceBuffer<f32>,
    /// Backwards these two hold their gradients.
    pub(super) gate_up: DeviceBuffer<f32>,
    pub(super) act: DeviceBuffer<f32>,
    /// `[kv_heads][group][rows][keys]`.
    pub(super) weights: DeviceBuffer<f32>,
    pub(super) d_weights: DeviceBuffer<f32>,
    /// dL/dW_k, then dL/dW_v.
    pub(super) d_w: DeviceBuffer<f32>,
}

impl Work {
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        ids: &[u32],
        stride: usize,
    ) -> Result<Self, CudaError> {
        let tokens = ids.len();
        let activation = |width: usize| DeviceBuffer::new(device, tokens * width, "activations");
        let (q, kv) = (
            spec.heads().q_heads * spec.heads().head_dim,
            spec.heads().kv_heads * spec.heads().head_dim,
        );
        let scores = || {
            let values = spec.heads().q_heads * ROWS.min(tokens) * tokens;
            DeviceBuffer::new(device, values, "attention scores")
        };
        let angles_of = |rope: &Rope| {
            let angles = (0..tokens).flat_map(|token| {
                // Rounded to f32 like everywhere else.
                let position = (token * stride) as f32;
                let frequencies = rope.frequencies(spec.max_positions).iter();
                frequencies.flat_map(move |f| {
                    let (sine, cosine) = f64::from(position * f).sin_cos();
                    [cosine, sine].map(|x| (x * f64::from(rope.scale)) as f32)
                })
            });
            DeviceBuffer::from_slice(device, &angles.collect::<Vec<f32>>(), "angles")
        };
        Ok(Self {
            tokens,
            hidden: spec.hidden,
            ids: ids.to_vec(),
            device_ids: DeviceBuffer::from_slice(device, ids, "tokens")?,
            angles: spec.ropes.iter().map(angles_of).collect::<Result<_, _>>()?,
            normed: activation(spec.hidden)?,
            qkv: activation(q + 2 * kv)?,
            d_qkv: activation(q + 2 * kv)?,
            raw_qkv: match spec
                .attentions()
                .any(|(_, attention)| attention.qk_norm != QkNorm::None)
            {
                true => Some(activation(q + 2 * kv)?),
                false => None,
            },
            attended: activation(q)?,
            d_attended: activation(q)?,
            middle: activation(spec.hidden)?,
            d_middle: activation(spec.hidden)?,
            mlp_normed: activation(spec.hidden)?,
            d_normed: activation(spec.hidden)?,
            gate_up: activation(2 * spec.intermediate_max())?,
            act: activation(spec.intermediate_max())?,
            weights: scores()?,
            d_weights: scores()?,
            d_w: DeviceBuffer::new(device, 2 * kv * spec.hidden, "gradients of weights")?,
        })
    }

    /// `[tokens][hidden]`.
    pub(super) fn activation(&self) -> Result<DeviceBuffer<f32>, CudaError> {
        let device = self.normed.device();
        DeviceBuffer::new(device, self.tokens * self.hidden, "activations")
    }
}

/// A layer's matrices as f32, one after the other in one buffer, which also has room for the output
/// projection.
#[derive(Debug)]
pub(super) struct Wide {
    buffer: DeviceBuffer<f32>,
    /// Of queries, keys and values; output; gate and up; down: first value, values, columns.
    matrices: [(usize, usize, usize); 4],
}

impl Wide {
    pub(super) fn new(device: &Arc<Device>, spec: &ModelSpec) -> Result<Self, CudaError> {
        let (hidden, intermediate) = (spec.hidden, spec.intermediate_max());
        let q = spec.heads().q_heads * spec.heads().head_dim;
        let qkv = q + 2 * spec.heads().kv_heads * spec.heads().head_dim;
        let mut end = 0;
        let matrices = [
            (qkv, hidden),
            (hidden, q),
            (2 * intermediate, hidden),
            (hidden, intermediate),
        ]
        .map(|(rows, columns)| {
            let first = end;
            end += rows * columns;
            (first, rows * columns, columns)
        });
        let most = end.max(spec.vocab * hidden);
        Ok(Self {
            buffer: DeviceBuffer::new(device, most, "weights at 32 bit")?,
            matrices,
        })
    }

    pub(super) fn buffer(&self) -> &DeviceBuffer<f32> {
        &self.buffer
    }

    pub(super) fn buffer_mut(&mut self) -> &mut DeviceBuffer<f32> {
        &mut self.buffer
    }

    /// Enqueues widening a layer's weights.
    pub(super) fn layer(
        &mut self,
        ops: &Ops,
        weights: &Weights,
        index: usize,
    ) -> Result<(), CudaError> {
        let linears = [
            LinearName::Qkv(index),
            LinearName::O(index),
            LinearName::GateUp(index),
            LinearName::Down(index),
        ];
        for (linear, (first, values, _)) in linears.into_iter().zip(self.matrices) {
            let source = weights.expanded(linear);
            assert_eq!(source.len(), values);
            ops.widen(source.ptr(), values, &mut self.buffer, first)?;
        }
        Ok(())
    }

    fn matrix(&self, index: usize) -> Matrix {
        let (first, _, columns) = self.matrices[index];
        Matrix::new(&self.buffer, first, columns)
    }

    /// `[(q_heads + 2 kv_heads) * head_dim][hidden]`.
    pub(super) fn qkv(&self) -> Matrix {
        self.matrix(0)
    }

    /// `[hidden][q_heads * head_dim]`.
    pub(super) fn o(&self) -> Matrix {
        self.matrix(1)
    }

    /// `[2 * intermediate][hidden]`.
    pub(super) fn gate_up(&self) -> Matrix {
        self.matrix(2)
    }

    /// `[hidden][intermediate]`.
    pub(super) fn down(&self) -> Matrix {
        self.matrix(3)
    }
}
