//! Where quantised tensors lie: several under one name, below a prefix, as the output projection.

use ebb_kernels::model::{LayerTensor, ModelSpec, Rope, TensorName, UniformModel, WeightSource};
use ebb_models::model::{LoadedModel, ModelFiles};
use safetensors::Dtype;
use serde_json::json;

use super::{Checkpoint, compressed_tensors, fp8, is_inner};
use crate::hf_builder::{HfBuilder, Stored, hf_name};
use crate::packed::assert_packed;
use crate::tiny;

fn settings() -> serde_json::Value {
    json!({ "quant_method": "fp8", "activation_scheme": "dynamic" })
}

/// Joins tensors of a layer, one behind the other.
fn join(tensors: &mut Vec<Stored>, names: &[&str], joined: &str) {
    let is_part = |stored: &Stored| names.iter().any(|name| stored.0.contains(name));
    let layer = |stored: &Stored| stored.0.split(".self_attn").next().map(str::to_owned);
    let layer = |stored: &Stored| {
        let attention = layer(stored).unwrap_or_default();
        attention
            .split(".mlp")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let mut found: Vec<(String, Stored)> = Vec::new();
    for stored in tensors.iter().filter(|stored| is_part(stored)) {
        let name = layer(stored);
        match found.iter_mut().find(|(layer, _)| *layer == name) {
            Some((_, Stored(_, _, shape, bytes))) => {
                shape[0] += stored.2[0];
                bytes.extend_from_slice(&stored.3);
            }
            None => {
                let mut first = stored.clone();
                first.0 = format!("{name}.{joined}.weight");
                found.push((name, first));
            }
        }
    }
    tensors.retain(|stored| !is_part(stored));
    tensors.extend(found.into_iter().map(|(_, stored)| stored));
}

/// Where Phi-3 has a tensor.
fn joined_place(spec: &ModelSpec, name: TensorName) -> (String, usize) {
    let TensorName::Layer(layer, tensor) = name else {
        let plain = hf_name(name);
        return (plain.trim_end_matches(".weight").to_owned(), 0);
    };
    let (heads, inner) = (spec.heads(), spec.layers[0].intermediate());
    let (joined, first) = match tensor {
        LayerTensor::Q => ("self_attn.qkv_proj", 0),
        LayerTensor::K => ("self_attn.qkv_proj", heads.q_width()),
        LayerTensor::V => ("self_attn.qkv_proj", heads.q_width() + heads.kv_width()),
        LayerTensor::Gate => ("mlp.gate_up_proj", 0),
        LayerTensor::Up => ("mlp.gate_up_proj", inner),
        _ => {
            let plain = hf_name(name);
            return (plain.trim_end_matches(".weight").to_owned(), 0);
        }
    };
    (format!("model.layers.{layer}.{joined}"), first)
}

/// A checkpoint that has Q, K and V in one tensor, and gate and up in one.
fn joined(spec: ModelSpec) -> Checkpoint {
    let mut files = HfBuilder::new(tiny::family("phi3"), &spec, Dtype::BF16);
    files.config["quantization_config"] = settings();
    let attention = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
    join(&mut files.tensors, &attention, "self_attn.qkv_proj");
    let gates = ["gate_proj.weight", "up_proj.weight"];
    join(&mut files.tensors, &gates, "mlp.gate_up_proj");
    Checkpoint {
        files,
        spec,
        weights: Default::default(),
        place: joined_place,
    }
}

/// A checkpoint of fp8 as a Cohere 2 with `config` has it, whose heads are interleaved.
fn interleaved(config: &[(&str, serde_json::Value)]) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(settings(), is_inner, fp8::per_channel);
    let fields = checkpoint.files.config.as_object_mut().expect("an object");
    fields.extend(
        config
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone())),
    );
    let mut tensors = std::mem::take(&mut checkpoint.files.tensors);
    tensors.retain(|stored| !stored.0.contains("post_attention_layernorm"));
    checkpoint.files.tensors = tensors;
    checkpoint
}

#[test]
fn packed_heads_that_are_interleaved_are_put_in_order() {
    use LayerTensor as L;
    let plain = Checkpoint::new(settings(), is_inner, fp8::per_channel);
    let expected = plain.assert_dequantised().weights();
    let checkpoint = interleaved(&[
        ("model_type", json!("cohere2")),
        ("architectures", json!(["Cohere2ForCausalLM"])),
        ("sliding_window", json!(64)),
        (
            "layer_types",
            json!(["sliding_attention", "sliding_attention"]),
        ),
    ]);
    let (_keep, dir) = checkpoint.files.directory();
    let model = LoadedModel::open(&ModelFiles::Directory(dir)).expect("a valid model");
    let weights = model.weights();
    let (width, head_dim) = (model.spec.hidden, model.spec.heads().head_dim);
    for tensor in [L::Q, L::K, L::V, L::O] {
        let name = TensorName::Layer(1, tensor);
        let before = expected.load(name).expect("a tensor");
        let after = weights.load(name).expect("a tensor");
        if ![L::Q, L::K].contains(&tensor) {
            assert!(before == after, "{name}");
            continue;
        }
        // Pairs of neighbouring channels come apart by half a head.
        for (row, found) in after.chunks_exact(width).enumerate() {
            let (head, channel) = (row / head_dim, row % head_dim);
            let (half, pair) = (channel / (head_dim / 2), channel % (head_dim / 2));
            let stored = head * head_dim + 2 * pair + half;
            assert!(before[stored * width..][..width] == *found, "{name}, {row}");
        }
        assert!(weights.packed(name).expect("a format").is_some());
    }
    assert_packed(&weights, &model.spec, |name| name.is_linear(), 0);
}

#[test]
fn tensors_that_are_stored_together_are_quantised_together() {
    let spec = tiny::spec(tiny::family("phi3"), false);
    let mut checkpoint = joined(spec);
    checkpoint.pack(is_inner, fp8::per_channel);
    assert_eq!(checkpoint.weights.len(), 8);
    checkpoint.assert_dequantised();
}

/// Bytes of memory that a mapped file takes.
#[cfg(target_os = "linux")]
fn resident(path: &std::path::Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let path = path.to_str().expect("UTF-8");
    let mut of_file = maps.lines().skip_while(|line| !line.ends_with(path));
    let line = of_file.find(|line| line.starts_with("Rss:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kib = number.and_then(|kib| kib.parse::<usize>().ok());
    kib.expect("the file is mapped") * 1024
}

/// Memory of what is stored together is let go behind the last of it, scales included.
#[cfg(target_os = "linux")]
#[test]
fn tensors_that_are_stored_together_are_let_go_together() {
    let spec = UniformModel {
        hidden: 4096,
        layers: 1,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate: 32,
        vocab: 16,
        norm_eps: 1e-5,
        rope: Rope::new(Vec::new(), 1.0),
        max_positions: 512,
        ..UniformModel::default()
    }
    .spec();
    let mut checkpoint = joined(spec);
    checkpoint.pack(|module| module.ends_with("qkv_proj"), fp8::per_channel);
    let (_keep, dir) = checkpoint.files.directory();
    let path = dir.join("model.safetensors");
    let model = LoadedModel::open(&ModelFiles::Directory(dir)).expect("a valid model");
    let weights = model.weights();
    let bytes = 128 * 4096;
    for again in 0..2 {
        for tensor in [LayerTensor::Q, LayerTensor::K, LayerTensor::V] {
            let before = resident(&path);
            let name = TensorName::Layer(0, tensor);
            weights.load(name).expect("a tensor");
            weights.done_reading(name);
            let after = resident(&path);
            match tensor {
                LayerTensor::V => assert!(after + bytes / 2 < before, "{again}: {after} {before}"),
                _ => assert!(after >= before, "{again}, {tensor:?}: {after} {before}"),
            }
        }
    }
}

#[test]
fn quantised_tensors_are_found_below_a_prefix() {
    let mut checkpoint = Checkpoint::new(settings(), is_inner, fp8::per_channel);
    let mut text = checkpoint.files.config.take();
    let quantization = text["quantization_config"].take();
    let fields = text.as_object_mut().expect("an object");
    fields.retain(|key, value| key != "architectures" && !value.is_null());
    checkpoint.files.config = json!({
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": { "hidden_size": 32 },
        "quantization_config": quantization,
    });
    for Stored(name, ..) in &mut checkpoint.files.tensors {
        if let Some(rest) = name.strip_prefix("model.") {
            *name = format!("model.language_model.{rest}");
        }
    }
    let of_image = Stored(
        "visual.x.weight_scale".to_owned(),
        Dtype::F32,
        vec![1],
        vec![0; 4],
    );
    checkpoint.files.tensors.push(of_image);
    checkpoint.assert_dequantised();
    // A list may have another version's names.
    for name in [
        "model.layers.0.mlp.up_proj",
        "language_model.model.layers.0.mlp.up_proj",
        "model.language_model.layers.0.mlp.up_proj",
    ] {
        checkpoint.files.config["quantization_config"]["ignored_layers"] = json!([name]);
        let (_, found) = checkpoint.files.refusal();
        assert!(
            found.ends_with("ignored_layers` says that it is not"),
            "{found}"
        );
    }
}

#[test]
fn embedding_and_output_projection_may_be_quantised() {
    let ends = |module: &str| module == "lm_head" || module == "model.embed_tokens";
    Checkpoint::new(settings(), ends, fp8::per_channel).assert_dequantised();
}

#[test]
fn a_tied_embedding_may_lie_as_a_quantised_output_projection() {
    let family = tiny::family("llama");
    let spec = tiny::spec(family, true);
    let mut files = HfBuilder::new(family, &spec, Dtype::BF16);
    files.config["quantization_config"] = settings();
    let mut checkpoint = Checkpoint {
        files,
        spec,
        weights: Default::default(),
        place: |_, name| match name {
            TensorName::Embedding => ("lm_head".to_owned(), 0),
            _ => (hf_name(name).trim_end_matches(".weight").to_owned(), 0),
        },
    };
    checkpoint.tensor("model.embed_tokens.weight").0 = "lm_head.weight".to_owned();
    checkpoint.pack(|module| module == "lm_head", fp8::per_channel);
    checkpoint.assert_dequantised();
    // It is torch's class Linear there, and has the name of the output projection.
    let weights = json!({ "num_bits": 8, "type": "float", "strategy": "channel" });
    let mut settings = compressed_tensors::settings("float-quantized", weights);
    settings["ignore"] = json!(["Embedding", "model.embed_tokens"]);
    checkpoint.files.config["quantization_config"] = settings;
    checkpoint.assert_dequantised();
    let settings = &mut checkpoint.files.config["quantization_config"];
    settings["ignore"] = json!(["language_model.lm_head"]);
    let found = checkpoint.refused(|_| {});
    assert!(found.ends_with("ignore` says that it is not"), "{found}");
}
