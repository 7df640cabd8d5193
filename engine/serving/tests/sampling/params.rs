//! Every bad parameter is refused by a sentence with its name, its value and its range.

use ebb_serving::sampling::SamplingOptions;

const VOCAB: usize = 1000;

fn refused(change: impl FnOnce(&mut SamplingOptions), words: [&str; 3]) {
    let mut options = SamplingOptions::default();
    change(&mut options);
    let error = options.validate(VOCAB).expect_err("out of range");
    let sentence = error.to_string();
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
    assert!(sentence.starts_with(&error.field.to_string()), "{sentence}");
}

fn accepted(change: impl FnOnce(&mut SamplingOptions)) {
    let mut options = SamplingOptions::default();
    change(&mut options);
    if let Err(error) = options.validate(VOCAB) {
        panic!("{error}");
    }
}

#[test]
fn bad_numbers_are_named() {
    refused(
        |o| o.temperature = -0.5,
        ["temperature", "-0.5", "at least 0"],
    );
    refused(
        |o| o.temperature = f32::NAN,
        ["temperature", "NaN", "finite"],
    );
    refused(
        |o| o.temperature = f32::INFINITY,
        ["temperature", "inf", "finite"],
    );
    refused(|o| o.top_p = 0.0, ["top_p", "0", "above 0"]);
    refused(|o| o.top_p = 1.5, ["top_p", "1.5", "at most 1"]);
    refused(|o| o.top_p = f32::NAN, ["top_p", "NaN", "above 0"]);
    refused(|o| o.min_p = -0.1, ["min_p", "-0.1", "between 0 and 1"]);
    refused(|o| o.min_p = f32::NAN, ["min_p", "NaN", "between 0 and 1"]);
    refused(
        |o| o.repetition_penalty = 0.0,
        ["repetition_penalty", "0", "between 0.01 and 100"],
    );
    // Divides logits out of what an f32 holds.
    refused(
        |o| o.repetition_penalty = 1e-38,
        ["repetition_penalty", "0.0000", "between 0.01 and 100"],
    );
    refused(
        |o| o.repetition_penalty = f32::INFINITY,
        ["repetition_penalty", "inf", "between 0.01 and 100"],
    );
    refused(
        |o| o.repetition_penalty = f32::NAN,
        ["repetition_penalty", "NaN", "between 0.01 and 100"],
    );
    refused(
        |o| o.presence_penalty = 2.5,
        ["presence_penalty", "2.5", "between -2 and 2"],
    );
    refused(
        |o| o.frequency_penalty = -3.0,
        ["frequency_penalty", "-3", "between -2 and 2"],
    );
    refused(|o| o.n = 0, ["n", "0", "between 1 and 128"]);
    refused(|o| o.n = 129, ["n", "129", "between 1 and 128"]);
    refused(
        |o| o.logprobs = Some(21),
        ["logprobs", "21", "between 0 and 20"],
    );
    refused(
        |o| o.prompt_logprobs = Some(99),
        ["prompt_logprobs", "99", "between 0 and 20"],
    );
    refused(
        |o| o.max_tokens = Some(0),
        ["max_tokens", "0", "at least 1"],
    );
    let fewer = |o: &mut SamplingOptions| {
        o.min_tokens = 6;
        o.max_tokens = Some(5);
    };
    refused(fewer, ["min_tokens", "6", "max_tokens, which is 5"]);
}

#[test]
fn bad_lists_are_named_with_their_index() {
    refused(
        |o| o.stop = vec!["x".to_owned(); 17],
        ["stop", "17", "at most 16"],
    );
    refused(
        |o| o.stop = vec!["a".to_owned(), String::new()],
        ["stop[1]", "0 bytes", "1 to 256"],
    );
    refused(
        |o| o.stop = vec!["é".repeat(129)],
        ["stop[0]", "258 bytes", "1 to 256"],
    );
    refused(
        |o| o.stop_token_ids = vec![1; 257],
        ["stop_token_ids", "257", "at most 256"],
    );
    refused(
        |o| o.stop_token_ids = vec![0, 1000],
        ["stop_token_ids[1]", "1000", "below 1000"],
    );
    let many = (0..1025).map(|i| (i % 1000, 0.0)).collect();
    refused(
        |o| o.logit_bias = many,
        ["logit_bias", "1025", "at most 1024"],
    );
    refused(
        |o| o.logit_bias = vec![(1000, 0.0)],
        ["logit_bias", "1000", "below 1000"],
    );
    refused(
        |o| o.logit_bias = vec![(7, 101.0)],
        ["logit_bias[7]", "101", "between -100 and 100"],
    );
    refused(
        |o| o.logit_bias = vec![(7, f32::NAN)],
        ["logit_bias[7]", "NaN", "between -100 and 100"],
    );
}

#[test]
fn the_ends_of_every_range_are_inside() {
    accepted(|_| {});
    accepted(|o| o.temperature = 0.0);
    accepted(|o| o.temperature = f32::MAX);
    accepted(|o| o.temperature = 1e-45);
    accepted(|o| o.repetition_penalty = 0.01);
    accepted(|o| o.repetition_penalty = 100.0);
    accepted(|o| o.top_p = f32::MIN_POSITIVE);
    accepted(|o| o.min_p = 1.0);
    accepted(|o| o.presence_penalty = -2.0);
    accepted(|o| o.frequency_penalty = 2.0);
    accepted(|o| o.n = 128);
    accepted(|o| (o.logprobs, o.prompt_logprobs) = (Some(0), Some(20)));
    accepted(|o| (o.min_tokens, o.max_tokens) = (5, Some(5)));
    accepted(|o| o.min_tokens = u32::MAX);
    accepted(|o| o.stop = vec!["x".repeat(256); 16]);
    accepted(|o| o.stop_token_ids = vec![999; 256]);
    accepted(|o| o.logit_bias = vec![(999, -100.0), (0, 100.0)]);
}

#[test]
fn stop_ids_and_end_tokens_leave_one_to_choose() {
    let all = |ignore_eos, min_tokens| {
        let options = SamplingOptions {
            min_tokens,
            ignore_eos,
            stop_token_ids: (1..256).collect(),
            ..Default::default()
        };
        options.validate(256).expect("in range")
    };
    let error = all(false, 1).check_ends(&[0, 7], 256).expect_err("all 256");
    let sentence = error.to_string();
    assert!(
        sentence.starts_with("stop_token_ids is 255 ids long"),
        "{sentence}"
    );
    assert!(all(false, 0).check_ends(&[0], 256).is_ok());
    assert!(all(true, 1).check_ends(&[0], 256).is_ok());
    assert!(all(false, 1).check_ends(&[7], 256).is_ok());
    assert!(all(false, 1).check_ends(&[0], 300).is_ok());
}
