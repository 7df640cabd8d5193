#![no_main]

use ebb_fuzz_targets::{abort_on_panic, run};

libfuzzer_sys::fuzz_target!(init: abort_on_panic(), |bytes: &[u8]| run("hub_listing", bytes));
