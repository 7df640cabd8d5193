//! Method *PM-KVQ* (Liu et al. 2025, arXiv 2505.18610): what a page loses at a format is, to first
//! order, at most ‖G ⊙ (X − Q_b(X))‖₁, with X the keys after RoPE or the values, G the loss
//! gradient with respect to them, and Q_b the format's own codec.
//!
//! Short texts stand for long ones by positional interpolation: token i is at position s·i.
//!
//! The first block of a sample is left out, because serving protects it. It holds the attention
//! sink, whose gradients would outweigh all others; the paper keeps the sink's token at 16 bit for
//! the same reason.

use ebb_gradients::{Cached, LayerGradients};
use ebb_kernels::formats::rotation::{Rotation, hadamard};
use ebb_kernels::formats::{FormatError, FormatId, RecordShape, precision_levels};
use ebb_kernels::kv::{KvGeometry, Side};
use ebb_kernels::{BLOCK_TOKENS, bf16};

use super::measured::page_name;
use super::sensitivities::page_bytes;
use super::{FormatChoices, Losses, LossesError, Sensitivities};

/// One page's loss at a format, nats a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sensitivity {
    /// Side of the layer.
    pub side: Side,
    /// Format.
    pub format: FormatId,
    /// ‖G ⊙ (X − Q(X))‖₁ of a sample.
    pub loss: f64,
}

/// Blocks of a sample that are left out.
pub(super) const PROTECTED_BLOCKS: usize = 1;

/// The fewest tokens of a sample.
pub const TOKENS_MIN: usize = (PROTECTED_BLOCKS + 1) * BLOCK_TOKENS;

/// Sensitivities of a layer to every format that pages shrink to step by step, over the whole
/// blocks of a sample from the second on. What is rotated is quantised as it is cached then, in
/// Hadamard order.
///
/// # Errors
/// When a page cannot be encoded: infinities, or values beyond fp16.
pub fn of_layer(
    geometry: KvGeometry,
    rotation: Rotation,
    found: &LayerGradients,
) -> Result<Vec<Sensitivity>, FormatError> {
    let mut all = Vec::new();
    for (side, cached) in [(Side::K, &found.k), (Side::V, &found.v)] {
        let shape = RecordShape {
            side,
            head_dim: geometry.head_dim,
        };
        let is_rotated = match side {
            Side::K => rotation.k,
            Side::V => rotation.v,
        };
        let rotated = is_rotated.then(|| rotated(cached, geometry.head_dim));
        let cached = rotated.as_ref().unwrap_or(cached);
        let formats = precision_levels(side).filter(|f| *f != FormatId::F16);
        for format in formats.filter(|f| page_bytes(geometry, side, *f).is_some()) {
            all.push(Sensitivity {
                side,
                format,
                loss: first_order(shape, format, geometry.kv_heads, cached)?,
            });
        }
    }
    Ok(all)
}

/// The rotation is orthogonal: gradients turn like values.
fn rotated(cached: &Cached, head_dim: usize) -> Cached {
    let mut turned = cached.clone();
    for rows in [&mut turned.values, &mut turned.gradients] {
        rows.chunks_exact_mut(head_dim).for_each(hadamard);
    }
    turned
}

fn first_order(
    shape: RecordShape,
    format: FormatId,
    heads: usize,
    cached: &Cached,
) -> Result<f64, FormatError> {
    let mut record = vec![0; format.record_bytes(shape)?];
    let mut decoded = vec![0f32; shape.elements()];
    let tokens = cached.values.len() / heads / shape.head_dim;
    let mut sum = 0.0;
    let of_head = |values: &[f32], head: usize| {
        let all = tokens * shape.head_dim;
        values[head * all..(head + 1) * all].to_vec()
    };
    debug_assert!(tokens >= TOKENS_MIN, "a block that counts");
    for head in 0..heads {
        let (x, g) = (
            of_head(&cached.values, head),
            of_head(&cached.gradients, head),
        );
        let blocks = x.chunks_exact(shape.elements());
        let blocks = blocks.zip(g.chunks_exact(shape.elements()));
        for (x, g) in blocks.skip(PROTECTED_BLOCKS) {
            let rows: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
            format.encode(shape, &rows, &mut record)?;
            format.dequantise(shape, &record, &mut decoded)?;
            let terms = rows.iter().zip(&decoded).zip(g);
            sum += terms
                .map(|((x, q), g)| f64::from((g * (x.to_f32() - q)).abs()))
                .sum::<f64>();
        }
    }
    Ok(sum)
}

/// Name of a sample's figure.
pub fn name(sample: usize, layer: usize, side: Side, format: FormatId) -> String {
    format!("sample{sample}.{}={format}", page_name(layer, side))
}

/// Means over samples, in nats a token.
///
/// # Errors
/// When a sample is missing.
pub fn sensitivities(
    geometry: KvGeometry,
    choices: &FormatChoices,
    samples: usize,
    figures: &Losses,
) -> Result<Sensitivities, LossesError> {
    Sensitivities::new(geometry, choices, &[], |layer, side, format| {
        let of = |sample| figures.get(&name(sample, layer, side, format));
        let all = (0..samples).map(of).collect::<Result<Vec<_>, _>>()?;
        Ok(all.iter().sum::<f64>() / samples as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use FormatId as F;

    const TINY: KvGeometry = KvGeometry {
        layers: 1,
        kv_heads: 2,
        head_dim: 64,
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };

    const VALUES: Rotation = Rotation { k: false, v: true };

    /// Two blocks; head 1's gradients are ten times head 0's, and those of the first block are much
    /// larger.
    fn found() -> LayerGradients {
        let (tokens, dim) = (2 * BLOCK_TOKENS, TINY.head_dim);
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut cached = || Cached {
            values: (0..2 * tokens * dim).map(|_| next()).collect(),
            gradients: (0..2 * tokens * dim)
                .map(
                    |i| match (i / dim % tokens < BLOCK_TOKENS, i / dim / tokens) {
                        (true, _) => 5.0,
                        (false, head) => [1e-3, 1e-2][head],
                    },
                )
                .collect(),
        };
        LayerGradients {
            w_k: vec![],
            w_v: vec![],
            k: cached(),
            v: cached(),
        }
    }

    fn loss(all: &[Sensitivity], side: Side, format: F) -> f64 {
        let found = all.iter().find(|s| (s.side, s.format) == (side, format));
        found.expect("every format").loss
    }

    #[test]
    fn sensitivities_are_gradients_times_errors_of_the_codecs() {
        let all = of_layer(TINY, Rotation::NONE, &found()).unwrap();
        assert_eq!(all.len(), 11 + 4);
        for side in [Side::K, Side::V] {
            // Values uniform in ±1: a group of n spans 2 (n − 1) / (n + 1), and the mean error is a
            // quarter of a step. 11e-3 over the heads' second blocks; the first ones are protected.
            let group = match side {
                Side::K => 128.0,
                Side::V => 64.0,
            };
            let range = 2.0 * (group - 1.0) / (group + 1.0);
            // Four levels over the middle 0.8 of the range (of values 0.9): the mean error over the
            // range is 1.9 / 30 (2.1 / 30).
            let two = match side {
                Side::K => (F::Int2c, 3.95),
                Side::V => (F::Int2c, 3.6),
            };
            let plain = (F::Int2, 3.0);
            for (format, levels) in [(F::Int8, 255.0), (F::Int4, 15.0), plain, two] {
                let expected = 0.25 * range / levels * 11e-3 * (BLOCK_TOKENS * 64) as f64;
                let got = loss(&all, side, format);
                assert!(
                    (got / expected - 1.0).abs() < 0.05,
                    "{side:?} {format}: {got}, {expected}"
                );
            }
        }
        let kitty = loss(&all, Side::K, F::Kitty25c);
        assert!(kitty < loss(&all, Side::K, F::Kitty12c) && kitty > loss(&all, Side::K, F::Int4));
    }

    #[test]
    fn rotated_values_are_quantised_as_they_are_cached() {
        // One channel far from the others, and gradients everywhere: rotation spreads it.
        let mut found = found();
        found
            .v
            .values
            .iter_mut()
            .skip(5)
            .step_by(64)
            .for_each(|x| *x = 40.0);
        let plain = of_layer(TINY, Rotation::NONE, &found).unwrap();
        let rotated = of_layer(TINY, VALUES, &found).unwrap();
        assert_eq!(
            loss(&plain, Side::K, F::Int2c),
            loss(&rotated, Side::K, F::Int2c)
        );
        assert!(loss(&plain, Side::V, F::Int2c) != loss(&rotated, Side::V, F::Int2c));
        // By hand, for one head.
        let mut x = found.v.values[..256 * 64].to_vec();
        let mut g = found.v.gradients[..256 * 64].to_vec();
        x.chunks_exact_mut(64).for_each(hadamard);
        g.chunks_exact_mut(64).for_each(hadamard);
        let shape = RecordShape::v(64);
        let one = Cached {
            values: x,
            gradients: g,
        };
        let by_hand = first_order(shape, F::Int2c, 1, &one).unwrap();
        let of_one_head = LayerGradients {
            v: Cached {
                values: found.v.values[..256 * 64].to_vec(),
                gradients: found.v.gradients[..256 * 64].to_vec(),
            },
            k: Cached {
                values: vec![0.0; 256 * 64],
                gradients: vec![0.0; 256 * 64],
            },
            w_k: vec![],
            w_v: vec![],
        };
        let geometry = KvGeometry {
            kv_heads: 1,
            ..TINY
        };
        let again = of_layer(geometry, VALUES, &of_one_head).unwrap();
        assert_eq!(loss(&again, Side::V, F::Int2c), by_hand);
    }

    #[test]
    fn rotated_keys_turn_as_rotated_values_do() {
        let mut found = found();
        let far = found.k.values.iter_mut().skip(5).step_by(64);
        // Back and forth, so that the channel's own range grows, too.
        far.enumerate()
            .for_each(|(token, x)| *x = [40.0, -40.0][token % 2]);
        let keys = Rotation { k: true, v: false };
        let plain = of_layer(TINY, Rotation::NONE, &found).unwrap();
        let rotated = of_layer(TINY, keys, &found).unwrap();
        for format in [F::Int2c, F::Int4] {
            assert_eq!(
                loss(&plain, Side::V, format),
                loss(&rotated, Side::V, format)
            );
            assert!(loss(&plain, Side::K, format) != loss(&rotated, Side::K, format));
        }
        // The same keys and gradients, turned by hand.
        let turned = LayerGradients {
            k: super::rotated(&found.k, TINY.head_dim),
            ..found
        };
        let by_hand = of_layer(TINY, Rotation::NONE, &turned).unwrap();
        assert_eq!(by_hand, rotated);
    }

    #[test]
    fn a_value_that_no_code_stands_for_is_an_error() {
        let mut found = found();
        found.k.values[BLOCK_TOKENS * 64 + 7] = f32::INFINITY;
        assert!(of_layer(TINY, Rotation::NONE, &found).is_err());
    }
}
