//! SentencePiece's character tables, as far as their bounds need them: what a table puts in place
//! of which bytes.
//!
//! A table is the length of a trie in bytes, the trie as 32-bit units, and texts that each end with
//! a zero. The trie is a double array (darts-clone): a unit has a label, an offset to its children
//! and whether a key ends there, which its value is the place of its text then.

use std::collections::VecDeque;

/// The field of a rule that holds a table.
pub(super) const FIELD: &str = "precompiled_charsmap";
/// The longest piece of text that is looked up: a cluster of characters of at most five bytes.
const KEY_BYTES_MAX: usize = 5;

/// How many times as long as their keys texts are, at most and rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableGrowth {
    pub(super) of_all: usize,
    /// Of keys of visible ASCII characters and spaces alone; `None` where there are none.
    pub(super) of_ascii: Option<usize>,
    /// Of the others, by their other bytes alone.
    pub(super) of_others: usize,
}

impl Default for TableGrowth {
    fn default() -> Self {
        Self {
            of_all: 1,
            of_ascii: None,
            of_others: 1,
        }
    }
}

/// The growth of a table in base64; `None` where looking up some text would leave the table, or
/// where a text has more than `text_bytes_max` bytes, whether it is looked up or not.
pub(super) fn growth_of(table: &str, text_bytes_max: usize) -> Option<TableGrowth> {
    let (trie, texts) = parts(table)?;
    // First of all: each key that is gone through reads its text.
    let longest = texts.split('\0').map(str::len).max()?;
    (longest <= text_bytes_max).then(|| growth(&trie, &texts))?
}

/// Its trie and its texts.
fn parts(table: &str) -> Option<(Vec<u32>, String)> {
    let bytes = base64(table)?;
    let trie_bytes = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    let (trie, texts) = bytes.get(4..)?.split_at_checked(trie_bytes / 4 * 4)?;
    let (units, _) = trie.as_chunks::<4>();
    let trie = units.iter().map(|&unit| u32::from_le_bytes(unit)).collect();
    Some((trie, String::from_utf8(texts.to_vec()).ok()?))
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

/// Goes through all keys, the shortest first. What a piece of text becomes is the text of the first
/// key that it begins with.
fn growth(trie: &[u32], texts: &str) -> Option<TableGrowth> {
    let mut growth = TableGrowth::default();
    // By the bytes on the way that are not ASCII's, and by whether a key has ended there: to what
    // follows such a key nothing is added.
    let mut seen = vec![[[false; 2]; KEY_BYTES_MAX + 1]; trie.len()];
    let mut nodes = VecDeque::from([(offset(*trie.first()?), 0, 0, false)]);
    while let Some((node, depth, others, has_ended)) = nodes.pop_front() {
        for byte in 1..=0xff_u8 {
            let at = node ^ usize::from(byte);
            let unit = *trie.get(at)?;
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                continue;
            }
            let (child, depth) = (at ^ offset(unit), depth + 1);
            let others = others + usize::from(!matches!(byte, b' '..=b'~'));
            let ends = unit >> 8 & 1 == 1;
            if ends {
                let value = *trie.get(child)? & (u32::MAX >> 1);
                let text = texts.get(value as usize..)?.split('\0').next()?;
                if !has_ended {
                    growth.of_all = growth.of_all.max(text.len().div_ceil(depth));
                    match others {
                        0 => {
                            let most = growth.of_ascii.unwrap_or(1);
                            growth.of_ascii = Some(most.max(text.len().div_ceil(depth)));
                        }
                        _ => growth.of_others = growth.of_others.max(text.len().div_ceil(others)),
                    }
                }
            }
            let has_ended = has_ended || ends;
            // A node outside of the trie may have all its children in it.
            if depth < KEY_BYTES_MAX
                && !std::mem::replace(
                    &mut seen.get_mut(child)?[others][usize::from(has_ended)],
                    true,
                )
            {
                nodes.push_back((child, depth, others, has_ended));
            }
        }
    }
    Some(growth)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(trie: &[u32], texts: &str) -> Option<usize> {
        super::growth(trie, texts).map(|growth| growth.of_all)
    }

    #[test]
    fn growth_of_ascii_is_told_apart() {
        let growth = |trie: &[u32], texts| super::growth(trie, texts).expect("a table");
        assert_eq!(growth(&trie(0), "abc\0").of_ascii, Some(3));
        let mut other = trie(0);
        // The same key as another byte.
        let at = 256 ^ 0xc3;
        other.swap(256 ^ usize::from(b'a'), at);
        other[at] = ((at ^ 512) as u32) << 10 | 1 << 8 | 0xc3;
        let found = growth(&other, "abc\0");
        assert_eq!((found.of_ascii, found.of_others), (None, 3));
    }

    /// A trie in which `a` ends a key, with `value`. The root's children begin at 256.
    fn trie(value: u32) -> Vec<u32> {
        let mut trie = vec![0; 768];
        trie[0] = 256 << 10;
        let at = 256 ^ usize::from(b'a');
        // Its own children begin at 512.
        let offset = (at ^ 512) as u32;
        trie[at] = offset << 10 | 1 << 8 | u32::from(b'a');
        trie[512] = 1 << 31 | value;
        trie
    }

    #[test]
    fn what_a_key_becomes_is_found() {
        assert_eq!(growth(&trie(0), "abc\0de\0"), Some(3));
        assert_eq!(growth(&trie(4), "abc\0de\0"), Some(2));
        assert_eq!(growth(&trie(7), "abc\0de\0"), Some(1));
        assert_eq!(growth(&trie(8), "abc\0de\0"), None);
        assert_eq!(growth(&trie(1), "é\0"), None);
        // The root's children are not there, or those of a key.
        assert_eq!(growth(&trie(0)[..300], "abc"), None);
        assert_eq!(growth(&trie(0)[..512], "abc"), None);
        assert_eq!(growth(&[], "abc"), None);
    }

    #[test]
    fn a_trie_that_goes_round_comes_to_an_end() {
        let mut round = vec![0; 256];
        for (at, unit) in round.iter_mut().enumerate() {
            *unit = (at as u32) << 10 | at as u32;
        }
        assert_eq!(growth(&round, ""), Some(1));
    }

    /// Each unit is a child of the one place outside, and leads back there: 255⁵ ways of five
    /// bytes.
    #[test]
    fn a_trie_that_goes_round_outside_of_itself_is_damaged() {
        let round: Vec<u32> = (0..255).map(|at| (at ^ 255) << 10 | (at ^ 255)).collect();
        assert_eq!(growth(&round, ""), None);
    }

    #[test]
    fn the_longest_text_of_a_table_is_found() {
        assert_eq!(base64("aGVsbG8=").as_deref(), Some(&b"hello"[..]));
        assert_eq!(base64("+/8=").as_deref(), Some(&[0xfb, 0xff][..]));
        assert_eq!(base64("a b"), None);
        // A trie of four bytes, then "abc" and "de".
        let texts = parts("BAAAAAAAAABhYmMAZGUA").map(|(_, texts)| texts);
        assert_eq!(texts.as_deref(), Some("abc\0de\0"));
        let table = |trie: &[u32], texts: &str| {
            let mut bytes = (4 * trie.len() as u32).to_le_bytes().to_vec();
            bytes.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
            bytes.extend(texts.bytes());
            bytes
        };
        for (texts, text_bytes) in [("abc\0de\0", 3), ("a\0defg\0", 4)] {
            let table = in_base64(&table(&trie(0), texts));
            assert!(growth_of(&table, text_bytes).is_some());
            assert_eq!(growth_of(&table, text_bytes - 1), None);
        }
        for damaged in ["", "////", "//////8=", "!"] {
            assert!(growth_of(damaged, 64).is_none(), "{damaged}");
        }
    }

    fn in_base64(bytes: &[u8]) -> String {
        let digits: Vec<u8> = (b'A'..=b'Z')
            .chain(b'a'..=b'z')
            .chain(b'0'..=b'9')
            .chain(*b"+/")
            .collect();
        let groups = bytes.chunks(3).map(|group| {
            let mut held = group
                .iter()
                .fold(0_u32, |held, &b| held << 8 | u32::from(b));
            held <<= 8 * (3 - group.len());
            let all = (0..=group.len()).map(|at| digits[(held >> (18 - 6 * at) & 63) as usize]);
            all.map(char::from).collect::<String>()
        });
        groups.collect()
    }
}
