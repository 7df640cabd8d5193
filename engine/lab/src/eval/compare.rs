//! How far low-bit pages lead a model away from its 16-bit run.

use ebb_kernels::cpu::simd::Isa;
use ebb_kernels::cpu::softmax::Softmax;
use rayon::prelude::*;
use serde::Serialize;

use super::trial::Trials;
use super::{CHUNK, EvalError, Rows};

/// One specification's figures. `*_second_half` are over the second half of each window, where most
/// of the context is shrunk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The KV specification.
    pub kv: String,
    /// exp of the mean negative log-likelihood.
    pub ppl: f64,
    /// Mean KL divergence, nats a token, of the distribution from the 16-bit run's.
    pub kl: f64,
    /// Share of tokens at which both hold the same token most likely.
    pub top1: f64,
    /// `ppl` over second halves.
    pub ppl_second_half: f64,
    /// `kl` over second halves.
    pub kl_second_half: f64,
    /// `top1` over second halves.
    pub top1_second_half: f64,
    /// Bits an element over every stored byte of codes and metadata, at the ends of the windows.
    pub mean_bits: f64,
    /// The same with the unused ends of frames.
    pub mean_bits_held: f64,
    /// Bits an element of sealed blocks that nothing protects.
    pub mean_bits_sealed: f64,
    /// Perplexity of the 16-bit run.
    pub ppl_16bit: f64,
    /// Perplexity of the 16-bit run over second halves.
    pub ppl_16bit_second_half: f64,
    /// Tokens scored.
    pub tokens: usize,
    /// Tokens of a window.
    pub ctx: usize,
    /// Windows.
    pub windows: usize,
}

/// What is scored of a text, and by how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scoring {
    /// Tokens of a window.
    pub ctx: usize,
    /// Consecutive windows.
    pub windows: usize,
    /// Tokens of each window that are read only; their logits are not computed.
    pub unscored: usize,
    /// Threads that compare logits.
    pub threads: usize,
}

impl Scoring {
    /// All of so many windows, on all cores.
    pub fn whole(ctx: usize, windows: usize) -> Self {
        Self {
            ctx,
            windows,
            unscored: 0,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Sums over scored tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    tokens: usize,
    nll: f64,
    kl: f64,
    same: usize,
    nll_16bit: f64,
}

impl Sums {
    fn add(&mut self, nll_16bit: f64, row: Row) {
        self.tokens += 1;
        self.nll += row.nll;
        self.kl += row.kl;
        self.same += usize::from(row.same);
        self.nll_16bit += nll_16bit;
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.tokens.max(1) as f64
    }
}

/// One scored token of a trial.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Negative log-likelihood, nats.
    pub nll: f64,
    /// KL divergence from the 16-bit run's distribution, nats.
    pub kl: f64,
    /// Whether both hold the same token most likely.
    pub same: bool,
}

/// Scores windows of a text with every trial; `names` are the specifications. `progress` hears of
/// every chunk done, of how many.
///
/// # Errors
/// When the text is too short, the context impossible, or the engine fails.
pub fn compare(
    trials: &mut Trials,
    names: &[String],
    text: &[u32],
    scoring: Scoring,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Comparison>, EvalError> {
    let Scoring { ctx, windows, .. } = scoring;
    super::check(trials.backend().spec(), text, ctx, windows)?;
    let vocab = trials.backend().spec().vocab;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(scoring.threads)
        .build()?;
    let count = trials.trials();
    let mut sums = vec![[Sums::default(); 2]; count];
    let mut bits = Vec::new();
    let chunks = windows * ctx.div_ceil(CHUNK);
    let mut done = 0;
    for window in text.chunks_exact(ctx).take(windows) {
        trials.reset();
        for (index, chunk) in window.chunks(CHUNK).enumerate() {
            let first = index * CHUNK;
            let is_scored = first + chunk.len() > scoring.unscored;
            let logits = trials.feed(chunk, is_scored.then_some(Rows::All))?;
            if is_scored {
                let targets = &window[first + 1..];
                let rows = pool.install(|| score(logits, chunk.len(), vocab, targets));
                for (position, (nll_16bit, rows)) in (first..).zip(rows) {
                    if position < scoring.unscored {
                        continue;
                    }
                    for (sums, row) in sums.iter_mut().zip(rows) {
                        sums[0].add(nll_16bit, row);
                        if position >= ctx / 2 {
                            sums[1].add(nll_16bit, row);
                        }
                    }
                }
            }
            done += 1;
            progress(done, chunks);
        }
        // Windows are equally long: what is stored at the end of one is stored at the end of each.
        bits = (0..count).map(|t| trials.bits(t)).collect();
    }
    let report =
        |(([all, half], bits), kv): (([Sums; 2], super::trial::Bits), &String)| Comparison {
            kv: kv.clone(),
            ppl: all.mean(all.nll).exp(),
            kl: all.mean(all.kl),
            top1: all.mean(all.same as f64),
            ppl_second_half: half.mean(half.nll).exp(),
            kl_second_half: half.mean(half.kl),
            top1_second_half: half.mean(half.same as f64),
            mean_bits: bits.stored,
            mean_bits_held: bits.held,
            mean_bits_sealed: bits.sealed,
            ppl_16bit: all.mean(all.nll_16bit).exp(),
            ppl_16bit_second_half: half.mean(half.nll_16bit).exp(),
            tokens: all.tokens,
            ctx,
            windows,
        };
    Ok(sums.into_iter().zip(bits).zip(names).map(report).collect())
}

/// Scores logits `[16-bit run, trials..][rows][vocab]` against the next tokens, of which the last
/// row may have none: of each row the 16-bit run's negative log-likelihood and every trial's
/// figures. On rayon's threads; a row is one thread's, so that the sums do not depend on how many
/// there are.
pub(crate) fn score(
    logits: &[f32],
    rows: usize,
    vocab: usize,
    targets: &[u32],
) -> Vec<(f64, Vec<Row>)> {
    let isa = Isa::detect();
    let of_row = |scratch: &mut Vec<f32>, row: usize| {
        let target = targets[row] as usize;
        let mut of_seq = logits
            .chunks_exact(rows * vocab)
            .map(|seq| &seq[row * vocab..][..vocab]);
        let whole = of_seq.next().unwrap_or_default();
        let softmax = Softmax::new(isa, whole, scratch);
        let trials = of_seq.map(|low| {
            let against = softmax.against(low);
            Row {
                nll: against.log_sum - f64::from(low[target]),
                kl: against.divergence,
                same: against.same_top,
            }
        });
        let trials = trials.collect();
        (softmax.log_sum() - f64::from(whole[target]), trials)
    };
    let scored = rows.min(targets.len());
    let rows = (0..scored).into_par_iter().map_init(Vec::new, of_row);
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::super::log_prob;
    use super::*;

    #[test]
    fn rows_are_scored_against_the_tokens_behind_them() {
        // Two rows of three tokens: the 16-bit run, then two trials.
        let whole = [[0.0f32, 2.0, 1.0], [1.0, 0.5, -3.0]];
        let trials = [
            [[3.0f32, 2.0, 1.0], [1.0, 0.0, 0.0]],
            [[0.0, 2.5, 1.0], [0.0, 0.5, -3.0]],
        ];
        let logits = [whole, trials[0], trials[1]]
            .as_flattened()
            .as_flattened()
            .to_vec();
        let scored = score(&logits, 2, 3, &[1, 0, 2]);
        assert_eq!(scored.len(), 2);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a}, expected {b}");
        for (row, (nll_16bit, figures)) in scored.iter().enumerate() {
            let target = [1, 0][row];
            near(*nll_16bit, -log_prob(&whole[row], target));
            for (trial, got) in figures.iter().enumerate() {
                let low = &trials[trial][row];
                near(got.nll, -log_prob(low, target));
                let kl = (0..3).map(|t| {
                    let (p, q) = (log_prob(&whole[row], t), log_prob(low, t));
                    p.exp() * (p - q)
                });
                near(got.kl, kl.sum());
            }
        }
        let same: Vec<bool> = scored
            .iter()
            .flat_map(|r| r.1.iter().map(|t| t.same))
            .collect();
        assert_eq!(same, [false, true, true, false]);
        // The last row of a window has no token behind it.
        assert_eq!(score(&logits, 2, 3, &[1]).len(), 1);
    }
}
