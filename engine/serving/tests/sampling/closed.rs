//! No accepted parameters make a row of finite logits unusable.

use std::sync::Arc;

use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions};
use proptest::prelude::*;

const VOCAB: usize = 40;

/// Anything that a field can hold, its extremes and what requests send.
fn number() -> impl Strategy<Value = f32> {
    const EXTREMES: &[f32] = &[
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        1e-5,
        0.01,
        0.5,
        1.0,
        1.2,
        2.0,
        100.0,
        1e30,
        f32::MAX,
    ];
    prop_oneof![
        any::<f32>(),
        prop::sample::select(EXTREMES),
        prop::sample::select(EXTREMES).prop_map(|x| -x),
        -3.0f32..3.0,
    ]
}

/// `-inf` is finite enough: models rule tokens out with it.
fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        number().prop_filter("finite", |x| x.is_finite()),
        Just(f32::NEG_INFINITY),
    ]
}

/// Of what is drawn, what a field refuses is left at its default: most draws would be refused as a
/// whole.
fn accepted(drawn: SamplingOptions) -> SamplingOptions {
    let mut options = SamplingOptions::default();
    let mut try_with = |set: &dyn Fn(&mut SamplingOptions)| {
        let mut with = options.clone();
        set(&mut with);
        if with.clone().validate(VOCAB).is_ok() {
            options = with;
        }
    };
    try_with(&|o| o.temperature = drawn.temperature);
    try_with(&|o| o.top_p = drawn.top_p);
    try_with(&|o| o.min_p = drawn.min_p);
    try_with(&|o| o.top_k = drawn.top_k);
    try_with(&|o| o.repetition_penalty = drawn.repetition_penalty);
    try_with(&|o| o.presence_penalty = drawn.presence_penalty);
    try_with(&|o| o.frequency_penalty = drawn.frequency_penalty);
    for bias in &drawn.logit_bias {
        try_with(&|o| o.logit_bias.push(*bias));
    }
    try_with(&|o| o.stop_token_ids.clone_from(&drawn.stop_token_ids));
    try_with(&|o| o.min_tokens = drawn.min_tokens);
    options
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn every_row_of_finite_logits_gives_a_token(
        rows in prop::collection::vec(prop::collection::vec(logit(), VOCAB), 1..5),
        prompt in prop::collection::vec(0u32..60, 0..60),
        numbers in prop::collection::vec(number(), 6),
        top_k in prop_oneof![Just(0u32), 1u32..50, any::<u32>()],
        logit_bias in prop::collection::btree_map(0..VOCAB as u32, number(), 0..VOCAB),
        stop_token_ids in prop::collection::vec(0..VOCAB as u32, 0..80),
        min_tokens in 0u32..4,
        seed in any::<u64>(),
    ) {
        let options = accepted(SamplingOptions {
            temperature: numbers[0],
            top_p: numbers[1],
            min_p: numbers[2],
            repetition_penalty: numbers[3],
            presence_penalty: numbers[4],
            frequency_penalty: numbers[5],
            top_k,
            logit_bias: logit_bias.into_iter().collect(),
            stop_token_ids,
            min_tokens,
            ..SamplingOptions::default()
        });
        let params = Arc::new(options.clone().validate(VOCAB).expect("accepted"));
        prop_assume!(params.check_ends(&[39], VOCAB).is_ok());
        let mut state = SamplerState::new(params, &[39], &prompt, seed);
        let mut sampler = Sampler::new();
        for mut row in rows {
            // One token is left that neither the model nor min_tokens rules out.
            let ends = &options.stop_token_ids;
            if let Some(id) = (0..39).find(|id| !ends.contains(id)) {
                row[id as usize] = row[id as usize].max(f32::MIN);
            }
            let sampled = sampler.sample(&mut row, &mut state);
            prop_assert!(sampled.is_ok(), "{:?} of {options:?} from {row:?}", sampled);
        }
    }
}
