//! A tiny model, an engine that logs, and the command that computes again.

use std::path::PathBuf;
use std::process::{Command, Output};

use ebb_models::model::LoadFormat;
use ebb_serving::EngineConfig;
use ebb_serving::core::{EngineHandle, Prompt, Request};
use ebb_serving::device::{Device, DeviceChoice};
use ebb_serving::sampling::SamplingOptions;
use serde_json::{Value, json};

pub(crate) const VOCAB: u32 = 300;

/// A tiny model of random weights that the CUDA kernels can run, too, and a place for logs.
pub(crate) struct Bench {
    model: tempfile::TempDir,
    logs: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "intermediate_size": 192,
            "vocab_size": VOCAB, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
        });
        let model = tempfile::tempdir().expect("a directory");
        std::fs::write(model.path().join("config.json"), config.to_string()).expect("write");
        let logs = tempfile::tempdir().expect("a directory");
        Self { model, logs }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.logs.path().join("log.jsonl")
    }

    /// An engine on this memory that logs.
    pub(crate) fn config(&self, device: DeviceChoice, kv_bytes: u64) -> EngineConfig {
        EngineConfig {
            load_format: LoadFormat::Dummy,
            device: Device::open(device).expect("the device"),
            max_context: Some(640),
            max_running: 6,
            max_step_tokens: 200,
            batch_invariant: true,
            trajectory_log: Some(self.log()),
            threads: 1,
            ..EngineConfig::new(self.model.path().to_str().expect("UTF-8"), kv_bytes)
        }
    }

    /// `ebb replay` of the log.
    pub(crate) fn replay(&self, device: &str, flags: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ebb"))
            .args([
                "replay",
                "--load-format",
                "dummy",
                "--threads",
                "2",
                "--device",
                device,
                "--model",
            ])
            .arg(self.model.path())
            .arg(self.log())
            .args(flags)
            .output()
            .expect("ebb runs")
    }

    /// Its lines, as JSON.
    pub(crate) fn replayed(&self, device: &str, flags: &[&str]) -> Vec<Value> {
        let output = self.replay(device, &[&["--json"], flags].concat());
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let all_same = lines.iter().all(|line| line["same"] != false);
        assert_eq!(
            output.status.success(),
            all_same && !lines.is_empty(),
            "{said}"
        );
        lines
    }

    /// The lines of the log.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log()).expect("a log");
        let parsed = text.lines().map(serde_json::from_str);
        parsed.map(|line| line.expect("JSON")).collect()
    }

    pub(crate) fn write(&self, lines: &[Value]) {
        let lines = lines.iter().map(|line| format!("{line}\n"));
        std::fs::write(self.log(), lines.collect::<String>()).expect("write");
    }
}

/// A prompt that no other begins like.
pub(crate) fn prompt(which: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| (i * 37 + which * 11 + i * i % 7) % VOCAB)
        .collect()
}

/// Sampled with every parameter that changes a sample, of requests that differ.
pub(crate) fn sampling(which: u32, max_tokens: u32) -> SamplingOptions {
    let base = SamplingOptions {
        max_tokens: Some(max_tokens),
        logprobs: Some(0),
        ignore_eos: true,
        ..SamplingOptions::default()
    };
    match which % 4 {
        0 => SamplingOptions {
            temperature: 0.0,
            ..base
        },
        1 => SamplingOptions {
            top_p: 0.9,
            frequency_penalty: 0.5,
            repetition_penalty: 1.2,
            ..base
        },
        2 => SamplingOptions {
            seed: Some(7),
            top_k: 40,
            logit_bias: vec![(5, 1.5)],
            n: 2,
            ..base
        },
        _ => SamplingOptions {
            min_p: 0.01,
            temperature: 1.3,
            logprobs: None,
            ..base
        },
    }
}

/// Asks all at once and waits for all answers; they must be whole.
pub(crate) fn ask(engine: &EngineHandle, asked: Vec<(Vec<u32>, SamplingOptions)>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut streams = Vec::new();
        for (index, (tokens, options)) in asked.into_iter().enumerate() {
            let request = Request {
                request_id: format!("r{index}"),
                ..Request::new(Prompt::Tokens(tokens), options)
            };
            streams.push(engine.generate(request).await.expect("accepted"));
        }
        for mut stream in streams {
            while let Some(event) = stream.next().await {
                event.expect("an answer");
            }
        }
    });
}
