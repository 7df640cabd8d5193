//! Method *KVmix* (Li et al. 2025, arXiv 2506.08018): a layer's keys matter as much as ‖dL/dW_k‖₂,
//! its values as ‖dL/dW_v‖₂, each averaged over prompts.
//!
//! The paper's use of the scores, [`floors`]: for keys and for values apart, the top fifth of the
//! layers gets more bits (3 for keys, 4 for values), the rest 2. The released code shifts the
//! labels before a loss that shifts them again, so that it predicts the token after the next; ours
//! are shifted once.

use std::convert::Infallible;

use ebb_gradients::LayerGradients;
use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvGeometry, Side};

use super::{FormatChoices, Losses, LossesError, Sensitivities};

/// L2 norms of dL/dW_k and dL/dW_v.
pub fn norms(found: &LayerGradients) -> [f64; 2] {
    [&found.w_k, &found.w_v].map(|gradient| {
        let squares = gradient.iter().map(|g| f64::from(*g).powi(2));
        squares.sum::<f64>().sqrt()
    })
}

/// Name of a sample's figure for a page.
pub fn name(sample: usize, layer: usize, side: Side) -> String {
    format!("sample{sample}.{}", super::measured::page_name(layer, side))
}

/// Mean norms over samples, `[layer * 2 + side]`.
///
/// # Errors
/// When a sample is missing.
pub fn scores(layers: usize, samples: usize, figures: &Losses) -> Result<Vec<f64>, LossesError> {
    let mean = |page: usize| {
        let of = |sample| figures.get(&name(sample, page / 2, Side::of_page(page)));
        let all = (0..samples).map(of).collect::<Result<Vec<_>, _>>()?;
        Ok(all.iter().sum::<f64>() / samples as f64)
    };
    (0..layers * 2).map(mean).collect()
}

/// Formats of a side's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Of the layers that matter most.
    pub high: FormatId,
    /// Of the others.
    pub low: FormatId,
}

/// The paper's floors: on each side, `levels[side].high` for the `share` (0 to 1) of layers of the
/// highest scores, the count rounded down; the earlier layer first where scores are equal.
pub fn floors(scores: &[f64], share: f64, levels: [Levels; 2]) -> Vec<FormatId> {
    let layers = scores.len() / 2;
    let top = ((layers as f64 * share) as usize).min(layers);
    let mut floors = vec![FormatId::F16; scores.len()];
    for side in [Side::K, Side::V] {
        let page = |layer: usize| layer * 2 + side as usize;
        let mut ranked: Vec<usize> = (0..layers).collect();
        ranked.sort_by(|a, b| scores[page(*b)].total_cmp(&scores[page(*a)]));
        for (rank, layer) in ranked.into_iter().enumerate() {
            let Levels { high, low } = levels[side as usize];
            floors[page(layer)] = if rank < top { high } else { low };
        }
    }
    floors
}

/// What the scores say of formats, for the integer program and the shrink order: score × squared
/// step. KVmix itself says nothing of formats; the step of b bits is 1 / (2^b − 1) of a range, and
/// losses are quadratic in small errors. No unit.
pub fn sensitivities(
    geometry: KvGeometry,
    choices: &FormatChoices,
    more: &[FormatId],
    scores: &[f64],
) -> Sensitivities {
    let loss = |layer: usize, side: Side, format: FormatId| {
        Ok::<_, Infallible>(scores[layer * 2 + side as usize] * step_squared(format))
    };
    let Ok(all) = Sensitivities::new(geometry, choices, more, loss);
    all
}

/// Mean square of a format's step, in ranges.
fn step_squared(format: FormatId) -> f64 {
    let of_bits = |bits: f64| (bits.exp2() - 1.0).powi(-2);
    let boosted = match format {
        FormatId::Kitty25 | FormatId::Kitty25c => 0.25,
        FormatId::Kitty12 | FormatId::Kitty12c => 0.125,
        _ => return of_bits(f64::from(format.nominal_bits())),
    };
    boosted * of_bits(4.0) + (1.0 - boosted) * of_bits(2.0)
}

#[cfg(test)]
mod tests {
    use ebb_gradients::Cached;

    use super::*;
    use FormatId as F;

    const PAPER: [Levels; 2] = [
        Levels {
            high: F::Int3,
            low: F::Int2,
        },
        Levels {
            high: F::Int4,
            low: F::Int2,
        },
    ];

    #[test]
    fn the_top_fifth_of_each_side_gets_more() {
        // 11 layers: two are high. Keys matter more the deeper, values the shallower.
        let scores: Vec<f64> = (0..11)
            .flat_map(|l| [f64::from(l), f64::from(100 - l)])
            .collect();
        let floors = floors(&scores, 0.2, PAPER);
        let side = |side: Side| floors.iter().skip(side as usize).step_by(2).copied();
        let high = |side, format| side_layers(&side_of(&floors, side), format);
        assert_eq!(high(Side::K, F::Int3), [9, 10]);
        assert_eq!(high(Side::V, F::Int4), [0, 1]);
        assert_eq!(side(Side::K).filter(|f| *f == F::Int2).count(), 9);
    }

    fn side_of(floors: &[F], side: Side) -> Vec<F> {
        floors
            .iter()
            .skip(side as usize)
            .step_by(2)
            .copied()
            .collect()
    }

    fn side_layers(formats: &[F], format: F) -> Vec<usize> {
        (0..formats.len())
            .filter(|l| formats[*l] == format)
            .collect()
    }

    /// The paper's averages in 32 layers: 2.19 bits of keys and 2.38 of values at a fifth, 2.28 and
    /// 2.56 at 30 %.
    #[test]
    fn shares_give_the_papers_bits() {
        for (share, expect) in [(0.2, (2.1875, 2.375)), (0.3, (2.28125, 2.5625))] {
            let floors = floors(&vec![1.0; 64], share, PAPER);
            let mean = |side: Side| {
                let bits = side_of(&floors, side).into_iter().map(F::nominal_bits);
                bits.sum::<f32>() / 32.0
            };
            assert_eq!((mean(Side::K), mean(Side::V)), expect);
        }
    }

    // 3-4-5 and 2-3-6-7: an L1 norm would be 7 and 11, a mean of squares less.
    #[test]
    fn norms_are_the_second_ones() {
        let nothing = || Cached {
            values: Vec::new(),
            gradients: Vec::new(),
        };
        let found = LayerGradients {
            w_k: vec![3.0, 0.0, 0.0, -4.0],
            w_v: vec![2.0, -3.0, 6.0, 0.0],
            k: nothing(),
            v: nothing(),
        };
        assert_eq!(norms(&found), [5.0, 7.0]);
    }

    #[test]
    fn scores_are_means_over_samples() {
        let mut figures = Losses::default();
        for (sample, value) in [1.0, 4.0].into_iter().enumerate() {
            figures.set(&name(sample, 0, Side::K), value);
            figures.set(&name(sample, 0, Side::V), 2.0 * value);
        }
        assert_eq!(scores(1, 2, &figures).unwrap(), [2.5, 5.0]);
        assert!(scores(1, 3, &figures).is_err());
    }

    #[test]
    fn fewer_bits_cost_more() {
        let steps = [
            F::Int8,
            F::Int4,
            F::Int3,
            F::Kitty25c,
            F::Kitty12c,
            F::Int2c,
        ];
        let steps = steps.map(step_squared);
        assert!(steps.is_sorted());
        assert_eq!(steps[1], 1.0 / 225.0);
    }
}
