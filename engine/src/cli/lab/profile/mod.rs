//! `ebb profile`: what a calibrated profile says.

mod compare;
mod show;
mod svg;

use clap::{Args, Subcommand};
use ebb_serving::kv_profile::Profile;

use crate::cli::error::CliError;

/// What to do with a profile.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ProfileArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Draw the floors: bits per layer and side.
    #[command(after_help = "\
Examples:
  ebb profile show profile.json
  ebb profile show profile.json --at 4 --svg bits.svg")]
    Show(show::ShowArgs),
    /// How far two profiles' sensitivities agree: Spearman's rank correlation over layers, per side
    /// and format.
    #[command(after_help = "\
Examples:
  ebb profile compare measured.json pmkvq.json kvmix.json")]
    Compare(compare::CompareArgs),
}

impl ProfileArgs {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<(), CliError> {
        match &self.command {
            Command::Show(args) => args.run(),
            Command::Compare(args) => args.run(),
        }
    }
}

/// `SmolLM2-135M-Instruct, pmkvq (8 windows of 512 tokens)`.
fn title(profile: &Profile) -> String {
    let method = &profile.method;
    format!(
        "{}, {} ({} windows of {} tokens)",
        profile.model.name, method.name, method.samples, method.ctx
    )
}
