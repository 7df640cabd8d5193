//! PM-KVQ's channel scales beside its sensitivities.

use ebb_kernels::formats::FormatId;
use ebb_lab::calibrate::Gradients;
use ebb_lab::calibrate::key_scales::{FoundScales, search};
use ebb_models::Opened;

use super::CalibrateArgs;
use super::result::Found;
use crate::cli::error::CliError;

/// Windows that the exponents are looked for in unless told otherwise: each means 22 attentions a
/// layer, and tokens there are in one already.
const SAMPLES: usize = 2;

impl CalibrateArgs {
    /// The format that `--key-scales` names.
    ///
    /// # Errors
    /// When scales do nothing for it.
    pub(super) fn key_scales_format(&self) -> Result<Option<FormatId>, CliError> {
        let Some(name) = &self.tuning.key_scales else {
            return Ok(None);
        };
        match name.parse() {
            Ok(format @ (FormatId::Int4t | FormatId::Int2t)) => Ok(Some(format)),
            _ => Err(CliError::Usage(format!(
                "--key-scales {name}: scales help keys with one range a token, int4t and int2t"
            ))),
        }
    }

    /// Finds the scales if they are asked for.
    pub(super) fn add_key_scales(
        &self,
        opened: &Opened,
        gradients: &mut Gradients<'_>,
        windows: &[u32],
        found: &mut Found,
    ) -> Result<(), CliError> {
        let Some(format) = self.key_scales_format()? else {
            return Ok(());
        };
        let windows: Vec<&[u32]> = windows.chunks_exact(self.ctx()).collect();
        let spec = &opened.model.spec;
        let samples = self.tuning.key_scale_samples.unwrap_or(SAMPLES);
        let searched = search(spec, gradients, format, &windows, samples, self.stride());
        let FoundScales { scales, errors } =
            searched.map_err(|e| CliError::Usage(format!("--key-scales: {e}")))?;
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        found.notes.push(format!(
            "with key scales the error of attention over {format} keys is {mean:.3} of what it is \
             without, the mean of {} layers",
            errors.len()
        ));
        found.key_scales = Some(scales);
        Ok(())
    }
}
