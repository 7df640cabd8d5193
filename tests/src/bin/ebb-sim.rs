//! Runs or replays seeds of the simulation.

use std::process::ExitCode;

use clap::Parser;

/// Simulate serving, one world per seed. The first seed that fails ends the run.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  ebb-sim --seed 17 --trace\n  ebb-sim --seeds 100000 --from 10000"
)]
struct Args {
    /// Run this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of seeds to run.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Print the trace digest of every seed. Two versions that plan alike print the same.
    #[arg(long)]
    digests: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (from, count) = args.seed.map_or((args.from, args.seeds), |seed| (seed, 1));
    if args.digests {
        for seed in from..from + count {
            match ebb_tests::sim::run(seed, false) {
                Ok(report) => println!("{seed} {:016x}", report.digest),
                Err(failure) => println!("{failure}"),
            }
        }
        return ExitCode::SUCCESS;
    }
    match ebb_tests::sim::run_many(from..from + count, args.trace) {
        Ok(totals) => {
            println!("{totals:#?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
