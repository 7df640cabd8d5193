//! A sample as its definition, with a full sort, on the same integer weights.

use crate::backend::{LogitEdit, SampleFailure, SampleRequest};

/// What a sample must give.
pub(super) struct Reference {
    pub(super) token: Result<u32, SampleFailure>,
    /// Log-probability of the token, and the alternatives, in f64.
    pub(super) logprob: f64,
    pub(super) top: Vec<(u32, f64)>,
}

/// Adding and taking away 1.5·2²³ rounds to an integer.
const ROUND: f32 = 12_582_912.0;

/// 2^(z + bits), as the device computes it.
fn exp2(z: f32, bits: i32) -> f32 {
    let z = z.max(-126.0);
    let n = (z + ROUND) - ROUND;
    let f = z - n;
    let coefficients = [
        1.535_336_2e-4f32,
        1.339_887_4e-3,
        9.618_437e-3,
        5.550_332_4e-2,
        2.402_264_8e-1,
        6.931_472e-1,
        1.0,
    ];
    let p = coefficients.into_iter().reduce(|p, c| p * f + c);
    // Exact: a power of two in the range of normal numbers.
    p.unwrap_or(0.0) * 2f32.powi(n as i32 + bits)
}

/// A token's weight in units of 2⁻³⁰: 2¹⁵ times its probability, rounded to an integer, and 2¹⁵
/// times the rest.
pub(super) fn weight(y: f32) -> u64 {
    let scaled = exp2(y * std::f32::consts::LOG2_E, 15);
    let high = (scaled + ROUND) - ROUND;
    let low = ((scaled - high) * 32768.0 + ROUND) - ROUND;
    ((high as i64) << 15).wrapping_add(low as i64) as u64
}

fn edit(logits: &mut [f32], sample: &SampleRequest, edits: &[LogitEdit], before: &[u32]) {
    let e = &sample.edits;
    let mut own = edits[e.first as usize..][..e.len as usize].to_vec();
    if let Some(also) = e.also {
        let id = before[also as usize];
        if !own.iter().any(|o| o.id == id) {
            own.push(LogitEdit {
                id,
                bias: 0.0,
                count: 0,
                masked: false,
                in_prompt: false,
            });
        }
        own.iter_mut()
            .filter(|o| o.id == id)
            .for_each(|o| o.count += 1);
    }
    for o in own {
        let Some(logit) = logits.get_mut(o.id as usize) else {
            continue;
        };
        let mut new = if o.masked { f32::NEG_INFINITY } else { *logit };
        new += o.bias;
        if o.count > 0 || o.in_prompt {
            new = if new > 0.0 {
                (new / e.repetition).min(f32::MAX)
            } else if new > f32::NEG_INFINITY {
                (new * e.repetition).max(f32::MIN)
            } else {
                new
            };
        }
        if o.count > 0 {
            new = new - e.frequency * o.count as f32 - e.presence;
        }
        *logit = new;
    }
}

/// Ids from the most likely one on; of equals the lower first.
fn sorted(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| {
        logits[b]
            .partial_cmp(&logits[a])
            .unwrap_or(a.cmp(&b))
            .then(a.cmp(&b))
    });
    ids
}

/// The ids that may be sampled, with their weights, ascending.
pub(super) fn kept(logits: &[f32], sample: &SampleRequest) -> Vec<(u32, u64)> {
    let inverse = 1.0 / sample.temperature;
    let ranked = sorted(logits);
    let max = logits[ranked[0]];
    let y = |id: usize| (logits[id] - max) * inverse;
    let floor = if sample.min_p > 0.0 {
        sample.min_p.ln().max(-22.0)
    } else {
        -22.0
    };
    let mut ranked: Vec<usize> = ranked.into_iter().filter(|&id| y(id) >= floor).collect();
    if sample.top_k > 0 {
        ranked.truncate(sample.top_k as usize);
    }
    if sample.top_p < 1.0 {
        let total: u64 = ranked.iter().map(|&id| weight(y(id))).sum();
        let target = (total as f64 * f64::from(sample.top_p)).ceil() as u64;
        let mut reached = 0;
        let end = ranked.iter().position(|&id| {
            reached += weight(y(id));
            reached >= target
        });
        ranked.truncate(end.map_or(ranked.len(), |end| end + 1));
    }
    ranked.sort_unstable();
    ranked
        .iter()
        .map(|&id| (id as u32, weight(y(id))))
        .collect()
}

/// Samples from one row.
pub(super) fn sample(
    logits: &[f32],
    sample: &SampleRequest,
    edits: &[LogitEdit],
    before: &[u32],
) -> Reference {
    let mut reference = Reference {
        token: Err(SampleFailure::NotFinite),
        logprob: f64::NAN,
        top: Vec::new(),
    };
    let sound = |l: &[f32]| l.iter().all(|l| *l < f32::INFINITY);
    let mut edited = logits.to_vec();
    edit(&mut edited, sample, edits, before);
    if !sound(logits) || !sound(&edited) {
        return reference;
    }
    if edited.iter().all(|l| *l == f32::NEG_INFINITY) {
        reference.token = Err(SampleFailure::NoCandidate);
        return reference;
    }
    let token = if sample.temperature == 0.0 {
        sorted(&edited)[0] as u32
    } else {
        let kept = kept(&edited, sample);
        let total: u64 = kept.iter().map(|k| k.1).sum();
        let point = ((u128::from(sample.bits) * u128::from(total)) >> 64) as u64;
        let mut reached = 0;
        let found = kept.iter().find(|k| {
            reached += k.1;
            point < reached
        });
        found.expect("the point is below the total").0
    };
    reference.token = Ok(token);
    if let Some(count) = sample.logprobs {
        let ranked = sorted(logits);
        let max = f64::from(logits[ranked[0]]);
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) - max).exp()).sum();
        let logprob = |id: usize| f64::from(logits[id]) - max - sum.ln();
        reference.logprob = logprob(token as usize);
        let finite = ranked.iter().filter(|&&id| logits[id] > f32::NEG_INFINITY);
        reference.top = finite
            .take(count as usize)
            .map(|&id| (id as u32, logprob(id)))
            .collect();
    }
    reference
}
