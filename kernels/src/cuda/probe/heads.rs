//! Decode attention behind the projection of Q, K and V: by a kernel that finishes and appends
//! their heads, and by one that finds it done.

use std::sync::Arc;

use half::bf16;

use super::{AttentionProbe, decode_work};
use crate::cuda::arena::DeviceArena;
use crate::cuda::attention::Queries;
use crate::cuda::driver::{Device, DeviceBuffer};
use crate::cuda::error::CudaError;
use crate::cuda::ops::{Fill, HeadOps, HeadParams, HeadSpec, RopeWeights, Rotary};
use crate::formats::rotation::Rotation;
use crate::model::{QkNorm, QueryGrowth, Rope};

/// What a model does with heads.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct HeadOptions {
    /// Adds a bias.
    pub(in crate::cuda) bias: bool,
    /// Norms of Q and K.
    pub(in crate::cuda) norm: QkNorm,
    /// How Q grows.
    pub(in crate::cuda) growth: Option<QueryGrowth>,
    /// Channels that do not rotate.
    pub(in crate::cuda) passing: usize,
    /// Multiplies Q and K, or V, by a Hadamard matrix.
    pub(in crate::cuda) rotation: Rotation,
    /// Multiplies pairs of channels of Q and K by factors.
    pub(in crate::cuda) scales: bool,
}

/// A step, its projection random.
#[derive(Debug)]
pub(in crate::cuda) struct HeadsProbe {
    attention: AttentionProbe,
    pub(in crate::cuda) spec: HeadSpec,
    pub(in crate::cuda) rope: Rope,
    ops: HeadOps,
    rotary: Rotary,
    /// `[rows][(q_heads + 2 * kv_heads) * head_dim]`.
    qkv: DeviceBuffer<bf16>,
    /// Bias, the same for one row, then the weights of norms, as for one row of Q and of K.
    weights: DeviceBuffer<bf16>,
    table: DeviceBuffer<f32>,
    /// `[q_heads + kv_heads][head_dim / 2]`.
    factors: DeviceBuffer<f32>,
    options: HeadOptions,
}

/// What norms add to the mean of squares.
pub(in crate::cuda) const EPS: f32 = 1e-5;

impl HeadsProbe {
    /// For the loaded step of `attention`.
    pub(in crate::cuda) fn new(
        device: &Arc<Device>,
        attention: AttentionProbe,
        options: HeadOptions,
    ) -> Result<Self, CudaError> {
        let rows = attention.step.rows;
        let spec = HeadSpec {
            rotary_dim: attention.heads.head_dim - options.passing,
            norm: options.norm,
            growth: options.growth,
            ..attention.heads
        };
        let kv_width = spec.kv_heads * spec.head_dim;
        let width = attention.row + 2 * kv_width;
        let half = spec.rotary_dim / 2;
        let frequency = |i| 10_000f32.powf(-(i as f32) / half as f32);
        let rope = Rope::new((0..half).map(frequency).collect(), 1.0);
        let weights = width + attention.row + kv_width;
        let pairs = (spec.q_heads + spec.kv_heads) * spec.head_dim / 2;
        let factors: Vec<f32> = (0..pairs)
            .map(|i| 0.25 + (i * 37 % 64) as f32 / 16.0)
            .collect();
        let this = Self {
            ops: HeadOps::new(device, (EPS, false), options.rotation)?,
            rotary: Rotary::new(device, &rope.inv_freq, rope.scale)?,
            qkv: DeviceBuffer::new(device, rows * width, "projections")?,
            weights: DeviceBuffer::new(device, weights, "their weights")?,
            table: DeviceBuffer::filled(device, rows * 2 * half, 0xff, "angles")?,
            factors: DeviceBuffer::from_slice(device, &factors, "factors")?,
            spec,
            rope,
            attention,
            options,
        };
        let (fill, stream) = (Fill::new(device)?, &this.attention.stream);
        let random = [(&this.qkv, 2.0), (&this.weights, 1.0)];
        for (seed, (buffer, amplitude)) in (1..).zip(random) {
            // SAFETY: the buffers live as long as `this`, and the stream is waited for.
            unsafe { fill.run(stream, buffer.ptr(), buffer.len(), seed, amplitude, 0.0)? };
        }
        stream.synchronize()?;
        Ok(this)
    }

    /// Whether the decode kernel can finish heads.
    pub(in crate::cuda) fn finishes(&self) -> bool {
        let AttentionProbe {
            attention, step, ..
        } = &self.attention;
        let scores = &self.attention.scores;
        attention.finishes(step, decode_work(step, false, false), &self.spec, scores)
    }

    /// The projection `[rows][(q_heads + 2 * kv_heads) * head_dim]`; bias, Q's norm and K's, empty
    /// where there is none.
    pub(in crate::cuda) fn inputs(&self) -> Result<(Vec<bf16>, [Vec<bf16>; 3]), CudaError> {
        let read = |buffer: &DeviceBuffer<bf16>, at: usize, len: usize| {
            let mut values = vec![bf16::ZERO; len];
            buffer.read(at, &mut values).map(|()| values)
        };
        let HeadOptions { bias, norm, .. } = self.options;
        let width = self.width();
        let [q_norm, k_norm] = match norm {
            QkNorm::None => [0; 2],
            QkNorm::PerHead | QkNorm::PerHeadBehindRope => [self.spec.head_dim; 2],
            QkNorm::Whole => {
                [self.spec.q_heads, self.spec.kv_heads].map(|n| n * self.spec.head_dim)
            }
        };
        Ok((
            read(&self.qkv, 0, self.qkv.len())?,
            [
                read(&self.weights, 0, if bias { width } else { 0 })?,
                read(&self.weights, width, q_norm)?,
                read(&self.weights, width + self.attention.row, k_norm)?,
            ],
        ))
    }

    /// Factors of pairs of channels of heads, Q's before K's; empty where there are none.
    pub(in crate::cuda) fn factors(&self) -> Result<Vec<f32>, CudaError> {
        let count = if self.options.scales {
            self.factors.len()
        } else {
            0
        };
        let mut values = vec![0.0; count];
        self.factors.read(0, &mut values).map(|()| values)
    }

    /// Channels of a row's projection.
    fn width(&self) -> usize {
        (self.spec.q_heads + 2 * self.spec.kv_heads) * self.spec.head_dim
    }

    /// Fills the table of angles; the heads, for whoever finishes them.
    fn heads(&mut self) -> Result<HeadParams, CudaError> {
        let (width, row) = (self.width(), self.attention.row);
        let HeadOptions { bias, norm, .. } = self.options;
        let of = |is: bool, at: usize| if is { self.weights.at(at) } else { 0 };
        let of_factors = if self.options.scales {
            self.factors.ptr()
        } else {
            0
        };
        let weights = RopeWeights {
            bias: of(bias, 0),
            q_norm: of(norm != QkNorm::None, width),
            k_norm: of(norm != QkNorm::None, width + row),
            key_factors: of_factors,
        };
        let AttentionProbe { stream, step, .. } = &self.attention;
        let rows = step.rows;
        if self.spec.rotary_dim > 0 {
            let table = &mut self.table;
            self.ops
                .rope_table(stream, rows, step, &self.rotary, table)?;
        }
        Ok(self
            .ops
            .params(rows, &self.spec, weights, &self.table, &self.qkv))
    }

    /// Finished queries `[rows][q_heads * head_dim]`, and what a pool that held `arena` holds once
    /// keys and values have been appended.
    pub(in crate::cuda) fn finished(
        &mut self,
        layer: usize,
        arena: &[u8],
    ) -> Result<(Vec<bf16>, Vec<u8>), CudaError> {
        let heads = self.heads()?;
        let AttentionProbe {
            stream,
            arena: pool,
            step,
            q,
            row,
            ..
        } = &mut self.attention;
        let mut queries = vec![bf16::NAN; step.rows * *row];
        pool.write_all(arena)?;
        q.write(0, &queries)?;
        let (ops, heads) = (&self.ops, (&self.spec, heads));
        ops.append(stream, step.rows, step, pool, layer, heads, q)?;
        stream.synchronize()?;
        q.read(0, &mut queries)?;
        Ok((queries, pages(pool)?))
    }

    /// Outputs `[rows][q_heads * head_dim]` of a pool that holds `arena`, and what it holds
    /// afterwards. `finishing`: the decode kernel finishes the heads.
    pub(in crate::cuda) fn run(
        &mut self,
        layer: usize,
        arena: &[u8],
        finishing: bool,
    ) -> Result<(Vec<bf16>, Vec<u8>), CudaError> {
        let heads = self.heads()?;
        let scored = self.attention.scored(layer);
        let AttentionProbe {
            stream,
            arena: pool,
            step,
            attention,
            q,
            out,
            row,
            ..
        } = &mut self.attention;
        let mut outputs = vec![bf16::NAN; step.rows * *row];
        pool.write_all(arena)?;
        out.write(0, &outputs)?;
        let queries = if finishing {
            Queries::Projected(&self.spec, heads)
        } else {
            let (ops, heads) = (&self.ops, (&self.spec, heads));
            ops.append(stream, step.rows, step, pool, layer, heads, q)?;
            Queries::Finished(q)
        };
        let work = decode_work(step, false, false);
        attention.decode(stream, work, step, pool, None, &scored, queries, out)?;
        stream.synchronize()?;
        out.read(0, &mut outputs)?;
        Ok((outputs, pages(pool)?))
    }
}

/// All frames.
fn pages(pool: &DeviceArena) -> Result<Vec<u8>, CudaError> {
    let frames = (0..pool.frames()).map(|frame| pool.read_frame(frame));
    Ok(frames.collect::<Result<Vec<_>, _>>()?.concat())
}
