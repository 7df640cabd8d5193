//! Flags of commands that run a model over a text with several KV caches side by side.

use clap::Args;
use ebb_kernels::cpu::CpuOptions;

use super::engine_args::{ModelArgs, cores};
use super::error::CliError;
use super::size::ByteSize;
use crate::Opened;
use crate::eval::{TrialPositions, Trials, lay_out};
use crate::kv_spec::PageFormats;

/// The model and what it may use.
#[derive(Debug, Clone, Args)]
pub(super) struct TrialArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Memory for the KV cache, such as 2GiB or 512MiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(super) kv_memory: ByteSize,
    /// Threads that compute [default: all cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
}

impl TrialArgs {
    /// Opens the model, without its weights.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(super) fn open(&self) -> Result<Opened, CliError> {
        Ok(crate::open(
            &self.model.model,
            self.model.cache_dir.clone(),
        )?)
    }

    /// The backend's options.
    pub(super) fn options(&self) -> CpuOptions {
        CpuOptions::new(self.threads.unwrap_or_else(cores))
    }

    /// Loads the model for trials with these formats; tells where the blocks of each go. Without trials to begin with.
    ///
    /// # Errors
    /// When the model cannot have such pages, or memory or the weights fail.
    pub(super) fn trials(
        &self,
        opened: &Opened,
        formats: &[PageFormats],
        rotate_v: bool,
    ) -> Result<(Trials, Vec<TrialPositions>), CliError> {
        let model = &opened.model;
        let (layout, positions) =
            lay_out(model.spec.kv_geometry(), formats).map_err(crate::StartError::from)?;
        let frames = crate::pool(model, self.kv_memory.0, false)?.frames;
        let options = CpuOptions {
            layout: Some(layout.clone()),
            rotate_v,
            ..self.options()
        };
        let backend = crate::backend_with(model, frames, options)?;
        Ok((Trials::new(backend, frames, layout, Vec::new()), positions))
    }
}
