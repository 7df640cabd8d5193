//! Hugging Face directories.

use ebb_kernels::model::TensorName;
use ebb_models::model::{LoadFormat, LoadedModel, ModelFiles};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::scratch::Scratch;

type Inputs = Vec<(String, Vec<u8>)>;

/// A tiny model of each family.
pub(crate) fn tiny_configs() -> Vec<(&'static str, Value)> {
    let families = [
        ("llama", "LlamaForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("phi3", "Phi3ForCausalLM"),
        ("smollm3", "SmolLM3ForCausalLM"),
        ("olmo2", "Olmo2ForCausalLM"),
    ];
    let config = |(family, class): (&'static str, &str)| {
        let config = json!({
            "architectures": [class],
            "model_type": family,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "intermediate_size": 16,
            "vocab_size": 12,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "max_position_embeddings": 256,
            "tie_word_embeddings": family == "qwen2",
            "eos_token_id": 2,
        });
        (family, config)
    };
    families.map(config).into()
}

/// A file with any header.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &vec![0; data],
    ]
    .concat()
}

fn sound(config: &Value, dtype: Dtype) -> Option<Vec<u8>> {
    let folder = Scratch::new();
    folder.write("config.json", config.to_string().as_bytes());
    let files = ModelFiles::Directory(folder.path().to_owned());
    let model = LoadedModel::open_as(&files, LoadFormat::Dummy).expect("a sound configuration");
    let bytes = if dtype == Dtype::F32 { 4 } else { 2 };
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for name in TensorName::all(&model.spec) {
        let (name, shape) = (model.hf_name(name), name.shape(&model.spec));
        // Some families store several tensors as one.
        if tensors.iter().any(|(other, ..)| *other == name) {
            return None;
        }
        let elements: usize = shape.iter().product();
        tensors.push((name, shape, vec![0x3c; elements * bytes]));
    }
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(dtype, shape.clone(), data).expect("a tensor");
        (name.as_str(), view)
    });
    Some(safetensors::serialize(views, None).expect("a file"))
}

pub(super) fn safetensors() -> Inputs {
    let mut inputs = Inputs::new();
    for (first, (family, config)) in (0u8..).zip(tiny_configs()) {
        let dtype = [Dtype::BF16, Dtype::F16, Dtype::F32][usize::from(first) % 3];
        let Some(file) = sound(&config, dtype) else {
            continue;
        };
        inputs.push((family.to_owned(), [&[first][..], &file].concat()));
    }
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let deep = format!("{{\"a\":{}", "[".repeat(10_000));
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("short", vec![0; 7]),
        ("endless-header", u64::MAX.to_le_bytes().to_vec()),
        (
            "tebi-header",
            [(1u64 << 40).to_le_bytes().to_vec(), vec![0; 100]].concat(),
        ),
        ("not-json", with_header("not JSON", 0)),
        ("deep", with_header(&deep, 0)),
        ("no-tensors", with_header("{}", 0)),
        ("short-data", with_header(&entry("F32", "[2]", "[0,8]"), 4)),
        ("backwards", with_header(&entry("F32", "[2]", "[8,0]"), 8)),
        (
            "overflow",
            with_header(&entry("F32", "[4611686018427387904,4]", "[0,0]"), 0),
        ),
        (
            "endless",
            with_header(&entry("F32", "[18446744073709551615]", "[0,4]"), 4),
        ),
        ("hole", with_header(&entry("F32", "[1]", "[100,104]"), 104)),
        ("half-a-byte", with_header(&entry("F4", "[3]", "[0,2]"), 2)),
        ("metadata", with_header(r#"{"__metadata__":{"a":"b"}}"#, 0)),
        (
            "metadata-number",
            with_header(r#"{"__metadata__":{"a":1}}"#, 0),
        ),
        (
            "shared",
            with_header(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                "b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
                4,
            ),
        ),
    ];
    inputs.extend(
        hostile
            .into_iter()
            .map(|(name, file)| (name.to_owned(), [&[0][..], &file].concat())),
    );
    inputs
}

pub(super) fn configs() -> Inputs {
    let mut inputs = Inputs::new();
    let mut add = |name: &str, which: u8, text: String| {
        inputs.push((name.to_owned(), [&[which][..], text.as_bytes()].concat()));
    };
    for (family, config) in tiny_configs() {
        add(family, 0, config.to_string());
    }
    let with = |field: &str, value: Value| {
        let (_, mut config) = tiny_configs().swap_remove(0);
        config[field] = value;
        config.to_string()
    };
    let scaling = |kind: &str| {
        json!({
            "rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8],
        })
    };
    for kind in ["linear", "dynamic", "llama3", "yarn", "longrope"] {
        add(kind, 0, with("rope_scaling", scaling(kind)));
    }
    add(
        "many-layers",
        0,
        with("num_hidden_layers", json!(1_000_000_000)),
    );
    add("some-layers", 0, with("num_hidden_layers", json!(4096)));
    add("wide", 0, with("hidden_size", json!(u64::MAX)));
    add("product", 0, with("hidden_size", json!(1u64 << 40)));
    add("heads", 0, with("num_attention_heads", json!(1u64 << 32)));
    add("head", 0, with("head_dim", json!(1u64 << 62)));
    add("vocab", 0, with("vocab_size", json!(1u64 << 60)));
    add(
        "context",
        0,
        with("max_position_embeddings", json!(u64::MAX)),
    );
    add("theta", 0, with("rope_theta", json!(1e-300)));
    add("eps", 0, with("rms_norm_eps", json!(1e300)));
    add("eos", 0, with("eos_token_id", json!([1, 2, 3])));
    add("window", 0, with("sliding_window", json!(64)));
    add(
        "layer-types",
        0,
        with("layer_types", json!(["full_attention"])),
    );
    add(
        "quantized",
        0,
        with("quantization_config", json!({"quant_method": "gptq"})),
    );
    add("deep", 0, format!("{{\"a\":{}", "[".repeat(4000)));
    add("infinite", 0, "{\"hidden_size\": 1e999}".to_owned());
    add("array", 0, "[]".to_owned());
    add("empty", 0, String::new());
    add("generation", 1, json!({
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05,
        "do_sample": true, "eos_token_id": [2, 3],
    }).to_string());
    add(
        "greedy",
        1,
        json!({"do_sample": false, "temperature": null}).to_string(),
    );
    add(
        "penalty",
        1,
        json!({"repetition_penalty": 1e-38}).to_string(),
    );
    add(
        "tokenizer",
        2,
        json!({
            "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true,
            "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
        })
        .to_string(),
    );
    add(
        "index",
        3,
        json!({
            "metadata": {"total_size": 1}, "weight_map": {"a": "absent.safetensors"},
        })
        .to_string(),
    );
    add(
        "outside",
        3,
        json!({"weight_map": {"a": "../config.json"}}).to_string(),
    );
    add(
        "absolute",
        3,
        json!({"weight_map": {"a": "/etc/passwd"}}).to_string(),
    );
    inputs
}
