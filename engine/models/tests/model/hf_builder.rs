//! Writes Hugging Face model directories.

use std::path::{Path, PathBuf};

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName};
use ebb_models::model::{Family, LoadedModel, ModelError, ModelFiles};
use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tiny;

pub(crate) fn hf_name(name: TensorName) -> String {
    match name {
        TensorName::Embedding => "model.embed_tokens.weight".into(),
        TensorName::FinalNorm => "model.norm.weight".into(),
        TensorName::FinalNormBias => "model.norm.bias".into(),
        TensorName::LmHead => "lm_head.weight".into(),
        TensorName::LmHeadBias => "lm_head.bias".into(),
        TensorName::PerLayerEmbedding
        | TensorName::PerLayerProjection
        | TensorName::PerLayerNorm => panic!("{name} of a plain model"),
        TensorName::Layer(layer, tensor) => {
            let tensor = match tensor {
                LayerTensor::AttnNorm => "input_layernorm.weight",
                LayerTensor::Q => "self_attn.q_proj.weight",
                LayerTensor::K => "self_attn.k_proj.weight",
                LayerTensor::V => "self_attn.v_proj.weight",
                LayerTensor::QBias => "self_attn.q_proj.bias",
                LayerTensor::KBias => "self_attn.k_proj.bias",
                LayerTensor::VBias => "self_attn.v_proj.bias",
                LayerTensor::QNorm => "self_attn.q_norm.weight",
                LayerTensor::KNorm => "self_attn.k_norm.weight",
                LayerTensor::O => "self_attn.o_proj.weight",
                LayerTensor::MlpNorm | LayerTensor::AttnPostNorm => {
                    "post_attention_layernorm.weight"
                }
                LayerTensor::MlpPostNorm => "post_feedforward_layernorm.weight",
                LayerTensor::Gate => "mlp.gate_proj.weight",
                LayerTensor::Up => "mlp.up_proj.weight",
                LayerTensor::Down => "mlp.down_proj.weight",
                other => panic!("{other:?} of a plain model"),
            };
            format!("model.layers.{layer}.{tensor}")
        }
    }
}

/// A stored tensor: name, type, shape, bytes.
#[derive(Clone)]
pub(crate) struct Stored(
    pub(crate) String,
    pub(crate) Dtype,
    pub(crate) Vec<usize>,
    pub(crate) Vec<u8>,
);

/// A model directory in the making.
#[derive(Clone)]
pub(crate) struct HfBuilder {
    pub(crate) config: Value,
    /// Further files, by name.
    pub(crate) files: Vec<(&'static str, String)>,
    pub(crate) tensors: Vec<Stored>,
    /// Number of safetensors files; with more than one there is an index.
    pub(crate) shards: usize,
}

impl HfBuilder {
    /// A tiny model of `family`, in files as transformers writes them.
    pub(crate) fn new(family: &Family, spec: &ModelSpec, dtype: Dtype) -> Self {
        let heads = spec.heads();
        let config = json!({
            "architectures": [family.hf_class],
            "model_type": family.to_string(),
            "hidden_size": spec.hidden,
            "num_hidden_layers": spec.layers.len(),
            "num_attention_heads": heads.q_heads,
            "num_key_value_heads": heads.kv_heads,
            "head_dim": heads.head_dim,
            "intermediate_size": spec.layers[0].intermediate(),
            "vocab_size": spec.vocab,
            "rms_norm_eps": spec.norm_eps,
            "rope_theta": 10000.0,
            "rope_scaling": null,
            "hidden_act": "silu",
            "max_position_embeddings": spec.max_positions,
            "tie_word_embeddings": spec.tied_embeddings,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        });
        let store = |name: TensorName| {
            let encode = |value: f32| match dtype {
                Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
                Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            };
            let bytes = tiny::values(name, spec)
                .into_iter()
                .flat_map(encode)
                .collect();
            Stored(hf_name(name), dtype, name.shape(spec), bytes)
        };
        Self {
            config,
            files: vec![
                ("tokenizer.json", "{}".into()),
                ("tokenizer_config.json", "{}".into()),
            ],
            tensors: TensorName::all(spec).into_iter().map(store).collect(),
            shards: 1,
        }
    }

    pub(crate) fn file(&mut self, name: &'static str, text: &str) -> &mut Self {
        self.files.retain(|(existing, _)| *existing != name);
        self.files.push((name, text.to_owned()));
        self
    }

    pub(crate) fn write(&self, dir: &Path) {
        let put = |name: &str, text: &[u8]| std::fs::write(dir.join(name), text).expect("write");
        put("config.json", self.config.to_string().as_bytes());
        self.files
            .iter()
            .for_each(|(name, text)| put(name, text.as_bytes()));
        if self.shards == 1 {
            put("model.safetensors", &serialize(&self.tensors));
            return;
        }
        let mut weight_map = serde_json::Map::new();
        for shard in 0..self.shards {
            let name = format!("model-{:05}-of-{:05}.safetensors", shard + 1, self.shards);
            let mine = self.tensors.iter().skip(shard).step_by(self.shards);
            let mine: Vec<Stored> = mine.cloned().collect();
            put(&name, &serialize(&mine));
            weight_map.extend(mine.into_iter().map(|stored| (stored.0, json!(name))));
        }
        let index = json!({ "metadata": { "total_size": 1 }, "weight_map": weight_map });
        put("model.safetensors.index.json", index.to_string().as_bytes());
    }

    /// Opens the model through a directory called `tiny`.
    pub(crate) fn open(&self) -> Result<LoadedModel, ModelError> {
        let (_keep, dir) = self.directory();
        // The maps outlive the directory entries.
        LoadedModel::open(&ModelFiles::Directory(dir))
    }

    /// Why the model is refused: the name of the file, and the sentence.
    pub(crate) fn refusal(&self) -> (String, String) {
        match self.open().expect_err("should be refused") {
            ModelError::Refused { path, reason } => {
                let name = path
                    .file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned();
                (name, reason.to_string())
            }
            other => panic!("{other}"),
        }
    }

    pub(crate) fn directory(&self) -> (TempDir, PathBuf) {
        let keep = TempDir::new().expect("a temporary directory");
        let dir = keep.path().join("tiny");
        std::fs::create_dir(&dir).expect("create it");
        self.write(&dir);
        (keep, dir)
    }
}

pub(crate) fn serialize(tensors: &[Stored]) -> Vec<u8> {
    let views = tensors.iter().map(|Stored(name, dtype, shape, bytes)| {
        (
            name.as_str(),
            TensorView::new(*dtype, shape.clone(), bytes).expect("a valid tensor"),
        )
    });
    safetensors::serialize(views, None).expect("it serialises")
}
