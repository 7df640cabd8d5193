//! From losses to an order: the merged lower convex hulls of loss over bytes.
//!
//! Each page has a few formats it can stand at, each with bytes and a loss. Along the lower convex
//! hull of these points every step down costs more per byte than the one before, so the steps of
//! all pages, sorted by that price, are an order in which every page comes down its own hull, and
//! every prefix of it is the cheapest way to save that many bytes by whole steps (the greedy
//! solution of the knapsack's relaxation; losses are taken to add up).

use ebb_kernels::formats::FormatId;

/// A format that a page can stand at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The format.
    pub format: FormatId,
    /// Bytes of the page.
    pub bytes: u64,
    /// What the model loses.
    pub loss: f64,
}

/// A step of the order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PricedChange {
    /// Index of the page.
    pub page: usize,
    /// Where it goes.
    pub to: FormatId,
    /// Loss beyond that of the step before.
    pub loss: f64,
    /// Loss per byte saved.
    pub price: f64,
}

/// The lower convex hull of a page's choices, from the most bytes to the fewest. The first choice
/// is where the page starts, at no loss; a lower one never counts as better than a higher one.
pub fn hull(choices: &[Choice]) -> Vec<Choice> {
    let mut sorted = choices.to_vec();
    sorted.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.loss.total_cmp(&b.loss)));
    let mut hull: Vec<Choice> = Vec::new();
    for mut next in sorted {
        if let Some(last) = hull.last() {
            if next.bytes == last.bytes {
                continue;
            }
            next.loss = next.loss.max(last.loss);
        }
        while let [.., before, last] = hull[..]
            && price(before, last) >= price(last, next)
        {
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

fn price(from: Choice, to: Choice) -> f64 {
    (to.loss - from.loss) / (from.bytes - to.bytes) as f64
}

/// The order in which pages come down, cheapest first; `pages[i]` are the choices of page `i`.
pub fn order(pages: &[Vec<Choice>]) -> Vec<PricedChange> {
    let mut steps: Vec<PricedChange> = Vec::new();
    for (page, choices) in pages.iter().enumerate() {
        let hull = hull(choices);
        steps.extend(hull.windows(2).map(|pair| PricedChange {
            page,
            to: pair[1].format,
            loss: pair[1].loss - pair[0].loss,
            price: price(pair[0], pair[1]),
        }));
    }
    // Stable: a page's own steps stay in order also where their prices are equal.
    steps.sort_by(|a, b| a.price.total_cmp(&b.price));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use FormatId as F;
    use proptest::prelude::*;

    fn choice(format: F, bytes: u64, loss: f64) -> Choice {
        Choice {
            format,
            bytes,
            loss,
        }
    }

    #[test]
    fn rungs_above_the_hull_are_passed_over() {
        // int4 costs more than its share of the way to int2.
        let choices = [
            choice(F::F16, 160, 0.0),
            choice(F::Int8, 80, 0.1),
            choice(F::Int4, 40, 9.0),
            choice(F::Int2, 20, 10.0),
        ];
        let formats: Vec<F> = hull(&choices).iter().map(|c| c.format).collect();
        assert_eq!(formats, [F::F16, F::Int8, F::Int2]);
    }

    #[test]
    fn a_lower_rung_that_measures_better_counts_as_equal() {
        let choices = [
            choice(F::F16, 160, 0.0),
            choice(F::Int8, 80, 0.5),
            choice(F::Int4, 40, 0.3),
        ];
        let hull = hull(&choices);
        assert_eq!(
            hull.last().map(|c| (c.format, c.loss)),
            Some((F::Int4, 0.5))
        );
    }

    /// Lowest loss that saves at least `saved` bytes, over all combinations.
    fn best(pages: &[Vec<Choice>], saved: u64) -> f64 {
        let Some((first, rest)) = pages.split_first() else {
            return if saved == 0 { 0.0 } else { f64::INFINITY };
        };
        let top = first[0].bytes;
        let tries = first
            .iter()
            .map(|c| c.loss + best(rest, saved.saturating_sub(top - c.bytes)));
        tries.fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn every_prefix_is_the_cheapest_way_to_save_its_bytes(
            losses in prop::collection::vec(prop::array::uniform3(0.0f64..1.0), 1..5)
        ) {
            let pages: Vec<Vec<Choice>> = losses.iter().map(|l| {
                let mut sums = [0.0; 3];
                let mut sum = 0.0;
                for (to, x) in sums.iter_mut().zip(l) {
                    sum += x;
                    *to = sum;
                }
                vec![
                    choice(F::F16, 160, 0.0),
                    choice(F::Int8, 80, sums[0]),
                    choice(F::Int4, 40, sums[1]),
                    choice(F::Int2, 20, sums[2]),
                ]
            }).collect();
            let mut at: Vec<Choice> = pages.iter().map(|p| p[0]).collect();
            let (mut loss, mut saved) = (0.0, 0);
            for step in order(&pages) {
                let to = *pages[step.page].iter().find(|c| c.format == step.to).unwrap();
                let down = to.bytes < at[step.page].bytes;
                prop_assert!(down, "a page comes down its own hull in order");
                saved += at[step.page].bytes - to.bytes;
                at[step.page] = to;
                loss += step.loss;
                prop_assert!(loss <= best(&pages, saved) + 1e-9);
            }
            prop_assert!(at.iter().all(|c| c.format == F::Int2));
        }
    }
}
