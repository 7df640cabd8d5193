//! The command line. Flags are checked here, once.

mod closed;
mod common;
mod compare;
mod open;
mod replay;
mod run;
mod selftest;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use common::Common;
pub(crate) use run::test;

use crate::error::LoadError;

const EXAMPLES: &str = "\
Examples:
  ebb-load closed --concurrency 1,2,4,8 --duration 20 --out results/sweep
  ebb-load open --rate 2,4,8 --prompt-tokens lognormal:300,0.8,2000 --slo-ttft-ms 1000
  ebb-load open --rate 4 --arrivals gamma --cv 3 --cancel 0.1 --slow 0.1
  ebb-load open --rate 1 --ramp-to 20 --duration 60
  ebb-load open --rate 2 --turns uniform:2..5 --prefix-tokens 512 --prefix-groups 4
  ebb-load replay --rate 3 --requests 200 --length-scale 0.25
  ebb-load compare results/before results/after";

/// Loads a serving engine and tells how it did.
///
/// Latencies count from the time at which a request was to be sent.
#[derive(Debug, Parser)]
#[command(name = "ebb-load", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Closed(Box<closed::Args>),
    Open(Box<open::Args>),
    Replay(Box<replay::Args>),
    Compare(compare::Args),
    Selftest(selftest::Args),
}

/// Runs the program: an error is one sentence and an exit code.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Closed(args) => args.run(),
        Command::Open(args) => args.run(),
        Command::Replay(args) => args.run(),
        Command::Compare(args) => args.run(),
        Command::Selftest(args) => args.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ebb-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `Err` unless `value` is within the bounds, of the flag's sentence.
fn within(flag: &str, value: f64, low: f64, high: f64) -> Result<(), LoadError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(LoadError::Usage(format!(
        "{flag} is {value}; it must be from {low} to {high}"
    )))
}

#[cfg(test)]
mod tests;
