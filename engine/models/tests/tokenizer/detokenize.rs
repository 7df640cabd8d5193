//! Streamed text against decoding all at once.

use std::sync::{Arc, OnceLock};

use ebb_models::tokenizer::{IncrementalDetokenizer, Tokenizer, TokenizerConfig};
use proptest::prelude::*;

use crate::files;

/// SentencePiece with byte tokens and a leading space to strip.
fn llama2() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let build = || {
        let json = files::golden("tokenizer/llama2_tokenizer.json");
        let config = TokenizerConfig::default();
        let tokenizer = Tokenizer::from_tokenizer_json(json.as_bytes(), &config);
        Arc::new(tokenizer.expect("a tokenizer"))
    };
    Arc::clone(TOKENIZER.get_or_init(build))
}

fn stream(mut detokenizer: IncrementalDetokenizer, ids: &[u32]) -> Vec<String> {
    let mut pieces = Vec::new();
    for &id in ids {
        let mut piece = String::new();
        detokenizer.push(id, &mut piece);
        pieces.push(piece);
    }
    let mut last = String::new();
    detokenizer.finish(&mut last);
    pieces.push(last);
    pieces
}

/// Ids of whole texts, and of bytes and tokens in no order.
fn ids(vocab: u32, special: u32) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(
        prop_oneof![4 => 0..vocab, 1 => 0..special, 4 => 3..260u32],
        0..40,
    )
}

fn check(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> Result<(), TestCaseError> {
    let whole = tokenizer.decode(ids, skip_special);
    let pieces = stream(
        IncrementalDetokenizer::new(Arc::clone(tokenizer), skip_special),
        ids,
    );
    prop_assert_eq!(pieces.concat(), whole.clone());
    // No more is held back than the beginning of one character.
    for n in 0..ids.len() {
        let shown: usize = pieces[..=n].iter().map(String::len).sum();
        let so_far = tokenizer.decode(&ids[..=n], skip_special);
        let certain = so_far.strip_suffix('\u{fffd}').unwrap_or(&so_far);
        prop_assert!(
            shown >= certain.len(),
            "{:?} of {:?}",
            &whole[..shown],
            so_far
        );
    }
    let kept = stream(
        IncrementalDetokenizer::continuing(Arc::clone(tokenizer), skip_special),
        ids,
    );
    let kept = kept.concat();
    let spaced = format!(" {whole}");
    prop_assert!(kept == whole || kept == spaced);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn byte_level_pieces_make_the_text(ids in ids(49_200, 17), skip in any::<bool>()) {
        check(&files::smollm2(), &ids, skip)?;
    }

    #[test]
    fn sentencepiece_pieces_make_the_text(ids in ids(702, 3), skip in any::<bool>()) {
        check(&llama2(), &ids, skip)?;
    }

    #[test]
    fn texts_come_back(text in "\\PC{0,60}") {
        // SentencePiece writes a space as U+2581 and cannot tell the two apart.
        let spaced = text.replace('\u{2581}', " ");
        for (tokenizer, back) in [(files::smollm2(), &text), (llama2(), &spaced)] {
            let ids = tokenizer.encode(&text, false, false).expect("encodes");
            prop_assert_eq!(&tokenizer.decode(&ids, false), back);
            let pieces = stream(IncrementalDetokenizer::new(tokenizer, false), &ids);
            prop_assert_eq!(&pieces.concat(), back);
        }
    }
}

#[test]
fn a_block_of_sentencepiece_is_a_space() {
    let tokenizer = llama2();
    for text in ["\u{2581}", "a\u{2581}b", "\u{2581}\u{2581} c"] {
        let ids = tokenizer.encode(text, false, false).expect("encodes");
        assert_eq!(tokenizer.decode(&ids, false), text.replace('\u{2581}', " "));
    }
}

#[test]
fn characters_come_whole_and_at_once() {
    let tokenizer = llama2();
    let byte = |b: u32| 3 + b;
    let ids = [
        byte(0xf0),
        byte(0x9f),
        byte(0x98),
        byte(0x80),
        byte(0x41),
        byte(0xe2),
        byte(0x82),
    ];
    let pieces = stream(
        IncrementalDetokenizer::new(Arc::clone(&tokenizer), true),
        &ids,
    );
    assert_eq!(pieces, ["", "", "", "😀", "A", "", "", "\u{fffd}"]);
    // Bytes that cannot continue a character are not waited for.
    let ids = [byte(0xe2), byte(0x41), byte(0xff)];
    let pieces = stream(IncrementalDetokenizer::new(tokenizer, true), &ids);
    assert_eq!(pieces, ["", "\u{fffd}A", "\u{fffd}", ""]);
}

#[test]
fn an_answer_keeps_the_space_before_it() {
    let tokenizer = llama2();
    let ids = tokenizer.encode("Hello", false, true).expect("encodes");
    let text = stream(
        IncrementalDetokenizer::new(Arc::clone(&tokenizer), true),
        &ids,
    );
    assert_eq!(text.concat(), "Hello");
    let text = stream(IncrementalDetokenizer::continuing(tokenizer, true), &ids);
    assert_eq!(text.concat(), " Hello");
}
