//! The command line. Flags are read once, here, into checked configurations; nothing else reads the
//! environment.

mod access_args;
mod chat;
mod engine_args;
mod error;
mod fetch;
mod generate;
mod kv_args;
#[cfg(feature = "lab")]
mod lab;
mod log;
mod panics;
mod sampling_args;
mod secret;
mod serve;
mod size;
mod source;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::CliError;

const EXAMPLES: &str = "\
Examples:
  ebb serve                                       serve the default model on port 50051
  ebb serve ./Qwen3-0.6B --kv-memory 8GiB
  ebb generate --prompt 'The capital of France is'
  ebb generate --chat --prompt 'Tell me a joke.' --json
  ebb chat
  ebb eval --text wiki.txt --ctx 1024 --windows 8";

/// Serves large language models with continuous batching over a paged KV cache.
#[derive(Debug, Parser)]
#[command(name = "ebb", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over gRPC, with metrics and probes over HTTP.
    #[command(after_help = "\
Examples:
  ebb serve
  ebb serve --host 0.0.0.0 --port 50051 --kv-memory 4GiB --max-running 64
  ebb serve Qwen/Qwen3-0.6B                       download it when it is not here
  ebb serve ./model.Q4_K_M.gguf --log-format json")]
    Serve(serve::ServeArgs),
    /// Answer one prompt; the text goes to standard output, timings to standard error.
    #[command(after_help = "\
Examples:
  ebb generate --prompt 'The capital of France is' --temperature 0 --max-tokens 20
  ebb generate --chat --prompt 'Why is the sky blue?' --json
  git diff | ebb generate --prompt - --server http://127.0.0.1:50051")]
    Generate(generate::GenerateArgs),
    /// Converse in the terminal.
    #[command(after_help = "\
Examples:
  ebb chat --system 'Answer in one sentence.'
  ebb chat --server http://127.0.0.1:50051 --temperature 0.7")]
    Chat(chat::ChatArgs),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(lab::LabCommand),
    /// Fetch a model, so that later commands need no network.
    #[command(after_help = "\
Examples:
  ebb fetch
  ebb fetch Qwen/Qwen3-0.6B
  ebb fetch --cache-dir /models")]
    Fetch(fetch::FetchArgs),
}

/// Runs the program: parses its arguments, and turns errors into one sentence and an exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ebb: {}", error::printable(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let serves = matches!(cli.command, Command::Serve(_));
    if serves {
        panics::without_texts();
    }
    let level = if serves { "info" } else { "warn" };
    cli.log.init(level)?;
    // Tasks only pass messages; the model has threads of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // Long texts are tokenised off the async threads, a few at a time.
        .max_blocking_threads(8)
        // Short ones are tokenised on them, by rules that recurse.
        .thread_stack_size(ebb_models::KNOWN_STACK_BYTES)
        .enable_all()
        .build()
        .map_err(CliError::io("start threads"))?;
    let result = match cli.command {
        Command::Serve(args) => runtime.block_on(args.run()),
        Command::Generate(args) => runtime.block_on(args.run()),
        Command::Chat(args) => runtime.block_on(args.run()),
        #[cfg(feature = "lab")]
        Command::Lab(command) => command.run(),
        Command::Fetch(args) => args.run(),
    };
    // A thread may be waiting for a line that never comes.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_server_and_engine_flags_exclude_each_other() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        assert!(parse("ebb generate --prompt x --server http://h:1").is_ok());
        assert!(parse("ebb generate --prompt x --model m").is_ok());
        for flag in [
            "--model m",
            "--kv-memory 1GiB",
            "--threads 2",
            "--no-prefix-cache",
            "--enable-prefix-caching",
            "--max-num-seqs 2",
            "a-model",
        ] {
            let error = parse(&format!(
                "ebb generate --prompt x --server http://h:1 {flag}"
            ))
            .unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ArgumentConflict,
                "{flag}"
            );
        }
        assert!(parse("ebb generate").is_err());
        assert!(parse("ebb generate --prompt -3").is_ok());
        assert!(parse("ebb generate --prompt x --system y").is_err());
    }

    #[test]
    fn every_command_that_runs_a_model_takes_its_name_alone() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        for line in [
            "ebb serve m",
            "ebb generate m --prompt x",
            "ebb chat m",
            "ebb fetch m",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        #[cfg(feature = "lab")]
        for line in [
            "ebb eval m --text a",
            "ebb calibrate m --text a b --out c",
            "ebb replay log.jsonl m",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn sampling_flags_become_the_message() {
        let line = "ebb generate --prompt x --max-tokens 3 -t 0 --top-p 0.5 --stop a --stop b \
                    --presence-penalty -1";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Generate(args) = cli.command else {
            panic!("not generate")
        };
        let message = args.sampling.message();
        assert_eq!(
            (message.max_tokens, message.temperature, message.top_p),
            (Some(3), Some(0.0), Some(0.5))
        );
        assert_eq!(
            (message.stop, message.presence_penalty),
            (vec!["a".into(), "b".into()], Some(-1.0))
        );
        assert_eq!((message.seed, message.top_k), (None, None));
    }
}
