//! One layer: forwards, and back from the gradient of its output. Its weights have been widened.

use super::ops::Matrix;
use super::work::{ROWS, Work};
use super::{CachedGradients, Gradients, LayerGradients};
use crate::cuda::driver::DeviceBuffer;
use crate::cuda::error::CudaError;
use crate::model::ops::LinearName;
use crate::model::{LayerTensor, QkNorm};

/// Queries or keys that are normed by themselves or together.
struct NormedHeads {
    /// First channel of a token's queries, keys and values.
    first: usize,
    /// First of the norms' weights.
    weight: usize,
    heads: usize,
    width: usize,
}

impl Gradients {
    /// The queries' norms of a layer, then the keys'.
    fn normed_heads(&self, layer: usize) -> [NormedHeads; 2] {
        let attention = self.spec.attention(layer);
        let heads = attention.heads();
        let (q, kv) = (heads.q_width(), heads.kv_width());
        let [queries, keys] = match attention.qk_norm {
            QkNorm::Whole => [(1, q), (1, kv)],
            QkNorm::None | QkNorm::PerHead | QkNorm::PerHeadBehindRope => {
                [heads.q_heads, heads.kv_heads].map(|count| (count, heads.head_dim))
            }
        };
        let of = |first, weight, (heads, width)| NormedHeads {
            first,
            weight,
            heads,
            width,
        };
        [of(0, 0, queries), of(q, queries.1, keys)]
    }

    /// Values of a token's queries, keys, and all three.
    fn widths(&self) -> (usize, usize, usize) {
        let (q, kv) = (
            self.spec.heads().q_heads * self.spec.heads().head_dim,
            self.spec.heads().kv_heads * self.spec.heads().head_dim,
        );
        (q, kv, q + 2 * kv)
    }

    /// The layer's output of `x`, both `[tokens][hidden]`; all that it computes on the way stays in
    /// `work`.
    pub(super) fn forward(
        &mut self,
        index: usize,
        work: &mut Work,
        x: &DeviceBuffer<f32>,
        out: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        let (hidden, intermediate) = (self.spec.hidden, self.spec.intermediate_max());
        self.up_to_the_gate(index, work, x)?;
        self.ops
            .swiglu(&mut work.gate_up, &mut work.act, intermediate, false)?;
        self.ops.product(
            (work.tokens, intermediate, hidden),
            1.0,
            Matrix::new(&work.act, 0, intermediate),
            self.wide.down().t(),
            Some(Matrix::new(&work.middle, 0, hidden)),
            Matrix::new(out, 0, hidden),
        )
    }

    /// Everything up to the MLP's gate.
    fn up_to_the_gate(
        &mut self,
        index: usize,
        work: &mut Work,
        x: &DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        let (tokens, hidden, eps) = (work.tokens, self.spec.hidden, self.spec.norm_eps);
        let (dim, intermediate) = (self.spec.heads().head_dim, self.spec.intermediate_max());
        let (q, kv, qkv) = self.widths();
        let attention = self.spec.attention(index);
        let x = Matrix::new(x, 0, hidden);
        let normed = Matrix::new(&work.normed, 0, hidden);
        let all = (tokens, 1, hidden);
        let attn_norm = self.weights.of_layer(index, LayerTensor::AttnNorm);
        self.ops.norm(x, attn_norm, 0, normed, all, eps)?;
        let qkv_bias = self.weights.named(LinearName::Qkv(index)).bias();
        // Models that norm heads need them on the way back as they were before.
        for to in [Some(&mut work.qkv), work.raw_qkv.as_mut()]
            .into_iter()
            .flatten()
        {
            let (wide, projected) = (self.wide.qkv().t(), Matrix::new(to, 0, qkv));
            self.ops
                .product((tokens, hidden, qkv), 1.0, normed, wide, None, projected)?;
            if let Some(bias) = qkv_bias {
                self.ops.bias(to, bias)?;
            }
        }
        if let (Some(norms), Some(raw)) = (self.weights.qk_norm(index), &work.raw_qkv) {
            for NormedHeads {
                first,
                weight,
                heads,
                width,
            } in self.normed_heads(index)
            {
                let from = Matrix::new(raw, first, qkv);
                let to = Matrix::new(&work.qkv, first, qkv);
                self.ops
                    .norm(from, norms, weight, to, (tokens, heads, width), eps)?;
            }
        }
        if let Some(rope) = attention.rope {
            let rotated = ((q + kv) / dim, dim);
            let angles = &work.angles[rope];
            self.ops.rope(&mut work.qkv, angles, rotated, false)?;
        }
        let keys = Matrix::new(&work.qkv, q, qkv).each(dim);
        self.attend(work, keys)?;
        let (attended, middle) = (
            Matrix::new(&work.attended, 0, q),
            Matrix::new(&work.middle, 0, hidden),
        );
        self.ops.product(
            (tokens, q, hidden),
            1.0,
            attended,
            self.wide.o().t(),
            Some(x),
            middle,
        )?;
        let mlp_normed = Matrix::new(&work.mlp_normed, 0, hidden);
        let mlp_norm = self.weights.of_layer(index, LayerTensor::MlpNorm);
        self.ops.norm(middle, mlp_norm, 0, mlp_normed, all, eps)?;
        self.ops.product(
            (tokens, hidden, 2 * intermediate),
            1.0,
            mlp_normed,
            self.wide.gate_up().t(),
            None,
            Matrix::new(&work.gate_up, 0, 2 * intermediate),
        )
    }

    /// `work.attended` of the queries and values in `work.qkv` over such keys, a head's
    /// `[tokens][head_dim]`.
    fn attend(&mut self, work: &mut Work, keys: Matrix) -> Result<(), CudaError> {
        let (dim, heads) = (self.spec.heads().head_dim, self.spec.heads().kv_heads);
        let (q, kv, qkv) = self.widths();
        let group = self.spec.heads().q_heads / heads;
        let values = Matrix::new(&work.qkv, q + kv, qkv).each(dim);
        for (first, rows) in chunks(work.tokens) {
            let seen = first + rows;
            self.weigh(work, keys, (first, rows))?;
            for member in 0..group {
                let out = Matrix::new(&work.attended, first * q + member * dim, q);
                self.ops.products(
                    (rows, seen, dim),
                    heads,
                    1.0,
                    scores(&work.weights, (group, member), rows, seen),
                    values,
                    None,
                    out.each(group * dim),
                )?;
            }
        }
        Ok(())
    }

    /// `work.weights` of the queries of `rows` tokens from `first` on.
    fn weigh(
        &mut self,
        work: &mut Work,
        keys: Matrix,
        (first, rows): (usize, usize),
    ) -> Result<(), CudaError> {
        let (dim, heads) = (self.spec.heads().head_dim, self.spec.heads().kv_heads);
        let (_, _, qkv) = self.widths();
        let group = self.spec.heads().q_heads / heads;
        let seen = first + rows;
        for member in 0..group {
            let queries = Matrix::new(&work.qkv, first * qkv + member * dim, qkv);
            self.ops.products(
                (rows, dim, seen),
                heads,
                self.scale(),
                queries.each(group * dim),
                keys.t(),
                None,
                scores(&work.weights, (group, member), rows, seen),
            )?;
        }
        self.ops
            .softmax(&mut work.weights, (heads * group, rows, first))
    }

    /// Of queries' products with keys.
    fn scale(&self) -> f32 {
        (self.spec.heads().head_dim as f64).powf(-0.5) as f32
    }

    /// What is wanted of the layer, and `grad`, of its output, becomes that of its input `x`.
    pub(super) fn backward(
        &mut self,
        index: usize,
        work: &mut Work,
        x: &DeviceBuffer<f32>,
        grad: &mut DeviceBuffer<f32>,
    ) -> Result<LayerGradients, CudaError> {
        self.up_to_the_gate(index, work, x)?;
        self.mlp_backward(index, work, grad)?;
        self.attention_backward(work)?;
        let (tokens, hidden, eps) = (work.tokens, self.spec.hidden, self.spec.norm_eps);
        let dim = self.spec.heads().head_dim;
        let (q, kv, qkv) = self.widths();
        self.ops.wait()?;
        let [k, v] = self.read_cached(&work.qkv, tokens)?;
        let [d_k, d_v] = self.read_cached(&work.d_qkv, tokens)?;
        if let Some(rope) = self.spec.attention(index).rope {
            let rotated = ((q + kv) / dim, dim);
            let angles = &work.angles[rope];
            self.ops.rope(&mut work.d_qkv, angles, rotated, true)?;
        }
        if let (Some(norms), Some(raw)) = (self.weights.qk_norm(index), &work.raw_qkv) {
            for NormedHeads {
                first,
                weight,
                heads,
                width,
            } in self.normed_heads(index)
            {
                let back = Matrix::new(&work.d_qkv, first, qkv);
                let of = (tokens, heads, width);
                let from = Matrix::new(raw, first, qkv);
                self.ops
                    .norm_back(from, norms, weight, back, None, back, of, eps)?;
            }
        }
        let (normed, d_normed) = (
            Matrix::new(&work.normed, 0, hidden),
            Matrix::new(&work.d_normed, 0, hidden),
        );
        self.ops.product(
            (2 * kv, tokens, hidden),
            1.0,
            Matrix::new(&work.d_qkv, q, qkv).t(),
            normed,
            None,
            Matrix::new(&work.d_w, 0, hidden),
        )?;
        self.ops.product(
            (tokens, qkv, hidden),
            1.0,
            Matrix::new(&work.d_qkv, 0, qkv),
            self.wide.qkv(),
            None,
            d_normed,
        )?;
        self.ops.norm_back(
            Matrix::new(x, 0, hidden),
            self.weights.of_layer(index, LayerTensor::AttnNorm),
            0,
            d_normed,
            Some(Matrix::new(&work.d_middle, 0, hidden)),
            Matrix::new(grad, 0, hidden),
            (tokens, 1, hidden),
            eps,
        )?;
        self.ops.wait()?;
        let mut w_k = vec![0f32; kv * hidden];
        let mut w_v = w_k.clone();
        work.d_w.read(0, &mut w_k)?;
        work.d_w.read(kv * hidden, &mut w_v)?;
        let of = |values, gradients| CachedGradients { values, gradients };
        Ok(LayerGradients {
            w_k,
            w_v,
            k: of(k, d_k),
            v: of(v, d_v),
        })
    }

    /// From the gradient of the output to that of the residual stream between attention and MLP,
    /// and on to attention's output.
    fn mlp_backward(
        &mut self,
        index: usize,
        work: &mut Work,
        grad: &DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        let (tokens, hidden, intermediate) =
            (work.tokens, self.spec.hidden, self.spec.intermediate_max());
        let (q, _, _) = self.widths();
        let grad = Matrix::new(grad, 0, hidden);
        self.ops.product(
            (tokens, hidden, intermediate),
            1.0,
            grad,
            self.wide.down(),
            None,
            Matrix::new(&work.act, 0, intermediate),
        )?;
        self.ops
            .swiglu(&mut work.gate_up, &mut work.act, intermediate, true)?;
        let d_normed = Matrix::new(&work.d_normed, 0, hidden);
        self.ops.product(
            (tokens, 2 * intermediate, hidden),
            1.0,
            Matrix::new(&work.gate_up, 0, 2 * intermediate),
            self.wide.gate_up(),
            None,
            d_normed,
        )?;
        let d_middle = Matrix::new(&work.d_middle, 0, hidden);
        self.ops.norm_back(
            Matrix::new(&work.middle, 0, hidden),
            self.weights.of_layer(index, LayerTensor::MlpNorm),
            0,
            d_normed,
            Some(grad),
            d_middle,
            (tokens, 1, hidden),
            self.spec.norm_eps,
        )?;
        self.ops.product(
            (tokens, hidden, q),
            1.0,
            d_middle,
            self.wide.o(),
            None,
            Matrix::new(&work.d_attended, 0, q),
        )
    }

    /// From the gradient of attention's output to those of rotated queries and keys, and of values.
    fn attention_backward(&mut self, work: &mut Work) -> Result<(), CudaError> {
        let (dim, heads) = (self.spec.heads().head_dim, self.spec.heads().kv_heads);
        let (q, kv, qkv) = self.widths();
        let group = self.spec.heads().q_heads / heads;
        // Of any token's query, key or value `first` of `work.qkv` or its gradient.
        let of = |buffer: &DeviceBuffer<f32>, first: usize| Matrix::new(buffer, first, qkv);
        self.ops.clear(&mut work.d_qkv)?;
        for (first, rows) in chunks(work.tokens) {
            let seen = first + rows;
            self.weigh(work, of(&work.qkv, q).each(dim), (first, rows))?;
            let part = |buffer: &DeviceBuffer<f32>, member: usize| {
                scores(buffer, (group, member), rows, seen)
            };
            let d_out = |member: usize| {
                Matrix::new(&work.d_attended, first * q + member * dim, q).each(group * dim)
            };
            let d_values = of(&work.d_qkv, q + kv).each(dim);
            for member in 0..group {
                self.ops.products(
                    (rows, dim, seen),
                    heads,
                    1.0,
                    d_out(member),
                    of(&work.qkv, q + kv).each(dim).t(),
                    None,
                    part(&work.d_weights, member),
                )?;
                self.ops.products(
                    (seen, rows, dim),
                    heads,
                    1.0,
                    part(&work.weights, member).t(),
                    d_out(member),
                    Some(d_values),
                    d_values,
                )?;
            }
            let shape = (heads * group, rows, first);
            self.ops
                .softmax_back(&work.weights, &mut work.d_weights, shape)?;
            let d_keys = of(&work.d_qkv, q).each(dim);
            for member in 0..group {
                let query = first * qkv + member * dim;
                self.ops.products(
                    (rows, seen, dim),
                    heads,
                    self.scale(),
                    scores(&work.d_weights, (group, member), rows, seen),
                    of(&work.qkv, q).each(dim),
                    None,
                    of(&work.d_qkv, query).each(group * dim),
                )?;
                self.ops.products(
                    (seen, rows, dim),
                    heads,
                    self.scale(),
                    scores(&work.d_weights, (group, member), rows, seen).t(),
                    of(&work.qkv, query).each(group * dim),
                    Some(d_keys),
                    d_keys,
                )?;
            }
        }
        Ok(())
    }

    /// What attention over these keys, `[kv_heads][tokens][head_dim]`, adds to the residual stream.
    pub(super) fn attention_with(
        &mut self,
        work: &mut Work,
        keys: &[f32],
    ) -> Result<Vec<f32>, CudaError> {
        let (tokens, hidden, dim) = (work.tokens, self.spec.hidden, self.spec.heads().head_dim);
        let (q, _, _) = self.widths();
        let keys = DeviceBuffer::from_slice(self.ops.device(), keys, "keys")?;
        self.attend(work, Matrix::new(&keys, 0, dim).each(tokens * dim))?;
        self.ops.product(
            (tokens, q, hidden),
            1.0,
            Matrix::new(&work.attended, 0, q),
            self.wide.o().t(),
            None,
            Matrix::new(&work.normed, 0, hidden),
        )?;
        self.ops.wait()?;
        let mut output = vec![0f32; tokens * hidden];
        work.normed.read(0, &mut output)?;
        Ok(output)
    }

    /// Keys and values of `work.qkv`, or their gradients, `[kv_heads][tokens][head_dim]` each, once
    /// the stream is done.
    pub(super) fn read_cached(
        &self,
        buffer: &DeviceBuffer<f32>,
        tokens: usize,
    ) -> Result<[Vec<f32>; 2], CudaError> {
        self.ops.wait()?;
        let (dim, heads) = (self.spec.heads().head_dim, self.spec.heads().kv_heads);
        let (q, kv, qkv) = self.widths();
        let mut rows = vec![0f32; tokens * qkv];
        buffer.read(0, &mut rows)?;
        Ok([q, q + kv].map(|first| {
            let head = |head: usize| {
                let of_tokens = rows.chunks_exact(qkv);
                of_tokens.flat_map(move |row| &row[first + head * dim..][..dim])
            };
            (0..heads).flat_map(head).copied().collect()
        }))
    }
}

/// Scores of one member of each group of query heads: a matrix a KV head, of
/// `[kv_heads][group][rows][seen]`.
fn scores(
    buffer: &DeviceBuffer<f32>,
    (group, member): (usize, usize),
    rows: usize,
    seen: usize,
) -> Matrix {
    Matrix::new(buffer, member * rows * seen, seen).each(group * rows * seen)
}

/// `(first, rows)` of query rows computed together.
fn chunks(tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens)
        .step_by(ROWS)
        .map(move |first| (first, ROWS.min(tokens - first)))
}
