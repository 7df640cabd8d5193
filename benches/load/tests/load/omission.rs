//! No coordinated omission: a second in which the server stands still is in the latencies of all
//! requests that were to be sent in it, however few could be.

use super::*;

const GAP: Duration = Duration::from_millis(5);
const STALL: (u64, u64) = (1_000_000, 2_000_000);

/// 3 s of 200 requests a second, of which the server sleeps through the second second.
async fn records(in_flight: usize) -> Vec<Record> {
    let limits = Limits { in_flight, ..WIDE };
    let workload = "--prompt-tokens 8 --output-tokens 2";
    let stall = |server: &InstantServer, begin: Instant| {
        server.stall(
            begin + Duration::from_micros(STALL.0),
            Duration::from_micros(STALL.1 - STALL.0),
        );
    };
    let (records, _) = load(
        Behaviour::default(),
        workload,
        limits,
        every(GAP, 600),
        stall,
    )
    .await;
    assert_eq!(records.len(), 600);
    assert!(records.iter().all(Record::ok));
    records
}

fn check(records: &[Record]) {
    let in_stall = records
        .iter()
        .filter(|r| (STALL.0..STALL.1).contains(&r.intended_us));
    let mut count = 0;
    for record in in_stall {
        let left = STALL.1 - record.intended_us;
        let ttft = record.ttft_us().unwrap();
        // The server's clock and the client's are one; timers go off a millisecond late at most,
        // never early.
        assert!(
            ttft + 2000 >= left,
            "sent {left} µs before the stall's end, answered after {ttft} µs"
        );
        count += 1;
    }
    assert!((199..=201).contains(&count), "{count}");
}

fn slow(records: &[Record], latency: impl Fn(&Record) -> u64) -> usize {
    records.iter().filter(|r| latency(r) > 500_000).count()
}

#[tokio::test]
async fn a_stall_is_in_every_latency_that_was_to_fall_in_it() {
    let records = records(4096).await;
    check(&records);
    // Half of the stall's requests had more than half of it before them.
    assert!((98..140).contains(&slow(&records, |r| r.ttft_us().unwrap())));
    let before = records.iter().filter(|r| r.end_us < STALL.0);
    let quick = before.clone().filter(|r| r.e2e_us() < 100_000).count();
    assert!(
        quick * 100 >= before.count() * 95,
        "it is the stall that is slow"
    );
}

#[tokio::test]
async fn also_where_requests_could_not_even_be_sent() {
    let records = records(4).await;
    check(&records);
    assert!(slow(&records, |r| r.ttft_us().unwrap()) >= 98);
    // Counted from when they were sent, the stall would have hit the few that were at the server.
    let naive = slow(&records, |r| r.first_us().unwrap() - r.sent_us);
    assert!(naive <= 8, "{naive}");
}
