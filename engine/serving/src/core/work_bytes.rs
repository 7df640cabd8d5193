//! What a text takes while it is tokenised.

/// Bytes for each byte of a text: copies, and where each of them came from (16 bytes each).
const PER_BYTE: usize = 112;
/// Bytes for each piece that the text is cut into, and its first token.
const PER_PIECE: usize = 256;

/// How many times as long rules of tokenizers may make a text within these.
const GROWTH: usize = 16;

/// [`work_bytes`] of a tokenizer whose rules make a text at most `growth` times as long.
pub(super) fn grown_work_bytes(text: &str, growth: usize) -> usize {
    work_bytes(text).saturating_mul(growth.div_ceil(GROWTH))
}

/// An upper bound of the memory that tokenising `text` takes. Measured (bytes a byte of text, by
/// VmHWM, with the default model): 84 for one long word, 107 for English, 111 for spaces, 194 for
/// accents and commas, 332 for digits, each of which is a piece.
fn work_bytes(text: &str) -> usize {
    let mut pieces = 1;
    let mut last = 0;
    for &byte in text.as_bytes() {
        let goes_on = match byte {
            b'a'..=b'z' => last == b' ' || last.is_ascii_alphabetic(),
            b'0'..=b'9' => false,
            0x80..=0xbf => true,
            other => other == last,
        };
        pieces += usize::from(!goes_on);
        last = byte;
    }
    text.len()
        .saturating_mul(PER_BYTE)
        .saturating_add(pieces * PER_PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_above_what_was_measured_and_not_far() {
        for (text, measured) in [
            ("7".repeat(1000), 332),
            ("hello world this is text ".repeat(40), 107),
            ("a".repeat(1000), 84),
            (" ".repeat(1000), 111),
            ("\u{e9}, ".repeat(250), 194),
        ] {
            let bound = work_bytes(&text) / text.len();
            assert!(
                (measured..2 * measured).contains(&bound),
                "{text:.9}: {bound}"
            );
        }
    }
}
