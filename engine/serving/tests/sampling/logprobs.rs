//! Log-probabilities are those of the model's own distribution.

use std::sync::Arc;

use ebb_serving::sampling::{SampleError, Sampler, SamplerState, SamplingOptions};
use proptest::prelude::*;

use crate::naive;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn they_are_the_log_softmax_of_the_raw_logits(
        mut logits in prop::collection::vec(
            prop_oneof![9 => -30.0f32..30.0, 1 => Just(0.5f32), 1 => Just(f32::NEG_INFINITY)],
            2..600,
        ),
        top in 0u32..=20,
        temperature in 0.0f32..2.0,
        bias in -100.0f32..100.0,
    ) {
        prop_assume!(logits.iter().filter(|l| l.is_finite()).count() > 1);
        let options = SamplingOptions {
            temperature,
            logprobs: Some(top),
            top_p: 0.9,
            logit_bias: vec![(0, bias), (1, -bias)],
            ..SamplingOptions::default()
        };
        let exact: Vec<f64> = naive::softmax(&logits, 1.0).iter().map(|p| p.ln()).collect();
        let params = Arc::new(options.validate(logits.len()).expect("valid"));
        let mut state = SamplerState::new(params, &[], &[], 3);
        let mut sampler = Sampler::new();
        let before = logits.clone();
        let sampled = sampler.sample(&mut logits, &mut state).expect("a token");
        prop_assert_eq!(&logits, &before, "the row is as it was");
        let report = sampled.logprobs.expect("asked for");
        let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-5 * (1.0 + b.abs());
        prop_assert!(close(report.logprob, exact[sampled.token as usize]));

        let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
        ranked.retain(|&id| logits[id as usize].is_finite());
        ranked.sort_by(|&a, &b| {
            logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
        });
        ranked.truncate(top as usize);
        let ids: Vec<u32> = report.top.iter().map(|&(id, _)| id).collect();
        prop_assert_eq!(&ids, &ranked);
        for (id, logprob) in report.top {
            prop_assert!(close(logprob, exact[id as usize]));
        }
        let again = sampler.token_logprobs(&logits, ids.first().copied().unwrap_or(0), top);
        let again = again.expect("sound logits");
        prop_assert_eq!(again.top.len(), ids.len());
    }
}

#[test]
fn nothing_is_computed_that_was_not_asked_for() {
    let params = Arc::new(SamplingOptions::default().validate(2).expect("valid"));
    let mut state = SamplerState::new(params, &[], &[], 0);
    let sampled = Sampler::new().sample(&mut [0.0, 1.0], &mut state);
    assert_eq!(sampled.expect("a token").logprobs, None);
}

#[test]
fn unsound_logits_are_errors_and_leave_the_choice_alone() {
    let params = Arc::new(SamplingOptions::default().validate(3).expect("valid"));
    let mut state = SamplerState::new(params, &[], &[], 0);
    let mut sampler = Sampler::new();
    let cases = [
        ([0.0, f32::NAN, 1.0], SampleError::NotFinite),
        ([0.0, f32::INFINITY, 1.0], SampleError::NotFinite),
        ([f32::NEG_INFINITY; 3], SampleError::NoCandidate),
    ];
    for (mut logits, error) in cases {
        assert_eq!(sampler.sample(&mut logits, &mut state), Err(error));
        assert_eq!(sampler.token_logprobs(&logits, 0, 3), Err(error));
    }
    assert_eq!(
        sampler.sample(&mut [], &mut state),
        Err(SampleError::NoCandidate)
    );
    assert_eq!(state.generated(), 0);
    let outside = sampler.token_logprobs(&[0.0, 1.0], 2, 0);
    assert_eq!(
        outside,
        Err(SampleError::OutsideVocabulary { token: 2, vocab: 2 })
    );
    let impossible = sampler.token_logprobs(&[0.0, f32::NEG_INFINITY], 1, 5);
    let impossible = impossible.expect("sound logits");
    assert_eq!(impossible.logprob, f32::NEG_INFINITY);
    assert_eq!(impossible.top, [(0, 0.0)]);
}
