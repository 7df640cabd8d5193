//! The transformer by its definition: f64, one token at a time, no paging, no tiles. Only what the
//! cache stores is rounded to bf16, as the backend does, unless it is told not to.

use ebb_kernels::bf16;
use ebb_kernels::model::{
    Activation, AttentionSpec, ExpertActivation, ExpertsSpec, GatedDeltaSpec, LayerTensor as L,
    Mamba2Spec, Mixer, Mlp, ModelSpec, NormKind, NormPlace, PlainMlp, QkNorm, RecurrentSpec,
    RouterScores, TensorName, WeightSource,
};

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Xielu => unreachable!("has numbers of each layer"),
    }
}

pub(crate) struct Oracle<W> {
    spec: ModelSpec,
    weights: W,
    /// Whether the cache keeps bf16.
    pub(crate) rounds_cache: bool,
    /// Per layer: keys and values of each position, `[position][kv_heads * head_dim]`.
    cache: Vec<[Vec<Vec<f64>>; 2]>,
    /// Per layer: what was convolved of each position, and the delta rule's state of each value
    /// head, `[k_dim][v_dim]`.
    convolved: Vec<Vec<Vec<f64>>>,
    states: Vec<Vec<Vec<f64>>>,
}

impl<W: WeightSource> Oracle<W> {
    pub(crate) fn new(spec: &ModelSpec, weights: W) -> Self {
        Self {
            spec: spec.clone(),
            weights,
            rounds_cache: true,
            cache: vec![[vec![], vec![]]; spec.layers.len()],
            convolved: vec![vec![]; spec.layers.len()],
            states: vec![vec![]; spec.layers.len()],
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
        let tensor = self.weights.load(name).expect("weights");
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
        let is_behind = attention.qk_norm == QkNorm::PerHeadBehindRope;
        let mut out = self.matmul(name(weight), x);
        if attention.qkv_bias {
            let bias = self.tensor(name(bias));
            out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        let dim = attention.head_dim;
        let normed_at_once = match attention.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead | QkNorm::PerHeadBehindRope => Some(dim),
            QkNorm::Whole => Some(out.len()),
        };
        let normed = norm.zip(normed_at_once);
        if let Some((norm, width)) = normed.filter(|_| !is_behind) {
            for part in out.chunks_exact_mut(width) {
                let normed = self.norm(name(norm), part);
                part.copy_from_slice(&normed);
            }
        }
        self.rotate(&attention, &mut out, position);
        if let Some((norm, width)) = normed.filter(|_| is_behind) {
            for part in out.chunks_exact_mut(width) {
                let normed = self.norm(name(norm), part);
                part.copy_from_slice(&normed);
            }
        }
        if let Some((growth, position)) = attention.query_growth.zip(position)
            && weight == L::Q
        {
            let counted = position as u32 + u32::from(growth.from_one);
            let steps = f64::from(counted / growth.interval);
            let factor = 1.0 + f64::from(growth.beta) * (1.0 + steps).ln();
            out.iter_mut().for_each(|x| *x *= factor);
        }
        out
    }

    /// Rotates heads by their position, if they know it.
    fn rotate(&self, attention: &AttentionSpec, heads: &mut [f64], position: Option<usize>) {
        let Some((position, rope)) = position.zip(attention.rope) else {
            return;
        };
        let scale = f64::from(self.spec.ropes[rope].scale);
        let frequencies = self.spec.ropes[rope].frequencies(self.spec.max_positions);
        let half = frequencies.len();
        for head in heads.chunks_exact_mut(attention.head_dim) {
            let before = head.to_vec();
            for (i, frequency) in frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                let (sin, cos) = angle.sin_cos();
                let (sin, cos) = (sin * scale, cos * scale);
                head[i] = before[i] * cos - before[i + half] * sin;
                head[i + half] = before[i + half] * cos + before[i] * sin;
            }
        }
    }

    /// Feeds the next token; its logits.
    pub(crate) fn push(&mut self, token: u32) -> Vec<f64> {
        let hidden = self.spec.hidden;
        let embedding = self.tensor(TensorName::Embedding);
        let mut x = embedding[token as usize * hidden..][..hidden].to_vec();
        let multiplier = f64::from(self.spec.embedding_multiplier);
        x.iter_mut().for_each(|x| *x *= multiplier);
        if self.spec.embedding_norm {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / hidden as f64;
            let scale = 1.0 / (mean + f64::from(self.spec.norm_eps)).sqrt();
            x.iter_mut().for_each(|x| *x *= scale);
        }
        let inputs = self.layer_inputs(token, &x);
        let residual = f64::from(self.spec.residual_multiplier);
        for layer in 0..self.spec.layers.len() {
            let name = |t| TensorName::Layer(layer, t);
            let (place, mlp_place) = {
                let layer = &self.spec.layers[layer];
                (layer.mixer_norm, layer.mlp_norm)
            };
            let mut h = x.clone();
            let mixer = self.spec.layers[layer].mixer.clone();
            if place.is_before() && mixer != Mixer::None {
                h = self.norm(name(L::AttnNorm), &h);
            }
            let before_attention = h.clone();
            let mut h = match mixer {
                Mixer::Attention(_) => self.attention(layer, &h),
                Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) => self.delta(layer, delta, &h),
                Mixer::Recurrent(RecurrentSpec::Mamba2(mamba)) => self.mamba(layer, mamba, &h),
                Mixer::Recurrent(RecurrentSpec::ShortConv(_)) => self.short_conv(layer, &h),
                Mixer::None => vec![0.0; h.len()],
            };
            if place.is_after() && self.spec.layers[layer].mixer != Mixer::None {
                h = self.norm(name(L::AttnPostNorm), &h);
            }
            x.iter_mut().zip(h).for_each(|(x, o)| *x += residual * o);
            let mlp = self.spec.layers[layer].mlp.clone();
            let mut h = match mlp_place {
                NormPlace::Shared => before_attention,
                _ => x.clone(),
            };
            if mlp_place.is_before() && mlp != Mlp::None {
                h = self.norm(name(L::MlpNorm), &h);
            }
            let mut h = match mlp {
                Mlp::Dense { .. } => self.dense(layer, [L::Gate, L::Up, L::Down], &h),
                Mlp::Plain(plain) => self.plain(layer, plain, &h),
                Mlp::Experts(experts) => self.experts(layer, &experts, (&h, &x)),
                Mlp::None => vec![0.0; h.len()],
            };
            if mlp_place.is_after() && self.spec.layers[layer].mlp != Mlp::None {
                h = self.norm(name(L::MlpPostNorm), &h);
            }
            x.iter_mut().zip(h).for_each(|(x, d)| *x += residual * d);
            if let Some(inputs) = &inputs {
                let mut gates = self.matmul(name(L::InputGate), &x);
                let activation = self.spec.layers[layer].activation();
                let own = inputs[layer * gates.len()..].iter();
                let gates_and_inputs = gates.iter_mut().zip(own);
                gates_and_inputs.for_each(|(gate, x)| *gate = activate(activation, *gate) * x);
                let out = self.matmul(name(L::InputOut), &gates);
                let out = self.norm(name(L::InputNorm), &out);
                x.iter_mut().zip(out).for_each(|(x, o)| *x += residual * o);
            }
            if self.spec.layers[layer].output_scale {
                let scale = self.tensor(name(L::OutputScale))[0];
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
        let h = self.norm(TensorName::FinalNorm, &x);
        let head = if self.spec.tied_embeddings {
            TensorName::Embedding
        } else {
            TensorName::LmHead
        };
        let multiplier = f64::from(self.spec.logit_multiplier);
        let cap = self.spec.logit_soft_cap.map(f64::from);
        let mut logits = self.matmul(head, &h);
        if self.spec.lm_head_bias {
            let bias = self.tensor(TensorName::LmHeadBias);
            logits.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        let logits = logits.into_iter().map(|x| x * multiplier);
        logits
            .map(|x| cap.map_or(x, |cap| cap * (x / cap).tanh()))
            .collect()
    }

    /// What all layers get of a token whose embedding is `x`, if they do.
    fn layer_inputs(&mut self, token: u32, x: &[f64]) -> Option<Vec<f64>> {
        let inputs = self.spec.per_layer_inputs?;
        let scale = (self.spec.hidden as f64).powf(-0.5);
        let projected = self.matmul(TensorName::PerLayerProjection, x);
        let projected: Vec<f64> = projected.iter().map(|x| x * scale).collect();
        let own = projected.chunks_exact(inputs.width);
        let normed = own.flat_map(|own| self.norm(TensorName::PerLayerNorm, own));
        let normed: Vec<f64> = normed.collect();
        let table = self.tensor(TensorName::PerLayerEmbedding);
        let row = &table[token as usize * normed.len()..][..normed.len()];
        let multiplier = f64::from(inputs.embedding_multiplier);
        let both = normed.iter().zip(row);
        Some(
            both.map(|(x, e)| (x + multiplier * e) / 2f64.sqrt())
                .collect(),
        )
    }

    fn dense(&mut self, layer: usize, tensors: [L; 3], h: &[f64]) -> Vec<f64> {
        let [gate, up, down] = tensors.map(|tensor| TensorName::Layer(layer, tensor));
        let (gate, up) = (self.matmul(gate, h), self.matmul(up, h));
        let activation = self.spec.layers[layer].activation();
        let opened = gate.iter().zip(up);
        let act: Vec<f64> = opened.map(|(g, u)| activate(activation, *g) * u).collect();
        self.matmul(down, &act)
    }

    /// An MLP without gates.
    fn plain(&mut self, layer: usize, plain: PlainMlp, h: &[f64]) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let bias = |this: &mut Self, out: &mut [f64], bias| {
            if plain.bias {
                let bias = this.tensor(name(bias));
                out.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
            }
        };
        let mut up = self.matmul(name(L::Up), h);
        bias(self, &mut up, L::UpBias);
        if plain.activation == Activation::Xielu {
            let mut number = |tensor| self.tensor(name(tensor))[0];
            let (beta, eps) = (number(L::XieluBeta), number(L::XieluEps));
            let softplus = |x: f64| x.exp().ln_1p();
            let above = softplus(number(L::XieluPositive));
            let below = beta + softplus(number(L::XieluNegative));
            for x in &mut up {
                let curved = match *x > 0.0 {
                    true => above * x.powi(2),
                    false => below * (x.min(eps).exp_m1() - *x),
                };
                *x = curved + beta * *x;
            }
        } else {
            up.iter_mut()
                .for_each(|x| *x = activate(plain.activation, *x));
        }
        let mut down = self.matmul(name(L::Down), &up);
        bias(self, &mut down, L::DownBias);
        down
    }

    /// A layer of experts, each of which computes everything, whether it is chosen or not, of the
    /// residual stream `x` and what the layer's norm makes of it.
    fn experts(&mut self, layer: usize, spec: &ExpertsSpec, (h, x): (&[f64], &[f64])) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let mut shared = match spec.shared {
            None => vec![0.0; h.len()],
            Some(shared) => {
                let mut out = match spec.activation.is_gated() {
                    true => self.dense(layer, [L::SharedGate, L::SharedUp, L::SharedDown], h),
                    false => {
                        let mut up = self.matmul(name(L::SharedUp), h);
                        up.iter_mut()
                            .for_each(|x| *x = activate(Activation::Relu2, *x));
                        self.matmul(name(L::SharedDown), &up)
                    }
                };
                if shared.gated {
                    let share = sigmoid(self.matmul(name(L::SharedScore), h)[0]);
                    out.iter_mut().for_each(|x| *x *= share);
                }
                out
            }
        };
        if spec.branch_norms {
            shared = self.norm(name(L::SharedPostNorm), &shared);
        }
        let own = spec.branch_norms.then(|| self.norm(name(L::ExpertNorm), x));
        let h = own.as_deref().unwrap_or(h);
        let mut scores = match spec.router_norm {
            None => self.matmul(name(L::Router), h),
            Some(norm) => {
                let normed = self.norm(name(L::RouterNorm), x).into_iter();
                let multiplier = f64::from(norm.multiplier);
                let read: Vec<f64> = normed.map(|x| x * multiplier).collect();
                self.matmul(name(L::Router), &read)
            }
        };
        if spec.router_bias {
            let bias = self.tensor(name(L::RouterBias));
            scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        if let Some(cap) = spec.router_cap.map(f64::from) {
            scores.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
        }
        let correction = match spec.routing.correction {
            true => self.in_halves(name(L::RouterCorrection)),
            false => vec![0.0; spec.experts],
        };
        let mut weights = expert_weights(spec, &scores, &correction);
        if spec.weight_scales {
            let scales = self.tensor(name(L::ExpertScale));
            weights.iter_mut().zip(scales).for_each(|(w, s)| *w *= s);
        }
        let mut out = vec![0.0; h.len()];
        let has_gates = spec.activation.is_gated();
        let mut gate = has_gates.then(|| self.matmul(name(L::ExpertGate), h));
        let mut up = self.matmul(name(L::ExpertUp), h);
        if spec.weighted_input {
            // Products of a weighted input are weighted products.
            for (expert, weight) in weights.iter_mut().enumerate() {
                let of_expert = expert * spec.intermediate..(expert + 1) * spec.intermediate;
                for product in gate.iter_mut().chain([&mut up]) {
                    product[of_expert.clone()]
                        .iter_mut()
                        .for_each(|x| *x *= *weight);
                }
                *weight = f64::from(u8::from(*weight != 0.0));
            }
        }
        let down = self.tensor(name(L::ExpertDown));
        let inner = spec.intermediate;
        let biases = spec.biases.then(|| {
            [L::ExpertGateBias, L::ExpertUpBias, L::ExpertDownBias].map(|t| match t {
                L::ExpertGateBias if !has_gates => Vec::new(),
                _ => self.tensor(name(t)),
            })
        });
        let bias = |which: usize, index: usize| biases.as_ref().map_or(0.0, |b| b[which][index]);
        for (expert, weight) in weights.iter().enumerate() {
            let act: Vec<f64> = (expert * inner..(expert + 1) * inner)
                .map(|i| {
                    let gate = gate.as_ref().map_or(0.0, |gate| gate[i] + bias(0, i));
                    (gate, up[i] + bias(1, i))
                })
                .map(|(gate, up)| match spec.activation {
                    ExpertActivation::SwiGlu => gate * sigmoid(gate) * up,
                    ExpertActivation::Relu2 => activate(Activation::Relu2, up),
                    ExpertActivation::GeGlu => activate(Activation::GeluTanh, gate) * up,
                    ExpertActivation::Clamped { limit, alpha } => {
                        let limit = f64::from(limit);
                        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                        (up + 1.0) * gate * sigmoid(f64::from(alpha) * gate)
                    }
                })
                .collect();
            for (o, out) in out.iter_mut().enumerate() {
                let row = expert * h.len() + o;
                let products = down[row * inner..][..inner].iter().zip(&act);
                let sum: f64 = products.map(|(w, x)| w * x).sum();
                *out += weight * (sum + bias(2, row));
            }
        }
        if spec.branch_norms {
            out = self.norm(name(L::ExpertPostNorm), &out);
        }
        out.iter_mut().zip(shared).for_each(|(x, s)| *x += s);
        out
    }

    /// A vector in two rows: rounded, and what that leaves.
    fn in_halves(&mut self, name: TensorName) -> Vec<f64> {
        let both = self.tensor(name);
        let (rounded, rest) = both.split_at(both.len() / 2);
        rounded.iter().zip(rest).map(|(a, b)| a + b).collect()
    }

    /// The next token of a causal convolution, each channel by itself.
    fn convolve(&mut self, layer: usize, weights: L, bias: Option<L>, x: Vec<f64>) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let weights = self.tensor(name(weights));
        let taps = weights.len() / x.len();
        let bias = bias.map(|bias| self.tensor(name(bias)));
        let channels = x.len();
        self.convolved[layer].push(x);
        let seen = self.convolved[layer].iter().rev().take(taps);
        let mut out = bias.unwrap_or_else(|| vec![0.0; channels]);
        for (back, x) in seen.enumerate() {
            for (channel, out) in out.iter_mut().enumerate() {
                *out += weights[channel * taps + taps - 1 - back] * x[channel];
            }
        }
        out
    }

    /// The gated delta rule of the next token, projected.
    fn delta(&mut self, layer: usize, spec: GatedDeltaSpec, h: &[f64]) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let projections = [L::DeltaQ, L::DeltaK, L::DeltaV].map(|t| self.matmul(name(t), h));
        let mixed = self.convolve(layer, L::DeltaConv, None, projections.concat());
        let mixed: Vec<f64> = mixed.iter().map(|x| x * sigmoid(*x)).collect();
        let [z, b, a] = [L::DeltaZ, L::DeltaB, L::DeltaA].map(|t| self.matmul(name(t), h));
        let [decay, decay_bias] =
            [L::DeltaDecay, L::DeltaDecayBias].map(|t| self.in_halves(name(t)));
        let weight = self.tensor(name(L::DeltaNorm));
        let (dk, dv) = (spec.k_dim, spec.v_dim);
        let unit = |x: &[f64]| -> Vec<f64> {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect()
        };
        let eps = f64::from(spec.norm_eps);
        let strength_max = if spec.doubled { 2.0 } else { 1.0 };
        if self.states[layer].is_empty() {
            self.states[layer] = vec![vec![0.0; dk * dv]; spec.v_heads];
        }
        let mut out = vec![];
        for (head, state) in self.states[layer].iter_mut().enumerate() {
            let shared = head * spec.k_heads / spec.v_heads;
            let q = unit(&mixed[shared * dk..][..dk]);
            let k = unit(&mixed[spec.k_width() + shared * dk..][..dk]);
            let v = &mixed[2 * spec.k_width() + head * dv..][..dv];
            let softplus = (a[head] + decay_bias[head]).exp().ln_1p();
            let keep = (-decay[head].exp() * softplus).exp();
            state.iter_mut().for_each(|s| *s *= keep);
            let strength = strength_max * sigmoid(b[head]);
            let read = |state: &[f64], x: &[f64], column: usize| -> f64 {
                (0..dk).map(|row| state[row * dv + column] * x[row]).sum()
            };
            let change: Vec<f64> = (0..dv)
                .map(|column| strength * (v[column] - read(state, &k, column)))
                .collect();
            for (row, k) in k.iter().enumerate() {
                for (column, change) in change.iter().enumerate() {
                    state[row * dv + column] += k * change;
                }
            }
            let o = (0..dv).map(|column| read(state, &q, column) / (dk as f64).sqrt());
            let o: Vec<f64> = o.collect();
            let mean = o.iter().map(|x| x * x).sum::<f64>() / dv as f64;
            let scale = 1.0 / (mean + eps).sqrt();
            let z = &z[head * dv..][..dv];
            let opened = o.iter().zip(&weight).zip(z);
            out.extend(opened.map(|((o, w), z)| o * scale * w * z * sigmoid(*z)));
        }
        self.matmul(name(L::DeltaOut), &out)
    }

    /// Mamba-2 of the next token, projected.
    fn mamba(&mut self, layer: usize, spec: Mamba2Spec, h: &[f64]) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let projections = [L::MambaX, L::MambaB, L::MambaC].map(|t| self.matmul(name(t), h));
        let bias = spec.conv_bias.then_some(L::MambaConvBias);
        let mixed = self.convolve(layer, L::MambaConv, bias, projections.concat());
        let mixed: Vec<f64> = mixed.iter().map(|x| x * sigmoid(*x)).collect();
        let [z, dt] = [L::MambaZ, L::MambaDt].map(|t| self.matmul(name(t), h));
        let [decay, dt_bias] = [L::MambaDecay, L::MambaDtBias].map(|t| self.in_halves(name(t)));
        let skip = self.tensor(name(L::MambaSkip));
        let (rows, columns) = (spec.state_dim, spec.head_dim);
        if self.states[layer].is_empty() {
            self.states[layer] = vec![vec![0.0; rows * columns]; spec.heads];
        }
        let [least, most] = spec.time_steps.map(f64::from);
        let mut out = vec![];
        for (head, state) in self.states[layer].iter_mut().enumerate() {
            let group = head * spec.groups / spec.heads * rows;
            let x = &mixed[head * columns..][..columns];
            let b = &mixed[spec.width() + group..][..rows];
            let c = &mixed[spec.width() + spec.group_width() + group..][..rows];
            let time = (dt[head] + dt_bias[head]).exp().ln_1p().clamp(least, most);
            let keep = (-decay[head].exp() * time).exp();
            for (column, x) in x.iter().enumerate() {
                let mut sum = skip[head] * x;
                for row in 0..rows {
                    let at = &mut state[row * columns + column];
                    *at = keep * *at + b[row] * time * x;
                    sum += *at * c[row];
                }
                let z = z[head * columns + column];
                out.push(sum * z * sigmoid(z));
            }
        }
        if let Some(parts) = spec.norm_parts {
            let weight = self.tensor(name(L::MambaNorm));
            let len = out.len() / parts;
            for (part, weight) in out.chunks_mut(len).zip(weight.chunks(len)) {
                let mean = part.iter().map(|x| x * x).sum::<f64>() / len as f64;
                let scale = 1.0 / (mean + f64::from(spec.norm_eps)).sqrt();
                part.iter_mut()
                    .zip(weight)
                    .for_each(|(x, w)| *x *= scale * w);
            }
        }
        self.matmul(name(L::MambaOut), &out)
    }

    /// A gated short convolution of the next token, projected.
    fn short_conv(&mut self, layer: usize, h: &[f64]) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let has_bias = TensorName::all(&self.spec).contains(&name(L::ConvBias));
        let mut projected = self.matmul(name(L::ConvIn), h);
        if has_bias {
            let bias = self.tensor(name(L::ConvInBias));
            projected.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        let width = h.len();
        let (b, rest) = projected.split_at(width);
        let (c, x) = rest.split_at(width);
        let x = b.iter().zip(x).map(|(b, x)| b * x).collect();
        let conv = self.convolve(layer, L::Conv, has_bias.then_some(L::ConvBias), x);
        let opened: Vec<f64> = conv.iter().zip(c).map(|(x, c)| x * c).collect();
        let mut out = self.matmul(name(L::ConvOut), &opened);
        if has_bias {
            let bias = self.tensor(name(L::ConvOutBias));
            out.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        out
    }

    /// Attention of the next token, projected.
    fn attention(&mut self, layer: usize, h: &[f64]) -> Vec<f64> {
        let name = |t| TensorName::Layer(layer, t);
        let spec = self.spec.attention(layer).clone();
        let (dim, group) = (spec.head_dim, spec.heads().group());
        // A layer that shares comes behind the one that has the token's keys and values.
        let owner = spec.kv_from.unwrap_or(layer);
        let position = match spec.kv_from {
            Some(_) => self.cache[owner][0].len() - 1,
            None => self.cache[owner][0].len(),
        };
        let q = self.heads(layer, h, [L::Q, L::QBias], Some(L::QNorm), Some(position));
        let rounds = self.rounds_cache;
        let round = |x: &f64| match rounds {
            true => bf16::from_f64(*x).to_f64(),
            false => *x,
        };
        let stored = |x: Vec<f64>| -> Vec<f64> { x.iter().map(round).collect() };
        if spec.kv_from.is_none() {
            let k = self.heads(layer, h, [L::K, L::KBias], Some(L::KNorm), Some(position));
            let mut v = self.heads(layer, h, [L::V, L::VBias], None, None);
            if spec.v_norm {
                for head in v.chunks_exact_mut(dim) {
                    let mean = head.iter().map(|v| v * v).sum::<f64>() / dim as f64;
                    let scale = 1.0 / (mean + f64::from(self.spec.norm_eps)).sqrt();
                    head.iter_mut().for_each(|v| *v *= scale);
                }
            }
            let (k, v) = (stored(k), stored(v));
            self.cache[layer][0].push(k);
            self.cache[layer][1].push(v);
        }
        let sinks = spec.sinks.then(|| self.tensor(name(L::Sinks)));
        let [keys, values] = &self.cache[owner];
        let first = match (spec.window, spec.chunked) {
            (Some(chunk), true) => position / chunk * chunk,
            (window, _) => (position + 1).saturating_sub(window.unwrap_or(usize::MAX)),
        };
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
        if let Some(gate) = spec.output_gate {
            let gates = self.matmul(name(L::OutputGate), h);
            let channels = attended.len() / gates.len();
            for (channel, x) in attended.iter_mut().enumerate() {
                let product = gates[channel / channels];
                *x *= match gate.softplus {
                    true => product.exp().ln_1p(),
                    false => sigmoid(product),
                };
            }
        }
        let mut o = self.matmul(name(L::O), &attended);
        if spec.o_bias {
            let bias = self.tensor(name(L::OBias));
            o.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        o
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The weight of every expert, 0 of those that are not chosen.
fn expert_weights(spec: &ExpertsSpec, scores: &[f64], correction: &[f64]) -> Vec<f64> {
    let routing = spec.routing;
    let by = |values: &[f64], count: usize| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
        order.truncate(count);
        order
    };
    let shares = |of: &[usize]| -> f64 { of.iter().map(|e| scores[*e].exp()).sum() };
    let mut weights = vec![0.0; spec.experts];
    if let RouterScores::SparseMixer { jitter } = routing.scores {
        let mut left: Vec<usize> = (0..spec.experts).collect();
        for best in by(scores, 2) {
            let top = scores[best];
            let near = left.iter().copied().filter(|e| {
                let distance = (top - scores[*e]) / scores[*e].abs().max(top);
                distance <= 2.0 * f64::from(jitter)
            });
            weights[best] = top.exp() / shares(&near.collect::<Vec<_>>());
            left.retain(|e| *e != best);
        }
        return weights;
    }
    let all: Vec<usize> = (0..spec.experts).collect();
    let values: Vec<f64> = match routing.scores {
        RouterScores::Sigmoid => scores.iter().map(|s| sigmoid(*s)).collect(),
        _ => scores.iter().map(|s| s.exp() / shares(&all)).collect(),
    };
    let mut of_choice: Vec<f64> = values.iter().zip(correction).map(|(v, c)| v + c).collect();
    if let Some(groups) = routing.groups {
        let size = spec.experts / groups.groups;
        let of_groups: Vec<f64> = of_choice
            .chunks(size)
            .map(|group| by(group, 2).iter().map(|e| group[*e]).sum())
            .collect();
        let chosen = by(&of_groups, groups.chosen);
        for (group, values) in of_choice.chunks_mut(size).enumerate() {
            if !chosen.contains(&group) {
                values.fill(f64::NEG_INFINITY);
            }
        }
    }
    let chosen = by(&of_choice, spec.per_token);
    let sum: f64 = chosen.iter().map(|e| values[*e]).sum();
    let sum = if routing.renormalised { sum } else { 1.0 };
    for expert in chosen {
        weights[expert] = f64::from(routing.scale) * values[expert] / sum;
    }
    weights
}
