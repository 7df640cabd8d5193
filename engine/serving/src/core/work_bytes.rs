//! What a text takes while it is tokenised.

use ebb_models::tokenizer::EncodingSize;

/// Bytes for each byte of a text that may be a token: copies, where each of them came from (16
/// bytes each), the token.
const PER_BYTE: usize = 144;
/// Bytes for each byte more by which such a one is spelled, and for each that is normalised.
const PER_SPELLED_BYTE: usize = 50;
/// Bytes for each piece that the text is cut into.
const PER_PIECE: usize = 256;

/// An upper bound of the memory that normalising a text takes, which becomes so many bytes.
pub(super) fn normalizing_bytes(normalized: usize) -> usize {
    normalized.saturating_mul(PER_SPELLED_BYTE)
}

/// An upper bound of the memory that tokenising a normalised text takes, which becomes `size` on
/// the way. Measured (bytes a byte of text, by VmHWM, with the default model): 84 for one long
/// word, 107 for English, 111 for spaces, 194 for accents and commas, 332 for digits, each of which
/// is a piece. With a vocabulary of single bytes it is 135 for each that rules make of a text, and
/// 340 where each is a piece.
pub(super) fn work_bytes(size: EncodingSize) -> usize {
    let spelled = size.bytes.saturating_sub(size.letters);
    size.letters
        .saturating_mul(PER_BYTE)
        .saturating_add(spelled.saturating_mul(PER_SPELLED_BYTE))
        .saturating_add(size.pieces.saturating_mul(PER_PIECE))
}

#[cfg(test)]
mod tests {
    use ebb_models::tokenizer::{Tokenizer, TokenizerConfig};
    use serde_json::json;

    use super::*;

    fn tokenizer(normalizer: serde_json::Value, cuts: serde_json::Value) -> Tokenizer {
        let file = json!({
            "normalizer": normalizer, "pre_tokenizer": cuts, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
        });
        let config = TokenizerConfig::default();
        Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), &config).expect("a tokenizer")
    }

    #[test]
    fn the_bound_is_above_what_was_measured_and_not_far() {
        for (text, measured) in [
            ("7".repeat(1000), 332),
            ("hello world this is text ".repeat(40), 107),
            ("a".repeat(1000), 84),
            (" ".repeat(1000), 111),
            ("\u{e9}, ".repeat(250), 194),
        ] {
            // Two cuts that the default model has.
            let digits = json!({"type": "Digits", "individual_digits": true});
            let size = tokenizer(json!(null), digits).encoding_size(&text);
            let bound = work_bytes(size) / text.len();
            assert!(
                (measured..2 * measured).contains(&bound),
                "{text:.9}: {bound}"
            );
        }
    }

    /// Measured with tokenizers of these rules and cuts.
    #[test]
    fn the_bound_is_above_what_rules_and_cuts_take() {
        let times = |count: usize, letter: &str| {
            let (pattern, content) = (json!({"String": "a"}), letter.repeat(count));
            json!({"type": "Replace", "pattern": pattern, "content": content})
        };
        let digits = json!({"type": "Digits", "individual_digits": true});
        let spaces = json!({"type": "Metaspace", "replacement": "\u{2581}"});
        let each = json!({
            "type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false,
        });
        for (rules, cuts, letter, measured) in [
            (times(4, "a"), json!(null), "a", 518),
            (times(8, "a"), json!(null), "a", 1033),
            (times(16, "a"), json!(null), "a", 2065),
            (times(16, "1"), digits, "a", 5442),
            (json!(null), spaces, " ", 373),
            (json!(null), each, "a", 341),
        ] {
            let tokenizer = tokenizer(rules, cuts);
            let text = letter.repeat(1000);
            assert!(tokenizer.normalized_bytes(&text) <= 1000 * tokenizer.growth());
            let mut taken = 0;
            let may_take = |size| {
                taken = work_bytes(size);
                true
            };
            let _ = tokenizer.encode_while(&text, false, true, &|| true, may_take);
            assert!(measured < taken / 1000, "{measured}: {taken}");
        }
    }

    /// A job waits for the first estimate; what it lacks is refused midway.
    #[test]
    fn the_first_estimate_has_the_spaces_that_normalising_replaces() {
        let rules = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]});
        let tokenizer = tokenizer(rules, json!(null));
        let text = "some words of text ".repeat(1000);
        let first = work_bytes(tokenizer.encoding_size(&text));
        let mut taken = 0;
        let may_take = |size| {
            taken = work_bytes(size);
            true
        };
        let _ = tokenizer.encode_while(&text, false, true, &|| true, may_take);
        assert_eq!(first, taken);
        assert!(first < 210 * text.len(), "{first}");
    }
}
