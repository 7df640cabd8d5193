//! A tokenizer.json.

use ebb_models::tokenizer::{Tokenizer, TokenizerConfig};

use crate::known_stack::on_known_stack;
use crate::panics;
use crate::sentence::assert_sentence;

const TEXTS: [&str; 4] = [
    "",
    "Hello, wörld! 世界 \u{1F600}\u{0301} <|im_start|>user\n\t 12345   don't",
    "<s>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa</s>",
    "\0\u{feff}\u{200d}▁\r\n",
];

pub(crate) fn run(bytes: &[u8]) {
    let bytes = bytes.to_owned();
    on_known_stack(move || panics::that_are_caught(|| check(&bytes)));
}

fn check(bytes: &[u8]) {
    let config = TokenizerConfig {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..TokenizerConfig::default()
    };
    match Tokenizer::from_tokenizer_json(bytes, &config) {
        Ok(tokenizer) => use_it(&tokenizer),
        Err(error) => assert_sentence(&error),
    }
    if let Err(error) = TokenizerConfig::parse(bytes) {
        assert_sentence(&error);
    }
}

/// Encodes and decodes short texts.
pub(super) fn use_it(tokenizer: &Tokenizer) {
    let vocab = tokenizer.vocab_size() as u32;
    let longest = tokenizer.longest_token_bytes();
    for text in TEXTS {
        for special in [true, false] {
            let ids = match tokenizer.encode(text, special, special) {
                Ok(ids) => ids,
                Err(error) => {
                    assert_sentence(&error);
                    continue;
                }
            };
            let again = tokenizer.encode(text, special, special).expect("as before");
            assert_eq!(ids, again, "it encodes differently the second time");
            if let Some(id) = ids.iter().find(|&&id| id >= vocab) {
                panic!("the id {id} of {vocab}");
            }
            let bytes = tokenizer.decoded_bytes(&ids, special);
            assert!(
                bytes <= longest * ids.len(),
                "{bytes} bytes of {} ids",
                ids.len()
            );
            // What is no UTF-8 becomes three bytes.
            assert!(tokenizer.decode(&ids, special).len() <= 3 * bytes);
        }
    }
    tokenizer.decode(&[0, 1, vocab.wrapping_sub(1), vocab, u32::MAX], false);
}
