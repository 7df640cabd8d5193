//! The transformer by its definition: f64, one token at a time, no paging, no tiles. Only what the
//! cache stores is rounded to bf16, as the backend does.

use ebb_kernels::bf16;
use ebb_kernels::model::{
    Activation, LayerTensor as L, ModelSpec, NormKind, NormPlace, QkNorm, TensorName, WeightSource,
};

use super::RandomWeights;

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
    }
}

pub(crate) struct Oracle {
    spec: ModelSpec,
    weights: RandomWeights,
    /// Per layer: keys and values of each position, `[position][kv_heads * head_dim]`.
    cache: Vec<[Vec<Vec<f64>>; 2]>,
}

impl Oracle {
    pub(crate) fn new(weights: &RandomWeights) -> Self {
        Self {
            spec: weights.spec.clone(),
            weights: weights.clone(),
            cache: vec![[vec![], vec![]]; weights.spec.layers.len()],
        }
    }

    /// Replaces what the cache holds of one token, layer, side and KV head.
    pub(crate) fn set(
        &mut self,
        layer: usize,
        side: usize,
        token: usize,
        head: usize,
        row: &[f32],
    ) {
        let dim = row.len();
        let kept = &mut self.cache[layer][side][token][head * dim..][..dim];
        kept.iter_mut()
            .zip(row)
            .for_each(|(k, x)| *k = f64::from(*x));
    }

    fn tensor(&mut self, name: TensorName) -> Vec<f64> {
        let Ok(tensor) = self.weights.load(name);
        tensor.iter().map(|x| x.to_f64()).collect()
    }

    fn matmul(&mut self, name: TensorName, x: &[f64]) -> Vec<f64> {
        let w = self.tensor(name);
        w.chunks_exact(x.len())
            .map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
            .collect()
    }

    fn norm(&mut self, name: TensorName, x: &[f64]) -> Vec<f64> {
        let norms = self.spec.norms;
        let w = self.tensor(name);
        let of_stream = name.norm_bias();
        let mean = match (norms.kind, of_stream) {
            (NormKind::Layer, Some(_)) => x.iter().sum::<f64>() / x.len() as f64,
            _ => 0.0,
        };
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (variance + f64::from(self.spec.norm_eps)).sqrt();
        let from = if norms.from_one { 1.0 } else { 0.0 };
        let normed = x
            .iter()
            .zip(&w)
            .map(|(x, w)| (x - mean) * scale * (from + w));
        let mut normed: Vec<f64> = normed.collect();
        if let Some(bias) = of_stream.filter(|_| norms.bias) {
            let bias = self.tensor(bias);
            normed.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        normed
    }

    /// Projects `x`, adds the bias, normalises and rotates.
    fn heads(
        &mut self,
        layer: usize,
        x: &[f64],
        [weight, bias]: [L; 2],
        norm: Option<L>,
        position: Option<usize>,
    ) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let attention = self.spec.attention(layer).clone();
        let mut out = self.matmul(name(weight), x);
        if attention.qkv_bias {
            let bias = self.tensor(name(bias));
            out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        let dim = attention.head_dim;
        let normed_at_once = match attention.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some(dim),
            QkNorm::Whole => Some(out.len()),
        };
        if let Some((norm, width)) = norm.zip(normed_at_once) {
            for part in out.chunks_exact_mut(width) {
                let normed = self.norm(name(norm), part);
                part.copy_from_slice(&normed);
            }
        }
        let Some((position, rope)) = position.zip(attention.rope) else {
            return out;
        };
        let frequencies = self.spec.ropes[rope].frequencies(self.spec.max_positions);
        let half = frequencies.len();
        for head in out.chunks_exact_mut(dim) {
            let before = head.to_vec();
            for (i, frequency) in frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                let (sin, cos) = angle.sin_cos();
                head[i] = before[i] * cos - before[i + half] * sin;
                head[i + half] = before[i + half] * cos + before[i] * sin;
            }
        }
        out
    }

    /// Feeds the next token; its logits.
    pub(crate) fn push(&mut self, token: u32) -> Vec<f64> {
        let hidden = self.spec.hidden;
        let embedding = self.tensor(TensorName::Embedding);
        let mut x = embedding[token as usize * hidden..][..hidden].to_vec();
        let multiplier = f64::from(self.spec.embedding_multiplier);
        x.iter_mut().for_each(|x| *x *= multiplier);
        let residual = f64::from(self.spec.residual_multiplier);
        for layer in 0..self.spec.layers.len() {
            let name = |t| TensorName::Layer(layer, t);
            let (place, mlp_place) = {
                let layer = &self.spec.layers[layer];
                (layer.mixer_norm, layer.mlp_norm)
            };
            let mut h = x.clone();
            if place.is_before() {
                h = self.norm(name(L::AttnNorm), &h);
            }
            let before_attention = h.clone();
            let mut h = self.attention(layer, &h);
            if place.is_after() {
                h = self.norm(name(L::AttnPostNorm), &h);
            }
            x.iter_mut().zip(h).for_each(|(x, o)| *x += residual * o);
            let mut h = match mlp_place {
                NormPlace::Shared => before_attention,
                _ => x.clone(),
            };
            if mlp_place.is_before() {
                h = self.norm(name(L::MlpNorm), &h);
            }
            let activation = self.spec.layers[layer].activation();
            let gate = self.matmul(name(L::Gate), &h);
            let up = self.matmul(name(L::Up), &h);
            let act: Vec<f64> = gate
                .iter()
                .zip(up)
                .map(|(g, u)| activate(activation, *g) * u)
                .collect();
            let mut h = self.matmul(name(L::Down), &act);
            if mlp_place.is_after() {
                h = self.norm(name(L::MlpPostNorm), &h);
            }
            x.iter_mut().zip(h).for_each(|(x, d)| *x += residual * d);
        }
        let h = self.norm(TensorName::FinalNorm, &x);
        let head = if self.spec.tied_embeddings {
            TensorName::Embedding
        } else {
            TensorName::LmHead
        };
        let multiplier = f64::from(self.spec.logit_multiplier);
        let cap = self.spec.logit_soft_cap.map(f64::from);
        let logits = self.matmul(head, &h).into_iter().map(|x| x * multiplier);
        logits
            .map(|x| cap.map_or(x, |cap| cap * (x / cap).tanh()))
            .collect()
    }

    /// Attention of the next token, projected.
    fn attention(&mut self, layer: usize, h: &[f64]) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let spec = self.spec.attention(layer).clone();
        let (dim, group) = (spec.head_dim, spec.heads().group());
        let position = self.cache[layer][0].len();
        let q = self.heads(layer, h, [L::Q, L::QBias], Some(L::QNorm), Some(position));
        let k = self.heads(layer, h, [L::K, L::KBias], Some(L::KNorm), Some(position));
        let v = self.heads(layer, h, [L::V, L::VBias], None, None);
        let stored =
            |x: Vec<f64>| -> Vec<f64> { x.iter().map(|x| bf16::from_f64(*x).to_f64()).collect() };
        self.cache[layer][0].push(stored(k));
        self.cache[layer][1].push(stored(v));
        let sinks = spec.sinks.then(|| self.tensor(name(L::Sinks)));
        let [keys, values] = &self.cache[layer];
        let first = (position + 1).saturating_sub(spec.window.unwrap_or(usize::MAX));
        let (keys, values) = (&keys[first..], &values[first..]);
        let mut attended = vec![];
        for (h, q) in q.chunks_exact(dim).enumerate() {
            let kv = h / group * dim;
            let scores: Vec<f64> = keys
                .iter()
                .map(|k| {
                    let dot: f64 = q.iter().zip(&k[kv..]).map(|(a, b)| a * b).sum();
                    let score = dot * f64::from(spec.scale);
                    let cap = spec.soft_cap.map(f64::from);
                    cap.map_or(score, |cap| cap * (score / cap).tanh())
                })
                .collect();
            let sink = sinks.as_ref().map(|sinks| sinks[h]);
            let top = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
            let p: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total = p.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
            attended.extend((0..dim).map(|d| {
                let sum: f64 = p.iter().zip(values).map(|(p, v)| p * v[kv + d]).sum();
                sum / total
            }));
        }
        let mut o = self.matmul(name(L::O), &attended);
        if spec.o_bias {
            let bias = self.tensor(name(L::OBias));
            o.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        o
    }
}
