//! Tests end, and everything that was sent is accounted for.

use super::*;
use ebb_load::record::UNFINISHED;

/// 50 s for an answer of 100 tokens.
const NEVER: Behaviour = Behaviour {
    gap: Duration::from_millis(500),
    places: 1 << 20,
};

#[tokio::test]
async fn a_closed_loop_keeps_its_clients_busy_and_ends_in_time() {
    let behaviour = Behaviour {
        gap: Duration::from_millis(2),
        ..Behaviour::default()
    };
    let drive = Drive::Closed {
        clients: 5,
        duration: Duration::from_millis(600),
    };
    let (records, span) = load(behaviour, "--output-tokens 10", WIDE, drive, |_, _| {}).await;
    assert!(records.iter().all(Record::ok));
    assert!(records.len() >= 40, "{}", records.len());
    assert!(
        records
            .iter()
            .all(|r| r.intended_us < 600_000 + span.begin_us)
    );
    assert!(span.end_us - span.begin_us < 1_500_000 && !span.cut_short);
    // Never more than five at once.
    for record in &records {
        let at = record.sent_us;
        let beside = records
            .iter()
            .filter(|r| r.sent_us <= at && at < r.end_us)
            .count();
        assert!(beside <= 5, "{beside}");
    }
}

#[tokio::test]
async fn the_number_of_sessions_is_bounded() {
    let limits = Limits {
        sessions: 7,
        ..WIDE
    };
    let drive = Drive::Closed {
        clients: 3,
        duration: Duration::from_secs(30),
    };
    let (records, _) = load(Behaviour::default(), "", limits, drive, |_, _| {}).await;
    assert_eq!(records.len(), 7);
}

#[tokio::test]
async fn what_does_not_end_is_given_up_and_recorded() {
    let limits = Limits {
        drain: Duration::from_millis(300),
        in_flight: 2,
        ..WIDE
    };
    let drive = every(Duration::from_millis(10), 5);
    let (records, span) = load(NEVER, "--output-tokens 100", limits, drive, |_, _| {}).await;
    assert_eq!(records.len(), 5, "also those that never got a place");
    assert!(records.iter().all(|r| r.outcome == UNFINISHED));
    assert!(span.end_us - span.begin_us < 1_000_000 && !span.cut_short);
}

#[tokio::test]
async fn the_tests_time_cuts_a_stage_short() {
    let limits = Limits {
        time: Duration::from_millis(300),
        ..WIDE
    };
    let drive = every(Duration::from_millis(10), 1000);
    let (records, span) = load(
        Behaviour::default(),
        "--output-tokens 3",
        limits,
        drive,
        |_, _| {},
    )
    .await;
    assert!(span.cut_short);
    assert!(span.end_us < 600_000, "{span:?}");
    assert!((10..60).contains(&records.len()), "{}", records.len());
}

#[tokio::test]
async fn what_does_not_fit_is_counted_and_not_sent() {
    let drive = every(Duration::ZERO, 4);
    let long = "--prompt-tokens 1048570 --output-tokens 100";
    let (records, span) = load(Behaviour::default(), long, WIDE, drive, |_, _| {}).await;
    assert_eq!((records.len(), span.unfit), (0, 4));
}
