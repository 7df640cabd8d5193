//! What the rules of a tokenizer.json may be, so that no file makes loading or encoding take what
//! nobody has.

use serde_json::Value;

use super::TokenizerError;

/// Rules of one part, those in sequences included. The longest known parts have some ten.
const RULES_MAX: usize = 64;
/// Bytes of one pattern or replacement. The longest known pattern has some 1,000.
const RULE_BYTES_MAX: usize = 16 << 10;
/// How much longer than the text all replacements together may make it: every byte is kept with
/// where it came from. Known files make a space three bytes.
const GROWTH_MAX: usize = 16;
/// Bytes that a character table may put in place of one character. NFKC's longest has 33.
const CHARSMAP_TEXT_BYTES_MAX: usize = 64;
/// Bytes of one added token, and of all: an automaton is built of them, and several times.
const ADDED_TOKEN_BYTES_MAX: usize = 1 << 10;
const ADDED_BYTES_MAX: usize = 4 << 20;

/// Checks the normalizer or the pre-tokenizer, which `field` names.
pub(super) fn check_rules(field: &'static str, part: &Value) -> Result<(), TokenizerError> {
    let mut rules = Rules {
        field,
        count: 0,
        growth: 1,
    };
    rules.enter(part)
}

/// Checks the lengths of added tokens, which `field` names.
pub(super) fn check_added(
    field: &'static str,
    lengths: impl Iterator<Item = usize> + Clone,
) -> Result<(), TokenizerError> {
    let longest = lengths.clone().max().unwrap_or(0);
    for (what, bytes, most) in [
        ("a token", longest, ADDED_TOKEN_BYTES_MAX),
        ("tokens", lengths.sum(), ADDED_BYTES_MAX),
    ] {
        if bytes > most {
            let problem = format!("has {what} of {bytes} bytes; at most {most} are supported");
            return Err(TokenizerError::invalid(field, problem));
        }
    }
    Ok(())
}

struct Rules {
    field: &'static str,
    count: usize,
    growth: usize,
}

impl Rules {
    /// The JSON reader bounds how deep this goes.
    fn enter(&mut self, part: &Value) -> Result<(), TokenizerError> {
        let refused = |problem: String| Err(TokenizerError::invalid(self.field, problem));
        match part {
            Value::Array(parts) => return parts.iter().try_for_each(|p| self.enter(p)),
            Value::String(text) if text.len() > RULE_BYTES_MAX => {
                let bytes = text.len();
                return refused(format!(
                    "has a text of {bytes} bytes; at most {RULE_BYTES_MAX} are supported"
                ));
            }
            _ => {}
        }
        let Some(fields) = part.as_object() else {
            return Ok(());
        };
        let kind = fields.get("type").and_then(Value::as_str);
        self.count += usize::from(kind.is_some());
        if self.count > RULES_MAX {
            return refused(format!(
                "has more than {RULES_MAX} rules, which is the most supported"
            ));
        }
        if kind == Some("Replace") {
            self.growth = self.growth.saturating_mul(growth(part));
        }
        if self.growth > GROWTH_MAX {
            return refused(format!(
                "can make a text more than {GROWTH_MAX} times as long, which is the most supported"
            ));
        }
        // The one long text there is: a table, which is looked up and not searched for.
        if let Some(table) = fields.get("precompiled_charsmap").and_then(Value::as_str)
            && longest_replacement(table).is_none_or(|bytes| bytes > CHARSMAP_TEXT_BYTES_MAX)
        {
            return refused(format!(
                "has a precompiled_charsmap that is damaged, or has a text of more than \
                 {CHARSMAP_TEXT_BYTES_MAX} bytes for a character"
            ));
        }
        let mut others = fields
            .iter()
            .filter(|(key, _)| *key != "precompiled_charsmap");
        others.try_for_each(|(_, value)| self.enter(value))
    }
}

/// Bytes of the longest text in a character table: base64 of the length of a trie, the trie, and
/// texts that each end with a zero.
fn longest_replacement(table: &str) -> Option<usize> {
    let bytes = base64(table)?;
    let trie = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    let texts = bytes.get(4..)?.get(trie..)?;
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

/// How many times as long a text a replacement can make, at most.
fn growth(replace: &Value) -> usize {
    let content = replace["content"].as_str().map_or(0, str::len);
    // A regular expression may match as little as one byte, or nothing before each.
    let pattern = replace["pattern"]["String"].as_str().map_or(0, str::len);
    match pattern {
        0 if replace["pattern"]["String"].is_string() => 1 + content,
        _ => content.div_ceil(pattern.max(1)).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_of_a_table_is_found() {
        assert_eq!(base64("aGVsbG8=").as_deref(), Some(&b"hello"[..]));
        assert_eq!(base64("+/8=").as_deref(), Some(&[0xfb, 0xff][..]));
        assert_eq!(base64("a b"), None);
        // A trie of four bytes, then "abc" and "de".
        assert_eq!(longest_replacement("BAAAAAAAAABhYmMAZGUA"), Some(3));
        for damaged in ["", "////", "//////8=", "!"] {
            assert_eq!(longest_replacement(damaged), None, "{damaged}");
        }
    }
}
