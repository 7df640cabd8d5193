//! `ebb eval`: perplexity of a text through the paged cache that serves, at 16 bit or compared with it.

use std::path::PathBuf;

use clap::Args;
use ebb_block_manager::BlockManager;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::error::CliError;
use super::generate::print;
use super::trial_args::TrialArgs;
use crate::Opened;
use crate::eval::{Comparison, Report, Sequence, compare, perplexity, read_text};
use crate::kv_spec::KvSpec;

/// What to score.
#[derive(Debug, Clone, Args)]
pub(super) struct EvalArgs {
    /// Text to score; its first windows of tokens are used, without a BOS token.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens of a window; each is scored on its own, from its second token on.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    ctx: usize,
    /// Consecutive windows to score [default: as many as the text has].
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Formats of the KV cache to compare with 16 bit: f16, or k=FORMAT,v=FORMAT with parts like layer7.k=FORMAT,
    /// protect=int8|f16 (of the first and the last sealed block) and rotate=v; or profile:FILE@BITS, a calibrated
    /// profile at a mean width of sealed pages.
    ///
    /// Give it several times to compare several; they share one 16-bit run, and either all of them rotate or none.
    #[arg(long, value_name = "SPEC")]
    kv: Vec<String>,
    /// Print JSON: one object, or one a line for each --kv.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: TrialArgs,
}

impl EvalArgs {
    /// Runs the command. Blocks until it is done.
    pub(super) fn run(&self) -> Result<(), CliError> {
        if self.ctx == 0 || self.windows == Some(0) || self.run.threads == Some(0) {
            return Err(CliError::Usage(
                "--ctx, --windows and --threads must be at least 1".into(),
            ));
        }
        // Read first: a wrong path is known before the model is loaded.
        let path = self.text.display();
        let text = read_text(&self.text).map_err(CliError::io(format!("read {path}")))?;
        let opened = self.run.open()?;
        let tokens = opened.tokenizer.encode(&text, false, true);
        let tokens =
            tokens.map_err(|e| CliError::Usage(format!("{path} cannot be tokenised: {e}")))?;
        let windows = self.windows.unwrap_or(tokens.len() / self.ctx);

        if self.kv.is_empty() {
            self.perplexity(&opened, &tokens, windows)
        } else {
            self.compare(&opened, &tokens, windows)
        }
    }

    fn perplexity(&self, opened: &Opened, tokens: &[u32], windows: usize) -> Result<(), CliError> {
        let pool = crate::pool(&opened.model, self.run.kv_memory.0, false)?;
        let options = self.run.options(1, self.ctx)?;
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

    fn compare(&self, opened: &Opened, tokens: &[u32], windows: usize) -> Result<(), CliError> {
        let geometry = opened.model.spec.kv_geometry();
        let specs = self.kv.iter().map(|text| text.parse());
        let specs = specs.collect::<Result<Vec<KvSpec>, _>>()?;
        let rotate_v = specs[0].rotate_v();
        if specs.iter().any(|s| s.rotate_v() != rotate_v) {
            return Err(CliError::Usage(
                "--kv: specifications with and without rotate=v have different weights; run them apart".into(),
            ));
        }
        specs
            .iter()
            .try_for_each(|s| s.check_model(&opened.model))?;
        let formats = specs.iter().map(|s| s.formats(geometry));
        let formats = formats.collect::<Result<Vec<_>, _>>()?;
        let (mut trials, positions) = self.run.trials(opened, &formats, rotate_v, self.ctx)?;
        trials.restart(&positions);
        let bar = bar();
        let comparisons = compare(
            &mut trials,
            &self.kv,
            tokens,
            self.ctx,
            windows,
            &mut |done, all| advance(&bar, done, all),
        )?;
        bar.finish_and_clear();
        let text = if self.json {
            json_lines(&comparisons)?
        } else {
            comparison_table(&comparisons)
        };
        print(&mut std::io::stdout(), &text)
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
