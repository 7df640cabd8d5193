//! What fuzzers run: a [`Target`] for each kind of input that strangers may send or give.
//!
//! A target is a function of bytes that panics when something is wrong. `tests/fuzz` has a
//! libFuzzer program for each, and `tests/tests/fuzz_corpus.rs` runs all of them on stable Rust.
//! Beyond "no panic", [`Target::run`] asserts that an input takes bounded memory and time, and
//! each target what else there is to assert: that errors are sentences, that what decodes encodes
//! again, that no client can cause INTERNAL.

mod known_stack;
pub mod mutate;
mod panics;
mod scratch;
pub mod seeds;
mod sentence;
mod targets;

use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;

pub use panics::{abort_on_panic, count_panics};

/// Counts what is allocated, so that every target can bound it.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// A kind of input.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    run: fn(&[u8]),
    /// The longest input that is worth trying, in bytes.
    pub length_max: usize,
}

/// Every kind of input.
pub const TARGETS: [Target; 10] = [
    target("config_json", targets::config_json::run, 4096),
    target("gguf", targets::gguf::run, 16 << 10),
    target("grpc_frames", targets::grpc_frames::run, 4096),
    target("hub_listing", targets::hub_listing::run, 4096),
    target("kv_profile", targets::kv_profile::run, 4096),
    target("protobuf", targets::protobuf::run, 4096),
    target("safetensors", targets::safetensors::run, 16 << 10),
    target("template", targets::template::run, 4096),
    target("tokenizer_json", targets::tokenizer_json::run, 16 << 10),
    target("trajectory", targets::trajectory::run, 4096),
];

const fn target(name: &'static str, run: fn(&[u8]), length_max: usize) -> Target {
    Target {
        name,
        run,
        length_max,
    }
}

/// Bytes that an input may have allocated at once, beside a share of its own length.
const MEMORY_BYTES: usize = 64 << 20;
const MEMORY_PER_BYTE: usize = 64;
/// How long an input may take. Debug builds on busy machines are slower than what is promised for
/// a server's; sanitizers are slower still.
const TIME: Duration = if cfg!(debug_assertions) {
    Duration::from_secs(10)
} else {
    Duration::from_secs(1)
};

/// Tries an input of the target of this name.
///
/// # Panics
/// When there is no such target; and see [`Target::run`].
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("a target's name").run(bytes);
}

impl Target {
    /// Tries an input.
    ///
    /// # Panics
    /// When it makes something go wrong, takes too much memory, or too long.
    pub fn run(&self, bytes: &[u8]) {
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let start = Instant::now();
        (self.run)(bytes);
        let (time, peak) = (start.elapsed(), ALLOCATOR.peak_usage());
        let (name, length) = (self.name, bytes.len());
        let taken = peak.saturating_sub(before);
        assert!(
            taken <= MEMORY_BYTES + MEMORY_PER_BYTE * length,
            "{name}: {length} bytes of input make {taken} bytes of memory"
        );
        assert!(
            time <= TIME,
            "{name}: {length} bytes of input take {time:?}"
        );
    }
}
