//! Method measured: a few pages at a time through the paged cache.

use super::CalibrateArgs;
use crate::Opened;
use crate::calibrate::Losses;
use crate::calibrate::measured::{Trial, trials};
use crate::cli::error::CliError;
use crate::cli::eval::{advance, bar};
use crate::eval::compare;

impl CalibrateArgs {
    pub(super) fn measure(
        &self,
        opened: &Opened,
        windows: &[u32],
        losses: &mut Losses,
    ) -> Result<(), CliError> {
        let geometry = opened.model.spec.kv_geometry();
        let all = trials(geometry);
        let left: Vec<Trial> = all
            .iter()
            .copied()
            .filter(|t| !losses.has(&t.name()))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let formats: Vec<_> = left.iter().map(|t| t.formats(geometry)).collect();
        let (mut run, positions) = self
            .run
            .trials(opened, &formats, self.rotate_v, self.ctx())?;
        let bar = bar();
        let mut done = all.len() - left.len();
        let batch = self.tuning.batch;
        for (batch, positions) in left.chunks(batch).zip(positions.chunks(batch)) {
            advance(&bar, done, all.len());
            let names: Vec<String> = batch.iter().map(Trial::name).collect();
            run.restart(positions);
            let found = compare(
                &mut run,
                &names,
                windows,
                self.ctx(),
                self.samples(),
                &mut |_, _| {},
            )?;
            for (trial, comparison) in batch.iter().zip(found) {
                losses.add(&trial.name(), comparison.kl_second_half)?;
            }
            done += batch.len();
        }
        bar.finish_and_clear();
        Ok(())
    }
}
