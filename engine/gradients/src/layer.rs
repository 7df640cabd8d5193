//! One layer: forwards, and back from the gradient of its output.

use std::collections::HashMap;

use candle_core::{Device, Result, Tensor, Var};
use ebb_kernels::model::{AttentionSpec, LayerTensor, ModelSpec, QkNorm};

use crate::ops::{Angles, Frozen, attend, by_head, rms_norm};
use crate::run::{Cached, LayerGradients};

/// Query rows computed at once; bounds the memory of attention scores.
const ROWS: usize = 512;

/// Weights of a layer, ready to compute with. Norms that the model lacks are absent.
pub(crate) struct Layer<'a> {
    model: &'a ModelSpec,
    spec: &'a AttentionSpec,
    angles: Option<&'a Angles>,
    attn_norm: Option<Tensor>,
    q: Frozen,
    w_k: Tensor,
    w_v: Tensor,
    qkv_bias: Option<[Tensor; 3]>,
    qk_norm: Option<[Tensor; 2]>,
    o: Frozen,
    o_bias: Option<Tensor>,
    attn_post_norm: Option<Tensor>,
    mlp_norm: Option<Tensor>,
    gate: Frozen,
    up: Frozen,
    down: Frozen,
    mlp_post_norm: Option<Tensor>,
}

pub(crate) fn vector(values: Vec<f32>) -> Result<Tensor> {
    let len = values.len();
    Tensor::from_vec(values, len, &Device::Cpu)
}

impl<'a> Layer<'a> {
    /// Layer `index` of these tensors, which are all that it has. `angles` has one entry for each
    /// RoPE.
    pub(crate) fn new(
        model: &'a ModelSpec,
        angles: &'a [Angles],
        index: usize,
        mut tensors: HashMap<LayerTensor, Vec<f32>>,
    ) -> Result<Self> {
        use LayerTensor as L;
        let mut tensor = |name| tensors.remove(&name).unwrap_or_default();
        let (layer, hidden) = (&model.layers[index], model.hidden);
        let spec = model.attention(index);
        let matrix = |values: Vec<f32>| {
            let rows = values.len() / hidden;
            Tensor::from_vec(values, (rows, hidden), &Device::Cpu)
        };
        Ok(Self {
            model,
            spec,
            angles: spec.rope.map(|rope| &angles[rope]),
            attn_norm: maybe(tensor(L::AttnNorm))?,
            q: Frozen::new(tensor(L::Q), hidden)?,
            w_k: matrix(tensor(L::K))?,
            w_v: matrix(tensor(L::V))?,
            qkv_bias: match spec.qkv_bias {
                true => Some([
                    vector(tensor(L::QBias))?,
                    vector(tensor(L::KBias))?,
                    vector(tensor(L::VBias))?,
                ]),
                false => None,
            },
            qk_norm: match spec.qk_norm {
                QkNorm::None => None,
                QkNorm::PerHead | QkNorm::Whole | QkNorm::PerHeadBehindRope => {
                    Some([vector(tensor(L::QNorm))?, vector(tensor(L::KNorm))?])
                }
            },
            o: Frozen::new(tensor(L::O), spec.heads().q_width())?,
            o_bias: maybe(tensor(L::OBias))?,
            attn_post_norm: maybe(tensor(L::AttnPostNorm))?,
            mlp_norm: maybe(tensor(L::MlpNorm))?,
            gate: Frozen::new(tensor(L::Gate), hidden)?,
            up: Frozen::new(tensor(L::Up), hidden)?,
            down: Frozen::new(tensor(L::Down), layer.intermediate())?,
            mlp_post_norm: maybe(tensor(L::MlpPostNorm))?,
        })
    }

    /// `x`, normalised if there is a norm.
    fn normed(&self, x: &Tensor, norm: Option<&Tensor>) -> Result<Tensor> {
        match norm {
            Some(norm) => rms_norm(x, norm, self.model.norm_eps),
            None => Ok(x.clone()),
        }
    }

    /// A projection by head, normalised and rotated, of tokens from `first` on.
    fn heads(&self, x: Tensor, side: usize, first: usize) -> Result<Tensor> {
        let eps = self.model.norm_eps;
        let count = [self.spec.q_heads, self.spec.kv_heads][side];
        let norm = self.qk_norm.as_ref().map(|norms| &norms[side]);
        let x = match (norm, self.spec.qk_norm) {
            (Some(norm), QkNorm::Whole) => rms_norm(&x, norm, eps)?,
            _ => x,
        };
        let mut x = by_head(&x, count)?;
        if let (Some(norm), QkNorm::PerHead) = (norm, self.spec.qk_norm) {
            x = rms_norm(&x, norm, eps)?;
        }
        match self.angles {
            Some(angles) => angles.rotate(&x, first),
            None => Ok(x),
        }
    }

    /// The layer's output, `[tokens][hidden]` like its input.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (k, v) = self.keys_values(x, &self.w_k, &self.w_v)?;
        let parts = chunks(x.dim(0)?).map(|(first, rows)| {
            let x = x.narrow(0, first, rows)?;
            let seen = first + rows;
            self.rows(&x, &k.narrow(1, 0, seen)?, &v.narrow(1, 0, seen)?, first)
        });
        Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
    }

    /// From the gradient of the output to that of the input, and what is wanted of the layer.
    ///
    /// Keys and values are leaves of the graph of attention, whose gradients are then the start of
    /// the graph that made them.
    pub(crate) fn backward(&self, x: &Tensor, grad: &Tensor) -> Result<(Tensor, LayerGradients)> {
        let leaf = |tensor: &Tensor| Var::from_tensor(&tensor.contiguous()?);
        let (input, w_k, w_v) = (leaf(x)?, leaf(&self.w_k)?, leaf(&self.w_v)?);
        let (k, v) = self.keys_values(&input, &w_k, &w_v)?;
        let (mut dk, mut dv) = (k.zeros_like()?, v.zeros_like()?);
        let tokens = x.dim(0)?;
        let mut dx = Vec::new();
        for (first, rows) in chunks(tokens) {
            let seen = first + rows;
            let part = leaf(&x.narrow(0, first, rows)?)?;
            let keys = leaf(&k.detach().narrow(1, 0, seen)?)?;
            let values = leaf(&v.detach().narrow(1, 0, seen)?)?;
            let out = self.rows(&part, &keys, &values, first)?;
            let grads = (out * grad.narrow(0, first, rows)?)?
                .sum_all()?
                .backward()?;
            let of = |leaf: &Var| gradient(&grads, leaf);
            dx.push(of(&part)?);
            dk = (dk + of(&keys)?.pad_with_zeros(1, 0, tokens - seen)?)?;
            dv = (dv + of(&values)?.pad_with_zeros(1, 0, tokens - seen)?)?;
        }
        let start = ((&k * &dk)?.sum_all()? + (&v * &dv)?.sum_all()?)?;
        let grads = start.backward()?;
        let dx = (Tensor::cat(&dx, 0)? + gradient(&grads, &input)?)?;
        let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        let wanted = LayerGradients {
            w_k: flat(&gradient(&grads, &w_k)?)?,
            w_v: flat(&gradient(&grads, &w_v)?)?,
            k: Cached {
                values: flat(&k)?,
                gradients: flat(&dk)?,
            },
            v: Cached {
                values: flat(&v)?,
                gradients: flat(&dv)?,
            },
        };
        Ok((dx.detach(), wanted))
    }

    /// What the cache holds of all tokens: rotated keys, and values,
    /// `[kv_heads][tokens][head_dim]`.
    fn keys_values(&self, x: &Tensor, w_k: &Tensor, w_v: &Tensor) -> Result<(Tensor, Tensor)> {
        let normed = self.normed(x, self.attn_norm.as_ref())?;
        let (mut k, mut v) = (normed.matmul(&w_k.t()?)?, normed.matmul(&w_v.t()?)?);
        if let Some([_, k_bias, v_bias]) = &self.qkv_bias {
            k = k.broadcast_add(k_bias)?;
            v = v.broadcast_add(v_bias)?;
        }
        Ok((self.heads(k, 1, 0)?, by_head(&v, self.spec.kv_heads)?))
    }

    /// Rotated queries of the rows of tokens from `first` on, `[q_heads][rows][head_dim]`.
    fn queries(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let mut q = self.q.of(&self.normed(x, self.attn_norm.as_ref())?)?;
        if let Some([bias, _, _]) = &self.qkv_bias {
            q = q.broadcast_add(bias)?;
        }
        self.heads(q, 0, first)
    }

    /// Attention of such queries, projected: what is added to the residual stream,
    /// `[rows][hidden]`.
    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, first: usize) -> Result<Tensor> {
        let scale = self.spec.scale.into();
        let attended = attend(q, &k.contiguous()?, &v.contiguous()?, first, scale)?;
        let (heads, rows, dim) = attended.dims3()?;
        let attended = attended.transpose(0, 1)?.reshape((rows, heads * dim))?;
        let mut added = self.o.of(&attended)?;
        if let Some(bias) = &self.o_bias {
            added = added.broadcast_add(bias)?;
        }
        self.normed(&added, self.attn_post_norm.as_ref())
    }

    /// Attention over a whole text, to be computed again with other keys.
    pub(crate) fn probe(&self, x: &Tensor) -> Result<Attention<'_>> {
        let (k, v) = self.keys_values(x, &self.w_k, &self.w_v)?;
        let parts =
            chunks(x.dim(0)?).map(|(first, rows)| self.queries(&x.narrow(0, first, rows)?, first));
        Ok(Attention {
            layer: self,
            queries: parts.collect::<Result<_>>()?,
            keys: k.flatten_all()?.to_vec1()?,
            values: v,
        })
    }

    /// Output of the rows of tokens from `first` on.
    fn rows(&self, x: &Tensor, k: &Tensor, v: &Tensor, first: usize) -> Result<Tensor> {
        let q = self.queries(x, first)?;
        let x = (x + self.attention(&q, k, v, first)?)?;
        let normed = self.normed(&x, self.mlp_norm.as_ref())?;
        let gated = (self.gate.of(&normed)?.silu()? * self.up.of(&normed)?)?;
        let added = self.down.of(&gated)?;
        x + self.normed(&added, self.mlp_post_norm.as_ref())?
    }
}

/// A vector that some models have: none of no values.
fn maybe(values: Vec<f32>) -> Result<Option<Tensor>> {
    match values.is_empty() {
        true => Ok(None),
        false => vector(values).map(Some),
    }
}

/// One layer's attention over a text.
pub struct Attention<'a> {
    layer: &'a Layer<'a>,
    /// Of [`chunks`].
    queries: Vec<Tensor>,
    keys: Vec<f32>,
    values: Tensor,
}

impl Attention<'_> {
    /// Keys after RoPE, `[kv_heads][tokens][head_dim]`.
    pub fn keys(&self) -> &[f32] {
        &self.keys
    }

    /// What attention adds to the residual stream, `[tokens][hidden]`, if the cache held these
    /// keys.
    ///
    /// # Errors
    /// When they are not as many as [`Self::keys`], or memory is short.
    pub fn output(&self, keys: &[f32]) -> Result<Vec<f32>> {
        if keys.len() != self.keys.len() {
            candle_core::bail!("{} keys instead of {}", keys.len(), self.keys.len());
        }
        let keys = Tensor::from_slice(keys, self.values.shape(), &Device::Cpu)?;
        let mut output = Vec::new();
        let mut first = 0;
        for queries in &self.queries {
            let seen = first + queries.dim(1)?;
            let (k, v) = (keys.narrow(1, 0, seen)?, self.values.narrow(1, 0, seen)?);
            let part = self.layer.attention(queries, &k, &v, first)?;
            output.extend(part.flatten_all()?.to_vec1::<f32>()?);
            first = seen;
        }
        Ok(output)
    }
}

/// The gradient of a leaf; zero where nothing depends on it.
pub(crate) fn gradient(grads: &candle_core::backprop::GradStore, leaf: &Var) -> Result<Tensor> {
    match grads.get(leaf) {
        Some(grad) => Ok(grad.detach()),
        None => leaf.zeros_like(),
    }
}

/// `(first, rows)` of query rows computed together.
fn chunks(tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens)
        .step_by(ROWS)
        .map(move |first| (first, ROWS.min(tokens - first)))
}
