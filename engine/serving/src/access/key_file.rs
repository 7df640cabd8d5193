//! The file of keys: one a line, with words after it that name it and limit it.
//!
//! ```text
//! # Keys of the two teams.
//! sk-4f0c…  name=research  max-concurrency=8  tokens-per-minute=200000
//! sk-a1b2…  name=batch  requests-per-minute=30   # at night
//! sk-77e9…
//! ```
//!
//! No error repeats what a line says: any word of it may be a key.

use std::path::Path;

use rustc_hash::FxHashSet;

use super::key::{Digest, check};
use super::{AccessError, KeyLimits};

/// Keys of a file: every call is compared with all of them.
const KEYS_MAX: usize = 10_000;
/// Characters of a name.
const NAME_CHARS_MAX: usize = 64;

/// A key of the file.
pub(super) struct Entry {
    pub(super) digest: Digest,
    pub(super) name: String,
    pub(super) limits: KeyLimits,
}

/// The keys of a file's text.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Vec<Entry>, AccessError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut seen = FxHashSet::default();
    for (line, bytes) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let wrong = |why: String| AccessError::Line {
            path: path.to_owned(),
            line,
            why,
        };
        let text = str::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8 text".into()))?;
        let Some(entry) = entry(text, line).map_err(wrong)? else {
            continue;
        };
        if entries.len() == KEYS_MAX {
            return Err(wrong(format!(
                "a file has at most {KEYS_MAX} keys; put a gateway that knows users before Ebb"
            )));
        }
        if !seen.insert(entry.digest) {
            return Err(wrong(
                "an earlier line has this key, too; remove one".into(),
            ));
        }
        entries.push(entry);
    }
    if entries.is_empty() {
        return Err(AccessError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(entries)
}

/// The key of one line; none when it is empty or a comment.
fn entry(text: &str, line: usize) -> Result<Option<Entry>, String> {
    let mut words = text.split_whitespace().take_while(|w| !w.starts_with('#'));
    let Some(key) = words.next() else {
        return Ok(None);
    };
    check(key).map_err(|why| format!("its key {why}"))?;
    let (mut name, mut limits) = (None, KeyLimits::default());
    for (i, word) in (2..).zip(words) {
        let unknown = || {
            format!(
                "word {i} is none of name=NAME, max-concurrency=N, requests-per-minute=N and \
                 tokens-per-minute=N"
            )
        };
        let (field, value) = word.split_once('=').ok_or_else(unknown)?;
        if field == "name" {
            set(&mut name, checked_name(value), i)?;
            continue;
        }
        let limit = match field {
            "max-concurrency" => &mut limits.max_concurrency,
            "requests-per-minute" => &mut limits.requests_per_minute,
            "tokens-per-minute" => &mut limits.tokens_per_minute,
            _ => return Err(unknown()),
        };
        set(limit, value.parse().ok().filter(|&n| n > 0), i)?;
    }
    Ok(Some(Entry {
        digest: Digest::of(key),
        name: name.unwrap_or_else(|| format!("line-{line}")),
        limits,
    }))
}

/// Sets what word `i` says; `value` is none where that cannot be.
fn set<T>(place: &mut Option<T>, value: Option<T>, i: usize) -> Result<(), String> {
    if value.is_none() {
        return Err(format!(
            "word {i} has a wrong value; a limit is a whole number from 1 on, a name has up to \
             {NAME_CHARS_MAX} letters, digits, dots, dashes and underscores"
        ));
    }
    if place.is_some() {
        return Err(format!("word {i} says again what an earlier one says"));
    }
    *place = value;
    Ok(())
}

fn checked_name(name: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = (1..=NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(allowed);
    fits.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_so_many_keys_and_no_more() {
        let path = Path::new("keys");
        let lines = |keys: usize| {
            let lines: Vec<String> = (0..keys).map(|i| format!("sk-{i}")).collect();
            lines.join("\n").into_bytes()
        };
        let entries = parse(path, &lines(KEYS_MAX)).map_err(|error| error.to_string());
        assert_eq!(entries.map(|entries| entries.len()), Ok(KEYS_MAX));
        let refused = parse(path, &lines(KEYS_MAX + 1)).err().expect("too many");
        assert!(
            refused.to_string().contains("at most 10000 keys"),
            "{refused}"
        );
    }
}
