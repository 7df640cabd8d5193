//! SmolLM2-135M's shape, and random numbers.

use ebb_kernels::model::{ModelSpec, QkNorm, Rope, UniformModel};

/// SmolLM2-135M's dimensions.
pub(super) fn smollm2_135m() -> ModelSpec {
    UniformModel {
        hidden: 576,
        layers: 30,
        q_heads: 9,
        kv_heads: 3,
        head_dim: 64,
        intermediate: 1536,
        vocab: 49152,
        norm_eps: 1e-5,
        rope: Rope::new(
            (0..32).map(|i| 1e5f32.powf(-(i as f32) / 32.0)).collect(),
            1.0,
        ),
        qkv_bias: false,
        qk_norm: QkNorm::None,
        tied_embeddings: true,
        max_positions: 8192,
        ..UniformModel::default()
    }
    .spec()
}

/// Uniform numbers in [-1, 1).
pub(super) fn random(seed: u64, len: usize) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
    .take(len)
}
