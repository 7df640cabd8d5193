//! `ebb-bench` with an engine on the CPU: a model of random weights that is small enough for a
//! test.

use std::path::{Path, PathBuf};
use std::process::Command;

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "torch_dtype": "bfloat16",
  "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_hidden_layers": 2,
  "num_key_value_heads": 2,
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "vocab_size": 512,
  "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1
}"#;

/// A folder of its own with the model in it.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ebb-bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), CONFIG).unwrap();
    folder
}

/// Standard output of a subcommand that succeeds.
fn ebb_bench(folder: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ebb-bench"))
        .args(args)
        .args(["--device", "cpu", "--threads", "1", "--kv-memory", "8MiB"])
        .arg("--model")
        .arg(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Rows of a CSV by the names of their columns.
fn rows(csv: &str) -> Vec<impl Fn(&str) -> String + use<>> {
    let mut lines = csv.lines();
    let header: Vec<String> = lines.next().unwrap().split(',').map(Into::into).collect();
    let row = |line: &str| {
        let cells: Vec<String> = line.split(',').map(Into::into).collect();
        assert_eq!(cells.len(), header.len(), "{line}");
        let header = header.clone();
        move |name: &str| cells[header.iter().position(|h| h == name).unwrap()].clone()
    };
    lines.map(row).collect()
}

#[test]
fn a_trace_is_answered_in_real_time() {
    let folder = folder("online");
    let (trace, timeline) = (folder.join("trace.csv"), folder.join("timeline.csv"));
    // As long as the trace's own rate is kept, the last one arrives after half a second; at twice
    // the rate after a quarter.
    let requests: String = (0..11).map(|i| format!("{},40,6\n", i * 50)).collect();
    std::fs::write(&trace, format!("arrival_ms,context,generated\n{requests}")).unwrap();
    let csv = ebb_bench(
        &folder,
        &[
            "online",
            "--trace",
            trace.to_str().unwrap(),
            "--rate",
            "20,40",
            "--ttft",
            "1000",
            "--tpot",
            "1000",
            "--timeline",
            timeline.to_str().unwrap(),
        ],
    );
    let measured = rows(&csv);
    assert_eq!(measured.len(), 2);
    for (row, rate) in measured.iter().zip(["20", "40"]) {
        assert_eq!(row("rate"), rate);
        assert_eq!((row("requests"), row("served")), ("11".into(), "11".into()));
        assert_eq!(
            (row("rejected"), row("attained")),
            ("0".into(), "1.0000".into())
        );
        assert_eq!(
            (row("preemptions"), row("mean_kv_bits")),
            ("0".into(), "16.00".into())
        );
        let seconds = 66.0 / row("out_tok_s").parse::<f64>().unwrap();
        let arrived = 10.0 / rate.parse::<f64>().unwrap();
        assert!(seconds >= 0.99 * arrived, "{seconds}");
    }
    let timeline = rows(&std::fs::read_to_string(&timeline).unwrap());
    for rate in ["20", "40"] {
        let mut of_rate = timeline.iter().filter(|row| row("rate") == rate);
        let last = of_rate.next_back().unwrap();
        // Each answer took six steps, and no step has more than one token of each.
        let steps: u64 = last("steps").parse().unwrap();
        assert!((6..=66).contains(&steps), "{steps}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn throughput_counts_every_token_and_sees_blocks_shrink() {
    let folder = folder("throughput");
    let timeline = folder.join("timeline.csv");
    // 1 KiB a token at 16 bit: 16 MiB of them in 8.
    let csv = ebb_bench(
        &folder,
        &[
            "throughput",
            "--workloads",
            "16x900/100",
            "--timeline",
            timeline.to_str().unwrap(),
        ],
    );
    let measured = rows(&csv);
    assert_eq!(measured.len(), 1);
    assert_eq!(
        (measured[0]("n"), measured[0]("preemptions")),
        ("16".into(), "0".into())
    );
    let timeline = rows(&std::fs::read_to_string(&timeline).unwrap());
    let number = |row: &dyn Fn(&str) -> String, name: &str| row(name).parse::<f64>().unwrap();
    for pair in timeline.windows(2) {
        for sum in [
            "at_s",
            "shrinks_live",
            "shrinks_cached",
            "shrunk_gib",
            "stalls",
        ] {
            assert!(number(&pair[0], sum) <= number(&pair[1], sum), "{sum}");
        }
    }
    let last = timeline.last().unwrap();
    assert!(number(last, "shrinks_live") > 0.0);
    // They were rewritten from 16 bit, 128 KiB each, or less.
    let shrinks = number(last, "shrinks_live") + number(last, "shrinks_cached");
    let shrunk = number(last, "shrunk_gib") * 8192.0;
    assert!(
        shrunk > 0.2 * shrinks && shrunk <= shrinks + 8.0,
        "{shrunk} of {shrinks}"
    );
    assert!(number(last, "stored_bits") < 16.0);
    std::fs::remove_dir_all(&folder).unwrap();
}
