//! Attention written as its definition, in f64.

use half::bf16;

/// Attention of one query over `keys` and `values`, `[tokens][head_dim]`, of scores that are
/// multiplied with `scale`.
pub(super) fn attend_scaled<T: Copy + Into<f32>>(
    q: &[bf16],
    keys: &[T],
    values: &[T],
    scale: f64,
) -> Vec<f64> {
    attend_scored(q, keys, values, scale, (None, None))
}

/// The same of scores `s` that become `cap * tanh(s / cap)`, beside a sink that has a score and no
/// value.
pub(super) fn attend_scored<T: Copy + Into<f32>>(
    q: &[bf16],
    keys: &[T],
    values: &[T],
    scale: f64,
    (cap, sink): (Option<f64>, Option<f64>),
) -> Vec<f64> {
    let d = q.len();
    let q: Vec<f32> = q.iter().map(|v| v.to_f32()).collect();
    let scores: Vec<f64> = keys
        .chunks_exact(d)
        .map(|k| {
            k.iter()
                .zip(&q)
                .map(|(k, q)| f64::from((*k).into() * q))
                .sum::<f64>()
                * scale
        })
        .map(|s| cap.map_or(s, |cap| cap * (s / cap).tanh()))
        .collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = sink.map_or(top, |sink| top.max(sink));
    let mut out = vec![0.0; d];
    let mut sum = sink.map_or(0.0, |sink| (sink - top).exp());
    for (score, v) in scores.iter().zip(values.chunks_exact(d)) {
        let p = (score - top).exp();
        sum += p;
        for (o, v) in out.iter_mut().zip(v) {
            *o += p * f64::from((*v).into());
        }
    }
    out.iter_mut().for_each(|o| *o /= sum);
    out
}

/// ‖got − want‖ / ‖want‖; infinite if anything is not a number.
pub(super) fn relative_error(got: impl IntoIterator<Item = f64>, want: &[f64]) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (g, w) in got.into_iter().zip(want) {
        difference += (g - w) * (g - w);
        norm += w * w;
    }
    let error = (difference / norm).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}
