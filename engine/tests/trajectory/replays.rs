//! What came out comes out again.

use ebb_kernels::weight_formats::Quantisation;
use ebb_scheduler::Mode;
use ebb_serving::EngineConfig;
use ebb_serving::core::{Prompt, Request};
use ebb_serving::device::DeviceChoice;
use serde_json::Value;

use crate::bench::{Bench, ask, prompt, sampling};

/// Bytes of a 16-bit block of the tiny model.
const BLOCK: u64 = 2 * 2 * 2 * 64 * 128 * 2;

/// Asks for more than the memory holds at 16 bit; returns the log's trajectories.
fn serve(bench: &Bench, device: DeviceChoice, requests: u32, tokens: u32) -> Vec<Value> {
    let config = bench.config(device, 13 * BLOCK);
    let engine = ebb_serving::start(config).expect("it starts");
    let one = |r: u32| (prompt(r, 150 + r * 67 % 200), sampling(r, tokens));
    ask(&engine, (0..requests).map(one).collect());
    let state = engine.state();
    assert!(
        state.kv.shrinks_live > 0 && state.preemptions == 0,
        "{state:?}"
    );
    bench.lines().split_off(1)
}

fn moves(trajectory: &Value) -> usize {
    trajectory["moves"].as_array().expect("moves").len()
}

#[test]
fn answers_of_a_cache_that_shrinks_come_out_again_to_the_bit() {
    let bench = Bench::new();
    let logged = serve(&bench, DeviceChoice::Cpu, 12, 120);
    // Every fourth request has two choices.
    assert_eq!(logged.len(), 15);
    assert!(
        logged
            .iter()
            .all(|t| t["tokens"].as_array().expect("tokens").len() == 120)
    );
    let shrunk: Vec<&Value> = logged.iter().filter(|t| moves(t) > 0).collect();
    assert!(shrunk.len() > 4, "{} of 15", shrunk.len());
    let replayed = bench.replayed("cpu", &["--kv", "k=int2,v=int2", "--bin", "50"]);
    assert_eq!(replayed.len(), 15);
    for (line, trajectory) in replayed.iter().zip(&logged) {
        assert_eq!(line["same"], true, "{line}");
        assert_eq!(line["moves"], moves(trajectory));
        let [own, beside] = &line["runs"].as_array().expect("runs")[..] else {
            panic!("{line}")
        };
        // Only what has shrunk costs anything, and what has gone further costs more.
        let kl = |run: &Value| run["kl"].as_f64().expect("a number");
        assert_eq!(kl(own) == 0.0, moves(trajectory) == 0, "{line}");
        assert!(kl(beside) > 0.0 && kl(beside) >= kl(own), "{line}");
        let bins = own["by_place"].as_array().expect("bins");
        let tokens: Vec<_> = bins.iter().map(|b| (&b["from"], &b["tokens"])).collect();
        assert_eq!(
            format!("{tokens:?}"),
            "[(Number(0), Number(50)), (Number(50), Number(50)), (Number(100), Number(20))]"
        );
    }
}

/// Packed and expanded weights round otherwise, so answers come out again as they were computed.
#[test]
fn answers_of_quantised_weights_come_out_again_held_as_they_were() {
    let packed = ["--quantization", "int4"];
    let exact = [&packed[..], &["--weights", "exact"]].concat();
    for expand_weights in [false, true] {
        let bench = Bench::new();
        let config = EngineConfig {
            quantization: Some(Quantisation::Int4),
            expand_weights,
            ..bench.config(DeviceChoice::Cpu, 13 * BLOCK)
        };
        let engine = ebb_serving::start(config).expect("it starts");
        let one = |r: u32| (prompt(r, 150), sampling(r, 60));
        ask(&engine, (0..4).map(one).collect());
        drop(engine);
        let (own, other) = match expand_weights {
            false => (&packed[..], &exact[..]),
            true => (&exact[..], &packed[..]),
        };
        let replayed = bench.replayed("cpu", own);
        assert_eq!(replayed.len(), 5);
        assert!(
            replayed.iter().all(|line| line["same"] == true),
            "{replayed:?}"
        );
        let refused = |flags: &[&str]| {
            let output = bench.replay("cpu", flags);
            assert_eq!(output.status.code(), Some(1));
            String::from_utf8(output.stderr).expect("UTF-8")
        };
        let said = refused(other);
        let advice = match expand_weights {
            false => "was logged without --weights exact; leave that out",
            true => "was logged with --weights exact; add that",
        };
        assert!(said.contains(advice), "{said}");
        // Without the flag they are other weights.
        assert!(refused(&own[2..]).contains("weights"));
    }
}

/// What the others show is worth nothing if a wrong trajectory went unnoticed.
#[test]
fn another_trajectory_gives_another_answer() {
    let bench = Bench::new();
    serve(&bench, DeviceChoice::Cpu, 8, 100);
    let mut lines = bench.lines();
    let told = |t: &Value| moves(t) > 0 && t["logprobs"].as_array().is_some_and(|l| !l.is_empty());
    let shrunk = lines
        .iter()
        .skip(1)
        .position(told)
        .expect("one that shrank")
        + 1;
    let other = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut line = lines[shrunk].clone();
        change(line["moves"].as_array_mut().expect("moves"));
        vec![lines[0].clone(), line]
    };
    let without = other(&|moves| moves.clear());
    let earlier = other(&|moves| {
        let first = &mut moves[0];
        let full = (first[1].as_u64().expect("a block") + 1) * 128;
        assert!(first[0].as_u64() > Some(full), "it moved at once: {first}");
        first[0] = full.into();
    });
    lines.clear();
    for changed in [without, earlier] {
        bench.write(&changed);
        let replayed = bench.replayed("cpu", &[]);
        assert_eq!(replayed[0]["same"], false, "{replayed:?}");
        assert!(
            replayed[0]["why"]
                .as_str()
                .expect("why")
                .starts_with("token ")
        );
        let said = String::from_utf8(bench.replay("cpu", &[]).stderr).expect("UTF-8");
        assert!(
            said.contains("1 of 1 answers did not come out again"),
            "{said}"
        );
    }
}

#[test]
fn what_was_thrown_out_and_computed_again_comes_out_from_there_on() {
    let bench = Bench::new();
    let mut config = bench.config(DeviceChoice::Cpu, 13 * BLOCK);
    config.kv_mode = Some(Mode::PreemptOnly);
    config.overcommit_percent = 300;
    let engine = ebb_serving::start(config).expect("it starts");
    let one = |r: u32| (prompt(r, 200), sampling(r, 250));
    ask(&engine, (0..6).map(one).collect());
    assert!(engine.state().preemptions > 0);
    let logged = bench.lines().split_off(1);
    assert!(
        logged.iter().any(|t| t["earlier"].as_u64() > Some(0)),
        "nobody was thrown out"
    );
    for line in bench.replayed("cpu", &[]) {
        assert_eq!(line["same"], true, "{line}");
    }
}

/// Six answers that run until one of them loses its memory; then every client leaves at once.
fn leave_when_one_is_thrown_out(bench: &Bench) -> Vec<Value> {
    let mut config = bench.config(DeviceChoice::Cpu, 13 * BLOCK);
    config.kv_mode = Some(Mode::PreemptOnly);
    config.overcommit_percent = 300;
    let engine = ebb_serving::start(config).expect("it starts");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut streams = Vec::new();
        for r in 0..6 {
            let request = Request::new(Prompt::Tokens(prompt(r, 200)), sampling(r, 250));
            streams.push(engine.generate(request).await.expect("accepted"));
        }
        while engine.state().preemptions == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
    drop(runtime);
    drop(engine);
    bench.lines().split_off(1)
}

#[test]
fn answers_that_were_thrown_out_and_then_cancelled_spoil_no_log() {
    let is_lost = |t: &&Value| {
        let number = |value: &Value| value.as_u64().expect("a number");
        let steps = t["steps"].as_array().expect("steps").iter();
        let told = steps.fold(number(&t["cached"]), |sum, step| {
            sum + number(&step[0]) * number(&step[1])
        });
        number(&t["earlier"]) > 0 && told < 200
    };
    // One that is thrown out may have been computed again before its client left.
    let (bench, logged, lost) = (0..20)
        .map(|_| {
            let bench = Bench::new();
            let logged = leave_when_one_is_thrown_out(&bench);
            let lost = logged.iter().filter(is_lost).count();
            (bench, logged, lost)
        })
        .find(|(.., lost)| *lost > 0)
        .expect("an answer that was thrown out and is not there again");
    assert!(lost < logged.len(), "{lost} of {}", logged.len());
    let replayed = bench.replayed("cpu", &[]);
    assert!(
        !replayed.is_empty() && replayed.len() <= logged.len() - lost,
        "{} of {} came out, {lost} were lost",
        replayed.len(),
        logged.len()
    );
    assert!(
        replayed.iter().all(|line| line["same"] == true),
        "{replayed:?}"
    );
}

#[test]
fn a_cached_beginning_comes_out_again_if_it_was_whole() {
    let bench = Bench::new();
    let whole = ebb_serving::start(bench.config(DeviceChoice::Cpu, 64 * BLOCK)).expect("it starts");
    for _ in 0..2 {
        ask(&whole, vec![(prompt(1, 400), sampling(1, 20))]);
    }
    let logged = bench.lines();
    let cached: Vec<_> = logged
        .iter()
        .skip(1)
        .map(|t| t["cached"].as_u64())
        .collect();
    assert!(cached[0] == Some(0) && cached[1] > Some(250), "{cached:?}");
    let replayed = bench.replayed("cpu", &["--request", "r0"]);
    assert!(
        replayed.len() == 2 && replayed.iter().all(|l| l["same"] == true),
        "{replayed:?}"
    );
    drop(whole);

    // Where the beginning had shrunk before it was read, the log of the second answer alone cannot
    // tell how it came about.
    let mut lines = logged;
    lines[2]["cached_bits"] = 4.into();
    bench.write(&lines);
    let replayed = bench.replayed("cpu", &[]);
    assert_eq!(
        (&replayed[0]["same"], &replayed[1]["same"]),
        (&true.into(), &Value::Null)
    );
    assert!(replayed[1]["why"].as_str().expect("why").contains("cached"));
}

#[test]
fn static_chunks_come_out_again() {
    let bench = Bench::new();
    let mut config = bench.config(DeviceChoice::Cpu, 32 * BLOCK);
    config.kv_mode = Some(Mode::Static);
    config.static_chunk = Some(256);
    let engine = ebb_serving::start(config).expect("it starts");
    ask(
        &engine,
        (0..4).map(|r| (prompt(r, 500), sampling(r, 60))).collect(),
    );
    let logged = bench.lines().split_off(1);
    assert!(logged.iter().all(|t| moves(t) > 0), "{logged:?}");
    let replayed = bench.replayed("cpu", &[]);
    assert!(replayed.iter().all(|l| l["same"] == true), "{replayed:?}");
}

/// On a GPU rows are computed together as they were: prompts by other kernels than answers.
#[cfg(feature = "cuda-emulator")]
#[test]
fn answers_of_a_gpu_come_out_again_to_the_bit() {
    let bench = Bench::new();
    let logged = serve(&bench, DeviceChoice::Cuda(0), 8, 70);
    assert!(logged.iter().any(|t| moves(t) > 0));
    let replayed = bench.replayed("cuda:0", &[]);
    assert_eq!(replayed.len(), logged.len());
    for line in replayed {
        assert_eq!(line["same"], true, "{line}");
    }
}
