//! Upper and lower case, and of what kind all characters of a text are.

use super::super::args::Arguments;
use super::super::budget;
use super::super::chars::{
    decimal, is_cased, is_digit, is_printable, is_space, is_title, push_title,
};
use super::super::fail::Res;
use super::super::value::Value;

/// `str.isalpha` and its like.
pub(in super::super) fn is_kind(t: &str, method: &str) -> bool {
    let all = |kind: &dyn Fn(char) -> bool| !t.is_empty() && t.chars().all(kind);
    match method {
        "isascii" => t.is_ascii(),
        "isalnum" => all(&char::is_alphanumeric),
        "isalpha" => all(&|c| c.is_alphabetic() && !c.is_numeric()),
        "isdecimal" => all(&|c| decimal(c).is_some()),
        "isdigit" => all(&is_digit),
        "isnumeric" => all(&char::is_numeric),
        "isspace" => all(&is_space),
        "isprintable" => t.chars().all(is_printable),
        "islower" => t.chars().any(is_cased) && t.chars().all(|c| c.is_lowercase() || !is_cased(c)),
        "isupper" => t.chars().any(is_cased) && t.chars().all(|c| c.is_uppercase() || !is_cased(c)),
        "istitle" => {
            let mut inside = false;
            let mut any = false;
            for c in t.chars() {
                if (c.is_uppercase() || is_title(c)) && inside || c.is_lowercase() && !inside {
                    return false;
                }
                inside = is_cased(c);
                any |= inside;
            }
            any
        }
        "isidentifier" => {
            let mut chars = t.chars();
            chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
                && chars.all(|c| c.is_alphanumeric() || c == '_')
        }
        _ => false,
    }
}

pub(super) fn cased(
    t: &str,
    args: Arguments,
    method: &str,
    change: impl Fn(&str) -> String,
) -> Res<Value> {
    args.none(method)?;
    budget::chars(t.len())?;
    Value::text(change(t))
}

pub(super) fn casefold(t: &str) -> String {
    let mut out = String::with_capacity(t.len());
    for c in t.chars() {
        match c {
            'ß' | 'ẞ' => out.push_str("ss"),
            'ς' => out.push('σ'),
            'ſ' => out.push('s'),
            'µ' => out.push('μ'),
            'ŉ' => out.push_str("ʼn"),
            'ﬀ' => out.push_str("ff"),
            'ﬁ' => out.push_str("fi"),
            'ﬂ' => out.push_str("fl"),
            'ﬃ' => out.push_str("ffi"),
            'ﬄ' => out.push_str("ffl"),
            'ﬅ' | 'ﬆ' => out.push_str("st"),
            _ => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// A word's first letter in title case, the rest in lower case.
fn push_word(word: &str, out: &mut String) {
    // The whole word in lower case, since the end of a word decides between σ and ς.
    let lower = word.to_lowercase();
    if let Some(first) = word.chars().next() {
        if is_title(first) {
            out.push(first);
        } else {
            push_title(first, out);
        }
        let skipped: usize = first.to_lowercase().map(char::len_utf8).sum();
        out.push_str(lower.get(skipped..).unwrap_or_default());
    }
}

/// `str.title`: each run of letters that have a case begins with a capital.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_cased) {
        let (between, from_word) = rest.split_at(start);
        let end = from_word.find(|c| !is_cased(c)).unwrap_or(from_word.len());
        let (word, after) = from_word.split_at(end);
        out.push_str(between);
        push_word(word, &mut out);
        rest = after;
    }
    out.push_str(rest);
    out
}

pub(super) fn capitalize(t: &str) -> String {
    let mut out = String::with_capacity(t.len());
    push_word(t, &mut out);
    out
}

pub(super) fn swapcase(t: &str) -> String {
    let mut out = String::with_capacity(t.len());
    for c in t.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::title;

    #[test]
    fn titles_are_pythons() {
        let cases = [
            ("3d it's o’neil x1y", "3D It'S O’Neil X1Y"),
            ("straße ΟΔΟΣ ΟΣ Σ", "Straße Οδος Ος Σ"),
            ("a-b_c 日本 tom é éa", "A-B_C 日本 Tom É Éa"),
            ("ÉCOLE d'été", "École D'Été"),
            ("ß x", "Ss X"),
            ("ab12cd E.U.", "Ab12Cd E.U."),
            ("", ""),
            (" ?", " ?"),
        ];
        for (text, expected) in cases {
            assert_eq!(title(text), expected);
        }
    }
}
