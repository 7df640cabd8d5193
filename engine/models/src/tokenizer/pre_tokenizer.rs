//! The pre-tokenizers that GGUF files name: how a text is cut before byte-pair merges.
//!
//! Each is a list of regular expressions; every expression cuts the pieces that the ones before
//! it left, and both what it matches and what lies between are pieces. The expressions are those
//! of the models' own tokenizer.json files, except `default`, which only llama.cpp defines.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::TokenizerError;

/// GPT-2's expression (Radford et al. 2019).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Qwen 2: contractions in any case, single digits, newlines kept with punctuation.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Llama 3: as Qwen 2, with digits in runs of up to three.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A pre-tokenizer of `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    SmolLm,
    Qwen2,
    LlamaBpe,
    Default,
}

impl PreTokenizer {
    /// Looks up the value of `tokenizer.ggml.pre`.
    pub(super) fn from_name(name: &str) -> Result<Self, TokenizerError> {
        match name {
            "smollm" => Ok(Self::SmolLm),
            "qwen2" => Ok(Self::Qwen2),
            "llama-bpe" | "llama-v3" | "llama3" => Ok(Self::LlamaBpe),
            "default" => Ok(Self::Default),
            other => Err(TokenizerError::Unsupported {
                field: "tokenizer.ggml.pre",
                value: format!("{other:?}"),
                supported: "smollm, qwen2, llama-bpe, default",
            }),
        }
    }

    fn expressions(self) -> &'static [&'static str] {
        match self {
            Self::SmolLm => &[r"\p{N}", GPT2],
            Self::Qwen2 => &[QWEN2],
            Self::LlamaBpe => &[LLAMA3],
            Self::Default => &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        }
    }

    /// A piece that is a token as a whole is not built by merges (Llama 3's `ignore_merges`).
    pub(super) fn ignores_merges(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether the model expects BOS before every text when its file does not say.
    pub(super) fn adds_bos(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether the model's own tokenizer composes characters (Unicode NFC) first.
    pub(super) fn composes(self) -> bool {
        self == Self::Qwen2
    }

    /// The cuts, followed by the spelling of each piece in the byte alphabet.
    pub(super) fn build(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let mut steps = Vec::new();
        for expression in self.expressions() {
            let split = Split::new(
                SplitPattern::Regex((*expression).to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(|e| TokenizerError::invalid("tokenizer.ggml.pre", e.to_string()))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, false, false,
        )));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::byte_level;
    use super::*;
    use std::collections::BTreeMap;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    fn pieces(cuts: &PreTokenizerWrapper, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        cuts.pre_tokenize(&mut pieces).expect("the cuts apply");
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        pieces
            .into_iter()
            .filter(|(piece, _, _)| !piece.is_empty())
            .map(|(piece, _, _)| {
                let bytes = byte_level::token_bytes(piece).expect("the byte alphabet");
                String::from_utf8(bytes).expect("whole characters")
            })
            .collect()
    }

    /// Recorded with Hugging Face's tokenizers on another engine (tests/golden/tokenizer).
    #[test]
    fn texts_are_cut_as_recorded() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/tokenizer/pre.json"
        );
        let cases = std::fs::read(path).expect("the recorded cuts");
        let cases: Vec<BTreeMap<String, serde_json::Value>> =
            serde_json::from_slice(&cases).expect("a list of cases");
        for name in ["smollm", "qwen2", "llama-bpe", "default"] {
            let cuts = PreTokenizer::from_name(name).expect("a known name");
            let cuts = cuts.build().expect("valid expressions");
            for case in &cases {
                let text = case["text"].as_str().expect("a text");
                let found = serde_json::json!(pieces(&cuts, text));
                assert_eq!(found, case[name], "{name}: {text:?}");
            }
        }
        assert!(cases.len() > 150);
    }

    /// The expression engine gives up (and leaves the rest in one piece) only after a million
    /// steps back, so after a longer run of spaces than any context has room for.
    #[test]
    fn long_runs_are_cut_too() {
        for name in ["smollm", "qwen2", "llama-bpe", "default"] {
            let cuts = PreTokenizer::from_name(name).expect("a known name");
            let cuts = cuts.build().expect("valid expressions");
            for run in [" ", "\n", "a", "!", "é", "1", " \n"] {
                let text = format!("x{}y", run.repeat(300_000));
                let found = pieces(&cuts, &text);
                assert_eq!(found.concat(), text);
                assert_eq!(
                    found.last().map(String::len).unwrap_or(0) < 3,
                    run != "a" && run != "é",
                    "{name}: {run:?}"
                );
            }
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let error = PreTokenizer::from_name("tekken").expect_err("not supported");
        let sentence = error.to_string();
        for word in [
            "tokenizer.ggml.pre",
            "\"tekken\"",
            "smollm, qwen2, llama-bpe, default",
        ] {
            assert!(sentence.contains(word), "{sentence}");
        }
    }
}
