//! Tries inputs without libFuzzer: `cargo run -p ebb-fuzz-targets --bin fuzz-try TARGET FILE…`.
//! The first one that fails ends the program, and stands last in its output.

use std::time::Instant;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or_default();
    ebb_fuzz_targets::abort_on_panic();
    for file in arguments {
        println!("{file}");
        let start = Instant::now();
        ebb_fuzz_targets::run(&target, &std::fs::read(&file)?);
        println!("  {:.1?}", start.elapsed());
    }
    Ok(())
}
