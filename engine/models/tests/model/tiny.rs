//! Tiny models whose weights can be computed, so that a loader can be checked element by element.

use ebb_kernels::bf16;
use ebb_kernels::model::{
    ModelSpec, NormPlace, QkNorm, Rope, TensorName, UniformModel, WeightSource,
};
use ebb_models::model::{Family, LoadedModel};

/// The shapes of a tiny model of `family`. RoPE is left to the tests about it.
pub(crate) fn spec(family: &Family, tied_embeddings: bool) -> ModelSpec {
    let mut spec = UniformModel {
        hidden: 32,
        layers: 2,
        q_heads: 4,
        kv_heads: 2,
        // Not hidden / q_heads: Qwen3 and newer Mistral models say it themselves.
        head_dim: 16,
        intermediate: 64,
        vocab: 40,
        norm_eps: 1e-5,
        rope: Rope::new(Vec::new(), 1.0),
        qkv_bias: family.name == "qwen2",
        qk_norm: if ["qwen3", "qwen3_vl_text"].contains(&family.name) {
            QkNorm::PerHead
        } else {
            QkNorm::None
        },
        tied_embeddings,
        max_positions: 512,
        ..UniformModel::default()
    }
    .spec();
    if family.name.starts_with("olmo") {
        for layer in &mut spec.layers {
            (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::After);
            layer.attention_mut().qk_norm = QkNorm::Whole;
        }
    }
    spec
}

/// A tensor's values in Hugging Face order: exact in F16 and BF16, and no two rows alike.
pub(crate) fn values(name: TensorName, spec: &ModelSpec) -> Vec<f32> {
    let shape = name.shape(spec);
    let seed = name
        .to_string()
        .bytes()
        .fold(7u32, |seed, byte| seed * 31 % 8191 + u32::from(byte));
    let len: usize = shape.iter().product();
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Seven significant bits, so that bf16 has it exactly.
        (f32::from((state >> 24) as u8) - 128.0) / 128.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Asserts that the model holds exactly the tensors of `spec`, each in Hugging Face order.
pub(crate) fn assert_weights(model: &LoadedModel, spec: &ModelSpec) {
    let weights = model.weights();
    for name in TensorName::all(spec) {
        assert_eq!(
            weights.shape(name).expect("a shape"),
            name.shape(spec),
            "{name}"
        );
        let loaded = weights.load(name).expect("a tensor");
        let expected: Vec<bf16> = values(name, spec).into_iter().map(bf16::from_f32).collect();
        assert!(loaded == expected, "{name} differs");
    }
    assert_eq!(
        ModelSpec {
            ropes: spec.ropes.clone(),
            ..model.spec.clone()
        },
        *spec
    );
}

/// The family of this name.
pub(crate) fn family(name: &str) -> &'static Family {
    Family::named(name).expect("a family")
}
