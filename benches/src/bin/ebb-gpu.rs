//! Checks and timings of the CUDA backend.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ebb_benches::gpu;
use ebb_kernels::cuda::{Device, selftest};

/// Checks and timings of the CUDA backend.
#[derive(Debug, Parser)]
struct Arguments {
    /// Device to use.
    #[arg(long, default_value_t = 0)]
    device: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares kernels and whole models with CPU references on random and hostile inputs.
    Check {
        /// Few and short cases, for use under compute-sanitizer.
        #[arg(long)]
        quick: bool,
    },
    /// Times decode attention with a cold L2, graph-replayed, median; prints CSV.
    Attention {
        /// Timed runs of each shape.
        #[arg(long, default_value_t = 30)]
        repeats: usize,
        /// Time every compiled kernel with this in its name, too.
        #[arg(long, default_value = "")]
        kernels: String,
        /// Ways of cutting sequences to try with them: smallest and largest large unit, large units, small unit, as
        /// 4-16-16-2.
        #[arg(long, value_delimiter = ',', value_parser = rule)]
        rules: Vec<[usize; 4]>,
    },
    /// Times prefill attention, every compiled kernel that runs on the device; prints CSV.
    Prefill {
        /// Timed runs of each shape.
        #[arg(long, default_value_t = 20)]
        repeats: usize,
    },
    /// Times the matrix products of a model of Llama-3.1-8B's shape; prints CSV.
    Products {
        /// Rows.
        #[arg(long, value_delimiter = ',', default_value = "1,4,8,16,64,256")]
        rows: Vec<usize>,
        /// Timed runs of each.
        #[arg(long, default_value_t = 20)]
        repeats: usize,
    },
    /// Times whole steps of a model of Llama-3.1-8B's shape with random weights; prints CSV.
    Step {
        /// Decode batches.
        #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
        batches: Vec<usize>,
        /// Tokens in each sequence's cache.
        #[arg(long, default_value_t = 1152)]
        context: usize,
        /// Take cuBLASLt's first suggestion for every product instead of timing its candidates.
        #[arg(long)]
        no_tune: bool,
    },
}

fn rule(text: &str) -> Result<[usize; 4], String> {
    let numbers: Result<Vec<usize>, _> = text.split('-').map(str::parse).collect();
    numbers
        .ok()
        .and_then(|n| n.try_into().ok())
        .ok_or_else(|| format!("{text} is not four numbers, as 4-16-16-2"))
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ebb-gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let device = Device::open(arguments.device)?;
    eprintln!(
        "{}, {} multiprocessors",
        device.name(),
        device.multiprocessors()
    );
    match arguments.command {
        Command::Check { quick } => {
            let models = selftest::models(&device)?;
            Ok(selftest::attention(&device, quick)? && models)
        }
        Command::Attention {
            repeats,
            kernels,
            rules,
        } => {
            gpu::attention::run(&device, repeats, &kernels, &rules)?;
            Ok(true)
        }
        Command::Prefill { repeats } => {
            gpu::prefill::run(&device, repeats)?;
            Ok(true)
        }
        Command::Products { rows, repeats } => {
            gpu::products::run(&device, &rows, repeats)?;
            Ok(true)
        }
        Command::Step {
            batches,
            context,
            no_tune,
        } => {
            gpu::step::run(&device, &batches, context, !no_tune)?;
            Ok(true)
        }
    }
}
