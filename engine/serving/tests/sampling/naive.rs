//! The definitions, written down as plainly as possible: `f64`, full sorts, dense vectors.

use ebb_serving::sampling::{SamplingOptions, philox4x32_10};

/// Logits after bias and penalties, in vLLM's order.
pub(crate) fn penalised(
    logits: &[f32],
    options: &SamplingOptions,
    prompt: &[u32],
    output: &[u32],
) -> Vec<f32> {
    let mut logits = logits.to_vec();
    for &(id, bias) in &options.logit_bias {
        logits[id as usize] += bias;
    }
    for (id, logit) in logits.iter_mut().enumerate() {
        let id = id as u32;
        let count = output.iter().filter(|&&t| t == id).count();
        if count > 0 || prompt.contains(&id) {
            *logit = if *logit > 0.0 {
                *logit / options.repetition_penalty
            } else {
                *logit * options.repetition_penalty
            };
        }
        if count > 0 {
            *logit -= options.frequency_penalty * count as f32;
            *logit -= options.presence_penalty;
        }
    }
    logits
}

pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

pub(crate) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|&l| ((f64::from(l) - f64::from(max)) / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Probability of each token after temperature and filters (0: filtered out), and how close the
/// nearest cut was to falling elsewhere.
pub(crate) fn filtered(logits: &[f32], options: &SamplingOptions) -> (Vec<f64>, f64) {
    let p = softmax(logits, f64::from(options.temperature));
    let mut ranked: Vec<usize> = (0..p.len()).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let mut margin = f64::INFINITY;

    let bar = f64::from(options.min_p) * p[ranked[0]];
    if options.min_p > 0.0 {
        let closest = p.iter().map(|&p| (p / bar - 1.0).abs());
        margin = closest.fold(margin, f64::min);
    }
    ranked.retain(|&id| p[id] >= bar);
    if options.top_k > 0 {
        ranked.truncate(options.top_k as usize);
    }
    let mass: f64 = ranked.iter().map(|&id| p[id]).sum();
    if options.top_p < 1.0 {
        let target = f64::from(options.top_p) * mass;
        let mut sum = 0.0;
        let mut kept = 0;
        while kept < ranked.len() && sum < target {
            sum += p[ranked[kept]];
            kept += 1;
            margin = margin.min((sum - target).abs() / mass);
        }
        ranked.truncate(kept);
    }
    let mass: f64 = ranked.iter().map(|&id| p[id]).sum();
    let mut out = vec![0.0; p.len()];
    for id in ranked {
        out[id] = p[id] / mass;
    }
    (out, margin)
}

/// The uniform number of a sample, in [0, 1).
pub(crate) fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let bits = philox4x32_10([position, choice, 0, 0], [seed as u32, (seed >> 32) as u32]);
    (f64::from(bits[1]) + f64::from(bits[0]) / 4_294_967_296.0) / 4_294_967_296.0
}

/// The token whose share of the unit interval, in id order, holds `u`; and how close `u` is to
/// that share's ends.
pub(crate) fn invert(probabilities: &[f64], u: f64) -> (u32, f64) {
    let mut sum = 0.0;
    let mut margin = f64::INFINITY;
    for (id, &p) in probabilities.iter().enumerate() {
        margin = margin.min((u - sum).abs());
        if p > 0.0 && u < sum + p {
            return (id as u32, margin.min(sum + p - u));
        }
        sum += p;
    }
    let last = probabilities.iter().rposition(|&p| p > 0.0);
    (last.unwrap_or(0) as u32, 0.0)
}

/// Random numbers for tests: the same generator under another key.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed << 32)
    }

    /// In [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 += 1;
        uniform(!self.0, 99, 7)
    }

    /// Standard normal.
    pub(crate) fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }
}
