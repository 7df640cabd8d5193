//! GLM-4 of 2024 (GLM-4-9B): biases on Q, K and V, half of each head rotates, in pairs of
//! neighbouring channels; gate and up stored as one tensor. GGUF files have queries, keys and
//! values together where the checkpoint was in the form that the model came out with.

use ebb_kernels::model::{LayerTensor, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, glm4, llama_gguf, llama_hf};

const GATE_UP: &[LayerTensor] = &[LayerTensor::Gate, LayerTensor::Up];
const QKV: &[LayerTensor] = &[LayerTensor::Q, LayerTensor::K, LayerTensor::V];
const QKV_BIAS: &[LayerTensor] = &[LayerTensor::QBias, LayerTensor::KBias, LayerTensor::VBias];

pub(super) static FAMILY: Family = Family {
    name: "glm",
    hf_class: "GlmForCausalLM",
    hf_text: &[TextType {
        model_types: &["glm"],
        ..glm4::TEXT
    }],
    hf_spec: |config| Ok(glm4::hf_model(config)?.spec()),
    hf_tensor: |name| match name {
        TensorName::Layer(layer, part) if GATE_UP.contains(&part) => {
            let stored = format!("model.layers.{layer}.mlp.gate_up_proj.weight");
            StoredTensor::part(name, stored, GATE_UP)
        }
        _ => llama_hf(name).interleaved(),
    },
    gguf: Some(GgufFamily {
        architecture: "chatglm",
        keys: &[],
        spec: |config| {
            let mut model = config.uniform_with_part(false)?;
            let mut biases = ["blk.0.attn_q.bias", "blk.0.attn_qkv.bias"].into_iter();
            model.qkv_bias = biases.any(|bias| config.has_tensor(bias));
            Ok(model.spec())
        },
        tensor: gguf_tensor,
        // They are interleaved as they are in transformers.
        permutes_qk: true,
    }),
};

fn gguf_tensor(name: TensorName) -> StoredTensor {
    let TensorName::Layer(layer, part) = name else {
        return llama_gguf(name);
    };
    if GATE_UP.contains(&part) {
        return StoredTensor::part(name, format!("blk.{layer}.ffn_up.weight"), GATE_UP);
    }
    let together = [(QKV, "weight"), (QKV_BIAS, "bias")].into_iter();
    let mut together = together.filter(|(parts, _)| parts.contains(&part));
    let together = together.next().map(|(parts, kind)| {
        StoredTensor::part(name, format!("blk.{layer}.attn_qkv.{kind}"), parts).interleaved()
    });
    llama_gguf(name).or(together)
}
