//! Bias and penalties against a dense implementation, over whole generations.

use std::sync::Arc;

use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions};
use proptest::prelude::*;

use crate::naive;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn greedy_tokens_are_those_of_dense_penalties(
        rows in prop::collection::vec(prop::collection::vec(-4.0f32..4.0, 300), 1..12),
        prompt in prop::collection::vec(0u32..400, 0..40),
        repetition_penalty in prop_oneof![Just(1.0f32), 0.3f32..3.0],
        presence_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        logit_bias in prop::collection::vec((0u32..300, -5.0f32..5.0), 0..5),
    ) {
        let options = SamplingOptions {
            temperature: 0.0,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            ..SamplingOptions::default()
        };
        let params = Arc::new(options.clone().validate(300).expect("valid"));
        let mut state = SamplerState::new(params, &[], &prompt, 0);
        let mut sampler = Sampler::new();
        let mut output = Vec::new();
        for mut row in rows {
            let expected = naive::argmax(&naive::penalised(&row, &options, &prompt, &output));
            let before = row.clone();
            let token = sampler.sample(&mut row, &mut state).expect("a token").token;
            prop_assert_eq!(token, expected);
            prop_assert_eq!(row, before);
            output.push(token);
        }
    }
}

#[test]
fn random_draws_follow_the_penalised_distribution() {
    let options = SamplingOptions {
        repetition_penalty: 1.5,
        presence_penalty: 0.7,
        frequency_penalty: 0.4,
        top_k: 3,
        ..SamplingOptions::default()
    };
    let mut logits = vec![1.0, 2.0, -1.0, 0.5];
    let params = Arc::new(options.clone().validate(4).expect("valid"));
    let prompt = [1, 2];
    let mut state = SamplerState::new(params, &[], &prompt, 11);
    let mut sampler = Sampler::new();
    let mut output = Vec::new();
    for position in 0..500 {
        let penalised = naive::penalised(&logits, &options, &prompt, &output);
        let (probabilities, _) = naive::filtered(&penalised, &options);
        let (expected, margin) = naive::invert(&probabilities, naive::uniform(11, 0, position));
        let token = sampler
            .sample(&mut logits, &mut state)
            .expect("a token")
            .token;
        assert!(token == expected || margin < 1e-6, "position {position}");
        output.push(token);
    }
}

#[test]
fn equal_logits_go_to_the_lowest_id_and_bias_can_rule_out_all() {
    let options = SamplingOptions {
        temperature: 0.0,
        ..SamplingOptions::default()
    };
    let params = Arc::new(options.validate(5).expect("valid"));
    let mut state = SamplerState::new(params, &[], &[], 0);
    let mut sampler = Sampler::new();
    let mut row = [0.0, 2.0, 2.0, -1.0, 2.0];
    assert_eq!(
        sampler.sample(&mut row, &mut state).expect("a token").token,
        1
    );
    let mut zeros = [-0.0, 0.0, -0.0, 0.0, -0.0];
    assert_eq!(
        sampler
            .sample(&mut zeros, &mut state)
            .expect("a token")
            .token,
        0
    );
}
