//! Differentiable pieces of a layer, of candle's elementary operations.

use candle_core::{CpuStorage, CustomOp1, D, Device, Error, Layout, Result, Shape, Tensor};

use ebb_kernels::model::Rope;

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    let root = (mean + f64::from(eps))?.sqrt()?;
    x.broadcast_div(&root)?.broadcast_mul(weight)
}

/// `y = x Wᵀ` with weights of which no gradient is wanted. Candle's own product computes the
/// gradients of both sides, which is half of the work of going back.
#[derive(Debug, Clone)]
pub(crate) struct Frozen(Tensor);

impl Frozen {
    /// Weights `[out][in]`.
    pub(crate) fn new(values: Vec<f32>, inputs: usize) -> Result<Self> {
        let outputs = values.len() / inputs;
        Tensor::from_vec(values, (outputs, inputs), &Device::Cpu).map(Self)
    }

    /// `x`, `[rows][in]`, to `[rows][out]`.
    pub(crate) fn of(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op1(self.clone())
    }
}

impl CustomOp1 for Frozen {
    fn name(&self) -> &'static str {
        "frozen linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or(Error::RequiresContiguous { op: "linear" })?;
        let (rows, inputs) = layout.shape().dims2()?;
        let x = &storage.as_slice::<f32>()?[start..end];
        let x = Tensor::from_slice(x, (rows, inputs), &Device::Cpu)?;
        let y = x.matmul(&self.0.t()?)?;
        let shape = y.shape().clone();
        Ok((CpuStorage::F32(y.flatten_all()?.to_vec1()?), shape))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        grad.contiguous()?.matmul(&self.0).map(Some)
    }
}

/// Cosines and sines of a text's positions, `[tokens][rotary_dim / 2]`, times the scale.
pub(crate) struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    /// Of positions 0, `stride`, 2 `stride`, … . The angle is rounded to f32, as the engine has it.
    pub(crate) fn new(
        rope: &Rope,
        max_positions: usize,
        tokens: usize,
        stride: usize,
    ) -> Result<Self> {
        let frequencies = rope.frequencies(max_positions);
        let table = |of: fn(f64) -> f64| {
            let angles = (0..tokens).flat_map(|token| {
                let position = (token * stride) as f32;
                let all = frequencies.iter();
                all.map(move |f| (of(f64::from(position * f)) * f64::from(rope.scale)) as f32)
            });
            let shape = (tokens, frequencies.len());
            Tensor::from_vec(angles.collect::<Vec<_>>(), shape, &Device::Cpu)
        };
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }

    /// Rotates the first channels of `[heads][rows][head_dim]`, whose rows are tokens from `first`
    /// on: of `r` that rotate, channel `i` with `i + r / 2`.
    pub(crate) fn rotate(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let (_, rows, dim) = x.dims3()?;
        let half = self.cos.dim(1)?;
        let (low, high) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let cos = self.cos.narrow(0, first, rows)?;
        let sin = self.sin.narrow(0, first, rows)?;
        let turned_low = (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?;
        let turned_high = (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?;
        if 2 * half == dim {
            return Tensor::cat(&[turned_low, turned_high], 2);
        }
        let rest = x.narrow(2, 2 * half, dim - 2 * half)?;
        Tensor::cat(&[turned_low, turned_high, rest], 2)
    }
}

/// `[rows][heads * head_dim]` to `[heads][rows][head_dim]`.
pub(crate) fn by_head(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    x.reshape((rows, heads, width / heads))?
        .transpose(0, 1)?
        .contiguous()
}

/// Causal attention of query rows from token `first` on, `[q_heads][rows][head_dim]`, over the keys
/// and values of every token up to the last of them, `[kv_heads][first + rows][head_dim]`. `scale`
/// multiplies products of queries and keys.
pub(crate) fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    first: usize,
    scale: f64,
) -> Result<Tensor> {
    let (q_heads, rows, dim) = q.dims3()?;
    let (kv_heads, keys, _) = k.dims3()?;
    let group = q_heads / kv_heads;
    let q = (q * scale)?.reshape((kv_heads, group * rows, dim))?;
    let scores = q.matmul(&k.transpose(1, 2)?.contiguous()?)?;
    let scores = scores
        .reshape((q_heads, rows, keys))?
        .broadcast_add(&mask(first, rows)?)?;
    // The greatest score cancels: no gradient goes through it.
    let max = scores.detach().max_keepdim(D::Minus1)?;
    let weights = scores.broadcast_sub(&max)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    let weights = weights.reshape((kv_heads, group * rows, keys))?;
    weights.matmul(v)?.reshape((q_heads, rows, dim))
}

/// `[rows][first + rows]`: 0 where a row sees a token.
fn mask(first: usize, rows: usize) -> Result<Tensor> {
    let keys = first + rows;
    let values = (0..rows).flat_map(|row| {
        (0..keys).map(move |key| {
            if key <= first + row {
                0f32
            } else {
                f32::NEG_INFINITY
            }
        })
    });
    Tensor::from_vec(values.collect::<Vec<_>>(), (rows, keys), &Device::Cpu)
}
