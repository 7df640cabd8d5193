//! Method measured: a few pages at a time through the paged cache, on either device.

use ebb_lab::calibrate::measured::{Trial, rounding_trials, trials};
use ebb_lab::calibrate::{FormatChoices, Losses};
use ebb_lab::eval::{Course, Scoring, compare};
use ebb_models::Opened;
use ebb_serving::device::Device;

use super::CalibrateArgs;
use crate::cli::error::CliError;
use crate::cli::lab::eval::{advance, bar};

impl CalibrateArgs {
    pub(super) fn measure(
        &self,
        device: &Device,
        opened: &Opened,
        windows: &[u32],
        choices: &FormatChoices,
        losses: &mut Losses,
    ) -> Result<(), CliError> {
        let geometry = opened.model.spec.kv_geometry();
        let mut all = trials(geometry, choices);
        if matches!(device, Device::Cuda(_)) {
            all.extend(rounding_trials(geometry));
        }
        let left: Vec<Trial> = all
            .iter()
            .copied()
            .filter(|t| !losses.has(&t.name()))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let formats: Vec<_> = left.iter().map(|t| t.formats(geometry)).collect();
        let mut run = self
            .run
            .trials(device, opened, &formats, self.rotation(), self.ctx())?;
        let scoring = Scoring {
            ctx: self.ctx(),
            windows: self.samples(),
            unscored: self.ctx() / 2,
            threads: self.threads(),
        };
        let bar = bar();
        let mut done = all.len() - left.len();
        let batches = run.levels.chunks(run.batch);
        for (batch, levels) in left.chunks(run.batch).zip(batches) {
            let names: Vec<String> = batch.iter().map(Trial::name).collect();
            run.trials
                .restart(levels.iter().cloned().map(Course::Sealed));
            let mut progress = |part: usize, chunks: usize| {
                advance(&bar, done * chunks + part * batch.len(), all.len() * chunks);
            };
            let found = compare(&mut run.trials, &names, windows, scoring, &mut progress)?;
            for (trial, comparison) in batch.iter().zip(found) {
                losses.add(&trial.name(), comparison.kl_second_half)?;
            }
            done += batch.len();
        }
        bar.finish_and_clear();
        Ok(())
    }
}
