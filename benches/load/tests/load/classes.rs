//! Clients that cancel, that read slowly, and that converse.

use super::*;
use ebb_load::record::{CANCELLED, Class};

const PACED: Behaviour = Behaviour {
    gap: Duration::from_millis(1),
    places: 1 << 20,
};

#[tokio::test]
async fn those_who_cancel_have_as_many_tokens_as_planned() {
    let workload = "--output-tokens 20 --cancel 0.5 --seed 3";
    let drive = every(Duration::from_millis(2), 200);
    let (records, _) = load(PACED, workload, WIDE, drive, |_, _| {}).await;
    let planner = Workload::new(
        &workload_args(workload),
        None,
        &ebb_load::protocol::Target {
            max_context: 1 << 20,
            vocab_size: 50_000,
            ..Default::default()
        },
    );
    let mut cancelled = 0;
    for (number, record) in records.iter().enumerate() {
        let plan = planner.session(0, number as u64).unwrap();
        match plan.turns[0].cancel_after {
            Some(tokens) => {
                assert_eq!(
                    (record.class, record.outcome.as_str()),
                    (Class::Cancel, CANCELLED)
                );
                assert_eq!(record.output_tokens(), tokens);
                cancelled += 1;
            }
            None => assert!(record.ok() && record.output_tokens() == 20, "{record:?}"),
        }
    }
    assert!((70..130).contains(&cancelled), "{cancelled}");
}

#[tokio::test]
async fn slow_readers_pause_and_hold_up_nobody() {
    let workload = "--output-tokens 20 --slow 0.3 --slow-pause-ms 20";
    let drive = every(Duration::from_millis(10), 60);
    let (records, _) = load(PACED, workload, WIDE, drive, |_, _| {}).await;
    assert!(records.iter().all(Record::ok));
    let (slow, steady): (Vec<_>, Vec<_>) = records.iter().partition(|r| r.class == Class::Slow);
    assert!(slow.len() > 8 && steady.len() > 30);
    // 19 pauses between tokens.
    assert!(slow.iter().all(|r| r.e2e_us() >= 19 * 20_000));
    let mut times: Vec<u64> = steady.iter().map(|r| r.e2e_us()).collect();
    times.sort_unstable();
    assert!(times[times.len() / 2] < 200_000, "{times:?}");
}

#[tokio::test]
async fn a_conversation_goes_on_when_it_has_its_answer() {
    let workload = "--prompt-tokens 10 --output-tokens 5 --turns 3 --think 0.05 --prefix-tokens 7";
    let drive = every(Duration::from_millis(1), 4);
    let (records, _) = load(PACED, workload, WIDE, drive, |_, _| {}).await;
    assert_eq!(records.len(), 12, "sessions end after the last has begun");
    for turns in records.chunks(3) {
        let prompts: Vec<u32> = turns.iter().map(|r| r.prompt_tokens).collect();
        assert_eq!(prompts, [17, 32, 47]);
        for pair in turns.windows(2) {
            let thought = pair[1].intended_us - pair[0].end_us;
            assert!((50_000..60_000).contains(&thought), "{thought}");
        }
    }
}

#[tokio::test]
async fn refusals_are_counted_by_their_code_and_do_not_end_the_test() {
    let behaviour = Behaviour {
        gap: Duration::from_millis(10),
        places: 3,
    };
    let drive = every(Duration::from_millis(5), 100);
    let (records, _) = load(behaviour, "--output-tokens 10", WIDE, drive, |_, _| {}).await;
    let refused: Vec<_> = records
        .iter()
        .filter(|r| r.outcome == "RESOURCE_EXHAUSTED")
        .collect();
    let ok = records.iter().filter(|r| r.ok()).count();
    assert_eq!((records.len(), ok + refused.len()), (100, 100));
    // 3 places of some 110 ms each over 500 ms.
    assert!((6..=18).contains(&ok), "{ok}");
    assert!(
        refused
            .iter()
            .all(|r| r.message.as_deref() == Some("the queue is full"))
    );
}
