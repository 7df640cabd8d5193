//! A tiny random model, its f64 oracle, and sequences in paged memory.

pub(crate) mod oracle;
pub(crate) mod paged;

use std::convert::Infallible;

use ebb_kernels::bf16;
use ebb_kernels::model::{
    ExpertsSpec, GatedDeltaSpec, LayerTensor, Mixer, Mlp, ModelSpec, OutputGate, QkNorm,
    RecurrentSpec, Rope, Routing, ShortConvSpec, TensorName, UniformModel, WeightSource,
};

/// A deterministic stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Options of a tiny model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) qkv_bias: bool,
    pub(crate) qk_norm: QkNorm,
    pub(crate) tied: bool,
    /// Changes the spec, layer by layer.
    pub(crate) layers: fn(&mut ModelSpec),
}

impl Family {
    pub(crate) const LLAMA: Self = Self {
        q_heads: 6,
        kv_heads: 2,
        head_dim: 16,
        qkv_bias: false,
        qk_norm: QkNorm::None,
        tied: true,
        layers: |_| {},
    };

    pub(crate) fn spec(self) -> ModelSpec {
        let half = self.head_dim / 2;
        let mut spec = UniformModel {
            hidden: 52,
            layers: 3,
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            intermediate: 76,
            vocab: 101,
            norm_eps: 1e-5,
            rope: Rope::new(
                (0..half)
                    .map(|i| 10_000f32.powf(-(i as f32) / half as f32))
                    .collect(),
                1.0,
            ),
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            tied_embeddings: self.tied,
            max_positions: 4096,
            ..UniformModel::default()
        }
        .spec();
        (self.layers)(&mut spec);
        spec
    }
}

/// Eight experts, two of them for a token.
pub(crate) const EXPERTS: ExpertsSpec = ExpertsSpec::plain(8, 2, 40, Routing::SOFTMAX_OF_CHOSEN);

/// Experts in all layers but the first.
pub(crate) fn with_experts(experts: &ExpertsSpec) -> ModelSpec {
    let mut spec = Family::LLAMA.spec();
    for layer in &mut spec.layers[1..] {
        layer.mlp = Mlp::Experts(experts.clone());
    }
    spec
}

/// A layer of each recurrence, with attention between them that opens what it puts out.
pub(crate) fn hybrid(spec: &mut ModelSpec) {
    spec.layers[0].mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(GatedDeltaSpec {
        k_heads: 2,
        v_heads: 6,
        k_dim: 12,
        v_dim: 20,
        taps: 4,
        norm_eps: 1e-5,
        doubled: false,
    }));
    spec.layers[1].attention_mut().output_gate = Some(OutputGate::SIGMOIDS);
    spec.layers[2].mixer = Mixer::Recurrent(RecurrentSpec::ShortConv(ShortConvSpec {
        taps: 3,
        bias: true,
    }));
}

/// Weights that are a function of their name and a seed.
#[derive(Clone, Debug)]
pub(crate) struct RandomWeights {
    pub(crate) spec: ModelSpec,
    pub(crate) seed: u64,
}

impl WeightSource for RandomWeights {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        Ok(name.shape(&self.spec))
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        let shape = name.shape(&self.spec);
        let place = TensorName::all(&self.spec).iter().position(|n| *n == name);
        let mut random = Random::new(self.seed ^ (place.unwrap_or(99) as u64) << 32);
        let (mean, spread) = match name {
            TensorName::Embedding => (0.0, 1.0),
            _ if name.is_norm() && self.spec.norms.from_one => (0.0, 0.3),
            _ if name.is_norm() => (1.0, 0.3),
            // Further from 0, xIELU jumps there, and roundings of the cache show.
            TensorName::Layer(_, LayerTensor::XieluEps) => (-1e-6, 0.0),
            _ if shape.len() == 1 => (0.0, 0.5),
            TensorName::Layer(_, tensor) if tensor.is_expert_bias() => (0.0, 0.5),
            // Uniform in ±sqrt(3 / inner) keeps the variance of what goes through.
            _ => (0.0, (3.0 / shape[shape.len() - 1] as f32).sqrt()),
        };
        let before = first_row * shape[shape.len() - 1];
        (0..before).for_each(|_| _ = random.unit());
        out.fill_with(|| bf16::from_f32(mean + spread * random.unit()));
        Ok(())
    }
}
