//! Texts on their way to the engine thread.

use super::*;
use crate::client_memory::ClientMemory;
use crate::core::Field;

fn bounded(bytes: u64) -> (ClientMemory, EngineHandle) {
    let memory = ClientMemory::new(bytes);
    let backend = Fake::new(400, 1, |_| None);
    let engine = counting(backend, 400, (16, 16), memory.clone());
    (memory, engine)
}

fn text(bytes: usize) -> Prompt {
    Prompt::Text("\u{120}".repeat(bytes / 2))
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenised() {
    let (memory, engine) = bounded(1 << 20);
    // A context of 512 tokens, of which none has more than 2 bytes.
    let error = engine.tokenize(text(1026), false).await.unwrap_err();
    let RequestError::Invalid { field, message } = error else {
        panic!("{error}")
    };
    assert_eq!(field, Field::Text);
    assert!(message.ends_with("send at most 1024"), "{message}");
    assert!(engine.tokenize(text(1024), false).await.is_ok());
    assert_eq!((memory.held(), memory.refused()), (0, 0));
}

#[tokio::test]
async fn a_token_that_the_model_does_not_have_is_refused() {
    let (_, engine) = bounded(1 << 20);
    let beyond = Prompt::Text("\u{1c8}".to_owned());
    let error = engine.tokenize(beyond.clone(), false).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "text: 200 is not a token: the model has 200 tokens"
    );
    let generated = engine.generate(Request::new(beyond, SamplingOptions::default()));
    assert_eq!(generated.await.err(), Some(error));
}

#[tokio::test]
async fn a_text_takes_client_memory_while_it_is_tokenised() {
    let (memory, engine) = bounded(100_000);
    assert!(engine.tokenize(text(200), false).await.is_ok());
    let error = engine.tokenize(text(1000), false).await.unwrap_err();
    assert!(matches!(error, RequestError::ClientMemory(_)), "{error}");
    let many = vec![3; 1_000_000];
    assert!(engine.detokenize(many.clone(), false).await.is_err());
    assert!(
        engine
            .detokenize(many[..1000].to_vec(), false)
            .await
            .is_ok()
    );
    assert_eq!((memory.held(), memory.refused()), (0, 2));
}

#[tokio::test]
async fn prompts_take_client_memory_until_their_reader_is_gone() {
    let (memory, engine) = bounded(9_500);
    let generate = || {
        let options = SamplingOptions {
            max_tokens: Some(2),
            ..SamplingOptions::default()
        };
        engine.generate(request(&[3; 500], options))
    };
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(generate().await.expect("there is room"));
    }
    assert!(memory.held() >= 4 * 2000);
    let refused = generate().await.err();
    assert!(matches!(refused, Some(RequestError::ClientMemory(_))));
    streams.clear();
    assert_eq!(memory.held(), 0);
    assert!(generate().await.is_ok());
}

/// The text of a special token is no part of the answer, but stops it.
#[tokio::test]
async fn a_stop_string_that_is_a_special_token_stops() {
    let (_, engine) = bounded(1 << 20);
    let generate = |stop: &[&str], bias: Vec<(u32, f32)>| {
        let options = SamplingOptions {
            temperature: 0.0,
            max_tokens: Some(5),
            stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
            logit_bias: bias,
            ..SamplingOptions::default()
        };
        engine.generate(request(&[3, 4], options))
    };
    let special = vec![(SPECIAL, 100.0), (END, -100.0)];
    for (stop, expected) in [
        (
            &["ab", SPECIAL_TEXT][..],
            (FinishReason::Stop, vec![SPECIAL]),
        ),
        (&["ab"][..], (FinishReason::Length, vec![SPECIAL; 5])),
        (&[][..], (FinishReason::Length, vec![SPECIAL; 5])),
    ] {
        let stream = generate(stop, special.clone())
            .await
            .expect("there is room");
        let (answers, _, error) = read(stream, 1).await;
        assert_eq!(error, None);
        let Answer {
            text, tokens, end, ..
        } = &answers[0];
        let reason = end.expect("an end").0;
        assert_eq!((reason, tokens), (expected.0, &expected.1), "{stop:?}");
        assert_eq!(text, "", "{stop:?}");
    }
}
