//! Checks and timings of the CUDA backend.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ebb_benches::gpu;
use ebb_kernels::cuda::{Device, StreamRule, selftest};

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
        #[arg(long, value_delimiter = ',', default_value = "1,8,16,64,256")]
        rows: Vec<usize>,
        /// Timed runs of each.
        #[arg(long, default_value_t = 20)]
        repeats: usize,
        /// Time layers only, their products one after the other, not each product alone.
        #[arg(long)]
        in_sequence: bool,
        /// Ways of cutting streamed products to try: outputs of a tile (128 or 256), CTAs of a multiprocessor (1 or 2), units to
        /// ask for ahead, whether all along (0 or 1), and units to ask for at once (1 or 2), as 128-1-8-0-1.
        #[arg(long, value_delimiter = ',', value_parser = stream_rule)]
        rules: Vec<StreamRule>,
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

fn stream_rule(text: &str) -> Result<StreamRule, String> {
    let [height, ctas, ahead, rolling, burst] = numbers(text, "five numbers, as 128-1-8-0-1")?;
    Ok(StreamRule {
        height,
        ctas,
        ahead,
        rolling: rolling > 0,
        burst,
    })
}

fn rule(text: &str) -> Result<[usize; 4], String> {
    numbers(text, "four numbers, as 4-16-16-2")
}

fn numbers<const N: usize>(text: &str, what: &str) -> Result<[usize; N], String> {
    let numbers: Result<Vec<usize>, _> = text.split('-').map(str::parse).collect();
    numbers
        .ok()
        .and_then(|n| n.try_into().ok())
        .ok_or_else(|| format!("{text} is not {what}"))
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
        Command::Products {
            rows,
            repeats,
            in_sequence,
            rules,
        } => {
            if !in_sequence {
                gpu::products::alone(&device, &rows, &rules, repeats)?;
            }
            gpu::products::in_sequence(&device, &rows, &rules, repeats)?;
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
