//! The corpus of the fuzz targets, replayed on stable Rust, and a little fuzzing of its own.
//!
//! `EBB_FUZZ_MUTATIONS` sets how many mutations each target gets, `EBB_FUZZ_SEED` which,
//! `EBB_FUZZ_TARGET` names the one target to try.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ebb_fuzz_targets::mutate::Mutator;
use ebb_fuzz_targets::{TARGETS, Target, count_panics};

/// Mutations of each target, unless it is told, and how long they may go on on a slow machine.
const MUTATIONS: u64 = 5000;
const TIME: Duration = Duration::from_secs(2);

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target.name);
    let entries = std::fs::read_dir(&folder).expect("every target has a corpus");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let inputs = paths.into_iter();
    inputs
        .map(|path| (path.clone(), std::fs::read(path).expect("an input")))
        .collect()
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

// One test, so that targets do not count each other's memory.
#[test]
fn inputs_of_the_corpus_and_mutations_of_them_do_no_harm() {
    let panics = count_panics();
    let sound = |target: &Target, bytes: &[u8]| {
        let before = panics.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| target.run(bytes)));
        result.is_ok() && panics.load(Ordering::Relaxed) == before
    };
    let (mutations, limit) = match from_environment("EBB_FUZZ_MUTATIONS") {
        Some(mutations) => (mutations, Duration::MAX),
        None => (MUTATIONS, TIME),
    };
    let seed = from_environment("EBB_FUZZ_SEED").unwrap_or(1);
    let only = std::env::var("EBB_FUZZ_TARGET").ok();
    let chosen = |target: &Target| only.as_deref().is_none_or(|name| name == target.name);
    let mut failed = Vec::new();
    for target in TARGETS.into_iter().filter(chosen) {
        let inputs = corpus(&target);
        let start = Instant::now();
        for (path, bytes) in &inputs {
            if !sound(&target, bytes) {
                failed.push(path.display().to_string());
            }
        }
        let (replayed, start) = (start.elapsed(), Instant::now());
        let mut random = Mutator::new(seed);
        let mut tried = 0;
        while tried < mutations && start.elapsed() < limit {
            let (_, mut bytes) = random.pick(&inputs).clone();
            let (_, other) = random.pick(&inputs);
            random.mutate(&mut bytes, other, target.length_max);
            if !sound(&target, &bytes) {
                let path =
                    std::env::temp_dir().join(format!("ebb-fuzz-{}-{seed}-{tried}", target.name));
                std::fs::write(&path, &bytes).expect("room for the input");
                failed.push(path.display().to_string());
            }
            tried += 1;
        }
        let (name, count) = (target.name, inputs.len());
        let time = start.elapsed();
        println!("{name}: {count} inputs in {replayed:.1?}, {tried} mutations in {time:.1?}");
    }
    let _ = std::panic::take_hook();
    assert!(failed.is_empty(), "these inputs fail: {failed:#?}");
}
