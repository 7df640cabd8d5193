//! How much text a token may stand for, by the parts of a tokenizer.json.

use serde_json::Value;

/// What composing or decomposing characters shortens them by at most, with room to spare: a
/// mathematical letter has four bytes, and the letter that NFKC makes of it one.
pub(super) const COMPOSED: usize = 8;

/// Bytes of text that become one byte at least in this normalizer and this pre-tokenizer; `None`
/// where text may vanish.
pub(super) fn stretch(normalizer: &Value, pre_tokenizer: &Value) -> Option<usize> {
    (!removes(pre_tokenizer)).then(|| shortens(normalizer))?
}

/// The JSON reader bounds how deep this and the next go.
fn shortens(normalizer: &Value) -> Option<usize> {
    let kind = match normalizer {
        Value::Null => return Some(1),
        normalizer => normalizer["type"].as_str()?,
    };
    match kind {
        "Sequence" => normalizer["normalizers"]
            .as_array()?
            .iter()
            .try_fold(1usize, |all, part| all.checked_mul(shortens(part)?)),
        "Prepend" | "ByteLevel" => Some(1),
        "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" => Some(COMPOSED),
        "Replace" => {
            let pattern = normalizer["pattern"]["String"].as_str()?;
            let content = normalizer["content"].as_str()?;
            (!content.is_empty()).then(|| pattern.len().div_ceil(content.len()).max(1))
        }
        _ => None,
    }
}

/// Whether a pre-tokenizer leaves out some of the text.
fn removes(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        Some("Sequence") => {
            let parts = pre_tokenizer["pretokenizers"].as_array();
            parts.is_some_and(|parts| parts.iter().any(removes))
        }
        Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts") => false,
        Some("Split" | "Punctuation") => pre_tokenizer["behavior"] == "Removed",
        Some(_) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_that_lose_text_have_no_bound() {
        let llama = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
        let split = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"},
            {"type": "ByteLevel"}]});
        assert_eq!(stretch(&llama, &Value::Null), Some(1));
        assert_eq!(stretch(&json!({"type": "NFC"}), &split), Some(COMPOSED));
        let double = json!({"type": "Replace", "pattern": {"String": "    "}, "content": "▁"});
        assert_eq!(stretch(&double, &Value::Null), Some(2));
        for (normalizer, cut) in [
            (json!({"type": "Strip", "strip_left": true}), Value::Null),
            (
                json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}),
                Value::Null,
            ),
            (
                json!({"type": "Replace", "pattern": {"String": " "}, "content": ""}),
                Value::Null,
            ),
            (Value::Null, json!({"type": "WhitespaceSplit"})),
            (
                Value::Null,
                json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}),
            ),
        ] {
            assert_eq!(stretch(&normalizer, &cut), None, "{normalizer} {cut}");
        }
    }
}
