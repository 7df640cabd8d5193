//! Logs that cannot be used are refused with a sentence.

use ebb_serving::device::DeviceChoice;
use serde_json::{Value, json};

use crate::bench::{Bench, ask, prompt, sampling};

fn logged() -> Bench {
    let bench = Bench::new();
    let engine = ebb_serving::start(bench.config(DeviceChoice::Cpu, 4 << 20)).expect("it starts");
    ask(&engine, vec![(prompt(0, 140), sampling(1, 5))]);
    bench
}

#[test]
fn a_log_that_is_there_is_not_overwritten() {
    let bench = logged();
    let before = bench.lines();
    let again = ebb_serving::start(bench.config(DeviceChoice::Cpu, 4 << 20));
    let error = again.err().expect("refused").to_string();
    assert!(
        error.contains("--trajectory-log") && error.contains("not there yet"),
        "{error}"
    );
    assert_eq!(bench.lines(), before);
}

#[test]
fn damaged_lines_are_named() {
    let bench = logged();
    let good = bench.lines();
    let refused = |lines: &[Value]| {
        bench.write(lines);
        let output = bench.replay("cpu", &[]);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(
            output.status.code() == Some(1) && !said.contains("panicked"),
            "{said}"
        );
        said
    };
    let changed = |line: usize, field: &str, value: Value| {
        let mut lines = good.clone();
        lines[line][field] = value;
        refused(&lines)
    };
    for (field, value, words) in [
        ("prompt", json!([1, 2, 300]), "no token 300"),
        ("prompt", json!([]), "is empty"),
        ("tokens", json!([]), "is empty"),
        ("logprobs", json!([0.5]), "log-probabilities"),
        ("earlier", json!(6), "more tokens than there are"),
        ("steps", json!([[0, 1]]), "has no tokens"),
        ("steps", json!([[140, 1]]), "140 tokens of 144"),
        (
            "steps",
            json!([[u32::MAX, u32::MAX], [u32::MAX, u32::MAX]]),
            "",
        ),
        ("moves", json!([[130, 0, 60000]]), "level 60000"),
        ("moves", json!([[127, 0, 1]]), "not full yet"),
        ("moves", json!([[141, 0, 1], [140, 0, 2]]), "not in order"),
        ("moves", json!([[140, 0, 2], [141, 0, 1]]), "no way down"),
        ("request", json!(7), "line 2"),
        ("what", json!(7), "what"),
    ] {
        let mut lines = good.clone();
        lines[1][field] = value.clone();
        if words.is_empty() {
            // More steps than tokens: whoever had computed on behind the end.
            bench.write(&lines);
            assert!(bench.replay("cpu", &[]).status.success());
        } else {
            let said = refused(&lines);
            assert!(said.contains(words), "{field} {value}: {said}");
        }
    }
    assert!(changed(0, "ebb_trajectories", json!(9)).contains("version 9"));
    assert!(
        changed(0, "positions", json!([["int8"]])).contains("1 page formats, the model 4 pages")
    );
    assert!(changed(0, "positions", json!([["int8", "int8", "int7", "int8"]])).contains("int7"));
    let mut other = good[0]["model"].clone();
    other["weights"] = json!("random-5");
    assert!(changed(0, "model", other).contains("weights"));
    assert!(refused(&[]).contains("the file is empty"));
    assert!(refused(&good[..1]).contains("no such answer"));
    bench.write(&good);
    for spec in ["k=int8,v=int8,rotate=v", "k=int8,v=int8,rotate=k"] {
        let output = bench.replay("cpu", &["--kv", spec]);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(said.contains("must rotate the same"), "{said}");
    }
}

#[test]
fn lines_that_cannot_be_used_are_skipped_and_named() {
    let bench = logged();
    let good = bench.lines();
    // It lost its memory and was cancelled before it had any again.
    let mut lost = good[1].clone();
    for (field, value) in [
        ("request", json!("lost")),
        ("end", json!("cancelled")),
        ("earlier", json!(5)),
        ("steps", json!([])),
    ] {
        lost[field] = value;
    }
    // Or had computed half of it again.
    let mut half = lost.clone();
    half["steps"] = json!([[100, 1]]);
    let whole = good[1].to_string();
    let mut text = format!("{}\n{lost}\n{half}\n", good[0]).into_bytes();
    text.extend_from_slice(&whole.as_bytes()[..40]);
    text.extend_from_slice(b"\n\n\xff\xfe\0\n");
    text.extend_from_slice(format!("{whole}\n{}", &whole[..whole.len() - 1]).as_bytes());
    std::fs::write(bench.log(), text).expect("write");
    let output = bench.replay("cpu", &["--json"]);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{said}");
    for line in [2, 3, 4, 6, 8] {
        assert!(said.contains(&format!("line {line},")), "{line}: {said}");
    }
    assert_eq!(said.matches("skipped").count(), 5, "{said}");
    assert_eq!(
        said.matches("choice 0 of lost lost its memory and ended (cancelled)")
            .count(),
        2
    );
    let answers = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(answers.lines().count(), 1, "{answers}");
    let answer: Value = serde_json::from_str(&answers).expect("JSON");
    assert_eq!(answer["same"], true);
}
