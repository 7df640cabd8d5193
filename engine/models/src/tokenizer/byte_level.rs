//! GPT-2's printable alphabet for bytes: how byte-level BPE vocabularies spell their tokens.
//!
//! The 188 bytes that Latin-1 prints stand for themselves; the other 68, in order, are U+0100,
//! U+0101, … A space is therefore `Ġ` (U+0120) and a newline `Ċ` (U+010A).

/// The bytes that a token of a byte-level vocabulary stands for; `None` when a character is not
/// of the alphabet (the token was added from outside, and means its own text).
pub(super) fn token_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(char_to_byte).collect()
}

/// The character that stands for a byte.
pub(super) fn byte_to_char(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn char_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0..=0xff => u8::try_from(code).ok().filter(|&b| is_printable(b)),
        // 0x00..=0x20, then 0x7f..=0xa0, then 0xad.
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            let c = byte_to_char(byte);
            assert!(seen.insert(c), "{c:?} stands for two bytes");
            assert_eq!(char_to_byte(c), Some(byte), "{c:?}");
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(char_to_byte(' '), None);
        assert_eq!(char_to_byte('\u{144}'), None);
        assert_eq!(token_bytes("Ġcaf©"), Some(b" caf\xa9".to_vec()));
        assert_eq!(token_bytes("a b"), None);
    }

    #[test]
    fn tokenizers_agrees() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(alphabet.len(), 256);
        assert!((0..=255u8).all(|b| alphabet.contains(&byte_to_char(b))));
    }
}
