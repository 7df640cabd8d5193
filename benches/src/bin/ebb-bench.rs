//! Ebb's benchmarks, one subcommand each.

use std::process::ExitCode;

use clap::Parser;

/// Measure Ebb.
#[derive(Debug, Parser)]
#[command(name = "ebb-bench", version)]
enum Command {
    Cpu(ebb_benches::cpu::Args),
    Simulate(Box<ebb_benches::simulate::Args>),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Cpu(args) => ebb_benches::cpu::run(&args),
        Command::Simulate(args) => ebb_benches::simulate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
