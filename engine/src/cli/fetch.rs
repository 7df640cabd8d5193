//! `ebb fetch`: gets a model onto this machine, so that later commands need no network.

use clap::Args;

use super::engine_args::ModelArgs;
use super::error::CliError;

/// Which model.
#[derive(Debug, Clone, Args)]
pub(super) struct FetchArgs {
    #[command(flatten)]
    model: ModelArgs,
}

impl FetchArgs {
    /// Runs the command: fetches the model unless it is there, and checks that its files can be
    /// used.
    pub(super) fn run(&self) -> Result<(), CliError> {
        let opened = ebb_models::open(self.model.name(), self.model.cache_dir.clone())?;
        eprintln!("{} is here and can be used.", opened.model.name);
        Ok(())
    }
}
