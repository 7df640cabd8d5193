//! Kinds of characters, as Python's `str` tells them apart.

/// `str.isspace`
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Whether a line ends here for `str.splitlines`.
pub(super) fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

pub(super) fn is_digit_of(c: char, base: u32) -> bool {
    c.is_digit(base)
}

/// The zeros of scripts with decimal digits.
const ZEROS: [u32; 37] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
];

/// The value of a decimal digit of any script.
pub(super) fn decimal(c: char) -> Option<u32> {
    let code = c as u32;
    let below = ZEROS.partition_point(|&zero| zero <= code);
    let zero = ZEROS.get(below.checked_sub(1)?)?;
    Some(code - zero).filter(|&d| d < 10)
}

/// `str.isdigit`: decimal digits, and raised, lowered and circled ones.
pub(super) fn is_digit(c: char) -> bool {
    decimal(c).is_some()
        || matches!(c as u32, 0xb2 | 0xb3 | 0xb9 | 0x2070 | 0x2074..=0x2079 | 0x2080..=0x2089
            | 0x2460..=0x2468 | 0x2474..=0x247c | 0x2488..=0x2490)
}

/// `str.isprintable`
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // The standard library escapes what Python does, and marks at the beginning of a text.
    let mut text = [b'a', 0, 0, 0, 0];
    let length = c.encode_utf8(&mut text[1..]).len();
    str::from_utf8(&text[..=length]).is_ok_and(|t| t.escape_debug().nth(1) != Some('\\'))
}

/// Whether a letter has a case.
pub(super) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// Letters that are a capital and a small one.
pub(super) fn is_title(c: char) -> bool {
    matches!(c as u32, 0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f
        | 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc)
}

/// Puts a letter in title case: a capital, or a capital and small letters where it is several.
pub(super) fn push_title(c: char, out: &mut String) {
    let title = match c as u32 {
        code @ (0x1c4..=0x1cc) => 0x1c5 + (code - 0x1c4) / 3 * 3,
        0x1f1..=0x1f3 => 0x1f2,
        code @ (0x1f80..=0x1f87 | 0x1f90..=0x1f97 | 0x1fa0..=0x1fa7) => code + 8,
        0x1fb3 => 0x1fbc,
        0x1fc3 => 0x1fcc,
        0x1ff3 => 0x1ffc,
        _ => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase)); // ß is Ss
            return;
        }
    };
    out.extend(char::from_u32(title));
}
