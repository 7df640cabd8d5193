//! Model files of a configuration's shape, as they are published: sharded safetensors of random
//! bf16 values, and a tokenizer.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Mutex;

use ebb_kernels::bf16;
use ebb_kernels::model::{RandomWeights, TensorName, WeightSource as _};
use ebb_models::model::LoadedModel;
use serde_json::{Map, Value, json};

/// A file is begun anew beyond this: enough of them to be written by several threads.
const SHARD_BYTES: u64 = 1 << 30;
/// Values drawn at once.
const PART_VALUES: usize = 1 << 20;

/// Writes everything that an engine needs to `dir`, on all cores; returns the bytes of weights.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(model: &LoadedModel, config: &Path, dir: &Path) -> Result<u64, Box<dyn Error>> {
    std::fs::create_dir_all(dir)?;
    std::fs::copy(config, dir.join("config.json"))?;
    std::fs::write(
        dir.join("tokenizer.json"),
        tokenizer(model.spec.vocab).to_string(),
    )?;
    let source = RandomWeights {
        spec: model.spec.clone(),
        seed: 1,
    };
    let shards = shards(&source);
    let file_name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
    let mut weight_map = Map::new();
    for (index, names) in shards.iter().enumerate() {
        weight_map.extend(
            names
                .iter()
                .map(|n| (model.hf_name(*n), file_name(index).into())),
        );
    }
    let bytes = 2 * model.parameters();
    let index = json!({ "metadata": { "total_size": bytes }, "weight_map": weight_map });
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string())?;

    let left = Mutex::new(shards.iter().enumerate());
    let cores = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..cores.min(shards.len()))
            .map(|_| {
                scope.spawn(|| -> std::io::Result<()> {
                    loop {
                        let next = left.lock().map_or(None, |mut left| left.next());
                        let Some((index, names)) = next else {
                            return Ok(());
                        };
                        write_shard(model, &source, names, &dir.join(file_name(index)))?;
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })?;
    Ok(bytes)
}

fn values_of(source: &RandomWeights, name: TensorName) -> usize {
    name.shape(&source.spec).iter().product()
}

/// The tensors of each file.
fn shards(source: &RandomWeights) -> Vec<Vec<TensorName>> {
    let mut shards = vec![Vec::new()];
    let mut bytes = 0;
    for name in TensorName::all(&source.spec) {
        let size = 2 * values_of(source, name) as u64;
        if bytes > 0 && bytes + size > SHARD_BYTES {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(shard) = shards.last_mut() {
            shard.push(name);
        }
    }
    shards
}

fn write_shard(
    model: &LoadedModel,
    source: &RandomWeights,
    names: &[TensorName],
    path: &Path,
) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut end = 0;
    for name in names {
        let start = end;
        end += 2 * values_of(source, *name);
        let entry = json!({ "dtype": "BF16", "shape": name.shape(&source.spec),
            "data_offsets": [start, end] });
        header.insert(model.hf_name(*name), entry);
    }
    let mut header = Value::Object(header).to_string();
    // Data begins at a multiple of 8, as the format's own writer has it.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut values = Vec::new();
    for name in names {
        let shape = name.shape(&source.spec);
        let width = shape[shape.len() - 1];
        let (rows, each) = (
            values_of(source, *name) / width,
            (PART_VALUES / width).max(1),
        );
        for row in (0..rows).step_by(each) {
            values.resize(each.min(rows - row) * width, bf16::ZERO);
            let Ok(()) = source.read_rows(*name, row, &mut values);
            for value in &mut values {
                *value = bf16::from_bits(value.to_bits().to_le());
            }
            file.write_all(bytemuck::cast_slice(&values))?;
        }
    }
    file.flush()
}

/// Byte-level BPE with as many tokens and merges as a published tokenizer of that size: each token
/// is another one and a byte.
fn tokenizer(vocab: usize) -> Value {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 256..;
    let bytes = (0..=255u8).map(|b| {
        let code = if printable(b) {
            Some(b.into())
        } else {
            others.next()
        };
        code.and_then(char::from_u32).unwrap_or('?').to_string()
    });
    let mut tokens: Vec<String> = bytes.take(vocab).collect();
    let mut merges = Vec::new();
    for i in 0..vocab.saturating_sub(256) {
        let (left, right) = (tokens[i / 256].clone(), tokens[i % 256].clone());
        tokens.push(format!("{left}{right}"));
        merges.push(json!([left, right]));
    }
    let vocab: Map<String, Value> = tokens.into_iter().zip((0..).map(Value::from)).collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true });
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": merges },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_models::model::{LoadFormat, ModelFiles};

    #[test]
    fn what_is_written_is_a_model_with_these_weights() {
        let dir = std::env::temp_dir().join(format!("ebb-startup-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = dir.join("given.json");
        let json = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "intermediate_size": 100,
            "vocab_size": 700, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        });
        std::fs::write(&config, json.to_string()).unwrap();
        std::fs::write(dir.join("config.json"), json.to_string()).unwrap();
        let files = ModelFiles::Directory(dir.clone());
        let shape = LoadedModel::open_as(&files, LoadFormat::Dummy).unwrap();
        let bytes = write(&shape, &config, &dir).unwrap();
        let opened = ebb_models::open(dir.to_str().unwrap(), None).unwrap();
        let weights = opened.model.weights();
        assert_eq!(bytes, 2 * opened.model.parameters());
        let source = RandomWeights {
            spec: shape.spec.clone(),
            seed: 1,
        };
        for name in TensorName::all(&shape.spec) {
            let Ok(expected) = source.load(name);
            assert_eq!(weights.load(name).unwrap(), expected, "{name}");
        }
        let text = "abc äöü\n";
        let ids = opened.tokenizer.encode(text, false, false).unwrap();
        assert_eq!(opened.tokenizer.decode(&ids, false), text);
        assert_eq!(opened.tokenizer.vocab_size(), 700);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
