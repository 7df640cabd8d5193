//! `ebb eval`: perplexity of a text through the paged cache that serves, at 16 bit or compared with
//! it.

use std::path::PathBuf;

use clap::Args;
use ebb_block_manager::BlockManager;
use ebb_lab::eval::{
    Comparison, Course, Report, Scoring, Sequence, compare, perplexity, read_text,
};
use ebb_models::Opened;
use ebb_serving::device::Device;
use ebb_serving::kv_plan::DEFAULT_FLOOR;
use ebb_serving::kv_spec::{KvSpec, Preset};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::trial_args::TrialArgs;
use crate::cli::error::CliError;
use crate::cli::generate::print;

/// What to score.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct EvalArgs {
    /// Text to score; its first windows of tokens are used, without a BOS token.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens of a window; each is scored on its own, from its second token on.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    ctx: usize,
    /// Consecutive windows to score [default: as many as the text has].
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Formats of the KV cache to compare with 16 bit: f16, or k=FORMAT,v=FORMAT with parts like
    /// layer7.k=FORMAT, protect=int8|f16 (of the first and the last sealed block; sink=0 leaves out
    /// the first, sink=32 keeps its first 32 tokens alone, recent=N is for the last N, recent.k and
    /// recent.v for a side), rotate=k, v or kv and shrink=by-length; or profile:FILE@BITS, a
    /// calibrated profile at a mean width of sealed pages.
    ///
    /// Give it several times to compare several: the model is loaded once for all of them, and once
    /// more for those that rotate or bring key scales.
    #[arg(long, value_name = "SPEC")]
    kv: Vec<String>,
    /// A paper's mode by its name, the one of `ebb serve`, to compare with 16 bit: kivi2, kivi4,
    /// kitty25, kitty12, kvmix:FILE, pmkvq:FILE, polarquant44, ebb, ebb:FILE[@BITS] and ablations
    /// (a wrong name lists them all); FILE is a profile of ebb calibrate. Give it several times,
    /// also beside --kv.
    #[arg(long, value_name = "NAME[:FILE]")]
    kv_preset: Vec<String>,
    /// The greatest length that shrink=by-length and pmkvq:FILE have memory for at their floors. A
    /// shorter text has wider blocks [default: --ctx].
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
    /// Print JSON: one object, or one a line for each --kv and --kv-preset, as soon as it is known.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: TrialArgs,
}

impl EvalArgs {
    /// Runs the command. Blocks until it is done.
    pub(super) fn run(&self) -> Result<(), CliError> {
        if self.ctx == 0 || self.windows == Some(0) {
            return Err(CliError::Usage(
                "--ctx and --windows must be at least 1".into(),
            ));
        }
        if self.max_length.is_some_and(|most| most < self.ctx) {
            return Err(CliError::Usage(
                "--max-length must be at least --ctx: budgets end at it".into(),
            ));
        }
        self.run.check()?;
        // Read first: a wrong path is known before the model is loaded.
        let path = self.text.display();
        let text = read_text(&self.text).map_err(CliError::io(format!("read {path}")))?;
        let device = self.run.device.open()?;
        let mut opened = self.run.open()?;
        let tokens = opened.tokenizer.encode(&text, false, true);
        let tokens =
            tokens.map_err(|e| CliError::Usage(format!("{path} cannot be tokenised: {e}")))?;
        let windows = self.windows.unwrap_or(tokens.len() / self.ctx);

        if self.kv.is_empty() && self.kv_preset.is_empty() {
            self.perplexity(&device, &opened, &tokens, windows)
        } else {
            self.compare(&device, &mut opened, &tokens, windows)
        }
    }

    fn perplexity(
        &self,
        device: &Device,
        opened: &Opened,
        tokens: &[u32],
        windows: usize,
    ) -> Result<(), CliError> {
        let (options, kv_bytes) = self.run.single(device, opened, self.ctx);
        let pool = ebb_serving::pool(&opened.model, kv_bytes, false)?;
        let backend = options.start(&opened.model, pool.frames)?;
        let blocks =
            BlockManager::new(pool).map_err(|e| CliError::Usage(format!("--kv-memory: {e}")))?;
        let mut sequence = Sequence::new(backend, blocks);
        let bar = bar();
        let report = perplexity(
            &mut sequence,
            tokens,
            self.ctx,
            windows,
            &mut |done, all| advance(&bar, done, all),
        )?;
        bar.finish_and_clear();
        self.show(&report)
    }

    fn compare(
        &self,
        device: &Device,
        opened: &mut Opened,
        tokens: &[u32],
        windows: usize,
    ) -> Result<(), CliError> {
        let geometry = opened.model.spec.kv_geometry();
        let max_length = self.max_length.unwrap_or(self.ctx);
        let mut specs = Vec::with_capacity(self.kv.len() + self.kv_preset.len());
        let kv = self.kv.iter().map(|text| ("--kv", text, text.parse()));
        let presets = self.kv_preset.iter().map(|text| {
            let preset = Preset::named(text, DEFAULT_FLOOR);
            ("--kv-preset", text, preset.map(|p| p.spec))
        });
        for (flag, text, spec) in kv.chain(presets) {
            let spec: KvSpec = spec?;
            spec.check_model(&opened.model)?;
            let mut formats = spec.formats(geometry)?;
            formats.max_length = spec.comes_down_by_length().then_some(max_length);
            device
                .check_formats(geometry, &formats)
                .map_err(|e| CliError::Usage(format!("{flag} {text}: {e}")))?;
            specs.push((spec, formats, text));
        }
        let scoring = Scoring {
            threads: self.run.threads(),
            ..Scoring::whole(self.ctx, windows)
        };
        let bar = bar();
        let mut done = 0;
        let mut found: Vec<Option<Comparison>> = vec![None; specs.len()];
        // Rotations and key scales belong to a backend or its weights, so that each of these needs
        // the model loaded once more.
        let folded = |i: &usize| (specs[*i].0.rotation(), specs[*i].0.key_scales());
        let mut left: Vec<usize> = (0..specs.len()).collect();
        while let Some(first) = left.first() {
            let weights = folded(first);
            let (all, others): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|i| folded(i) == weights);
            left = others;
            let (rotation, key_scales) = weights;
            let fits = opened.model.fold_key_scales(key_scales);
            fits.map_err(|cause| CliError::Usage(format!("{cause}; calibrate this model")))?;
            let formats: Vec<_> = all.iter().map(|i| specs[*i].1.clone()).collect();
            let run = &self.run;
            let mut prepared = run.trials(device, opened, &formats, rotation, self.ctx)?;
            let batches = prepared.levels.chunks(prepared.batch);
            for (batch, levels) in all.chunks(prepared.batch).zip(batches) {
                prepared
                    .trials
                    .restart(levels.iter().cloned().map(Course::Sealed));
                let names: Vec<String> = batch.iter().map(|i| specs[*i].2.clone()).collect();
                let mut progress = |of_batch: usize, chunks: usize| {
                    let done = done * chunks + of_batch * batch.len();
                    advance(&bar, done, specs.len() * chunks);
                };
                let comparisons =
                    compare(&mut prepared.trials, &names, tokens, scoring, &mut progress)?;
                done += batch.len();
                if self.json {
                    let lines = json_lines(&comparisons)?;
                    bar.suspend(|| print(&mut std::io::stdout(), &lines))?;
                }
                for (i, comparison) in batch.iter().zip(comparisons) {
                    found[*i] = Some(comparison);
                }
            }
        }
        bar.finish_and_clear();
        if self.json {
            return Ok(());
        }
        let comparisons: Vec<Comparison> = found.into_iter().flatten().collect();
        print(&mut std::io::stdout(), &comparison_table(&comparisons))
    }

    fn show(&self, report: &Report) -> Result<(), CliError> {
        let text = if self.json {
            serde_json::to_string(report).map_err(|e| CliError::io("write JSON")(e.into()))? + "\n"
        } else {
            table(report)
        };
        print(&mut std::io::stdout(), &text)
    }
}

pub(super) fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} chunks, {eta} to go");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

pub(super) fn advance(bar: &ProgressBar, done: usize, all: usize) {
    bar.set_length(all as u64);
    bar.set_position(done as u64);
}

/// One object a line.
fn json_lines(comparisons: &[Comparison]) -> Result<String, CliError> {
    let mut text = String::new();
    for comparison in comparisons {
        text +=
            &serde_json::to_string(comparison).map_err(|e| CliError::io("write JSON")(e.into()))?;
        text.push('\n');
    }
    Ok(text)
}

/// For people: figures over all tokens and, right of the bar, over second halves.
fn comparison_table(comparisons: &[Comparison]) -> String {
    let widest = comparisons
        .iter()
        .map(|c| c.kv.len())
        .max()
        .unwrap_or(0)
        .max(6);
    let mut text = format!(
        "{:<widest$} {:>6} {:>6} {:>9} {:>9} {:>6} | {:>9} {:>9} {:>6}\n",
        "kv", "sealed", "mean", "kl", "ppl", "top1", "kl", "ppl", "top1"
    );
    for c in comparisons {
        text += &format!(
            "{:<widest$} {:>6.3} {:>6.3} {:>9.5} {:>9.3} {:>6.3} | {:>9.5} {:>9.3} {:>6.3}\n",
            c.kv,
            c.mean_bits_sealed,
            c.mean_bits,
            c.kl,
            c.ppl,
            c.top1,
            c.kl_second_half,
            c.ppl_second_half,
            c.top1_second_half
        );
    }
    if let Some(c) = comparisons.first() {
        text += &format!(
            "{:<widest$} {:>6} {:>6} {:>9} {:>9.3} {:>6} | {:>9} {:>9.3}\n",
            "16 bit", "16", "16", "", c.ppl_16bit, "", "", c.ppl_16bit_second_half
        );
        text += &format!(
            "{} tokens scored in {} windows of {}; right of the bar, their second halves\n",
            c.tokens, c.windows, c.ctx
        );
    }
    text
}

/// For people.
fn table(report: &Report) -> String {
    let mut text = format!(
        "{:>8} {:>12} {:>12}\n",
        "window", "nats/token", "perplexity"
    );
    for (i, nll) in report.mean_nll_per_window.iter().enumerate() {
        text += &format!("{:>8} {nll:>12.5} {:>12.4}\n", i + 1, nll.exp());
    }
    let mean = report.ppl.ln();
    text += &format!("{:>8} {mean:>12.5} {:>12.4}\n", "all", report.ppl);
    text += &format!(
        "{} tokens scored of {}, in windows of {}\n",
        report.tokens, report.text_tokens, report.ctx
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_window_and_one_for_all() {
        let report = Report {
            ppl: 3f64.exp(),
            mean_nll_per_window: vec![2.0, 4.0],
            tokens: 14,
            ctx: 8,
            text_tokens: 20,
        };
        let text = table(&report);
        let lines: Vec<_> = text
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>())
            .collect();
        assert_eq!(lines[1], ["1", "2.00000", "7.3891"]);
        assert_eq!(lines[3], ["all", "3.00000", "20.0855"]);
        assert_eq!(lines.len(), 5);
    }
}
