use super::*;
use crate::drive::Drive;
use crate::record::tests::record;

fn figures(records: &[Record]) -> Figures {
    let stage = Stage {
        label: "test".into(),
        load: 1.0,
        drive: Drive::Open { times: Vec::new() },
    };
    let span = Span {
        begin_us: 0,
        end_us: 9_000_000,
        unfit: 0,
        cut_short: false,
    };
    let slo = Slo {
        ttft_ms: 100.0,
        itl_ms: 20.0,
    };
    Figures::of(&stage, &span, &records.iter().collect::<Vec<_>>(), &slo)
}

fn near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= 0.001 * expected,
        "{found} is not {expected}"
    );
}

#[test]
fn rates_are_over_the_time_to_the_last_answer() {
    let f = figures(&[record(0, &[50, 60, 70]), record(0, &[100, 1000, 2000])]);
    near(f.seconds, 2.0);
    near(f.requests_per_second, 1.0);
    near(f.output_tokens_per_second, 3.0);
    near(f.input_tokens_per_second, 10.0);
    // The second is too slow between tokens.
    near(f.goodput, 0.5);
    near(f.good_tokens_per_second, 1.5);
    near(f.good_share, 0.5);
    near(f.ttft_ms.unwrap().max, 100.0);
    near(f.e2e_ms.unwrap().p50, 70.0);
}

#[test]
fn both_targets_are_met_at_their_bounds() {
    let slo = |ttft_ms, itl_ms| Slo { ttft_ms, itl_ms };
    let answer = record(0, &[100, 110, 140]);
    assert!(slo(100.0, 20.0).met(&answer));
    assert!(!slo(99.9, 20.0).met(&answer));
    assert!(!slo(100.0, 19.9).met(&answer));
    assert!(slo(100.0, 0.0).met(&record(0, &[100])));
}

#[test]
fn latencies_are_of_steady_complete_answers_alone() {
    let mut slow = record(0, &[500, 900]);
    slow.class = Class::Slow;
    let mut cancelled = record(0, &[700]);
    (cancelled.class, cancelled.outcome) = (Class::Cancel, CANCELLED.into());
    let mut refused = record(0, &[]);
    (refused.outcome, refused.end_us) = ("RESOURCE_EXHAUSTED".into(), 3000);
    let f = figures(&[record(0, &[10, 20]), slow, cancelled, refused]);
    assert_eq!((f.ttft_ms.unwrap().count, f.itl_ms.unwrap().count), (1, 1));
    near(f.refusal_ms.unwrap().max, 3.0);
    assert_eq!(f.failed_share, 0.25);
    assert_eq!(f.good_share, 0.5, "one of the two steady requests");
    assert_eq!(f.outcomes["OK"], 2);
    assert_eq!(f.classes["cancel"][CANCELLED], 1);
    // All tokens count as received.
    near(f.output_tokens_per_second, 5.0 / 0.9);
}

#[test]
fn kv_bits_are_weighted_by_tokens() {
    let mut low = record(0, &[1, 2, 3]);
    (low.lowest_kv_bits, low.mean_kv_bits) = (Some(2), Some(4.0));
    let f = figures(&[record(0, &[1]), low]);
    assert_eq!(f.lowest_kv_bits, Some(2));
    near(f.mean_kv_bits.unwrap(), 7.0);
}

#[test]
fn nothing_gives_no_figures_and_no_nan() {
    let f = figures(&[]);
    assert_eq!((f.requests, f.ttft_ms, f.mean_kv_bits), (0, None, None));
    assert!(
        !serde_json::to_string(&f)
            .unwrap()
            .contains("null,\"goodput\":null")
    );
    assert_eq!((f.goodput, f.failed_share, f.good_share), (0.0, 0.0, 0.0));
}
