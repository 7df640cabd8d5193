//! Engines on an emulated GPU: what `--device cuda` does, without one.

use ebb_models::model::LoadFormat;
use ebb_scheduler::Mode;
use ebb_serving::EngineConfig;
use ebb_serving::core::{EngineHandle, Prompt, Request, StreamEvent};
use ebb_serving::device::{Device, DeviceChoice};
use ebb_serving::kv_plan::KvSource;
use ebb_serving::sampling::SamplingOptions;
use serde_json::json;

/// A directory with the configuration of a tiny model that the CUDA kernels can run.
fn model() -> tempfile::TempDir {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 192,
        "vocab_size": 300, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    });
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
    dir
}

fn config(dir: &tempfile::TempDir, device: DeviceChoice) -> EngineConfig {
    EngineConfig {
        load_format: LoadFormat::Dummy,
        device: Device::open(device).expect("the device"),
        max_context: Some(300),
        max_running: 4,
        max_step_tokens: 64,
        threads: 1,
        ..EngineConfig::new(dir.path().to_str().expect("UTF-8"), 16 << 20)
    }
}

fn greedy(engine: &EngineHandle, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let params = SamplingOptions {
        temperature: 0.0,
        max_tokens: Some(6),
        ..SamplingOptions::default()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut streams = Vec::new();
        for tokens in prompts {
            let request = Request::new(Prompt::Tokens(tokens.clone()), params.clone());
            streams.push(engine.generate(request).await.expect("accepted"));
        }
        let mut answers = Vec::new();
        for mut stream in streams {
            let mut tokens = Vec::new();
            while let Some(event) = stream.next().await {
                if let StreamEvent::Delta { token_ids, .. } = event.expect("an answer") {
                    tokens.extend(token_ids);
                }
            }
            answers.push(tokens);
        }
        answers
    })
}

fn prompts(lengths: [u32; 3]) -> Vec<Vec<u32>> {
    lengths
        .map(|len| (0..len).map(|i| (i * 37 + len) % 300).collect())
        .into()
}

/// The first token of each answer.
fn firsts(answers: &[Vec<u32>]) -> Vec<u32> {
    answers.iter().map(|a| a[0]).collect()
}

#[test]
fn an_engine_on_a_gpu_answers_as_one_on_the_cpu() {
    let dir = model();
    let prompts = prompts([3, 150, 70]);
    let start = |device| ebb_serving::start(config(&dir, device)).expect("it starts");
    let gpu = start(DeviceChoice::Cuda(0));
    assert!(gpu.model().device.starts_with("CUDA emulator"));
    assert_eq!(gpu.state().kv.mode, "progressive");
    let cpu = start(DeviceChoice::Cpu);
    assert_eq!(cpu.state().kv.mode, "progressive");
    let (got, expected) = (greedy(&gpu, &prompts), greedy(&cpu, &prompts));
    assert_eq!(got.len(), 3);
    assert!(got.iter().all(|tokens| tokens.len() == 6));
    // The same weights; activations are rounded to bf16 on one and not on the other, so near ties
    // may fall apart.
    assert_eq!(firsts(&got), firsts(&expected));
}

#[test]
fn auto_takes_the_gpu() {
    let device = Device::open(DeviceChoice::Auto).expect("a device");
    assert!(matches!(device, Device::Cuda(_)));
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let error = Device::open(DeviceChoice::Cuda(7)).expect_err("there is one");
    assert!(
        error.to_string().starts_with("--device cuda:7: "),
        "{error}"
    );
}

#[test]
fn a_cache_that_shrinks_answers_as_one_on_the_cpu() {
    let dir = model();
    // None of them ends near a tie.
    let prompts = prompts([260, 150, 280]);
    let start = |device, mode| {
        let mut config = config(&dir, device);
        config.kv_mode = Some(mode);
        // Fine enough that an activation rounded otherwise moves no token far.
        config.kv_source = KvSource::Floor("k=int8,v=int8".parse().expect("a floor"));
        // So that prompts read blocks that have gone to their place.
        config.static_chunk = Some(128);
        ebb_serving::start(config).expect("it starts")
    };
    // Every full block goes to the end of the shrink order before anything reads it, here as there.
    let gpu = start(DeviceChoice::Cuda(0), Mode::Static);
    assert_eq!(gpu.state().kv.mode, "static");
    let cpu = start(DeviceChoice::Cpu, Mode::Static);
    let (got, expected) = (greedy(&gpu, &prompts), greedy(&cpu, &prompts));
    assert!(got.iter().all(|tokens| tokens.len() == 6));
    assert!(gpu.state().kv.shrunk_bytes > 0);
    assert_eq!(firsts(&got), firsts(&expected));
}

/// PolarQuant's keys, which decode attention reads in place as its code has them and in scratch as
/// its paper does, and PM-KVQ's per token, in scratch.
#[test]
fn the_papers_static_modes_answer_as_on_the_cpu() {
    let dir = model();
    // Of any format's a tenth end near a tie; that others agree by chance is one in 300 for each.
    let prompts: Vec<Vec<u32>> = (0..12_u32)
        .map(|p| (0..200 + 6 * p).map(|i| (i * 31 + p * 7) % 300).collect())
        .collect();
    for spec in [
        "k=polar44,protect=f16,sink=0,recent=0",
        "k=polar42g64,protect=f16,sink=0,recent=0",
        "k=int4t,v=int4,protect=f16,recent=0",
    ] {
        let start = |device| {
            let mut config = config(&dir, device);
            config.kv_mode = Some(Mode::Static);
            config.kv_source = KvSource::Floor(spec.parse().expect("a floor"));
            config.static_chunk = Some(128);
            ebb_serving::start(config).expect("it starts")
        };
        let (gpu, cpu) = (start(DeviceChoice::Cuda(0)), start(DeviceChoice::Cpu));
        let (got, expected) = (greedy(&gpu, &prompts), greedy(&cpu, &prompts));
        assert!(got.iter().all(|tokens| tokens.len() == 6));
        assert!(gpu.state().kv.shrunk_bytes > 0);
        let (got, expected) = (firsts(&got), firsts(&expected));
        let alike = got.iter().zip(&expected).filter(|(a, b)| a == b).count();
        assert!(alike >= 9, "{spec}: {got:?}, on the CPU {expected:?}");
    }
}

#[test]
fn a_cache_in_need_of_memory_shrinks() {
    let dir = model();
    let mut config = config(&dir, DeviceChoice::Cuda(0));
    config.kv_mode = Some(Mode::Progressive);
    // Less than four prompts take at 16 bit, scratch included.
    config.kv_memory_bytes = Some(1_100_000);
    let engine = ebb_serving::start(config).expect("it starts");
    let prompts: Vec<Vec<u32>> = (0..4)
        .map(|p| (0..270).map(|i| (i * 31 + p * 7) % 300).collect())
        .collect();
    let got = greedy(&engine, &prompts);
    assert!(got.iter().all(|tokens| tokens.len() == 6));
    let state = engine.state();
    assert!(
        state.kv.shrinks_live + state.kv.shrinks_cached > 0 && state.kv.shrink_failures == 0,
        "{:?}",
        state.kv
    );
}

#[test]
fn without_kv_memory_the_cache_gets_what_is_left() {
    let dir = model();
    let mut config = config(&dir, DeviceChoice::Cuda(0));
    config.kv_memory_bytes = None;
    config.gpu_memory_utilization = 0.2;
    let engine = ebb_serving::start(config.clone()).expect("it starts");
    let bytes = engine.state().kv_bytes_total;
    assert!((200 << 20..308 << 20).contains(&bytes), "{bytes}");

    config.gpu_memory_utilization = 0.1;
    let error = ebb_serving::start(config.clone()).err().expect("refused");
    let sentence = error.to_string();
    for part in [
        "--gpu-memory-utilization",
        "weights",
        "reserve",
        "GiB short",
    ] {
        assert!(sentence.contains(part), "{sentence}");
    }
    config.kv_memory_bytes = Some(5 << 30);
    let error = ebb_serving::start(config).err().expect("refused");
    assert!(
        error.to_string().contains("--kv-memory asks for 5.00 GiB"),
        "{error}"
    );
}
