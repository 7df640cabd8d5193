//! Log-probabilities under the model's own distribution: the log-softmax of the logits as the
//! model gave them, before bias, penalties, temperature and filters.

use super::SampleError;
use super::scan::{BLOCK, Scan};
use super::weight::block_exp;

/// How likely the model itself found a token, and which tokens it found most likely.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The most likely tokens with theirs, best first, the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// The model's distribution in one row, as far as reports need it.
pub(super) struct Distribution {
    /// Logarithm of the sum of all `e^logit`.
    log_sum: f64,
    top: Vec<(u32, f32)>,
}

impl Distribution {
    /// Reads the row that `scan` belongs to, for reports with `top` alternatives.
    pub(super) fn of(logits: &[f32], scan: &Scan, top: u32) -> Self {
        let max = scan.max();
        let sum: f64 = logits.chunks(BLOCK).map(|b| block_exp(b, max)).sum();
        Self {
            log_sum: f64::from(max) + sum.ln(),
            top: top_logits(logits, scan, top as usize),
        }
    }

    /// The report for a token whose logit the model gave as `logit`.
    pub(super) fn report(self, logit: f32) -> TokenLogprobs {
        let logprob = |logit: f32| (f64::from(logit) - self.log_sum) as f32;
        TokenLogprobs {
            logprob: logprob(logit),
            top: self.top.iter().map(|&(id, l)| (id, logprob(l))).collect(),
        }
    }
}

/// The `count` greatest logits with their ids, greatest first, lower ids first among equals;
/// -∞ is not among them.
fn top_logits(logits: &[f32], scan: &Scan, count: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    if count == 0 {
        return top;
    }
    // What the next logit must exceed. Ids ascend, so an equal one comes too late.
    let mut bar = f32::NEG_INFINITY;
    for (block, (&max, logits)) in scan.blocks().iter().zip(logits.chunks(BLOCK)).enumerate() {
        if max <= bar {
            continue;
        }
        for (i, &logit) in logits.iter().enumerate() {
            if logit <= bar {
                continue;
            }
            let at = top.partition_point(|&(_, better)| better >= logit);
            top.insert(at, ((block * BLOCK + i) as u32, logit));
            top.truncate(count);
            if top.len() == count {
                bar = top[count - 1].1;
            }
        }
    }
    top
}

/// The report for `token`, from a row of sound logits.
pub(super) fn token_logprobs(
    logits: &[f32],
    scan: &Scan,
    token: u32,
    top: u32,
) -> Result<TokenLogprobs, SampleError> {
    let Some(&logit) = logits.get(token as usize) else {
        return Err(SampleError::OutsideVocabulary {
            token,
            vocab: logits.len(),
        });
    };
    Ok(Distribution::of(logits, scan, top).report(logit))
}
