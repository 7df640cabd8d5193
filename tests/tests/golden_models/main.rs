//! Tiny models of every family against log-probabilities of transformers, on the CPU or on the
//! device that `EBB_TEST_DEVICE` names; those with experts also by their definition, in f64.
//! `tests/golden/models/README.md` has the formula of their weights.

#[path = "../../../kernels/tests/cpu/common/oracle.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod oracle;

mod served;
mod shrinking;
mod table;

use std::path::Path;

use ebb_block_manager::BlockManager;
use ebb_kernels::bf16;
use ebb_kernels::model::Feature;
use ebb_lab::eval::{Rows, Sequence};
use ebb_models::model::{FAMILIES, LoadedModel, ModelFiles};
use ebb_serving::device::{BackendOptions, Device, StepSizes};
use serde_json::{Value, json};

/// Mean distance of log-probabilities that rounding explains: of the cache on a CPU, of activations
/// as well on a GPU. Where a router decides, rounding turns decisions around on either, and a row
/// with another expert is another row: a short prompt that has one is far off, so these models are
/// held to the mean over all prompts.
fn bound(device: &Device, golden: &Value) -> f64 {
    match device {
        Device::Cpu if !has_experts(golden) => 0.03,
        _ => 0.12,
    }
}

/// Below this margin between the best two logits, rounding may choose either.
fn margin(golden: &Value) -> f64 {
    if has_experts(golden) { 0.5 } else { 0.3 }
}

fn has_experts(golden: &Value) -> bool {
    let mut names = ["num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"].iter();
    names.any(|name| {
        text_config(golden)
            .get(name)
            .is_some_and(|value| !value.is_null())
    })
}

/// The fields that describe the language model.
fn text_config(golden: &Value) -> &Value {
    let config = &golden["config"];
    config.get("text_config").unwrap_or(config)
}

fn splitmix64(seed: u64, index: u64) -> u64 {
    let z = seed
        .wrapping_add(index + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fnv1a64(name: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    name.bytes().fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The bf16 values of a tensor, as bytes.
fn tensor(name: &str, shape: &[u64], seed: u64, norms_around: f64, embeddings: f64) -> Vec<u8> {
    let last = shape.last().map_or(1.0, |last| *last as f64);
    // Norms behind the delta rule do not count from 1 where the others do.
    let norms_around = if name.contains("linear_attn") {
        1.0
    } else {
        norms_around
    };
    let value = |u: f64| match shape.len() {
        1 if name.contains("norm") && name.ends_with("weight") => u * 0.1 + norms_around,
        0 | 1 => u * 0.3,
        _ if name.contains("embed") => u * 3f64.sqrt() * embeddings,
        _ => u * 1.6 * 3f64.sqrt() / last.sqrt(),
    };
    let seed = fnv1a64(name) ^ seed;
    let bytes = (0..shape.iter().product()).flat_map(|index| {
        let u = (splitmix64(seed, index) >> 40) as f64 / f64::from(1 << 23) - 1.0;
        bf16::from_f32(value(u) as f32).to_le_bytes()
    });
    bytes.collect()
}

/// Writes the checkpoint of a golden file.
fn write(golden: &Value, dir: &Path) {
    let put = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).expect("it writes");
    put("config.json", golden["config"].to_string().as_bytes());
    put("tokenizer.json", b"{}");
    let seed = golden["seed"].as_u64().expect("a seed");
    let around = golden["norm_weights_around"].as_f64().expect("a number");
    let name = golden["architecture"].as_str().expect("a name");
    // Gemma multiplies embeddings.
    let embeddings = if name.starts_with("gemma") { 0.1 } else { 1.0 };
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape) in golden["tensors"].as_object().expect("tensors") {
        let shape: Vec<u64> = serde_json::from_value(shape.clone()).expect("a shape");
        let start = data.len();
        data.extend(tensor(name, &shape, seed, around, embeddings));
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    put("model.safetensors", &file);
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("token ids")
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
    let all = logits.iter().map(|l| f64::from(l - most) - sum.ln());
    all.collect()
}

fn best(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.expect("logits") as u32
}

/// Families that GPUs refuse.
const ON_CPU_ALONE: [&str; 2] = ["apertus", "olmo_hybrid"];

/// The longest of the golden prompts, with its answer.
const CONTEXT: usize = 320;

/// Whether the device does not compute a model, of a family that is known for it.
fn is_refused(device: &Device, model: &LoadedModel) -> bool {
    let computes = model.spec.refuse_beyond("a GPU", &Feature::ON_GPU);
    let (Device::Cuda(_), Err(refused)) = (device, computes) else {
        return false;
    };
    let name = model.family.name;
    assert!(ON_CPU_ALONE.contains(&name), "{name}: {refused}");
    true
}

/// `None` if a GPU is asked for a model that it does not compute, which it then refuses by name.
fn sequence(device: &Device, model: &LoadedModel) -> Option<Sequence> {
    let pool = ebb_serving::pool(model, 64 << 20, false).expect("a pool");
    let steps = StepSizes {
        rows: CONTEXT,
        seqs: 1,
        states: 1,
        context: CONTEXT,
        logit_rows: CONTEXT,
        decode_rows: 1,
        batch_invariant: false,
    };
    let options = BackendOptions {
        device: device.clone(),
        steps,
        ..BackendOptions::cpu(2)
    };
    let started = options.start(model, pool.frames);
    if is_refused(device, model) {
        let refused = started.err().expect("a refusal").to_string();
        assert!(refused.contains("does not compute"), "{refused}");
        return None;
    }
    let backend = started.expect("it loads");
    Some(Sequence::new(
        backend,
        BlockManager::new(pool).expect("blocks"),
    ))
}

/// Models whose answers a cache of bf16 alone moves beyond the bound. Granite-MoE's attention is
/// not scaled down, so that weights harsh as these make it as good as a choice; Phi-MoE's router
/// leaves out all but the best wherever scores are a hundredth apart (0.16 on average). By their
/// definition they are checked.
const BEYOND_BF16: [&str; 2] = ["granitemoe", "phimoe"];

/// Models that activations of bf16 move further on a GPU than others with experts. A float64 model
/// of the GPU's roundings gives the H100's figures (0.2015 in all, 0.2010 for the prompt of 9
/// tokens) and, with the exact run's experts forced, 0.050. Of 2,316 decisions of its routers 191
/// differ from the exact run's; in Qwen3-MoE, which is within the bound, 33 do.
///
/// Gemma 4's scores are not divided by anything either: the reference by itself, with inputs and
/// outputs of its products, queries, keys and values rounded to bf16, is 0.10, 0.14 and 0.55 off
/// for prompts of 9, 40 and 300 tokens; with experts it is 0.24, 0.72 and 1.14 off, and a device
/// 0.27, 0.70 and 1.15. That the device computes what the CPU does is shown by its self test, with
/// milder weights.
const BEYOND_BF16_ON_GPU: [&str; 2] = ["gemma4_text", "gpt_oss"];

/// What a prompt is to be answered with. Some models have answers of a cache of bf16 in their file,
/// too: the reference's with keys and values rounded so. Gemma 4's scores are not divided by
/// anything, so that heads of 512 channels and harsh weights make that rounding 0.14 to 0.32 on
/// average; it has no error of its own to hide there.
fn wanted(prompt: &Value) -> &Value {
    prompt.get("bf16_cache").unwrap_or(prompt)
}

fn is_beyond_bf16(name: &str, device: &Device) -> bool {
    let name = name.split("__").next().unwrap_or(name);
    let on_gpu = matches!(device, Device::Cuda(_)) && BEYOND_BF16_ON_GPU.contains(&name);
    on_gpu || BEYOND_BF16.contains(&name)
}

/// By the model's definition nothing is rounded: what its layers are is checked here, of models
/// whose routers rounding turns around.
fn check_definition(model: &LoadedModel, prompt: &Value) {
    let tokens = ids(&prompt["ids"]);
    let mut oracle = oracle::Oracle::new(&model.spec, model.weights());
    oracle.rounds_cache = false;
    let wanted = prompt["logprobs"].as_array().expect("log-probabilities");
    let mut distances = 0.0;
    for (tokens, wanted) in tokens.windows(2).zip(wanted) {
        let logits: Vec<f32> = oracle.push(tokens[0]).iter().map(|x| *x as f32).collect();
        let got = log_softmax(&logits)[tokens[1] as usize];
        distances += (got - wanted.as_f64().expect("a number")).abs();
    }
    let mean = distances / wanted.len() as f64;
    assert!(
        mean < 1e-3,
        "{}: off by {mean} by its definition",
        model.name
    );
}

/// The one that `EBB_TEST_DEVICE` names.
fn device() -> Device {
    let device = std::env::var("EBB_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    Device::open(device.parse().expect("a device")).expect("the device opens")
}

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/models");
    let text = std::fs::read_to_string(path.join(format!("{name}.json"))).expect("golden data");
    serde_json::from_str(&text).expect("JSON")
}

fn check(name: &str) {
    let (device, golden) = (device(), golden(name));
    let dir = tempfile::tempdir().expect("a directory");
    write(&golden, dir.path());
    let files = ModelFiles::Directory(dir.path().to_owned());
    let mut of_all = (0.0, 0);
    for prompt in golden["prompts"].as_array().expect("prompts") {
        let mut model = LoadedModel::open(&files).expect("a valid checkpoint");
        let tokens = ids(&prompt["ids"]);
        // The reference's frequencies follow from the length of each prompt.
        model.limit_context(tokens.len() + 16);
        let vocab = model.spec.vocab;
        if has_experts(&golden) && tokens.len() < 50 && matches!(device, Device::Cpu) {
            check_definition(&model, prompt);
        }
        let Some(mut sequence) = sequence(&device, &model) else {
            println!("{name}: refused by the GPU");
            return;
        };
        let logits = sequence.feed(&tokens, Rows::All).expect("it runs").to_vec();
        let reference = wanted(prompt);
        let wanted = reference["logprobs"].as_array().expect("log-probabilities");
        assert_eq!(wanted.len(), tokens.len() - 1);
        let rows = logits.chunks_exact(vocab).zip(&tokens[1..]);
        let distances = rows.zip(wanted).map(|((row, token), wanted)| {
            let got = log_softmax(row)[*token as usize];
            (got - wanted.as_f64().expect("a number")).abs()
        });
        let sum = distances.sum::<f64>();
        let mean = sum / wanted.len() as f64;
        println!("{name}, {} tokens: {mean:.4}", tokens.len());
        if is_beyond_bf16(name, &device) {
            continue;
        }
        of_all = (of_all.0 + sum, of_all.1 + wanted.len());
        assert!(
            mean < bound(&device, &golden) || has_experts(&golden),
            "{name}: off by {mean} on average"
        );
        let mut last = logits[(tokens.len() - 1) * vocab..].to_vec();
        for step in reference["greedy_and_margin"]
            .as_array()
            .expect("greedy tokens")
        {
            if step[1].as_f64().expect("a margin") < margin(&golden) {
                break;
            }
            let token = step[0].as_u64().expect("a token") as u32;
            assert_eq!(best(&last), token, "{name}");
            last = sequence
                .feed(&[token], Rows::Last)
                .expect("it runs")
                .to_vec();
        }
    }
    let mean = of_all.0 / (of_all.1 as f64).max(1.0);
    println!("{name}, all: {mean:.4}");
    assert!(
        mean < bound(&device, &golden),
        "{name}: off by {mean} on average"
    );
}

macro_rules! golden_models {
    ($($name:ident),*
    $(; $variant:ident of $file:literal)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
        $(
            #[test]
            fn $variant() {
                check($file);
            }
        )*

        mod behind_the_engine {
            $(
                mod $name {
                    use crate::served::{Mode, check};

                    #[test]
                    fn served_by_preemption() {
                        check(stringify!($name), Mode::PreemptOnly);
                    }

                    #[test]
                    fn served_by_promises() {
                        check(stringify!($name), Mode::Progressive);
                    }
                }
            )*
        }

        #[test]
        fn every_family_has_a_golden_model() {
            let names = [$(stringify!($name)),*];
            for family in FAMILIES {
                assert!(names.contains(&family.name), "{family}");
            }
        }
    };
}

golden_models!(
    afmoe, apertus, arcee, aria_text, bamba, cohere, cohere2, cohere2_moe, cwm, dots1, ernie4_5,
    ernie4_5_moe, exaone4, exaone_moe, flex_olmo, gemma, gemma2, gemma3_text, gemma4_text, glm,
    glm4, glm4_moe, gpt_oss, granite, granite_swa, granitemoe, granitemoe_swa, granitemoehybrid,
    granitemoeshared, helium, hunyuan_v1_dense, hunyuan_v1_moe, hy_v3, hyperclovax, jais2, laguna,
    lfm2, lfm2_moe, llama, llama4_text, mellum, minimax_m2, ministral, ministral3, mistral, mixtral,
    nanochat, nemotron, nemotron_h, olmo, olmo2, olmo3, olmo_hybrid, olmoe, phi, phi3, phimoe,
    qwen2, qwen2_moe, qwen3, qwen3_5_moe_text, qwen3_5_text, qwen3_moe, qwen3_next,
    qwen3_vl_moe_text, qwen3_vl_text, seed_oss, smollm3, solar_open, stablelm, starcoder2,
    vaultgemma;
    heads_of_96_channels of "llama__d96";
    heads_of_256_channels of "gemma3_text__d256";
    layers_that_share_keys_and_values of "gemma4_text__shared";
    experts_beside_a_dense_mlp of "gemma4_text__experts";
    gemma_4_without_inputs_of_layers of "gemma4_text__unified";
    gates_of_softplus_for_each_channel of "laguna__elements";
    gated_heads_of_256_channels of "qwen3_5_text__d256";
    phi3_with_long_rope of "phi3__longrope";
    convolutions_between_attention of "lfm2__conv";
    experts_that_lie_by_rows of "qwen3_vl_moe_text__rows";
    granite_with_mamba of "granitemoehybrid__mamba";
    granite_with_experts_and_without_rope of "granitemoehybrid__experts";
    glm4_beside_vision of "glm4__vision";
    glm4_with_experts_beside_vision of "glm4_moe__vision";
    llama_4_beside_vision of "llama4_text__vision";
    delta_rule_between_attention_with_rope of "olmo_hybrid__rope"
);
