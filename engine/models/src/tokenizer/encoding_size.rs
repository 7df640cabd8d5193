//! What a text becomes while it is encoded, for those who plan its memory.

use serde_json::Value;
use tokenizers::AddedToken;

use super::growth::{Growth, Spelled, is_known, words};

/// What a text becomes at most once it is normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodingSize {
    /// Bytes once it is cut. Each is kept with where it came from.
    pub bytes: usize,
    /// The same, with one byte for each letter that spells a byte. There are no more tokens.
    pub letters: usize,
    /// Pieces.
    pub pieces: usize,
}

/// How sizes follow from texts.
pub(super) struct Sizes {
    normalized: Growth,
    bytes: Growth,
    letters: Growth,
    /// Whether pieces are words at least.
    cuts_words: bool,
}

impl Sizes {
    /// Of a normalizer and a pre-tokenizer as tokenizer.json has them.
    pub(super) fn new(normalizer: &Value, pre_tokenizer: &Value, added: &[AddedToken]) -> Self {
        let first = |token: &&AddedToken| !token.normalized && !token.content.is_empty();
        let lengths = added.iter().filter(first).map(|token| token.content.len());
        Self {
            normalized: Growth::of(normalizer, lengths.min(), Spelled::Bytes),
            bytes: Growth::of(pre_tokenizer, None, Spelled::Bytes),
            letters: Growth::of(pre_tokenizer, None, Spelled::Letters),
            cuts_words: is_known(pre_tokenizer),
        }
    }

    /// Bytes that a byte may become at most.
    pub(super) fn growth(&self) -> usize {
        self.normalized.most().saturating_mul(self.bytes.most())
    }

    /// Bytes of a text once it is normalised, at most.
    pub(super) fn normalized(&self, text: &str) -> usize {
        self.normalized.bytes(text)
    }

    /// Of texts between added tokens, which are normalised.
    pub(super) fn of<'a>(&self, texts: impl Iterator<Item = &'a str>) -> EncodingSize {
        let mut size = EncodingSize::default();
        for text in texts {
            let letters = self.letters.bytes(text);
            let pieces = match self.cuts_words {
                true => words(text),
                false => letters,
            };
            size.bytes = size.bytes.saturating_add(self.bytes.bytes(text));
            size.letters = size.letters.saturating_add(letters);
            size.pieces = size.pieces.saturating_add(pieces);
        }
        size
    }
}
