//! Ebb's benchmarks, one subcommand each.

use std::process::ExitCode;

use clap::Parser;

/// Measure Ebb.
#[derive(Debug, Parser)]
#[command(name = "ebb-bench", version)]
enum Command {
    Cpu(ebb_benches::cpu::Args),
    FrontEnds(ebb_benches::front_ends::Args),
    KvMemory(ebb_benches::kv_memory::Args),
    Online(Box<ebb_benches::online::Args>),
    Simulate(Box<ebb_benches::simulate::Args>),
    Startup(Box<ebb_benches::startup::Args>),
    Throughput(Box<ebb_benches::throughput::Args>),
    #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
    #[command(flatten)]
    Gpu(ebb_benches::gpu::Command),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Cpu(args) => ebb_benches::cpu::run(&args),
        Command::FrontEnds(args) => ebb_benches::front_ends::run(&args),
        Command::KvMemory(args) => ebb_benches::kv_memory::run(&args),
        Command::Online(args) => ebb_benches::online::run(&args),
        Command::Simulate(args) => ebb_benches::simulate::run(&args),
        Command::Startup(args) => ebb_benches::startup::run(&args),
        Command::Throughput(args) => ebb_benches::throughput::run(&args),
        #[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
        Command::Gpu(command) => ebb_benches::gpu::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
