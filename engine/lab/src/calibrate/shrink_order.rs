//! From losses and floors to the order in which pages come down.

use ebb_kernels::formats::{FormatId, legal_shrink};
use ebb_kernels::kv::Side;

use super::{Choice, PricedChange, Sensitivities, order};

/// The order in which pages come down to their floors, `[layer * 2 + side]`, cheapest first. A page
/// whose floor is on the ladder passes the formats of its hull above it; one with a static floor
/// goes there straight from 16 bit.
pub fn shrink_order(sensitivities: &Sensitivities, floors: &[FormatId]) -> Vec<PricedChange> {
    let pages = sensitivities.pages().iter().zip(floors).enumerate();
    let pages = pages.map(|(page, (choices, floor))| {
        let side = Side::of_page(page);
        let allowed = |format: FormatId| format == *floor || legal_shrink(format, *floor, side);
        let choices = choices.iter().copied().filter(|c| allowed(c.format));
        choices.collect::<Vec<Choice>>()
    });
    order(&pages.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::FormatChoices;
    use super::*;
    use FormatId as F;
    use ebb_kernels::kv::KvGeometry;
    use std::convert::Infallible;

    const TINY: KvGeometry = KvGeometry {
        layers: 4,
        kv_heads: 2,
        head_dim: 64,
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };

    /// Layer 1's keys are a hundred times as dear.
    fn dear() -> Sensitivities {
        let loss = |layer, side, format| {
            let bits = match format {
                F::Int8 => 0.1,
                F::Int4 => 1.0,
                F::Int3 => 5.0,
                F::Kitty25c => 10.0,
                F::Kitty12c => 15.0,
                _ => 20.0,
            };
            let dear = (layer, side) == (1, Side::K);
            Ok::<_, Infallible>(bits * if dear { 100.0 } else { 1.0 })
        };
        let Ok(all) =
            Sensitivities::new(TINY, &FormatChoices::default(), &[F::Int3, F::Int2], loss);
        all
    }

    fn ends(steps: &[PricedChange]) -> Vec<F> {
        let mut formats = vec![F::F16; 8];
        for step in steps {
            formats[step.page] = step.to;
        }
        formats
    }

    #[test]
    fn the_page_that_matters_most_comes_down_last() {
        let all = dear();
        let steps = shrink_order(&all, &all.lowest());
        assert_eq!(steps.last().unwrap().page, 2);
        let at = |page: usize, to: F| steps.iter().position(|s| (s.page, s.to) == (page, to));
        // Everything is at 8 bit before the cheap pages are at their ends, and the dear one stays
        // there longest.
        assert!(at(2, F::Int8) < at(1, F::Int2c));
        assert!(at(2, F::Int4) > at(1, F::Int2c));
        assert_eq!(ends(&steps), [F::Int2c; 8]);
    }

    #[test]
    fn every_page_ends_at_its_floor_and_passes_only_rungs_above() {
        let floors = [
            F::Int4,
            F::Int8,
            F::Int3,
            F::F16,
            F::Kitty12c,
            F::Int2,
            F::Int2,
            F::Int3,
        ];
        let steps = shrink_order(&dear(), &floors);
        assert_eq!(ends(&steps), floors);
        let static_changes = steps.iter().filter(|s| s.to == F::Int3).count();
        assert_eq!(static_changes, 2);
        let touched = |page| steps.iter().filter(|s| s.page == page).count();
        assert_eq!((touched(2), touched(3), touched(7)), (1, 0, 1));
        // Keys that are not clipped pass the formats above both branches only.
        let passed = steps.iter().filter(|s| s.page == 6).map(|s| s.to);
        assert_eq!(passed.collect::<Vec<_>>(), [F::Int8, F::Int4, F::Int2]);
    }
}
