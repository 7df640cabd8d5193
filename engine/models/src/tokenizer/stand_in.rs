//! The vocabulary of a model that has none.

use super::byte_level;
use crate::model::gguf::GgufTokenizer;

/// Byte-level BPE without merges: one token for each byte, then numbered ones that no text is
/// encoded to.
pub(super) fn vocabulary(vocab: usize) -> GgufTokenizer {
    let bytes = (0..=255).map(|byte| byte_level::byte_to_char(byte).to_string());
    let numbers = (256..).map(|id: usize| format!("<{id}>"));
    GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: None,
        tokens: bytes.chain(numbers).take(vocab).collect(),
        scores: None,
        token_types: None,
        merges: None,
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        unknown: None,
        add_bos: Some(false),
        add_eos: Some(false),
        add_space_prefix: None,
        chat_template: None,
    }
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::Tokenizer;

    #[test]
    fn every_byte_is_a_token_and_every_id_is_something() {
        let tokenizer = Tokenizer::stand_in(1000).unwrap();
        assert_eq!(tokenizer.vocab_size(), 1000);
        let text = "Grüße, 世界!\n\u{1F600}";
        let ids = tokenizer.encode(text, true, true).unwrap();
        let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
        assert_eq!(ids, bytes);
        assert_eq!(tokenizer.decode(&ids, true), text);
        assert_eq!(tokenizer.decode(&[72, 999, 105], true), "H<999>i");
        // Fewer ids than bytes are possible too.
        assert_eq!(Tokenizer::stand_in(100).unwrap().vocab_size(), 100);
    }
}
