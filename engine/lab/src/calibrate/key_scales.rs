//! PM-KVQ's channel scales λ for per-token keys (arXiv 2505.18610, section 3.3): λ = max|K|^α of
//! each RoPE pair, with the α of each layer that makes the error of attention's output the least.
//!
//! The maximum is over all windows. α is looked for among 0, 0.05, …, 1 over some of them (the
//! released code leaves out 0, at which keys stay as they are); of equal ones the least is taken.
//! The error is the mean square of what attention adds to the residual stream, with the keys of all
//! blocks quantised but the first, which serving keeps at 16 bit. Values stay as they are here (the
//! code quantises them as well, which adds the same error at every α). Where heads are normed, one
//! λ is for all heads, since it folds into the norm's weights.

use ebb_kernels::formats::{FormatError, FormatId, RecordShape};
use ebb_kernels::kv::KvGeometry;
use ebb_kernels::model::ModelSpec;
use ebb_kernels::{BLOCK_TOKENS, bf16};
use ebb_models::model::{KeyScales, SCALE_MAX, SCALE_MIN};
use thiserror::Error;

use super::pmkvq::PROTECTED_BLOCKS;
use super::{Gradients, GradientsError, Probes};

/// Steps of α from 0 to 1.
const GRID: usize = 20;

/// Scales, and what they are good for.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundScales {
    /// The scales.
    pub scales: KeyScales,
    /// Error of attention's output with them over that without any, a layer.
    pub errors: Vec<f64>,
}

/// Why there are no scales.
#[derive(Debug, Error)]
pub enum KeyScalesError {
    /// A key that no code stands for.
    #[error("layer {layer}'s keys cannot be quantised: {source}")]
    Page {
        /// The layer.
        layer: usize,
        /// Why.
        source: FormatError,
    },
    /// The model cannot be run.
    #[error(transparent)]
    Run(#[from] GradientsError),
}

/// Scales for keys of `format` (one of the per-token ones), from windows of whole blocks of tokens.
/// The greatest keys are those of all windows, which pass `searched` at a time; α is looked for in
/// the first `searched`, which is not 0.
///
/// # Errors
/// When the model cannot be run, or has keys that cannot be quantised.
pub fn search(
    spec: &ModelSpec,
    gradients: &mut Gradients<'_>,
    format: FormatId,
    windows: &[&[u32]],
    searched: usize,
    stride: usize,
) -> Result<FoundScales, KeyScalesError> {
    let (geometry, heads) = (spec.kv_geometry(), KeyScales::heads_of(spec));
    let mut greatest = vec![vec![0f32; heads * geometry.head_dim / 2]; geometry.layers];
    let mut look = |layer: usize, probes: &mut dyn Probes| -> Result<(), KeyScalesError> {
        raise(geometry, heads, probes, &mut greatest[layer]);
        Ok(())
    };
    for part in windows.chunks(searched) {
        gradients.attentions(part, stride, &mut look)?;
    }
    let mut found = FoundScales {
        scales: KeyScales {
            format: format.name().to_owned(),
            alpha: Vec::new(),
            heads,
            scales: Vec::new(),
        },
        errors: Vec::new(),
    };
    let mut visit = |layer: usize, probes: &mut dyn Probes| -> Result<(), KeyScalesError> {
        let of_layer = of_layer(geometry, format, &greatest[layer], probes);
        let (alpha, scales, error) = of_layer.map_err(|e| e.of_layer(layer))?;
        found.scales.alpha.push(alpha);
        found.scales.scales.push(scales);
        found.errors.push(error);
        Ok(())
    };
    gradients.attentions(&windows[..searched.min(windows.len())], stride, &mut visit)?;
    Ok(found)
}

/// Why a layer has no scales.
#[derive(Debug)]
enum LayerError {
    Page(FormatError),
    Run(GradientsError),
}

impl LayerError {
    fn of_layer(self, layer: usize) -> KeyScalesError {
        match self {
            Self::Page(source) => KeyScalesError::Page { layer, source },
            Self::Run(error) => KeyScalesError::Run(error),
        }
    }
}

/// α, λ, and the error with it over that without; `greatest` as [`raise`] has it.
fn of_layer(
    geometry: KvGeometry,
    format: FormatId,
    greatest: &[f32],
    probes: &mut dyn Probes,
) -> Result<(f64, Vec<f32>, f64), LayerError> {
    let mut exact = Vec::new();
    for text in 0..probes.texts() {
        let keys = probes.keys(text).to_vec();
        exact.push(probes.output(text, &keys).map_err(LayerError::Run)?);
    }
    let mut error = |scales: &[f32]| -> Result<f64, LayerError> {
        let mut sum = 0.0;
        for (text, exact) in exact.iter().enumerate() {
            let keys = quantised(geometry, format, probes.keys(text), scales);
            let keys = keys.map_err(LayerError::Page)?;
            let got = probes.output(text, &keys).map_err(LayerError::Run)?;
            let squares = got.iter().zip(exact);
            sum += squares.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        }
        Ok(sum)
    };
    let none = vec![1.0; greatest.len()];
    let without = error(&none)?;
    let (mut best, mut least) = ((0.0, none), without);
    for step in 1..=GRID {
        let alpha = step as f64 / GRID as f64;
        let scale = |x: &f32| x.powf(alpha as f32).clamp(SCALE_MIN, SCALE_MAX);
        let scales: Vec<f32> = greatest.iter().map(scale).collect();
        let got = error(&scales)?;
        if got < least {
            (best, least) = ((alpha, scales), got);
        }
    }
    let ratio = if without > 0.0 { least / without } else { 1.0 };
    Ok((best.0, best.1, ratio))
}

/// Raises `most` to the greatest magnitude of either channel of each pair, `[heads][head_dim / 2]`;
/// over all heads if it has one.
fn raise(geometry: KvGeometry, heads: usize, probes: &dyn Probes, most: &mut [f32]) {
    let (dim, pairs) = (geometry.head_dim, geometry.head_dim / 2);
    for text in 0..probes.texts() {
        let keys = probes.keys(text);
        let of_head = keys.chunks_exact(keys.len() / geometry.kv_heads);
        for (head, keys) in of_head.enumerate() {
            let head = if heads == 1 { 0 } else { head };
            let most = &mut most[head * pairs..(head + 1) * pairs];
            for (channel, key) in keys.iter().enumerate() {
                let most = &mut most[channel % dim % pairs];
                *most = most.max(key.abs());
            }
        }
    }
}

/// Keys as a cache of scaled ones gives them back, times the scales:
/// `[kv_heads][tokens][head_dim]`, tokens whole blocks. Protected blocks come back as they are.
fn quantised(
    geometry: KvGeometry,
    format: FormatId,
    keys: &[f32],
    scales: &[f32],
) -> Result<Vec<f32>, FormatError> {
    let (dim, pairs) = (geometry.head_dim, geometry.head_dim / 2);
    let shape = RecordShape::k(dim);
    let mut record = vec![0; format.record_bytes(shape)?];
    let mut decoded = keys.to_vec();
    let of_head = keys.len() / geometry.kv_heads;
    debug_assert!(of_head.is_multiple_of(BLOCK_TOKENS * dim), "whole blocks");
    let blocks = keys.chunks_exact(shape.elements());
    let blocks = blocks.zip(decoded.chunks_exact_mut(shape.elements()));
    for (block, (keys, decoded)) in blocks.enumerate() {
        let head = block * shape.elements() / of_head;
        if block % (of_head / shape.elements()) < PROTECTED_BLOCKS {
            continue;
        }
        let own = if scales.len() == pairs {
            scales
        } else {
            &scales[head * pairs..(head + 1) * pairs]
        };
        let scale = |i: usize| own[i % dim % pairs];
        let scaled = keys.iter().enumerate();
        let rows: Vec<bf16> = scaled.map(|(i, x)| bf16::from_f32(x / scale(i))).collect();
        format.encode(shape, &rows, &mut record)?;
        format.dequantise(shape, &record, decoded)?;
        for (i, x) in decoded.iter_mut().enumerate() {
            *x *= scale(i);
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: KvGeometry = KvGeometry {
        layers: 1,
        kv_heads: 2,
        head_dim: 64,
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };

    /// Of a head: a protected block, and one that is quantised.
    const TOKENS: usize = 2 * BLOCK_TOKENS;

    /// Channel 5 of each head is thirty times as loud.
    fn outlier() -> Vec<f32> {
        let mut state = 3u64;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let loud = |i: usize| if i % 64 == 5 { 30.0 } else { 1.0 };
        (0..2 * TOKENS * 64).map(|i| next() * loud(i)).collect()
    }

    #[test]
    fn scales_keep_the_other_channels_from_paying_for_a_loud_one() {
        let keys = outlier();
        let error = |format, scales: &[f32]| {
            let got = quantised(ONE, format, &keys, scales).unwrap();
            // What the quiet channels lose; the loud one's partner, with the same scale, pays.
            let pairs = keys.iter().zip(&got).enumerate();
            let quiet = pairs.filter(|(i, _)| i % 32 != 5);
            quiet
                .map(|(_, (a, b))| f64::from(a - b).powi(2))
                .sum::<f64>()
        };
        let mut scales = vec![1.0; 64];
        let plain = [FormatId::Int4t, FormatId::Int2t].map(|f| error(f, &scales));
        (scales[5], scales[32 + 5]) = (30.0, 30.0);
        let scaled = [FormatId::Int4t, FormatId::Int2t].map(|f| error(f, &scales));
        // The range of a token falls from about 15 on average to 2.
        assert!(scaled[0] < plain[0] / 20.0, "{scaled:?} of {plain:?}");
        assert!(scaled[1] < plain[1] / 20.0, "{scaled:?} of {plain:?}");
        // Shared scales are the same for both heads.
        let shared = quantised(ONE, FormatId::Int4t, &keys, &scales[..32]).unwrap();
        assert_eq!(
            shared,
            quantised(ONE, FormatId::Int4t, &keys, &scales).unwrap()
        );
        // A range for each channel needs no scales: a power of two changes not even the codes.
        (scales[5], scales[32 + 5]) = (32.0, 32.0);
        let per_channel = |s: &[f32]| quantised(ONE, FormatId::Int4, &keys, s).unwrap();
        assert_eq!(per_channel(&scales), per_channel(&[1.0; 64]));
    }

    /// Attention that adds what `weigh` makes of keys.
    struct Stub {
        keys: Vec<Vec<f32>>,
        weigh: fn(usize) -> f32,
    }

    impl Probes for Stub {
        fn texts(&self) -> usize {
            self.keys.len()
        }

        fn keys(&self, text: usize) -> &[f32] {
            &self.keys[text]
        }

        fn output(&mut self, _: usize, keys: &[f32]) -> Result<Vec<f32>, GradientsError> {
            let weighed = keys.iter().enumerate();
            Ok(weighed.map(|(i, x)| x * (self.weigh)(i % 64)).collect())
        }
    }

    fn greatest(stub: &Stub, heads: usize) -> Vec<f32> {
        let mut most = vec![0.0; heads * 32];
        raise(ONE, heads, stub, &mut most);
        most
    }

    /// In f64 and one element at a time: what 4-bit keys per token lose with λ = max|K|^α, the
    /// first block aside.
    fn loss(stub: &Stub, alpha: f64) -> f64 {
        let mut sum = 0.0;
        for keys in &stub.keys {
            for head in 0..2 {
                let key = |t: usize, c: usize| f64::from(keys[(head * TOKENS + t) * 64 + c]);
                let lambda = |c: usize| -> f64 {
                    let of_text = |keys: &Vec<f32>| {
                        let key = |t: usize, c: usize| keys[(head * TOKENS + t) * 64 + c].abs();
                        (0..TOKENS).fold(0.0, |m: f32, t| m.max(key(t, c)).max(key(t, c ^ 32)))
                    };
                    let most = stub.keys.iter().map(of_text).fold(0.0, f32::max);
                    f64::from(most).powf(alpha)
                };
                let lambdas: Vec<f64> = (0..64).map(lambda).collect();
                for t in BLOCK_TOKENS..TOKENS {
                    let scaled: Vec<f64> = (0..64).map(|c| key(t, c) / lambdas[c]).collect();
                    let low = scaled.iter().copied().fold(f64::INFINITY, f64::min);
                    let high = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let step = (high - low) / 15.0;
                    for c in 0..64 {
                        let back = low + ((scaled[c] - low) / step + 0.5).floor() * step;
                        let off = back * lambdas[c] - key(t, c);
                        sum += (off * f64::from((stub.weigh)(c))).powi(2);
                    }
                }
            }
        }
        sum
    }

    #[test]
    fn the_exponent_of_the_least_loss_is_chosen_and_scales_are_its_powers() {
        let mut other = outlier();
        other.iter_mut().for_each(|x| *x *= 0.25);
        // The error is that of all keys, or of all but the loud pair.
        for weigh in [(|_| 1.0) as fn(usize) -> f32, |c| f32::from(c % 32 != 5)] {
            let mut stub = Stub {
                keys: vec![outlier(), other.clone()],
                weigh,
            };
            let most = greatest(&stub, 2);
            let (alpha, scales, ratio) = of_layer(ONE, FormatId::Int4t, &most, &mut stub).unwrap();
            let tried = (0..=20).map(|i| f64::from(i) / 20.0);
            let losses: Vec<(f64, f64)> = tried.map(|a| (a, loss(&stub, a))).collect();
            let least = losses.iter().map(|(_, l)| *l).fold(f64::INFINITY, f64::min);
            let at = |alpha: f64| losses.iter().find(|(a, _)| *a == alpha).unwrap().1;
            // The search rounds keys to bf16, and zeros and ranges to fp16.
            assert!(at(alpha) <= least * 1.02, "{alpha}: {losses:?}");
            assert!(
                (ratio / (at(alpha) / at(0.0)) - 1.0).abs() < 0.02,
                "{ratio}: {losses:?}"
            );
            assert!(alpha > 0.0 && ratio < 0.5, "{alpha}, {ratio}");
            for (pair, scale) in scales.iter().enumerate() {
                let of_pair = |(i, x): (usize, &f32)| {
                    let mine = i / (TOKENS * 64) == pair / 32 && i % 32 == pair % 32;
                    if mine { f64::from(x.abs()) } else { 0.0 }
                };
                let all = stub.keys.iter().flat_map(|keys| keys.iter().enumerate());
                let most = all.map(of_pair).fold(0.0, f64::max);
                let want = most.powf(alpha);
                assert!(
                    (f64::from(*scale) / want - 1.0).abs() < 1e-5,
                    "{scale}, {want}"
                );
            }
        }
    }

    #[test]
    fn no_scales_are_chosen_where_they_only_harm() {
        // A channel that is loud in the first block alone, which is not quantised, and that alone
        // counts: behind it, its codes lose what the scale takes away.
        let mut keys = outlier();
        for (i, x) in keys.iter_mut().enumerate() {
            if i % 64 == 5 && i / 64 % TOKENS >= BLOCK_TOKENS {
                *x /= 30.0;
            }
        }
        let mut stub = Stub {
            keys: vec![keys],
            weigh: |c| f32::from(c == 5),
        };
        let most = greatest(&stub, 2);
        let found = of_layer(ONE, FormatId::Int4t, &most, &mut stub).unwrap();
        assert_eq!(found, (0.0, vec![1.0; 64], 1.0));
        assert!((1..=20).all(|i| loss(&stub, f64::from(i) / 20.0) >= loss(&stub, 0.0)));
    }

    #[test]
    fn the_greatest_keys_are_those_of_all_texts_and_of_all_heads_that_share_them() {
        let mut stub = Stub {
            keys: vec![vec![1.0; 2 * TOKENS * 64]; 2],
            weigh: |_| 1.0,
        };
        // Token 3 of the first text's head 0, and the last token of the second's head 1.
        stub.keys[0][3 * 64 + 7] = -9.0;
        stub.keys[1][(2 * TOKENS - 1) * 64 + 32 + 8] = 5.0;
        let apart = greatest(&stub, 2);
        assert_eq!(
            (apart[7], apart[8], apart[32 + 7], apart[32 + 8]),
            (9.0, 1.0, 1.0, 5.0)
        );
        let shared = greatest(&stub, 1);
        assert_eq!((shared[7], shared[8], shared[9]), (9.0, 5.0, 1.0));
        // What was found before stays.
        let mut most = vec![6.0; 32];
        raise(ONE, 1, &stub, &mut most);
        assert_eq!((most[7], most[8]), (9.0, 6.0));
    }

    #[test]
    fn the_first_block_of_each_head_comes_back_as_it_is() {
        let keys = outlier();
        let got = quantised(ONE, FormatId::Int2t, &keys, &[1.0; 64]).unwrap();
        for (i, (a, b)) in keys.iter().zip(&got).enumerate() {
            let token = i / 64 % TOKENS;
            assert!(token >= BLOCK_TOKENS || a == b, "{i}");
        }
        let last = |x: &[f32]| x[(2 * TOKENS - 1) * 64..].to_vec();
        assert_ne!(last(&keys), last(&got));
    }
}
