//! Which experts a token goes to: what a router's products come to. Backends do the same, in the
//! same order.

use super::experts::{ExpertsSpec, RouterScores};

/// An expert of a token, and its weight.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Choice {
    pub(crate) expert: u32,
    pub(crate) weight: f32,
}

/// Added to a sum of sigmoids that weights are divided by, so that it is never 0.
const LEAST_SUM: f32 = 1e-20;

/// What a choice takes of each expert, if the spec has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OfExperts<'a> {
    /// A bias for the choice alone.
    pub(crate) correction: Option<&'a [f32]>,
    /// What weights are multiplied by.
    pub(crate) scales: Option<&'a [f32]>,
}

/// Chooses experts by a row of the router's products, which are changed. Writes as many choices as
/// `chosen` has room for, the best first.
pub(crate) fn route(
    spec: &ExpertsSpec,
    products: &mut [f32],
    OfExperts { correction, scales }: OfExperts<'_>,
    chosen: &mut [Choice],
) {
    assert_eq!(products.len(), spec.experts);
    let routing = spec.routing;
    if let Some(cap) = spec.router_cap {
        let capped = |x: &mut f32| *x = cap * (*x / cap).tanh();
        products.iter_mut().for_each(capped);
    }
    match routing.scores {
        RouterScores::Softmax => {
            let top = products.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            products.iter_mut().for_each(|x| *x = (*x - top).exp());
            let mut sum: f32 = products.iter().sum();
            if correction.is_some() {
                // It is one of shares.
                products.iter_mut().for_each(|x| *x /= sum);
                sum = 1.0;
            }
            choose(spec, products, correction, chosen);
            let of_chosen: f32 = chosen.iter().map(|choice| choice.weight).sum();
            let sum = if routing.renormalised { of_chosen } else { sum };
            chosen.iter_mut().for_each(|choice| choice.weight /= sum);
        }
        RouterScores::Sigmoid => {
            let sigmoid = |x: &mut f32| *x = 1.0 / (1.0 + (-*x).exp());
            // Those of great products are all 1: where nothing is added, products choose.
            let by_products = correction.is_none() && routing.groups.is_none();
            if !by_products {
                products.iter_mut().for_each(sigmoid);
            }
            choose(spec, products, correction, chosen);
            if by_products {
                chosen.iter_mut().for_each(|c| sigmoid(&mut c.weight));
            }
            if routing.renormalised {
                let sum = chosen.iter().map(|choice| choice.weight).sum::<f32>() + LEAST_SUM;
                chosen.iter_mut().for_each(|choice| choice.weight /= sum);
            }
        }
        RouterScores::SparseMixer { jitter } => sparse_mixer(products, jitter, chosen),
    }
    chosen.iter_mut().for_each(|c| c.weight *= routing.scale);
    if let Some(scales) = scales {
        let scale = |choice: &Choice| scales[choice.expert as usize];
        chosen.iter_mut().for_each(|c| c.weight *= scale(c));
    }
}

/// Writes the best experts and their scores, which are not those of the choice where there is a
/// correction.
fn choose(spec: &ExpertsSpec, scores: &[f32], correction: Option<&[f32]>, chosen: &mut [Choice]) {
    let of_choice = |expert: usize| scores[expert] + correction.map_or(0.0, |c| c[expert]);
    let mut out = Experts::default();
    if let Some(groups) = spec.routing.groups {
        let size = spec.experts / groups.groups;
        let value = |group: usize| {
            let members = (group * size..(group + 1) * size).map(of_choice);
            let best = |(first, second): (f32, f32), x: f32| match x {
                _ if x > first => (x, first),
                _ if x > second => (first, x),
                _ => (first, second),
            };
            let (first, second) = members.fold((f32::NEG_INFINITY, f32::NEG_INFINITY), best);
            first + second
        };
        let mut taken = Experts::default();
        for _ in 0..groups.chosen {
            taken.insert(best(groups.groups, &taken, value));
        }
        for expert in (0..spec.experts).filter(|expert| !taken.has(expert / size)) {
            out.insert(expert);
        }
    }
    for choice in chosen {
        let expert = best(spec.experts, &out, of_choice);
        out.insert(expert);
        *choice = Choice {
            expert: expert as u32,
            weight: scores[expert],
        };
    }
}

/// The first of the greatest that is not `out`, a NaN below all numbers; of NaN alone, the first.
fn best(count: usize, out: &Experts, value: impl Fn(usize) -> f32) -> usize {
    let mut candidates = (0..count).filter(|index| !out.has(*index));
    let first = candidates.next().expect("specs have as many as are chosen");
    let better = |best: (usize, f32), index: usize| match value(index) {
        value if value > best.1 || (best.1.is_nan() && !value.is_nan()) => (index, value),
        _ => best,
    };
    candidates.fold((first, value(first)), better).0
}

/// A set of indices below 1024.
#[derive(Default)]
struct Experts([u64; 16]);

impl Experts {
    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }
}

/// Two experts, each weighted by its share of those that come close to it.
fn sparse_mixer(scores: &[f32], jitter: f32, chosen: &mut [Choice]) {
    let mut out = Experts::default();
    for choice in chosen {
        let expert = best(scores.len(), &out, |expert| scores[expert]);
        let top = scores[expert];
        let is_far = |score: f32| (top - score) / score.abs().max(top) > 2.0 * jitter;
        let near = scores.iter().enumerate();
        let near = near.filter(|(expert, score)| !out.has(*expert) && !is_far(**score));
        let sum: f32 = near.map(|(_, score)| (score - top).exp()).sum();
        out.insert(expert);
        *choice = Choice {
            expert: expert as u32,
            weight: 1.0 / sum,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::experts::{ExpertGroups, Routing};
    use super::*;

    fn spec(experts: usize, per_token: usize, routing: Routing) -> ExpertsSpec {
        ExpertsSpec::plain(experts, per_token, 8, routing)
    }

    fn routed(spec: &ExpertsSpec, scores: &[f32], correction: Option<&[f32]>) -> Vec<(u32, f32)> {
        let of_experts = OfExperts {
            correction,
            scales: None,
        };
        routed_by(spec, scores, of_experts)
    }

    fn routed_by(spec: &ExpertsSpec, scores: &[f32], of: OfExperts<'_>) -> Vec<(u32, f32)> {
        let mut chosen = vec![Choice::default(); spec.per_token];
        route(spec, &mut scores.to_vec(), of, &mut chosen);
        chosen.iter().map(|c| (c.expert, c.weight)).collect()
    }

    fn assert_near(found: &[(u32, f32)], expected: &[(u32, f64)]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let near = (f64::from(found.1) - expected.1).abs() < 1e-6;
            assert!(found.0 == expected.0 && near, "{found:?} {expected:?}");
        }
    }

    #[test]
    fn softmax_is_over_all_or_over_those_chosen() {
        let scores = [1.0, 3.0, -2.0, 3.0, 2.0];
        let e = |x: f64| x.exp();
        let all = e(1.0) + e(3.0) + e(-2.0) + e(3.0) + e(2.0);
        let of_all = Routing {
            renormalised: false,
            scale: 2.0,
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let found = routed(&spec(5, 3, of_all), &scores, None);
        let share = |x: f64| 2.0 * e(x) / all;
        assert_near(&found, &[(1, share(3.0)), (3, share(3.0)), (4, share(2.0))]);
        let found = routed(&spec(5, 3, Routing::SOFTMAX_OF_CHOSEN), &scores, None);
        let chosen = 2.0 * e(3.0) + e(2.0);
        let share = |x: f64| e(x) / chosen;
        assert_near(&found, &[(1, share(3.0)), (3, share(3.0)), (4, share(2.0))]);
    }

    #[test]
    fn sigmoids_that_are_all_1_do_not_hide_the_best() {
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            renormalised: false,
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let found = routed(&spec(4, 2, routing), &[40.0, -1.0, 60.0, 50.0], None);
        assert_eq!(found, [(2, 1.0), (3, 1.0)]);
        let found = routed(&spec(3, 2, routing), &[0.5, -1.0, -2.0], None);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert_near(&found, &[(0, sigmoid(0.5)), (1, sigmoid(-1.0))]);
    }

    #[test]
    fn scales_of_experts_weigh_but_do_not_choose() {
        let spec = spec(3, 2, Routing::SOFTMAX_OF_CHOSEN);
        let scales = OfExperts {
            scales: Some(&[100.0, 0.5, -2.0]),
            ..OfExperts::default()
        };
        let found = routed_by(&spec, &[1.0, 2.0, 3.0], scales);
        let first = 1.0 / (1.0 + (-1f64).exp());
        assert_near(&found, &[(2, -2.0 * first), (1, 0.5 * (1.0 - first))]);
    }

    #[test]
    fn corrections_and_groups_choose_but_do_not_weigh() {
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            groups: Some(ExpertGroups {
                groups: 3,
                chosen: 2,
            }),
            renormalised: true,
            scale: 2.5,
        };
        let scores = [4.0, -4.0, 0.0, 1.0, 3.0, 2.0];
        // Group 0 has the best expert and is out for its second.
        let found = routed(&spec(6, 2, routing), &scores, Some(&[0.0; 6]));
        let s = |x: f64| 1.0 / (1.0 + (-x).exp());
        let sum = s(3.0) + s(2.0);
        assert_near(&found, &[(4, 2.5 * s(3.0) / sum), (5, 2.5 * s(2.0) / sum)]);
        let found = routed(
            &spec(6, 2, routing),
            &scores,
            Some(&[0.0, 0.0, 9.0, 0.0, 0.0, 0.0]),
        );
        let sum = s(0.0) + s(3.0);
        assert_near(&found, &[(2, 2.5 * s(0.0) / sum), (4, 2.5 * s(3.0) / sum)]);
    }

    #[test]
    fn a_correction_of_a_softmax_is_one_of_shares() {
        let e = |x: f64| x.exp();
        let all = e(1.0) + e(2.0) + e(3.0);
        // What 1 and 2 lack to the share of 3, and a little more.
        let lack = |x: f64| ((e(3.0) - e(x)) / all + 1e-3) as f32;
        let correction = [lack(1.0) + 1e-3, lack(2.0), 0.0];
        for (renormalised, sum) in [(true, e(1.0) + e(2.0)), (false, all)] {
            let routing = Routing {
                correction: true,
                renormalised,
                ..Routing::SOFTMAX_OF_CHOSEN
            };
            let found = routed(&spec(3, 2, routing), &[1.0, 2.0, 3.0], Some(&correction));
            assert_near(&found, &[(0, e(1.0) / sum), (1, e(2.0) / sum)]);
        }
    }

    #[test]
    fn a_routing_that_is_not_computed_is_refused() {
        let of_chosen = Routing::SOFTMAX_OF_CHOSEN;
        let mixer = Routing {
            scores: RouterScores::SparseMixer { jitter: 0.1 },
            ..of_chosen
        };
        let sigmoids = Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            ..of_chosen
        };
        let corrected_shares = Routing {
            correction: true,
            ..of_chosen
        };
        for routing in [of_chosen, mixer, sigmoids, corrected_shares] {
            assert_eq!(spec(4, 2, routing).validate(), Ok(()));
        }
        let corrected = |routing| Routing {
            correction: true,
            ..routing
        };
        let all = Routing {
            renormalised: false,
            ..mixer
        };
        let refused = [
            (corrected(mixer), "a correction of a sparse mixer"),
            (all, "a sparse mixer whose weights"),
        ];
        for (routing, problem) in refused {
            let error = spec(4, 2, routing).validate().unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_sparse_mixer_weighs_by_what_comes_close() {
        let routing = Routing {
            scores: RouterScores::SparseMixer { jitter: 0.1 },
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        // Of 5, 4.5 is within a fifth; of 4.5, none is.
        let found = routed(&spec(4, 2, routing), &[1.0, 5.0, 4.5, 3.0], None);
        let first = 1.0 / (1.0 + (-0.5f64).exp());
        assert_near(&found, &[(1, first), (2, 1.0)]);
    }

    #[test]
    fn no_score_is_a_number_and_experts_are_chosen_all_the_same() {
        for scores in [
            RouterScores::Softmax,
            RouterScores::Sigmoid,
            RouterScores::SparseMixer { jitter: 0.01 },
        ] {
            let routing = Routing {
                scores,
                ..Routing::SOFTMAX_OF_CHOSEN
            };
            let found = routed(&spec(4, 2, routing), &[f32::NAN; 4], None);
            assert!(found[0].0 == 0 && found[1].0 == 1 && found[0].1.is_nan());
        }
    }

    #[test]
    fn what_is_not_a_number_is_chosen_last() {
        let nan = f32::NAN;
        for scores in [
            RouterScores::Sigmoid,
            RouterScores::SparseMixer { jitter: 0.01 },
        ] {
            let routing = Routing {
                scores,
                ..Routing::SOFTMAX_OF_CHOSEN
            };
            let experts = |scores: [f32; 4]| {
                let found = routed(&spec(4, 2, routing), &scores, None);
                [found[0].0, found[1].0]
            };
            assert_eq!(experts([nan, 1.0, nan, 2.0]), [3, 1]);
            assert_eq!(experts([nan, nan, 1.0, nan]), [2, 0]);
        }
    }
}
