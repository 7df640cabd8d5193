//! Flags of commands that run a model over a text with several KV caches side by side.

use clap::Args;

use super::engine_args::{DeviceArgs, ModelArgs, cores};
use super::error::CliError;
use super::size::ByteSize;
use crate::Opened;
use crate::device::{BackendOptions, StepSizes};
use crate::eval::{CHUNK, TrialPositions, Trials, lay_out};
use crate::kv_spec::PageFormats;

/// The model and what it may use.
#[derive(Debug, Clone, Args)]
pub(super) struct TrialArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
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
        let ModelArgs {
            model,
            cache_dir,
            load_format,
        } = self.model.clone();
        Ok(crate::open_as(&model, cache_dir, load_format.into())?)
    }

    /// What the backend is made with to feed so many sequences, each up to `context` tokens, a block at a time. 16-bit pages.
    ///
    /// # Errors
    /// When the device cannot be used.
    pub(super) fn options(&self, seqs: usize, context: usize) -> Result<BackendOptions, CliError> {
        Ok(BackendOptions {
            device: self.device.open()?,
            steps: StepSizes {
                rows: seqs * CHUNK,
                seqs,
                context,
                logit_rows: CHUNK,
                decode_rows: 0,
                batch_invariant: false,
            },
            ..BackendOptions::cpu(self.threads.unwrap_or_else(cores))
        })
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
        context: usize,
    ) -> Result<(Trials, Vec<TrialPositions>), CliError> {
        let model = &opened.model;
        let (layout, positions) =
            lay_out(model.spec.kv_geometry(), formats).map_err(crate::StartError::from)?;
        let frames = crate::pool(model, self.kv_memory.0, false)?.frames;
        let options = BackendOptions {
            layout: Some(layout.clone()),
            rotate_v,
            ..self.options(1 + formats.len(), context)?
        };
        let backend = options.start(model, frames)?;
        Ok((Trials::new(backend, frames, layout, Vec::new()), positions))
    }
}
