use super::*;
use crate::protocol::Target;
use crate::record::tests::record;
use crate::summary::Slo;

/// One stage of one answer whose first token takes `ttft_ms`.
fn summary(label: &str, ttft_ms: u64) -> Summary {
    let slo = Slo {
        ttft_ms: 100.0,
        itl_ms: 20.0,
    };
    let answer = record(0, &[ttft_ms, ttft_ms + 10, 1000]);
    let stage = crate::drive::Stage {
        label: label.into(),
        load: 1.0,
        drive: crate::drive::Drive::Open { times: Vec::new() },
    };
    let span = crate::drive::Span {
        begin_us: 0,
        end_us: 1_000_000,
        unfit: 0,
        cut_short: false,
    };
    Summary {
        title: String::new(),
        version: String::new(),
        command: String::new(),
        started: String::new(),
        target: Target::default(),
        slo,
        stages: vec![Figures::of(&stage, &span, &[&answer], &slo)],
    }
}

fn verdict(all: &[Difference], figure: &str) -> Verdict {
    all.iter().find(|d| d.figure == figure).unwrap().verdict
}

#[test]
fn less_latency_is_better_and_more_is_worse() {
    let (slow, fast) = (summary("x", 80), summary("x", 40));
    let better = differences(&slow, &fast, 0.05);
    assert_eq!(verdict(&better, "TTFT p50, ms"), Verdict::Better);
    assert_eq!(verdict(&better, "output tokens/s"), Verdict::Same);
    let worse = differences(&fast, &slow, 0.05);
    assert_eq!(verdict(&worse, "TTFT p50, ms"), Verdict::Worse);
    let text = table(&fast, &slow, &worse);
    let line = text.lines().find(|line| line.contains("TTFT p50")).unwrap();
    assert!(line.contains("+100.") && line.ends_with("WORSE"), "{line}");
}

#[test]
fn more_bits_are_better() {
    let (mut a, mut b) = (summary("x", 50), summary("x", 50));
    a.stages[0].mean_kv_bits = Some(4.0);
    b.stages[0].mean_kv_bits = Some(8.0);
    assert_eq!(
        verdict(&differences(&a, &b, 0.05), "KV bits, mean"),
        Verdict::Better
    );
}

#[test]
fn noise_is_no_difference() {
    let all = differences(&summary("x", 80), &summary("x", 82), 0.05);
    assert!(all.iter().all(|d| d.verdict == Verdict::Same));
    assert_eq!(
        verdict(
            &differences(&summary("x", 80), &summary("x", 82), 0.01),
            "TTFT p50, ms"
        ),
        Verdict::Worse
    );
}

#[test]
fn stages_of_one_test_alone_are_named() {
    let (a, b) = (summary("x", 80), summary("y", 80));
    let all = differences(&a, &b, 0.05);
    assert!(all.is_empty());
    let text = table(&a, &b, &all);
    assert!(
        text.contains("only in A: x") && text.contains("only in B: y"),
        "{text}"
    );
}

#[test]
fn something_that_was_0_has_no_share() {
    let (a, mut b) = (summary("x", 80), summary("x", 80));
    b.stages[0].failed_share = 0.1;
    let all = differences(&a, &b, 0.05);
    assert_eq!(verdict(&all, "failed, share"), Verdict::Worse);
    assert!(table(&a, &b, &all).contains("from 0"));
}

#[test]
fn a_summary_is_read_back_as_written_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("summary.json");
    let written = summary("x", 50);
    std::fs::write(&path, serde_json::to_string(&written).unwrap()).unwrap();
    assert_eq!(read(folder.path()).unwrap(), written);
    std::fs::write(&path, "{}").unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(
        error.contains("summary.json") && error.contains("--out"),
        "{error}"
    );
    assert!(read(&folder.path().join("none")).is_err());
}
