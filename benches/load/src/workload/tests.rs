use clap::Parser;

use super::*;
use crate::arrivals::{Arrivals, Process};
use crate::trace::Arrival;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    workload: WorkloadArgs,
}

fn args(flags: &str) -> WorkloadArgs {
    let line = ["test"].into_iter().chain(flags.split_whitespace());
    Flags::try_parse_from(line).unwrap().workload
}

fn workload(flags: &str) -> Workload {
    Workload::new(&args(flags), None, &target())
}

fn target() -> Target {
    Target {
        max_context: 4096,
        vocab_size: 1000,
        end_tokens: vec![0, 7],
        ..Target::default()
    }
}

fn sessions(workload: &Workload, count: u64) -> Vec<Session> {
    (0..count)
        .filter_map(|number| workload.session(0, number))
        .collect()
}

/// Every prompt of a session as the server would get it, with answers of zeros.
fn prompts(workload: &Workload, session: &Session) -> Vec<Vec<u32>> {
    let mut text = workload.prefix(session);
    let mut source = workload.added(session);
    let prompts = session.turns.iter().map(|turn| {
        text.extend(source.take(turn.added));
        let prompt = text.clone();
        text.extend(vec![0; turn.answer as usize]);
        prompt
    });
    prompts.collect()
}

const MIX: &str = "--prompt-tokens lognormal:100,1 --output-tokens uniform:5..50 --turns \
                   uniform:1..4 --cancel 0.2 --slow 0.1";

/// Of numbers in their order (FNV-1a).
fn digest(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, number| {
            (hash ^ number).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Committed results name a seed, so it must mean the same whatever random numbers are made with.
#[test]
fn a_seed_means_what_it_always_meant() {
    let mix = workload(&format!("{MIX} --prefix-tokens 9 --prefix-share 0.5"));
    let sessions = sessions(&mix, 1000);
    let planned = sessions.iter().flat_map(|s| {
        let own = [s.class as u64, s.prefix.map_or(99, u64::from)];
        let turn = |t: &Turn| [t.added, t.answer, t.cancel_after.unwrap_or(9999)].map(u64::from);
        own.into_iter().chain(s.turns.iter().flat_map(turn))
    });
    assert_eq!(digest(planned), 0x116d_dbcc_7c92_ec46);
    let prompts = sessions[..50]
        .iter()
        .flat_map(|s| prompts(&mix, s))
        .flatten();
    assert_eq!(digest(prompts.map(u64::from)), 0xfbbe_9185_d6ba_194b);
    for (process, expected) in [
        (Process::Poisson, 0x981f_2227_7abd_3c86),
        (Process::Gamma, 0x3871_0e0b_dc05_1f52),
    ] {
        let arrivals = Arrivals {
            process,
            cv: 2.0,
            from: 10.0,
            to: 20.0,
            duration: Duration::from_secs(60),
        };
        let times = arrivals.times(usize::MAX, &mut mix.arrivals(0));
        let times = times.iter().map(|t| t.as_micros() as u64);
        assert_eq!(digest(times), expected);
    }
}

#[test]
fn equal_seeds_give_equal_sessions() {
    let (a, b) = (workload(MIX), workload(MIX));
    assert_eq!(sessions(&a, 100), sessions(&b, 100));
    let last = |w: &Workload| prompts(w, &sessions(w, 100)[99]);
    assert_eq!(last(&a), last(&b));
    let other = workload(&format!("{MIX} --seed 1"));
    assert_ne!(sessions(&a, 100), sessions(&other, 100));
    assert_ne!(a.session(0, 5), a.session(1, 5), "stages repeat each other");
}

#[test]
fn a_class_changes_nothing_but_the_class() {
    let plain = sessions(&workload("--prompt-tokens uniform:1..99"), 300);
    let mixed = sessions(&workload("--prompt-tokens uniform:1..99 --slow 0.5"), 300);
    let slow = mixed.iter().filter(|s| s.class == Class::Slow).count();
    assert!((120..180).contains(&slow), "{slow}");
    for (a, b) in plain.iter().zip(&mixed) {
        assert_eq!(a.turns, b.turns);
    }
}

#[test]
fn those_who_cancel_do_so_within_the_answer() {
    let all = sessions(&workload("--cancel 0.3 --output-tokens uniform:1..9"), 2000);
    let cancelled: Vec<_> = all.iter().filter(|s| s.class == Class::Cancel).collect();
    assert!((520..680).contains(&cancelled.len()), "{}", cancelled.len());
    for session in cancelled {
        let turn = session.turns[0];
        assert!(turn.cancel_after.unwrap() < turn.answer);
    }
    assert!(
        all.iter()
            .filter(|s| s.class == Class::Steady)
            .all(|s| s.turns[0].cancel_after.is_none())
    );
}

#[test]
fn prompts_have_their_tokens_and_no_end_token() {
    let w = workload("--prompt-tokens 500");
    let prompts: Vec<_> = sessions(&w, 20)
        .iter()
        .flat_map(|s| prompts(&w, s))
        .collect();
    assert!(prompts.iter().all(|p| p.len() == 500));
    let all = prompts.concat();
    assert!(all.iter().all(|t| *t < 1000 && *t != 0 && *t != 7));
    assert!(all.iter().any(|t| *t > 950));
    assert_ne!(prompts[0][..20], prompts[1][..20]);
}

#[test]
fn prefixes_are_shared_within_a_group_only() {
    let w = workload("--prefix-tokens 64 --prefix-groups 3 --prefix-share 0.5 --prompt-tokens 8");
    let all = sessions(&w, 400);
    let with = all.iter().filter(|s| s.prefix.is_some()).count();
    assert!((150..250).contains(&with), "{with}");
    for session in &all {
        let prompt = &prompts(&w, session)[0];
        assert_eq!(prompt.len(), if session.prefix.is_some() { 72 } else { 8 });
    }
    let of = |group| all.iter().filter(move |s| s.prefix == Some(group));
    let head = |s: &Session| prompts(&w, s)[0][..64].to_vec();
    for group in 0..3 {
        let heads: Vec<_> = of(group).map(head).collect();
        assert!(heads.len() > 30 && heads.windows(2).all(|pair| pair[0] == pair[1]));
    }
    assert_ne!(head(of(0).next().unwrap()), head(of(1).next().unwrap()));
}

#[test]
fn a_turn_repeats_what_was_said() {
    let w = workload("--turns 3 --prompt-tokens 10 --output-tokens 5");
    let session = w.session(0, 0).unwrap();
    let prompts = prompts(&w, &session);
    let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
    assert_eq!(lengths, [10, 25, 40]);
    assert_eq!(prompts[2][..10], prompts[0]);
}

#[test]
fn what_does_not_fit_is_left_out() {
    let long = workload("--turns 9 --prompt-tokens 900 --output-tokens 100");
    assert_eq!(long.session(0, 0).unwrap().turns.len(), 4);
    assert_eq!(workload("--prompt-tokens 4096").session(0, 0), None);
    assert!(
        workload("--prompt-tokens 4000 --output-tokens 96")
            .session(0, 0)
            .is_some()
    );
    let with_prefix = "--prompt-tokens 4000 --output-tokens 90 --prefix-tokens 7";
    assert_eq!(workload(with_prefix).session(0, 0), None);
}

#[test]
fn lengths_of_a_trace_are_honoured() {
    let arrival = |prompt, generated| Arrival {
        at: 0.0,
        prompt,
        generated,
    };
    let trace = Trace::new(vec![arrival(374, 44), arrival(5000, 1), arrival(9, 3)]).unwrap();
    let of = |flags: &str| Workload::new(&args(flags), Some(trace.clone()), &target());
    let turn = |w: &Workload, number| {
        w.session(0, number)
            .map(|s| (s.turns[0].added, s.turns[0].answer))
    };
    let whole = of("");
    assert_eq!(
        [0, 1, 2, 3].map(|i| turn(&whole, i)),
        [Some((374, 44)), None, Some((9, 3)), Some((374, 44))]
    );
    let half = of("--length-scale 0.5");
    assert_eq!(turn(&half, 1), Some((2500, 1)));
}

#[test]
fn shares_beyond_one_are_refused_with_the_flag() {
    for (flags, word) in [
        ("--cancel 1.5", "--cancel"),
        ("--cancel 0.6 --slow 0.6", "--slow"),
        ("--prefix-share -1", "--prefix-share"),
        ("--think 9999", "--think"),
        ("--length-scale 0", "--length-scale"),
        ("--temperature NaN", "--temperature"),
    ] {
        let flags = flags.replace(' ', "=").replace("=--", " --");
        assert!(
            args(&flags).check().unwrap_err().to_string().contains(word),
            "{flags}"
        );
    }
}
