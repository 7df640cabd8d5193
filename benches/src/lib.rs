//! Kernel and engine benchmarks and the trace simulator. The load generator is a package of its
//! own, in `load`.

pub mod cpu;
pub mod csv;
pub mod engine_args;
pub mod front_ends;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
pub mod gpu;
pub mod kv_memory;
pub mod online;
pub mod report;
pub mod simulate;
pub mod startup;
pub mod throughput;

/// What the engine logs, beside the figures.
fn log_to_stderr() {
    let logs = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_max_level(tracing::Level::INFO);
    // Somebody else's subscriber does as well.
    let _ = logs.try_init();
}
