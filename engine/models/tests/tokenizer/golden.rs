//! Ids and texts of real vocabularies, recorded from Hugging Face's and llama.cpp's tokenizers,
//! which agree on all of them.

use ebb_models::tokenizer::Tokenizer;

use crate::files::{self, Example};

fn check(tokenizer: &Tokenizer, file: &str) {
    let examples: Vec<Example> = serde_json::from_str(&files::golden(file)).expect("examples");
    assert!(examples.len() >= 14);
    for Example { text, ids, decoded } in examples {
        let encoded = tokenizer.encode(&text, true, true).expect("encodes");
        assert_eq!(encoded, ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, false), decoded);
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| tokenizer.token_bytes(id).expect("an id of the vocabulary"))
            .copied()
            .collect();
        assert_eq!(bytes, decoded.as_bytes());
    }
}

#[test]
fn smollm2_from_gguf() {
    let tokenizer = files::smollm2();
    check(&tokenizer, "tokenizer_smollm2.json");
    assert_eq!(tokenizer.vocab_size(), 49_152);
    assert_eq!(tokenizer.special().bos, Some(1));
    assert_eq!(tokenizer.special().eos, Some(2));
}

#[test]
fn special_tokens_are_read_only_when_asked() {
    let tokenizer = files::smollm2();
    let turn = "<|im_start|>user\nHi<|im_end|>\n";
    let parsed = tokenizer.encode(turn, false, true).expect("encodes");
    assert_eq!(parsed, [1, 4093, 198, 26843, 2, 198]);
    assert_eq!(tokenizer.decode(&parsed, true), "user\nHi\n");
    assert_eq!(tokenizer.decode(&parsed, false), turn);
    let literal = tokenizer.encode(turn, false, false).expect("encodes");
    assert!(!literal.iter().any(|&id| tokenizer.is_special(id)));
    assert_eq!(tokenizer.decode(&literal, true), turn);
}

#[test]
#[ignore = "needs the 1.1 GB Qwen2.5-Coder file: set EBB_TEST_QWEN_MODEL (part of --full)"]
fn qwen2_from_gguf() {
    let tokenizer = Tokenizer::from_gguf(files::qwen_metadata()).expect("Qwen's vocabulary");
    check(&tokenizer, "tokenizer_qwen2.5.json");
    assert_eq!(tokenizer.vocab_size(), 151_936);
    assert_eq!(tokenizer.special().eos, Some(151_645));
    // Qwen composes characters first: e + U+0301 is é.
    let composed = tokenizer.encode("café", true, true).expect("encodes");
    let decomposed = tokenizer
        .encode("cafe\u{301}", true, true)
        .expect("encodes");
    assert_eq!(composed, decomposed);
    // Padding of the embedding matrix, not text.
    let padding = tokenizer
        .encode("[PAD151665]", true, true)
        .expect("encodes");
    assert!(!padding.contains(&151_665));
}
