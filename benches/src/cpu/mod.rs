//! The CPU backend on a random model of SmolLM2-135M's shape: how near it comes to the memory's
//! bandwidth when it decodes one stream, and to the `gemm` crate when it multiplies many rows.

mod gemm;
mod model;
mod stream;

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ebb_kernels::cpu::baseline::read_bandwidth;
use ebb_kernels::cpu::simd::Isa;
use ebb_kernels::cpu::threads::Pool;

use crate::report::{Report, shortest};
use model::smollm2_135m;
use stream::Streams;

/// Measure the CPU backend against memory bandwidth and the gemm crate.
///
/// Run it on a quiet machine, in a release build. Every figure is the best of several runs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compute threads [default: all cores].
    #[arg(long)]
    threads: Option<usize>,
    /// Write the figures to this CSV file too.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Seconds spent on each figure.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Measure only these parts (bandwidth is always measured).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "gemm,decode,batch,prefill"
    )]
    parts: Vec<String>,
}

/// Runs the measurements.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let cores = std::thread::available_parallelism()?.get();
    let threads = args.threads.unwrap_or(cores);
    let budget = Duration::from_secs_f64(args.seconds);
    let isa = Isa::detect();
    let mut report = Report::default();
    println!("{threads} threads of {cores} cores, {}", isa.name());
    let mut pool = Pool::new(threads)?;
    let bandwidth = read_bandwidth(&mut pool, isa)?;
    report.figure("memory read bandwidth", bandwidth / 1e9, "GB/s");
    report.figure(
        "fork-join of all threads",
        fork_join_ns(&mut pool, budget)?,
        "ns",
    );
    let wants = |part: &str| args.parts.iter().any(|p| p == part);
    let mut crate_rate = [None; 2];
    if wants("gemm") {
        gemm::rates(&mut pool, isa, 1, budget, &mut report)?;
        crate_rate = [
            Some(gemm::rates(&mut pool, isa, 16, budget, &mut report)?),
            Some(gemm::rates(&mut pool, isa, 512, budget, &mut report)?),
        ];
    }
    drop(pool);
    let spec = smollm2_135m();
    let mut streams = Streams::new(&spec, threads, 16, 1100, &mut report)?;
    if wants("decode") {
        for context in [16, 256, 1024] {
            let seconds = streams.decode(1, context, budget)?.as_secs_f64();
            let rate = streams.bytes_per_step(1, context) / seconds;
            let name = format!("decode 1 stream at {context}");
            report.figure(&name, 1.0 / seconds, "tokens/s");
            report.figure(&format!("{name} reads"), rate / 1e9, "GB/s");
            report.figure(
                &format!("{name} of bandwidth"),
                100.0 * rate / bandwidth,
                "%",
            );
        }
    }
    if wants("batch") {
        for n in [2, 4, 8, 16] {
            let seconds = streams.decode(n, 256, budget)?.as_secs_f64();
            let name = format!("decode {n} streams at 256");
            report.figure(&name, n as f64 / seconds, "tokens/s");
            let rate = streams.decode_flops(n, 256) / seconds;
            report.figure(&format!("{name} rate"), rate / 1e9, "GFLOP/s");
            if let (16, Some(of)) = (n, crate_rate[0]) {
                report.figure(&format!("{name} of gemm crate"), 100.0 * rate / of, "%");
            }
        }
    }
    if wants("prefill") {
        for rows in [128, 512, 1024] {
            let seconds = streams.prefill(rows, budget)?.as_secs_f64();
            let name = format!("prefill {rows}");
            report.figure(&name, rows as f64 / seconds, "tokens/s");
            let rate = streams.prefill_flops(rows) / seconds;
            report.figure(&format!("{name} rate"), rate / 1e9, "GFLOP/s");
            if let (512, Some(of)) = (rows, crate_rate[1]) {
                report.figure(&format!("{name} of gemm crate"), 100.0 * rate / of, "%");
            }
        }
    }
    report.write(args.out.as_deref())?;
    Ok(())
}

/// Time of a loop over one task per thread, each of which waits until all have begun: what it
/// costs to hand work to every thread and wait for them.
fn fork_join_ns(pool: &mut Pool, budget: Duration) -> Result<f64, Box<dyn Error>> {
    const LOOPS: usize = 100;
    let threads = pool.threads();
    let begun = AtomicUsize::new(0);
    let time = shortest(budget / 4, || {
        begun.store(0, Ordering::SeqCst);
        (1..=LOOPS).try_for_each(|turn| {
            pool.run(threads, |_, _| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < turn * threads {
                    std::hint::spin_loop();
                }
            })
        })
    })?;
    Ok(time.as_nanos() as f64 / LOOPS as f64)
}
