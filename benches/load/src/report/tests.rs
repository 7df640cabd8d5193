use super::*;
use crate::drive::{Drive, Span, Stage};
use crate::protocol::Target;
use crate::record::tests::record;
use crate::summary::{Figures, Slo};

fn summary(records: &[Record], stages: usize) -> Summary {
    let slo = Slo {
        ttft_ms: 100.0,
        itl_ms: 20.0,
    };
    let figures = |index: usize| {
        let stage = Stage {
            label: format!("{index} clients"),
            load: index as f64 + 1.0,
            drive: Drive::Open { times: Vec::new() },
        };
        let span = Span {
            begin_us: 0,
            end_us: 1_000_000,
            unfit: 2,
            cut_short: true,
        };
        let of: Vec<&Record> = records.iter().filter(|r| r.stage == index).collect();
        Figures::of(&stage, &span, &of, &slo)
    };
    Summary {
        title: "<script>alert(1)</script>".into(),
        version: "0".into(),
        command: "ebb-load open --title '<b>'".into(),
        started: "2026-01-01T00:00:00Z".into(),
        target: Target {
            model: "a & b".into(),
            ..Target::default()
        },
        slo,
        stages: (0..stages).map(figures).collect(),
    }
}

fn page(summary: &Summary, records: &[Record]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    write(&path, summary, records).unwrap();
    std::fs::read_to_string(&path).unwrap()
}

fn records() -> Vec<Record> {
    let mut records: Vec<Record> = (0..40)
        .map(|i| record(i * 10, &[i * 10 + 30, i * 11 + 55]))
        .collect();
    for (index, record) in records.iter_mut().enumerate() {
        record.stage = index % 2;
    }
    records[7].outcome = "RESOURCE_EXHAUSTED".into();
    records
}

#[test]
fn a_page_has_its_plots_and_fetches_nothing() {
    let records = records();
    let html = page(&summary(&records, 2), &records);
    // Six over load, and six for each stage.
    assert_eq!(html.matches("<svg").count(), 18);
    for outside in [
        "http://", "https://", "src=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("1 RESOURCE_EXHAUSTED"));
    assert!(!html.contains("NaN"));
}

#[test]
fn what_users_wrote_is_text() {
    let html = page(&summary(&[], 1), &[]);
    assert!(html.contains("&lt;script&gt;") && html.contains("a &amp; b"));
    assert!(!html.contains("<b>'"));
}

#[test]
fn a_stage_without_answers_still_has_a_page() {
    let html = page(&summary(&[], 3), &[]);
    assert!(html.contains("0 requests") && !html.contains("NaN") && !html.contains("inf "));
}
