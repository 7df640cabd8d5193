//! Teacher-forced evaluation through the paged cache: the bytes that would be served are the bytes
//! scored.

mod compare;
mod sequence;
mod trial;

use std::path::Path;

use ebb_kernels::model::ModelSpec;
use serde::Serialize;
use thiserror::Error;

pub(crate) use compare::score;
pub use compare::{Comparison, Row, Scoring, compare};
pub use sequence::{FeedError, Rows, Sequence};
pub use trial::{Bits, Course, Move, TrialLevels, Trials, frames_needed, lay_out, lay_out_beside};

/// Tokens fed in one step: one block, as serving's own rules have it.
pub const CHUNK: usize = ebb_block_manager::BLOCK_TOKENS;

/// What `ebb eval` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// exp of the mean negative log-likelihood over all windows.
    pub ppl: f64,
    /// Mean negative log-likelihood (nats a token) of each window, over its tokens from the second
    /// on.
    pub mean_nll_per_window: Vec<f64>,
    /// Tokens scored.
    pub tokens: usize,
    /// Tokens of a window.
    pub ctx: usize,
    /// Tokens of the whole text.
    pub text_tokens: usize,
}

/// The text or the numbers do not allow an evaluation.
#[derive(Debug, Error)]
pub enum EvalError {
    /// Fewer tokens than asked for.
    #[error(
        "the text has {have} tokens, fewer than the {windows} windows of {ctx} that were asked \
         for; lower --windows or --ctx"
    )]
    TextTooShort {
        /// Tokens of the text.
        have: usize,
        /// Windows asked for.
        windows: usize,
        /// Tokens of each.
        ctx: usize,
    },
    /// A window cannot be scored.
    #[error("--ctx {ctx} must be from 2 to the model's context of {max}")]
    Context {
        /// Tokens asked for.
        ctx: usize,
        /// The model's most.
        max: usize,
    },
    /// The pool or the backend failed.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// Logits cannot be compared on so many threads.
    #[error("cannot start the threads that compare logits: {0}; lower --threads")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// Perplexity over `windows` consecutive windows of `ctx` tokens. `progress` hears of every chunk
/// done, of how many.
///
/// # Errors
/// When the text is too short, the context impossible, or the engine fails.
pub fn perplexity(
    sequence: &mut Sequence,
    text: &[u32],
    ctx: usize,
    windows: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, EvalError> {
    check(sequence.backend().spec(), text, ctx, windows)?;
    let vocab = sequence.backend().spec().vocab;
    let chunks = windows * ctx.div_ceil(CHUNK);
    let mut done = 0;
    let mut mean_nll_per_window = Vec::with_capacity(windows);
    for window in text.chunks_exact(ctx).take(windows) {
        sequence.reset();
        let mut nll = 0.0;
        for (index, chunk) in window.chunks(CHUNK).enumerate() {
            let logits = sequence.feed(chunk, Rows::All)?;
            let targets = &window[index * CHUNK + 1..];
            nll += logits
                .chunks_exact(vocab)
                .zip(targets)
                .map(|(row, &t)| -log_prob(row, t))
                .sum::<f64>();
            done += 1;
            progress(done, chunks);
        }
        mean_nll_per_window.push(nll / (ctx - 1) as f64);
    }
    let mean = mean_nll_per_window.iter().sum::<f64>() / windows as f64;
    Ok(Report {
        ppl: mean.exp(),
        mean_nll_per_window,
        tokens: windows * (ctx - 1),
        ctx,
        text_tokens: text.len(),
    })
}

/// Whether the text has the windows and the model the context.
fn check(spec: &ModelSpec, text: &[u32], ctx: usize, windows: usize) -> Result<(), EvalError> {
    let max = spec.max_positions;
    if ctx < 2 || ctx > max {
        return Err(EvalError::Context { ctx, max });
    }
    match ctx.checked_mul(windows) {
        Some(needed) if windows > 0 && text.len() >= needed => Ok(()),
        _ => Err(EvalError::TextTooShort {
            have: text.len(),
            windows,
            ctx,
        }),
    }
}

/// Reads a text to score: UTF-8, with line ends as line feeds whatever the file has, so that a text
/// means the same tokens on every machine.
///
/// # Errors
/// When the file cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    Ok(std::fs::read_to_string(path)?.replace("\r\n", "\n"))
}

/// Natural-log probability of `token` under `logits`, accumulated in f64.
pub fn log_prob(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::log_prob;

    #[test]
    fn log_prob_matches_the_definition() {
        let logits = [1.0f32, -2.0, 0.5, 800.0];
        let z: f64 = logits.iter().map(|&l| (f64::from(l) - 800.0).exp()).sum();
        for (i, &l) in logits.iter().enumerate() {
            let expected = f64::from(l) - 800.0 - z.ln();
            assert!((log_prob(&logits, i as u32) - expected).abs() < 1e-9);
        }
    }
}
