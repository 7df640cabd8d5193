//! The simulator: its cost model by hand, and replays of small traces.

use ebb_benches::simulate::floor::AtFloor;
use ebb_benches::simulate::hardware::{H200, Hardware, Work, attended};
use ebb_benches::simulate::outcome::Outcome;
use ebb_benches::simulate::replay::replay;
use ebb_benches::simulate::search::highest_rate;
use ebb_benches::simulate::setup::{Setup, Targets};
use ebb_benches::simulate::shape::Shape;
use ebb_benches::simulate::size::Size;
use ebb_benches::simulate::trace::{Arrival, Trace};
use ebb_benches::simulate::{plot, report};
use ebb_scheduler::{Config, Mode};
use ebb_serving::kv_plan::DEFAULT_FLOOR;

const MODES: [Mode; 3] = [Mode::PreemptOnly, Mode::Static, Mode::Progressive];

/// Numbers to reckon with: 1 byte and 1 FLOP a second and an overhead of 1 s.
const SLOW: Hardware = Hardware {
    bandwidth: 2.0,
    bandwidth_efficiency: 0.5,
    flops: 4.0,
    flops_efficiency: 0.25,
    shrunk_efficiency: 0.5,
    overhead: 1.0,
};

fn setup(mode: Mode, kv_bytes: u64) -> Setup {
    Setup {
        shape: Shape::named("8b").unwrap(),
        hardware: H200,
        kv_bytes,
        floor: DEFAULT_FLOOR.parse().unwrap(),
        limits: Config {
            mode,
            max_waiting: 1 << 20,
            ..Config::default()
        },
        static_chunk: None,
        prefix_cache: true,
        max_tokens_factor: 1.0,
        targets: Targets {
            ttft: 2.0,
            tpot: 0.05,
        },
    }
}

fn trace(requests: &[(f64, u32, u32)]) -> Trace {
    let arrival = |&(at, prompt, generated)| Arrival {
        at,
        prompt,
        generated,
    };
    Trace::new(requests.iter().map(arrival).collect()).unwrap()
}

/// 60 requests at once, of 400 to 1,400 tokens.
fn crowd() -> Trace {
    let of = |i: u32| (0.001 * f64::from(i), 300 + i * 37 % 900, 100 + i * 13 % 150);
    trace(&(0..60).map(of).collect::<Vec<_>>())
}

#[test]
fn a_step_takes_what_the_formula_says() {
    let shape = Shape {
        row_parameters: 10.0,
        logit_parameters: 3.0,
        weight_bytes: 100.0,
        ..Shape::named("smollm2-135m").unwrap()
    };
    let work = Work {
        rows: 2,
        logit_rows: 1,
        attended: 0,
        kv_whole: 7,
        kv_shrunk: 5,
        kv_written: 4,
        shrink: 11,
    };
    // Products: 2 x 10 x 2 + 2 x 3, beside 100 bytes of weights; KV: 7 + 2 x 5 + 4.
    let both = |a: f64, b: f64| (a * a + b * b).sqrt();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} is not {b}");
    let time = SLOW.step_seconds(&shape, &work);
    near(time, both(100.0, 46.0) + 21.0 + 11.0 + 1.0);
    // Products: 2 x 10 x 7 + 2 x 3 = 146; attention: 4 x 30 layers x 9 heads x 64 x 3 tokens.
    let compute = Work {
        rows: 7,
        attended: 3,
        ..work
    };
    let attention = 4.0 * 30.0 * 9.0 * 64.0 * 3.0;
    let time = SLOW.step_seconds(&shape, &compute);
    near(
        time,
        both(100.0, 146.0) + both(21.0, attention) + 11.0 + 1.0,
    );
    // Shrinks alone read no weights.
    let shrinks = Work {
        shrink: 11,
        ..Work::default()
    };
    assert_eq!(SLOW.step_seconds(&shape, &shrinks), 12.0);
    // Three rows from position 10 on attend to 11, 12 and 13 tokens.
    assert_eq!(attended(10, 3), 36);
}

#[test]
fn one_request_takes_its_steps() {
    // A prompt of 20 tokens and three answers: steps of 20, 1 and 1 rows.
    let mut setup = setup(Mode::PreemptOnly, 64 << 20);
    let outcome = replay(&setup, &trace(&[(5.0, 20, 3)]), None).unwrap();
    // That one is planned while another runs makes none of them shorter.
    setup.limits.max_in_flight = 2;
    let planned_ahead = replay(&setup, &trace(&[(5.0, 20, 3)]), None).unwrap();
    assert_eq!(planned_ahead.seconds, outcome.seconds);
    assert_eq!(planned_ahead.steps, outcome.steps);
    let token = setup.shape.geometry.token_bytes() as u64;
    assert_eq!(token, 32 * 8 * 128 * 2 * 2);
    let step = |position: u64, rows: u64| {
        let work = Work {
            rows,
            logit_rows: 1,
            attended: attended(position, rows),
            kv_whole: (position + rows) * token,
            kv_written: rows * token,
            ..Work::default()
        };
        H200.step_seconds(&setup.shape, &work)
    };
    let (first, second, third) = (step(0, 20), step(20, 1), step(21, 1));
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b, "{a} is not {b}");
    near(outcome.ttft_p50, first);
    near(outcome.tpot_p50, (second + third) / 2.0);
    near(outcome.seconds, 5.0 + first + second + third);
    near(outcome.resident_mean, 1.0);
    assert_eq!((outcome.steps, outcome.served, outcome.good), (3, 1, 1));
    near(outcome.bits_stored, 16.0);
    near(outcome.bits_read, 16.0);
    assert_eq!((outcome.resident_max, outcome.preemptions), (1, 0));
    // 20, 21 and 22 tokens lie in 32 that have memory.
    let (held, used) = (
        32.0 * (first + second + third),
        20.0 * first + 21.0 * second + 22.0 * third,
    );
    near(outcome.fragmentation, held / used - 1.0);
}

#[test]
fn everybody_is_served_once_in_every_mode() {
    let trace = crowd();
    let tokens: u32 = trace.iter().map(|request| request.generated).sum();
    for mode in MODES {
        for (factor, max_in_flight) in [(1.0, 1), (1.7, 1), (1.0, 2), (1.7, 2)] {
            let mut setup = setup(mode, 1 << 30);
            setup.max_tokens_factor = factor;
            setup.limits.max_in_flight = max_in_flight;
            // Replays end with every request answered in full and nothing left, or panic.
            let outcome = replay(&setup, &trace, None).unwrap();
            assert_eq!((outcome.served, outcome.rejected), (60, 0));
            let sum = outcome.output_tokens_per_second * outcome.seconds;
            assert_eq!(sum.round(), f64::from(tokens));
            assert!((2.5..16.001).contains(&outcome.bits_stored));
            assert!(outcome.pool_used <= 1.0 && outcome.fragmentation >= 0.0);
        }
    }
}

#[test]
fn progressive_holds_more_and_preempts_nobody() {
    let of = |mode| replay(&setup(mode, 1 << 30), &crowd(), None).unwrap();
    let [preempt, _, progressive] = MODES.map(of);
    assert!(preempt.preemptions > 0 && preempt.preempted_tokens > 0);
    assert_eq!(progressive.preemptions, 0);
    assert!(progressive.shrinks > 0 && progressive.bits_stored < 16.0);
    assert!(
        progressive.resident_mean > preempt.resident_mean,
        "{} against {}",
        progressive.resident_mean,
        preempt.resident_mean
    );
}

/// Those that end leave blocks in the prefix cache, at their floor. Others grow into the pool up to
/// what has to stay free for shrinks: if shrinks could not be written to what is left of the cached
/// blocks, hardly anything would shrink and everybody would wait.
#[test]
fn what_others_left_in_the_prefix_cache_keeps_nobody_waiting() {
    let trace = trace(&[(0.0, 256, 2048); 100]);
    let mut setup = setup(Mode::Progressive, 4 << 30);
    setup.limits.max_in_flight = 2;
    let cached = replay(&setup, &trace, None).unwrap();
    setup.prefix_cache = false;
    let freed = replay(&setup, &trace, None).unwrap();
    // They come in two waves.
    assert!(cached.resident_max > 50 && cached.resident_max < 100);
    assert!(cached.steps <= 2 * 2048 + 50, "{} steps", cached.steps);
    let slower = cached.seconds / freed.seconds;
    assert!(slower < 1.01, "{slower}");
}

#[test]
fn where_memory_is_ample_nothing_shrinks() {
    let ample = replay(&setup(Mode::Progressive, 8 << 30), &crowd(), None).unwrap();
    let whole = replay(&setup(Mode::PreemptOnly, 8 << 30), &crowd(), None).unwrap();
    assert_eq!(ample.shrinks, 0);
    assert_eq!(ample.seconds, whole.seconds);
}

#[test]
fn equal_inputs_give_equal_figures() {
    for mode in MODES {
        let of = || replay(&setup(mode, 1 << 30), &crowd(), None).unwrap();
        assert_eq!(of().without_host(), of().without_host());
    }
}

#[test]
fn what_cannot_be_served_is_counted() {
    let trace = trace(&[(0.0, 100, 5), (0.0, 60_000, 5), (0.1, 100, 5)]);
    let outcome = replay(&setup(Mode::PreemptOnly, 64 << 20), &trace, None).unwrap();
    assert_eq!((outcome.served, outcome.rejected, outcome.good), (2, 1, 2));
}

#[test]
fn the_search_ends_at_a_rate_that_is_served() {
    let setup = setup(Mode::PreemptOnly, 2 << 30);
    let trace = crowd().with_requests(600);
    let found = highest_rate(&setup, &trace, 0.95).unwrap();
    assert!(found.attained >= 0.95 && found.served == 600);
    let beyond = trace.with_rate(found.rate * 1.02);
    assert!(replay(&setup, &beyond, None).unwrap().attained < 0.95);
}

#[test]
fn traces_repeat_and_stretch() {
    let trace = trace(&[(0.0, 1, 1), (1.0, 2, 2), (3.0, 3, 3)]);
    // Two gaps in 3 s: the next repetition begins 1.5 s later.
    let longer = trace.clone().with_requests(5);
    let times: Vec<f64> = longer.iter().map(|request| request.at).collect();
    assert_eq!(times, [0.0, 1.0, 3.0, 4.5, 5.5]);
    assert_eq!(longer.get(4).prompt, 2);
    assert_eq!(trace.clone().with_requests(2).len(), 2);
    let rate = longer.with_rate(10.0).rate();
    assert!((rate - 10.0).abs() < 1e-9, "{rate}");
    let error = Trace::parse("a,b,c\n0,5,1\n7,0,1\n").unwrap_err();
    assert!(error.contains("line 3"), "{error}");
    assert!(Trace::parse("a,b,c\n").is_err());
    assert!(Trace::parse("a,b,c\n5,1,1\n4,1,1\n").is_err());
}

#[test]
fn bits_at_the_floor_are_those_of_the_blocks() {
    let pool = setup(Mode::Static, 64 << 20).pool().unwrap();
    // 600 tokens: two blocks in the middle, two at the edge, 88 open.
    let counted = AtFloor::of(&trace(&[(0.0, 600, 1)]), &pool);
    let expected = (256.0 * counted.bits_middle + 256.0 * counted.bits_edge + 88.0 * 16.0) / 600.0;
    assert!((counted.bits_stored - expected).abs() < 1e-9);
    assert_eq!(counted.bits_by_request, counted.bits_stored);
    assert!((2.5..3.2).contains(&counted.bits_middle));
    assert!((8.0..8.6).contains(&counted.bits_edge));
    assert!(counted.text(4.5).contains("above the limit of 4.5"));
}

#[test]
fn static_stores_what_is_counted() {
    // One after the other, so that every request is alone.
    let requests: Vec<_> = (0..20)
        .map(|i| (f64::from(i) * 10.0, 300 + i * 90, 300))
        .collect();
    let trace = trace(&requests);
    let setup = setup(Mode::Static, 1 << 30);
    let counted = AtFloor::of(&trace, &setup.pool().unwrap());
    let outcome = replay(&setup, &trace, None).unwrap();
    let beyond = outcome.bits_stored / counted.bits_stored;
    assert!((0.99..1.06).contains(&beyond), "{beyond}");
}

#[test]
fn sizes_are_read() {
    assert_eq!("4GiB".parse::<Size>(), Ok(Size(4 << 30)));
    assert_eq!("1.5MiB".parse::<Size>(), Ok(Size(3 << 19)));
    for wrong in ["", "4", "GiB", "-1GiB", "4GB"] {
        assert!(wrong.parse::<Size>().is_err(), "{wrong}");
    }
}

fn outcomes() -> Vec<Outcome> {
    let trace = trace(&[(0.0, 50, 4), (0.5, 300, 9)]);
    let of = |mode| replay(&setup(mode, 256 << 20), &trace, None).unwrap();
    MODES.map(of).to_vec()
}

#[test]
fn csv_has_a_cell_for_every_name() {
    let text = report::csv(&outcomes()).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    assert!(lines.iter().flatten().all(|cell| !cell.is_empty()));
    let goodput = lines[0].iter().position(|name| *name == "goodput").unwrap();
    assert!(lines[1][goodput].parse::<f64>().unwrap() > 0.0);
    let table = report::table(&outcomes());
    let widths: Vec<usize> = table.lines().map(str::len).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
}

#[test]
fn svg_is_well_formed() {
    let svg = plot::svg(&outcomes(), "a < b & c", false);
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("tags end");
        let name = tag.split([' ', '/']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert_eq!(open, [""; 0]);
    assert_eq!(svg.matches("<polyline").count(), 3);
    assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("NaN"));
    for mode in ["preempt-only", "static", "progressive"] {
        assert!(svg.contains(mode));
    }
}
