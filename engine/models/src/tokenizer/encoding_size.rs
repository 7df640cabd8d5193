//! What a text becomes while it is encoded, for those who plan its memory.

use serde_json::Value;
use tokenizers::AddedToken;

use super::cuts::Cuts;
use super::growth::{CountAs, Growth};

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
    cuts: Cuts,
    added: Added,
}

impl Sizes {
    /// Of a normalizer and a pre-tokenizer as tokenizer.json has them.
    pub(super) fn new(normalizer: &Value, pre_tokenizer: &Value, added: &[AddedToken]) -> Self {
        let first = |token: &&AddedToken| !token.normalized && !token.content.is_empty();
        let lengths = added.iter().filter(first).map(|token| token.content.len());
        Self {
            normalized: Growth::of(normalizer, lengths.min(), CountAs::Bytes),
            bytes: Growth::of(pre_tokenizer, None, CountAs::Bytes),
            letters: Growth::of(pre_tokenizer, None, CountAs::Letters),
            cuts: Cuts::of(pre_tokenizer),
            added: Added::new(added),
        }
    }

    /// Bytes that a byte may become at most.
    pub(super) fn growth(&self) -> usize {
        self.normalized.most().saturating_mul(self.bytes.most())
    }

    /// Bytes of a text once it is normalised, at most.
    pub(super) fn normalized(&self, text: &str) -> usize {
        self.normalized.bytes(text, Some(0))
    }

    /// Of a text that is not normalised yet, as if its spaces alone were replaced.
    pub(super) fn before(&self, text: &str) -> EncodingSize {
        let mut size = self.of([(text, false)].into_iter());
        let more = self.normalized.of_spaces(text);
        let added = self.added.most(text);
        size.bytes = size.bytes.saturating_add(more);
        size.letters = size.letters.saturating_add(more);
        size.pieces = size.pieces.saturating_add(added);
        size
    }

    /// Of texts that are normalised, or are added tokens.
    pub(super) fn of<'a>(&self, texts: impl Iterator<Item = (&'a str, bool)>) -> EncodingSize {
        let mut size = EncodingSize::default();
        for (text, is_added) in texts {
            let (bytes, letters, pieces) = match is_added {
                true => (text.len(), 1, 1),
                false => {
                    let cut = self.cuts.pieces(text);
                    let letters = self.letters.bytes(text, cut);
                    let pieces = cut.unwrap_or(letters);
                    (self.bytes.bytes(text, cut), letters, pieces)
                }
            };
            size.bytes = size.bytes.saturating_add(bytes);
            size.letters = size.letters.saturating_add(letters);
            size.pieces = size.pieces.saturating_add(pieces);
        }
        size
    }
}

/// How often added tokens may stand in a text.
struct Added {
    /// Their first bytes, [`Self::BEGIN`] at most, in lower case and in order.
    begins: Vec<Vec<u8>>,
    /// Whether one begins with this byte.
    first: [bool; 256],
    /// Bytes of the shortest.
    shortest: usize,
}

impl Added {
    const BEGIN: usize = 4;

    fn new(added: &[AddedToken]) -> Self {
        let contents = added.iter().map(|token| token.content.as_bytes());
        let contents = contents.filter(|content| !content.is_empty());
        let shortest = contents.clone().map(<[u8]>::len).min().unwrap_or(1);
        let begin = |content: &[u8]| begin(content, Self::BEGIN).to_ascii_lowercase();
        let mut begins: Vec<Vec<u8>> = contents.map(begin).collect();
        begins.sort_unstable();
        begins.dedup();
        let mut first = [false; 256];
        for begin in &begins {
            first[usize::from(begin[0])] = true;
        }
        Self {
            begins,
            first,
            shortest,
        }
    }

    /// At most; but a normalizer that makes other letters may make tokens.
    fn most(&self, text: &str) -> usize {
        let text = text.as_bytes();
        let (mut at, mut count) = (0, 0);
        while let Some(&byte) = text.get(at) {
            let is_first = self.first[usize::from(byte.to_ascii_lowercase())];
            if is_first && self.may_begin(&text[at..]) {
                count += 1;
                at += self.shortest;
            } else {
                at += 1;
            }
        }
        count
    }

    fn may_begin(&self, text: &[u8]) -> bool {
        let begin = begin(text, Self::BEGIN);
        let mut lower = [0; Self::BEGIN];
        let text = &mut lower[..begin.len()];
        text.copy_from_slice(begin);
        text.make_ascii_lowercase();
        (1..=text.len()).any(|bytes| {
            let known = |known: &Vec<u8>| known[..].cmp(&text[..bytes]);
            self.begins.binary_search_by(known).is_ok()
        })
    }
}

fn begin(text: &[u8], bytes_max: usize) -> &[u8] {
    text.get(..bytes_max).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(content: &str) -> AddedToken {
        AddedToken::from(content, true)
    }

    #[test]
    fn added_tokens_that_a_text_has_are_counted() {
        let usual = Added::new(&["<|end|>", "<unused1>", "  ", "Ab"].map(token));
        for (text, most) in [
            ("a text of words, 1 < 2", 0),
            ("<|end|>x<|end|>", 2),
            ("<un", 0),
            ("     ", 2),
            ("aBabAB", 3),
        ] {
            assert_eq!(usual.most(text), most, "{text:?}");
        }
        let short = Added::new(&["a"].map(token));
        assert_eq!(short.most("banana and bread"), 5);
        assert_eq!(Added::new(&[]).most("a"), 0);
    }

    #[test]
    fn added_tokens_and_spaces_are_in_the_first_estimate() {
        let rules = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]});
        let sizes = Sizes::new(&rules, &json!(null), &[token("<s>")]);
        let text = "some words, and a <s>";
        let made = [
            (
                "\u{2581}some\u{2581}words,\u{2581}and\u{2581}a\u{2581}",
                false,
            ),
            ("<s>", true),
        ];
        let (before, after) = (sizes.before(text), sizes.of(made.into_iter()));
        assert_eq!((before.pieces, after.pieces), (2, 2));
        assert_eq!((before.bytes, after.bytes), (32, 32));
        assert!(after.letters <= before.letters);
    }

    /// A piece of T5's has one mark more, and not each byte.
    #[test]
    fn marks_stand_before_words() {
        let cuts = json!({"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "\u{2581}"},
        ]});
        let text = "word ".repeat(1000);
        let size = Sizes::new(&json!(null), &cuts, &[]).before(&text);
        assert!(size.bytes <= 4000 + 1000 * 6 + 3, "{size:?}");
        assert_eq!(size.pieces, 1001);
    }
}
