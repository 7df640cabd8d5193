//! Tiny random models. Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::HashMap;
use std::convert::Infallible;

use ebb_gradients::{Weights, logits};
use ebb_kernels::model::{
    LayerTensor, ModelSpec, NormPlace, QkNorm, Rope, TensorName, UniformModel,
};

/// A model with its weights.
#[derive(Debug, Clone)]
pub(crate) struct Tiny {
    pub(crate) name: &'static str,
    pub(crate) model: ModelSpec,
    pub(crate) tensors: HashMap<TensorName, Vec<f32>>,
}

/// Uniform in ±1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn fill(&mut self, len: usize, center: f32, amplitude: f32) -> Vec<f32> {
        (0..len).map(|_| center + amplitude * self.next()).collect()
    }
}

impl Tiny {
    pub(crate) fn llama() -> Self {
        Self::new("llama", |_| ())
    }

    pub(crate) fn qwen2() -> Self {
        Self::new("qwen2", |model| {
            for layer in &mut model.layers {
                layer.attention_mut().qkv_bias = true;
            }
        })
    }

    pub(crate) fn qwen3() -> Self {
        Self::new("qwen3", |model| {
            for layer in &mut model.layers {
                layer.attention_mut().qk_norm = QkNorm::PerHead;
            }
        })
    }

    /// Norms after each part and of whole projections.
    pub(crate) fn olmo2() -> Self {
        Self::new("olmo2", |model| {
            for layer in &mut model.layers {
                (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::Both);
                layer.attention_mut().qk_norm = QkNorm::Whole;
            }
        })
    }

    /// A layer without RoPE, a RoPE of a part of a head, a bias of the output.
    pub(crate) fn partly_rotated() -> Self {
        Self::new("partly rotated", |model| {
            model.ropes[0].inv_freq.truncate(3);
            model.layers[1].attention_mut().rope = None;
            model.layers[0].attention_mut().o_bias = true;
            model.layers[0].attention_mut().scale = 0.4;
        })
    }

    fn new(name: &'static str, change: impl Fn(&mut ModelSpec)) -> Self {
        let mut model = UniformModel {
            hidden: 24,
            layers: 2,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 8,
            intermediate: 40,
            vocab: 31,
            norm_eps: 1e-5,
            rope: Rope::new(vec![1.0, 0.3, 0.1, 0.03], 1.1),
            tied_embeddings: true,
            max_positions: 4096,
            ..UniformModel::default()
        }
        .spec();
        change(&mut model);
        let mut r = Random(7);
        use LayerTensor as L;
        // Attention sharp enough that keys matter.
        let spread = |name| match name {
            TensorName::Layer(_, L::Q | L::K | L::V) => (0.0, 0.6),
            TensorName::Layer(_, L::O) => (0.0, 0.4),
            TensorName::Layer(_, L::Gate | L::Up | L::Down) => (0.0, 0.3),
            TensorName::Layer(_, L::QBias | L::KBias | L::VBias | L::OBias) => (0.0, 0.5),
            TensorName::Layer(_, L::QNorm | L::KNorm) => (1.5, 0.3),
            TensorName::Embedding => (0.0, 1.0),
            _ => (1.0, 0.3),
        };
        let tensors = TensorName::all(&model).into_iter().map(|name| {
            let (center, amplitude) = spread(name);
            let values = name.shape(&model).iter().product();
            (name, r.fill(values, center, amplitude))
        });
        Self {
            name,
            tensors: tensors.collect(),
            model,
        }
    }

    /// A layer's tensor.
    pub(crate) fn of(&self, layer: usize, tensor: LayerTensor) -> &Vec<f32> {
        &self.tensors[&TensorName::Layer(layer, tensor)]
    }

    /// A layer's tensor, to change.
    pub(crate) fn of_mut(&mut self, layer: usize, tensor: LayerTensor) -> &mut Vec<f32> {
        let name = TensorName::Layer(layer, tensor);
        self.tensors.get_mut(&name).expect("the model has it")
    }
}

impl Weights for Tiny {
    type Error = Infallible;

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, Infallible> {
        let (table, hidden) = (&self.tensors[&TensorName::Embedding], self.model.hidden);
        let row = |token: &u32| &table[*token as usize * hidden..][..hidden];
        Ok(tokens.iter().flat_map(row).copied().collect())
    }

    fn tensor(&self, name: TensorName) -> Result<Vec<f32>, Infallible> {
        Ok(self.tensors[&name].clone())
    }
}

pub(crate) fn tokens(count: usize, model: &ModelSpec) -> Vec<u32> {
    let mut r = Random(11);
    (0..count)
        .map(|_| ((r.next() + 1.0) / 2.0 * model.vocab as f32) as u32 % model.vocab as u32)
        .collect()
}

/// Mean cross entropy of each token given those before it, in f64.
pub(crate) fn loss(tiny: &Tiny, tokens: &[u32]) -> f64 {
    let logits = logits(&tiny.model, tiny, tokens, 2).expect("logits");
    let rows = logits.chunks_exact(tiny.model.vocab).zip(&tokens[1..]);
    let nats = rows.map(|(row, target)| {
        let sum: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
        sum.ln() - f64::from(row[*target as usize])
    });
    nats.sum::<f64>() / (tokens.len() - 1) as f64
}
