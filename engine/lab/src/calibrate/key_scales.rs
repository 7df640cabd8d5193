//! PM-KVQ's channel scales λ for per-token keys (arXiv 2505.18610): λ = max|K|^α of each RoPE pair,
//! with the α of each layer that makes the error of attention's output the least.
//!
//! As in the released code, α is looked for among 1, 0.95, …, 0.05, and the error is the mean
//! square of what attention adds to the residual stream, with all keys quantised. Values stay as
//! they are here (the code quantises them as well, which adds the same error at every α). Where
//! heads are normed, one λ is for all heads, since it folds into the norm's weights.

use ebb_kernels::formats::{FormatError, FormatId, RecordShape};
use ebb_kernels::kv::KvGeometry;
use ebb_kernels::model::ModelSpec;
use ebb_kernels::{BLOCK_TOKENS, bf16};
use ebb_models::model::{KeyScales, SCALE_MAX, SCALE_MIN};
use thiserror::Error;

use super::{Gradients, GradientsError, Probes};

/// α tried.
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
///
/// # Errors
/// When the model cannot be run, or has keys that cannot be quantised.
pub fn search(
    spec: &ModelSpec,
    gradients: &mut Gradients<'_>,
    format: FormatId,
    windows: &[&[u32]],
    stride: usize,
) -> Result<FoundScales, KeyScalesError> {
    let heads = KeyScales::heads_of(spec);
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
        let (alpha, scales, error) = of_layer(spec.kv_geometry(), heads, format, layer, probes)?;
        found.scales.alpha.push(alpha);
        found.scales.scales.push(scales);
        found.errors.push(error);
        Ok(())
    };
    gradients.attentions(windows, stride, &mut visit)?;
    Ok(found)
}

/// α, λ, and the error with it over that without.
fn of_layer(
    geometry: KvGeometry,
    heads: usize,
    format: FormatId,
    layer: usize,
    probes: &mut dyn Probes,
) -> Result<(f64, Vec<f32>, f64), KeyScalesError> {
    let most = greatest(geometry, heads, probes);
    let mut exact = Vec::new();
    for text in 0..probes.texts() {
        let keys = probes.keys(text).to_vec();
        exact.push(probes.output(text, &keys)?);
    }
    let mut error = |scales: &[f32]| -> Result<f64, KeyScalesError> {
        let mut sum = 0.0;
        for (text, exact) in exact.iter().enumerate() {
            let keys = quantised(geometry, format, probes.keys(text), scales)
                .map_err(|source| KeyScalesError::Page { layer, source })?;
            let got = probes.output(text, &keys)?;
            let squares = got.iter().zip(exact);
            sum += squares.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        }
        Ok(sum)
    };
    let without = error(&vec![1.0; most.len()])?;
    let (mut best, mut least) = ((0.0, Vec::new()), f64::INFINITY);
    for step in 0..GRID {
        let alpha = 1.0 - step as f64 / GRID as f64;
        let scale = |x: &f32| x.powf(alpha as f32).clamp(SCALE_MIN, SCALE_MAX);
        let scales: Vec<f32> = most.iter().map(scale).collect();
        let got = error(&scales)?;
        if got < least {
            (best, least) = ((alpha, scales), got);
        }
    }
    let ratio = if without > 0.0 { least / without } else { 1.0 };
    Ok((best.0, best.1, ratio))
}

/// The greatest magnitude of either channel of each pair, `[heads][head_dim / 2]`; over all heads
/// if `heads` is 1.
fn greatest(geometry: KvGeometry, heads: usize, probes: &dyn Probes) -> Vec<f32> {
    let (dim, pairs) = (geometry.head_dim, geometry.head_dim / 2);
    let mut most = vec![0f32; heads * pairs];
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
    most
}

/// Keys as a cache of scaled ones gives them back, times the scales:
/// `[kv_heads][tokens][head_dim]`, tokens whole blocks.
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
    };

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
        (0..2 * BLOCK_TOKENS * 64)
            .map(|i| next() * loud(i))
            .collect()
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
}
