//! Samples: every token must be the reference's, to the last random bit.

use std::sync::Arc;

use super::Rng;
use super::sample_reference::{self as reference, Reference};
use super::table::Report;
use crate::backend::{Edits, LogitEdit, SampleRequest, SampledToken};
use crate::cuda::driver::Device;
use crate::cuda::probe::{ProbeError, SampleProbe};

/// Log-probabilities are sums of f32 powers.
const LOGPROB_LIMIT: f64 = 2e-6;

/// How the logits of a row look.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// As a model's: a few far above many.
    Model,
    /// All within a little: cuts lie among many near equals.
    Flat,
    /// Few different values: cuts lie among ties.
    Ties,
    /// Most ruled out.
    Masked,
    /// All the same.
    Equal,
    /// Some so large that a penalty takes them out of what an f32 holds.
    Extreme,
    /// A NaN or an infinity somewhere.
    Unsound,
    /// Nothing left.
    Nothing,
}

const SHAPES: [Shape; 8] = [
    Shape::Model,
    Shape::Flat,
    Shape::Ties,
    Shape::Masked,
    Shape::Equal,
    Shape::Extreme,
    Shape::Unsound,
    Shape::Nothing,
];

fn row(shape: Shape, vocab: usize, rng: &mut Rng) -> Vec<f32> {
    let mut row: Vec<f32> = match shape {
        Shape::Model | Shape::Masked | Shape::Extreme | Shape::Unsound => (0..vocab)
            .map(|_| {
                let spread = (0..4).map(|_| rng.uniform()).sum::<f32>() * 3.0;
                spread + if rng.below(40) == 0 { 8.0 } else { 0.0 }
            })
            .collect(),
        Shape::Flat => (0..vocab).map(|_| 3.0 + rng.uniform() * 1e-3).collect(),
        Shape::Ties => (0..vocab)
            .map(|_| [0.0, -0.0, 1.5, 2.0, -7.0][rng.below(5)])
            .collect(),
        Shape::Equal => vec![-4.25; vocab],
        Shape::Nothing => vec![f32::NEG_INFINITY; vocab],
    };
    match shape {
        Shape::Masked => {
            let kept = rng.below(vocab);
            for (id, logit) in row.iter_mut().enumerate() {
                if id != kept && rng.below(8) > 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Shape::Extreme => {
            for _ in 0..1 + rng.below(40) {
                let at = rng.below(vocab);
                row[at] = [1.5e38, -1.5e38, 1e37, -1e37, 1e-40, -1e-40][rng.below(6)];
            }
        }
        Shape::Unsound => {
            let at = rng.below(vocab);
            row[at] = [f32::NAN, -f32::NAN, f32::INFINITY][rng.below(3)];
        }
        _ => {}
    }
    row
}

fn sample(row: usize, vocab: usize, rng: &mut Rng) -> SampleRequest {
    let pick = |rng: &mut Rng, values: &[f32]| values[rng.below(values.len())];
    let mut sample = SampleRequest::greedy(row as u32);
    sample.bits = rng.bits();
    sample.temperature = pick(rng, &[0.0, 1.0, 1.0, 0.3, 0.7, 2.5, 50.0, 1e-5]);
    sample.top_k = match rng.below(5) {
        0 => 1 + rng.below(8) as u32,
        1 => 1 + rng.below(vocab + 10) as u32,
        2 => 50,
        _ => 0,
    };
    sample.top_p = pick(rng, &[1.0, 1.0, 0.9, 0.5, 0.999_9, 1e-6]);
    sample.min_p = pick(rng, &[0.0, 0.0, 0.05, 1e-4, 1.0]);
    sample.logprobs = [None, None, Some(0), Some(5), Some(20)][rng.below(5)];
    sample
}

/// Edits of a few ids of all kinds, some beyond the vocabulary; perhaps with a token still to come.
fn edit(edits: &mut Vec<LogitEdit>, vocab: usize, before: usize, rng: &mut Rng) -> Edits {
    let mut ids: Vec<u32> = (0..rng.below(60))
        .map(|_| rng.below(vocab + 3) as u32)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let first = edits.len() as u32;
    edits.extend(ids.iter().map(|&id| LogitEdit {
        id,
        bias: [0.0, 0.0, 5.0, -1.25][rng.below(4)],
        count: [0, 0, 1, 3][rng.below(4)],
        masked: rng.below(6) == 0,
        in_prompt: rng.below(2) == 0,
    }));
    Edits {
        first,
        len: ids.len() as u32,
        repetition: [1.0, 1.3, 0.8, 0.01, 100.0][rng.below(5)],
        frequency: [0.0, 0.7, -0.2][rng.below(3)],
        presence: [0.0, 1.1][rng.below(2)],
        also: (before > 0 && rng.below(2) == 0).then(|| rng.below(before) as u32),
    }
}

/// How far what was sampled is from what should have been: infinite for another token or other
/// alternatives.
fn distance(got: &SampledToken, top: &[(u32, f32)], want: &Reference, asked: bool) -> f64 {
    if got.token != want.token {
        return f64::INFINITY;
    }
    if !asked || got.token.is_err() {
        return if got.top == 0 { 0.0 } else { f64::INFINITY };
    }
    let top = &top[got.first_top as usize..][..got.top as usize];
    let same = top.iter().map(|t| t.0).eq(want.top.iter().map(|t| t.0));
    if !same {
        return f64::INFINITY;
    }
    let pairs = top.iter().map(|t| t.1).zip(want.top.iter().map(|t| t.1));
    let pairs = pairs.chain([(got.logprob, want.logprob)]);
    pairs
        .map(|(got, want)| (f64::from(got) - want).abs() / want.abs().max(1.0))
        .fold(
            0.0,
            |worst, e| if e > worst || e.is_nan() { e } else { worst },
        )
}

/// Runs steps of random samples, each counting tokens of the step before.
fn compare(
    device: &Arc<Device>,
    vocab: usize,
    rows: usize,
    steps: usize,
    rng: &mut Rng,
) -> Result<f64, ProbeError> {
    let samples_max = 3 * rows;
    let mut probe = SampleProbe::new(device, vocab, rows, samples_max)?;
    let mut before: Vec<u32> = Vec::new();
    let mut worst: f64 = 0.0;
    for _ in 0..steps {
        let (mut logits, mut samples, mut edits) = (Vec::new(), Vec::new(), Vec::new());
        for r in 0..rows {
            let shape = SHAPES[rng.below(SHAPES.len())];
            logits.extend(row(shape, vocab, rng));
            let own = if rng.below(2) == 0 {
                edit(&mut edits, vocab, before.len(), rng)
            } else {
                Edits::NONE
            };
            for _ in 0..[1, 1, 3][rng.below(3)] {
                let mut d = sample(r, vocab, rng);
                d.edits = own;
                // Logarithms are lost beside such logits.
                d.logprobs = d.logprobs.filter(|_| !matches!(shape, Shape::Extreme));
                samples.push(d);
            }
        }
        let (got, top) = probe.run(&logits, &samples, &edits)?;
        for (got, sample) in got.iter().zip(&samples) {
            let row = &logits[sample.row as usize * vocab..][..vocab];
            let want = reference::sample(row, sample, &edits, &before);
            let error = distance(got, &top, &want, sample.logprobs.is_some());
            if error.is_nan() || error > LOGPROB_LIMIT {
                println!("{sample:?}: {got:?}, {:?} expected", want.token);
            }
            worst = if error.is_nan() {
                f64::INFINITY
            } else {
                worst.max(error)
            };
        }
        before = got.iter().map(|d| d.token.unwrap_or(0)).collect();
    }
    Ok(worst)
}

/// Pearson's statistic of many samples against the exact probabilities, over its 99.9 % quantile:
/// above 1 they differ.
fn chi_square(
    device: &Arc<Device>,
    base: &SampleRequest,
    rng: &mut Rng,
) -> Result<f64, ProbeError> {
    const VOCAB: usize = 100;
    const DRAWS: usize = 64;
    const STEPS: usize = 40;
    let logits: Vec<f32> = (0..VOCAB).map(|_| rng.uniform() * 4.0).collect();
    let mut probe = SampleProbe::new(device, VOCAB, 1, DRAWS)?;
    let mut counts = vec![0u32; VOCAB];
    for _ in 0..STEPS {
        let samples: Vec<SampleRequest> = (0..DRAWS)
            .map(|_| SampleRequest {
                bits: rng.bits(),
                ..*base
            })
            .collect();
        let (sampled, _) = probe.run(&logits, &samples, &[])?;
        for d in sampled {
            match d.token {
                Ok(token) => counts[token as usize] += 1,
                Err(_) => return Ok(f64::INFINITY),
            }
        }
    }
    let kept = reference::kept(&logits, base);
    let total: u64 = kept.iter().map(|k| k.1).sum();
    let sampled = (DRAWS * STEPS) as f64;
    // Cells of at least 5 expected samples; the rest of the tokens together are one more.
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut rest_expected, mut rest_seen) = (0.0, 0.0);
    let mut inside = 0;
    for (id, weight) in kept {
        let expected = sampled * weight as f64 / total as f64;
        let seen = f64::from(counts[id as usize]);
        inside += counts[id as usize];
        if expected < 5.0 {
            rest_expected += expected;
            rest_seen += seen;
        } else {
            statistic += (seen - expected) * (seen - expected) / expected;
            cells += 1;
        }
    }
    if inside as usize != DRAWS * STEPS {
        return Ok(f64::INFINITY);
    }
    if rest_expected >= 5.0 {
        statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        cells += 1;
    }
    // Wilson and Hilferty's approximation of the quantile.
    let freedom = f64::from((cells - 1).max(1));
    let spread = 2.0 / (9.0 * freedom);
    let quantile = freedom * (1.0 - spread + 3.09 * spread.sqrt()).powi(3);
    Ok(statistic / quantile)
}

/// Vocabularies that end anywhere in a block, with and without aligned rows; 1 to 65 rows; a large
/// one.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let mut rng = Rng(11);
    for (vocab, rows, steps) in [
        (1, 2, 6),
        (3, 5, 6),
        (127, 7, 8),
        (128, 7, 8),
        (500, 65, 2),
        (1031, 9, 12),
        (4096, 3, 8),
        (5003, 6, 12),
        (50_257, 3, 2),
        (152_064, 2, 1),
    ] {
        let worst = compare(device, vocab, rows, steps, &mut rng)?;
        let name = format!("samples from {rows} rows of {vocab} logits");
        report.check(&name, worst, LOGPROB_LIMIT);
    }
    let plain = SampleRequest {
        temperature: 1.0,
        ..SampleRequest::greedy(0)
    };
    let cut = SampleRequest {
        temperature: 1.4,
        top_k: 120,
        top_p: 0.9,
        min_p: 0.01,
        ..SampleRequest::greedy(0)
    };
    for (name, sample) in [("temperature 1", plain), ("cut", cut)] {
        let ratio = chi_square(device, &sample, &mut rng)?;
        report.check(
            &format!("distribution, {name}: chi-square over its quantile"),
            ratio,
            1.0,
        );
    }
    Ok(())
}
