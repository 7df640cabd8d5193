//! The corpus of the fuzz targets, replayed on stable Rust, and a little fuzzing of its own.
//!
//! `EBB_FUZZ_MUTATIONS` sets how many mutations each target gets, `EBB_FUZZ_SEED` which.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ebb_fuzz_targets::mutate::Mutator;
use ebb_fuzz_targets::{TARGETS, Target, count_panics};

/// How long the mutations of one target may go on, on a machine that is slow.
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

fn from_environment(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => usual,
    }
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
    let mutations = from_environment("EBB_FUZZ_MUTATIONS", 2000);
    let mut failed = Vec::new();
    for target in TARGETS {
        let inputs = corpus(&target);
        let start = Instant::now();
        for (path, bytes) in &inputs {
            if !sound(&target, bytes) {
                failed.push(path.display().to_string());
            }
        }
        let (replayed, start) = (start.elapsed(), Instant::now());
        let mut random = Mutator::new(from_environment("EBB_FUZZ_SEED", 1));
        let mut tried = 0;
        while tried < mutations && (mutations > 2000 || start.elapsed() < TIME) {
            let (_, mut bytes) = random.pick(&inputs).clone();
            let (_, other) = random.pick(&inputs);
            random.mutate(&mut bytes, other, target.length_max);
            if !sound(&target, &bytes) {
                let path = std::env::temp_dir().join(format!("ebb-fuzz-{}-{tried}", target.name));
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
