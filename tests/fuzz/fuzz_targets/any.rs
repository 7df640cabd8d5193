#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use ebb_fuzz_targets::{abort_on_panic, run};

/// The name that the program was started by.
static NAME: LazyLock<String> = LazyLock::new(|| {
    let program = std::env::args().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
});

libfuzzer_sys::fuzz_target!(init: abort_on_panic(), |bytes: &[u8]| run(&NAME, bytes));
