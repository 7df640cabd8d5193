//! The commands of the lab: what KV formats cost, profiles, and answers computed again.

mod calibrate;
mod eval;
mod profile;
mod replay;
mod trial_args;

use clap::Subcommand;

use super::error::CliError;

/// They load models of their own, and none talks to a server.
#[derive(Debug, Subcommand)]
pub(super) enum LabCommand {
    /// Score a text: perplexity through the paged cache that serves.
    #[command(after_help = "\
Examples:
  ebb eval --text wiki.txt --ctx 1024 --windows 8
  ebb eval --text wiki.txt --ctx 2048 --json | jq .ppl")]
    Eval(eval::EvalArgs),
    /// Find out what each page of the KV cache is worth to a model, and write floors and the order
    /// in which pages should shrink.
    #[command(after_help = "\
Examples:
  ebb calibrate --text my-texts.txt --out profile.json
  ebb calibrate --model ./Qwen3-0.6B --method pmkvq --text a.txt b.txt --budget 3 --out q.json
  ebb calibrate --method kvmix --text my-texts.txt --share 20 --out kvmix.json
  ebb serve --kv-profile profile.json")]
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// Compute logged answers again: whether they come out the same to the bit, and what their
    /// trajectories cost beside 16 bit.
    #[command(after_help = "\
Examples:
  ebb serve --kv-memory 64MiB --trajectory-log answers.jsonl
  ebb replay answers.jsonl
  ebb replay answers.jsonl --kv k=kitty25c,v=int2c --json | jq .runs")]
    Replay(replay::ReplayArgs),
    /// Look at a profile.
    Profile(profile::ProfileArgs),
}

impl LabCommand {
    /// Runs the command. Blocks until it is done.
    pub(super) fn run(&self) -> Result<(), CliError> {
        match self {
            Self::Eval(args) => args.run(),
            Self::Calibrate(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Profile(args) => args.run(),
        }
    }
}
