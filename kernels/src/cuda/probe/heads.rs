//! Decode attention behind the projection of Q, K and V: by a kernel that finishes and appends
//! their heads, and by one that finds it done.

use std::sync::Arc;

use half::bf16;

use super::{AttentionProbe, decode_work};
use crate::cuda::attention::Queries;
use crate::cuda::driver::{Device, DeviceBuffer};
use crate::cuda::error::CudaError;
use crate::cuda::ops::{Fill, Ops, RopeWeights};
use crate::model::{QkNorm, Rope, UniformModel};

/// What a model does with heads beside RoPE.
#[derive(Debug, Clone, Copy)]
pub struct HeadOptions {
    /// Adds a bias.
    pub bias: bool,
    /// Norms each head of Q and K.
    pub norms: bool,
    /// Multiplies Q and K by a Hadamard matrix.
    pub rotate_k: bool,
}

/// A step of one row a sequence, its projection random.
#[derive(Debug)]
pub struct HeadsProbe {
    attention: AttentionProbe,
    ops: Ops,
    /// `[rows][(q_heads + 2 * kv_heads) * head_dim]`.
    qkv: DeviceBuffer<bf16>,
    /// The same for one row, then two heads.
    weights: DeviceBuffer<bf16>,
    table: DeviceBuffer<f32>,
    options: HeadOptions,
}

impl HeadsProbe {
    /// For the loaded step of `attention`.
    pub fn new(
        device: &Arc<Device>,
        attention: AttentionProbe,
        options: HeadOptions,
    ) -> Result<Self, CudaError> {
        let geometry = attention.arena.geometry();
        let (half, rows) = (geometry.head_dim / 2, attention.step.rows);
        let width = attention.row + 2 * geometry.kv_heads * geometry.head_dim;
        let spec = UniformModel {
            hidden: attention.row,
            layers: geometry.layers,
            q_heads: attention.row / geometry.head_dim,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            intermediate: attention.row,
            vocab: 8,
            norm_eps: 1e-5,
            rope: Rope::new(
                (0..half)
                    .map(|i| 10_000f32.powf(-(i as f32) / half as f32))
                    .collect(),
                1.0,
            ),
            qkv_bias: options.bias,
            qk_norm: if options.norms {
                QkNorm::PerHead
            } else {
                QkNorm::None
            },
            tied_embeddings: true,
            max_positions: 16384,
        }
        .spec();
        let this = Self {
            ops: Ops::new(device, &spec, options.rotate_k)?,
            qkv: DeviceBuffer::new(device, rows * width, "projections")?,
            weights: DeviceBuffer::new(device, width + 2 * geometry.head_dim, "their weights")?,
            table: DeviceBuffer::filled(device, rows * 2 * half, 0xff, "angles")?,
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
    pub fn finishes(&self) -> bool {
        let AttentionProbe {
            attention, step, ..
        } = &self.attention;
        attention.finishes(decode_work(step, false))
    }

    /// Outputs `[rows][q_heads * head_dim]` of a pool that holds `arena`, and what it holds
    /// afterwards. `finishing`: the decode kernel finishes the heads.
    pub fn run(
        &mut self,
        layer: usize,
        arena: &[u8],
        finishing: bool,
    ) -> Result<(Vec<bf16>, Vec<u8>), CudaError> {
        let Self {
            attention:
                AttentionProbe {
                    stream,
                    arena: pool,
                    step,
                    attention,
                    q,
                    out,
                    row,
                    ..
                },
            ops,
            options,
            ..
        } = self;
        let (rows, head_dim) = (step.rows, pool.geometry().head_dim);
        let norms = self.weights.len() - 2 * head_dim;
        let of = |is: bool, at: usize| if is { self.weights.at(at) } else { 0 };
        let weights = RopeWeights {
            bias: of(options.bias, 0),
            q_norm: of(options.norms, norms),
            k_norm: of(options.norms, norms + head_dim),
        };
        let mut outputs = vec![bf16::NAN; rows * *row];
        pool.write_all(arena)?;
        out.write(0, &outputs)?;
        ops.rope_table(stream, rows, step, &mut self.table)?;
        let heads = ops.heads(rows, weights, &self.table, &self.qkv);
        let queries = if finishing {
            Queries::Projected(heads)
        } else {
            ops.rope_append(stream, rows, step, pool, layer, heads, q)?;
            Queries::Finished(q)
        };
        let work = decode_work(step, false);
        attention.decode(stream, work, step, pool, None, layer, queries, out)?;
        stream.synchronize()?;
        out.read(0, &mut outputs)?;
        let frames = (0..pool.frames()).map(|frame| pool.read_frame(frame));
        let pages = frames.collect::<Result<Vec<_>, _>>()?.concat();
        Ok((outputs, pages))
    }
}
