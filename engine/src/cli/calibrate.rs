//! `ebb calibrate`: measures what each page of the KV cache is worth and writes a profile.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::eval::{advance, bar};
use super::trial_args::TrialArgs;
use crate::calibrate::{Losses, Trial, profile, trials};
use crate::eval::{compare, read_text};
use crate::kv_plan::Profile;

/// What to measure and where to write it.
#[derive(Debug, Clone, Args)]
pub(super) struct CalibrateArgs {
    /// Plain text to calibrate with, of the kind that the model will see. Not what it will be judged by.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    text: Vec<PathBuf>,
    /// Where the profile goes. What is measured is kept beside it, in FILE.losses, and not measured again.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens of a window; the second half of each is scored.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    ctx: usize,
    /// Windows, spread evenly over the text.
    #[arg(long, value_name = "N", default_value_t = 1)]
    samples: usize,
    /// Fold V's Hadamard rotation into the weights: halves the loss of 2-bit values, and is free.
    #[arg(long)]
    rotate_v: bool,
    /// Pages measured at once; each takes memory for a window and a block's logits.
    #[arg(long, value_name = "N", default_value_t = 12)]
    batch: usize,
    #[command(flatten)]
    run: TrialArgs,
}

impl CalibrateArgs {
    /// Runs the command. Blocks until it is done.
    pub(super) fn run(&self) -> Result<(), CliError> {
        if self.ctx < 1024 || self.samples == 0 || self.batch == 0 || self.run.threads == Some(0) {
            return Err(CliError::Usage(
                "--ctx must be at least 1024, --samples, --batch and --threads at least 1".into(),
            ));
        }
        let mut text = String::new();
        for path in &self.text {
            let read = read_text(path);
            text += &read.map_err(CliError::io(format!("read {}", path.display())))?;
        }
        let opened = self.run.open()?;
        let tokens = opened.tokenizer.encode(&text, false, true);
        let tokens = tokens.map_err(|e| CliError::Usage(format!("--text: {e}")))?;
        let windows = self.windows(&tokens)?;

        let kept = self.out.with_added_extension("losses");
        let what = format!(
            "{} ctx={} samples={} rotate_v={} tokens={:08x}",
            opened.model.name,
            self.ctx,
            self.samples,
            self.rotate_v,
            checksum(&windows)
        );
        let mut losses = Losses::kept_in(&kept, &what)?;
        let geometry = opened.model.spec.kv_geometry();
        let all = trials(geometry);
        let left: Vec<Trial> = all.iter().copied().filter(|t| !losses.has(*t)).collect();
        self.measure(&opened, &windows, &left, all.len(), &mut losses)?;
        let profile = profile(&opened.model.name, geometry, &losses, self.rotate_v)?;
        self.write(&profile)
    }

    /// The windows one after the other.
    fn windows(&self, tokens: &[u32]) -> Result<Vec<u32>, CliError> {
        let needed = self.ctx * self.samples;
        if tokens.len() < needed {
            return Err(CliError::Usage(format!(
                "--text has {} tokens, fewer than the {needed} of {} windows of {}; give more text or lower --samples",
                tokens.len(),
                self.samples,
                self.ctx
            )));
        }
        let stride = tokens.len() / self.samples;
        let starts = (0..self.samples).map(|i| i * stride);
        Ok(starts
            .flat_map(|s| tokens[s..s + self.ctx].to_vec())
            .collect())
    }

    fn measure(
        &self,
        opened: &crate::Opened,
        windows: &[u32],
        left: &[Trial],
        all: usize,
        losses: &mut Losses,
    ) -> Result<(), CliError> {
        if left.is_empty() {
            return Ok(());
        }
        let geometry = opened.model.spec.kv_geometry();
        let formats: Vec<_> = left.iter().map(|t| t.formats(geometry)).collect();
        let (mut run, positions) = self.run.trials(opened, &formats, self.rotate_v, self.ctx)?;
        let bar = bar();
        let mut done = all - left.len();
        for (batch, positions) in left.chunks(self.batch).zip(positions.chunks(self.batch)) {
            advance(&bar, done, all);
            let names: Vec<String> = batch.iter().map(Trial::name).collect();
            run.restart(positions);
            let found = compare(
                &mut run,
                &names,
                windows,
                self.ctx,
                self.samples,
                &mut |_, _| {},
            )?;
            for (trial, comparison) in batch.iter().zip(found) {
                losses.add(*trial, comparison.kl_second_half)?;
            }
            done += batch.len();
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn write(&self, profile: &Profile) -> Result<(), CliError> {
        let path = self.out.display();
        let json = serde_json::to_string_pretty(profile)
            .map_err(|e| CliError::io("write JSON")(e.into()))?;
        std::fs::write(&self.out, json + "\n").map_err(CliError::io(format!("write {path}")))?;
        eprintln!(
            "wrote {path}: {} steps. Serve with it: ebb serve --kv-profile {path}; score it: ebb eval --kv profile:{path}@3",
            profile.schedule().len()
        );
        Ok(())
    }
}

/// FNV-1a over token ids: tells texts apart.
fn checksum(tokens: &[u32]) -> u32 {
    let bytes = tokens.iter().flat_map(|t| t.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
