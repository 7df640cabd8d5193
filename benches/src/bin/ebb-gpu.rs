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
        /// Time every compiled kernel, not only the preferred one.
        #[arg(long)]
        all_variants: bool,
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
    /// Times draws from logits on the device; prints CSV.
    Sample {
        /// Sizes of the vocabulary.
        #[arg(long, value_delimiter = ',', default_value = "128256,151936")]
        vocabs: Vec<usize>,
        /// Rows of logits, a draw from each.
        #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
        batches: Vec<usize>,
        /// Timed runs of each.
        #[arg(long, default_value_t = 50)]
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
            let sampling = selftest::sampling(&device)?;
            Ok(selftest::attention(&device, quick)? && models && sampling)
        }
        Command::Attention {
            repeats,
            all_variants,
        } => {
            gpu::attention::run(&device, repeats, all_variants)?;
            Ok(true)
        }
        Command::Products { rows, repeats } => {
            gpu::products::run(&device, &rows, repeats)?;
            Ok(true)
        }
        Command::Sample {
            vocabs,
            batches,
            repeats,
        } => {
            gpu::sample::run(&device, &vocabs, &batches, repeats)?;
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
