//! How a tokenizer.json spells bytes in its tokens, read from its decoder.

use serde_json::Value;

use super::TokenizerError;
use super::byte_level;
use super::gguf::byte_of;

const FIELD: &str = "decoder in tokenizer.json";
const SUPPORTED: &str =
    "ByteLevel, Metaspace, or a Sequence of Replace ▁, ByteFallback, Fuse and Strip one space";

/// How the tokens of a vocabulary become bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's byte alphabet.
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0xNN>` (if `fallback`) a byte, and a text begins with one
    /// space too many (if `strips`).
    Spaces { fallback: bool, strips: bool },
}

impl Spelling {
    pub(super) fn of_decoder(decoder: &Value) -> Result<Self, TokenizerError> {
        match kind(decoder) {
            "ByteLevel" => Ok(Self::ByteLevel),
            "Metaspace" if is_space(decoder, "replacement") => Ok(Self::Spaces {
                fallback: false,
                strips: metaspace_prepends(decoder),
            }),
            "Sequence" => sequence(decoder),
            _ => Err(unsupported(decoder)),
        }
    }

    /// What a token of the model's vocabulary adds to a text.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                byte_level::token_bytes(token).unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Spaces { fallback, .. } => match byte_of(token) {
                Some(byte) if *fallback => vec![byte],
                _ => token.replace('▁', " ").into_bytes(),
            },
        }
    }

    /// Whether the first space of a decoded text is not part of it.
    pub(super) fn strips_space(&self) -> bool {
        matches!(self, Self::Spaces { strips: true, .. })
    }
}

fn sequence(decoder: &Value) -> Result<Spelling, TokenizerError> {
    let (mut spaces, mut fallback, mut strips) = (false, false, false);
    let steps = decoder.get("decoders").and_then(Value::as_array);
    for step in steps.into_iter().flatten() {
        match kind(step) {
            // A second alphabet over the first would need their composition.
            "ByteLevel" if steps.is_some_and(|s| s.len() == 1) => return Ok(Spelling::ByteLevel),
            "Replace" if step["pattern"]["String"] == "▁" && step["content"] == " " => {
                spaces = true;
            }
            "Metaspace" if is_space(step, "replacement") => {
                spaces = true;
                strips |= metaspace_prepends(step);
            }
            "ByteFallback" => fallback = true,
            "Fuse" => {}
            "Strip" if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                strips = true;
            }
            _ => return Err(unsupported(step)),
        }
    }
    if !spaces {
        return Err(unsupported(decoder));
    }
    Ok(Spelling::Spaces { fallback, strips })
}

fn kind(decoder: &Value) -> &str {
    decoder.get("type").and_then(Value::as_str).unwrap_or("")
}

fn is_space(decoder: &Value, key: &str) -> bool {
    decoder.get(key).is_some_and(|v| v == "▁")
}

/// Metaspace says so by `prepend_scheme`, or `add_prefix_space` in older files.
fn metaspace_prepends(decoder: &Value) -> bool {
    match decoder.get("prepend_scheme").and_then(Value::as_str) {
        Some(scheme) => scheme != "never",
        None => decoder.get("add_prefix_space") != Some(&Value::Bool(false)),
    }
}

fn unsupported(decoder: &Value) -> TokenizerError {
    let mut value = decoder.to_string();
    if value.len() > 200 {
        let end = (0..=200).rev().find(|&i| value.is_char_boundary(i));
        value.truncate(end.unwrap_or(0));
        value.push('…');
    }
    TokenizerError::Unsupported {
        field: FIELD,
        value,
        supported: SUPPORTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_decoders_of_the_served_families_are_read() {
        let llama2 = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let spelling = Spelling::of_decoder(&llama2).expect("Llama 2's decoder");
        let expected = Spelling::Spaces {
            fallback: true,
            strips: true,
        };
        assert_eq!(spelling, expected);
        assert_eq!(spelling.bytes("▁a▁b"), b" a b");
        assert_eq!(spelling.bytes("<0xE2>"), [0xe2]);
        assert_eq!(spelling.bytes("<0xZZ>"), b"<0xZZ>");

        let llama3 = json!({"type": "ByteLevel", "add_prefix_space": true});
        let spelling = Spelling::of_decoder(&llama3).expect("Llama 3's decoder");
        assert_eq!(spelling, Spelling::ByteLevel);
        assert_eq!(spelling.bytes("ĠcafÃ©"), " café".as_bytes());

        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"});
        let spelling = Spelling::of_decoder(&metaspace).expect("Metaspace");
        assert!(!spelling.strips_space());
    }

    #[test]
    fn other_decoders_are_refused_by_name() {
        for decoder in [
            json!(null),
            json!({"type": "WordPiece", "prefix": "##"}),
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}]}),
            json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "_"}, "content": " "}]}),
            json!({"type": "Metaspace", "replacement": "é".repeat(500)}),
        ] {
            let error = Spelling::of_decoder(&decoder).expect_err("unsupported");
            let sentence = error.to_string();
            assert!(sentence.contains("decoder in tokenizer.json"), "{sentence}");
            assert!(
                sentence.contains("ByteLevel") && sentence.len() < 500,
                "{sentence}"
            );
        }
    }
}
