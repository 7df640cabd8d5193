//! Parts of a text: where they are, what is left without them, and what is put around them.

use super::super::args::int;
use super::super::budget::{self, Buffer};
use super::super::chars::{is_line_end, is_space};
use super::super::fail::{Fail, Res, fail};
use super::super::value::{Text, Value};

/// A text and where its characters are counted from, for methods that take a part of it.
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    /// Bytes before it.
    pub(super) start: usize,
    /// Whether there is a part, which there is not when it begins after its end.
    pub(super) exists: bool,
}

pub(super) fn part<'a>(whole: &'a Text, from: Option<Value>, to: Option<Value>) -> Res<Part<'a>> {
    let text = whole.as_str();
    let is_none = |v: &Option<Value>| matches!(v, None | Some(Value::None));
    if is_none(&from) && is_none(&to) {
        return Ok(Part {
            text,
            start: 0,
            exists: true,
        });
    }
    let len = whole.len()? as i128;
    let bound = |value: Option<Value>, default: i128| match value {
        None | Some(Value::None) => Ok(default),
        value => {
            let at = int(value, 0)?;
            Ok(if at < 0 { (at + len).max(0) } else { at })
        }
    };
    let (from, to) = (bound(from, 0)?, bound(to, len)?.min(len));
    if from > to {
        return Ok(Part {
            text: "",
            start: 0,
            exists: false,
        });
    }
    let byte = |at: i128| {
        if whole.is_ascii() {
            return Ok(at as usize);
        }
        budget::chars(text.len())?;
        Ok(text
            .char_indices()
            .nth(at as usize)
            .map_or(text.len(), |(at, _)| at))
    };
    let (start, end) = (byte(from)?, byte(to)?);
    Ok(Part {
        text: &text[start..end],
        start,
        exists: true,
    })
}

/// The number of the character that begins at a byte.
pub(super) fn char_at(whole: &Text, byte: usize) -> i128 {
    if whole.is_ascii() {
        return byte as i128;
    }
    whole.as_str()[..byte].chars().count() as i128
}

/// `text.strip(chars)` at either end or both. `value` is the text.
pub(in super::super) fn strip(
    value: &Value,
    t: &str,
    chars: Option<&str>,
    at_start: bool,
    at_end: bool,
) -> Res<Value> {
    budget::chars(t.len().saturating_mul(1 + chars.map_or(0, |c| c.len() / 8)))?;
    let takes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let mut rest = t;
    if at_start {
        rest = rest.trim_start_matches(takes);
    }
    if at_end {
        rest = rest.trim_end_matches(takes);
    }
    if rest.len() == t.len() {
        return Ok(value.clone());
    }
    Value::text(rest)
}

pub(super) fn split(t: &str, separator: Option<&str>, most: usize, from_end: bool) -> Res<Value> {
    budget::chars(t.len())?;
    budget::bytes(separator.map_or(0, str::len))?;
    let mut parts: Vec<Value> = Vec::new();
    let mut push = |part: &str| {
        parts.push(Value::text(part)?);
        Ok::<_, Fail>(())
    };
    match (separator, from_end) {
        (Some(""), _) => return fail("empty separator"),
        (Some(separator), false) => {
            for part in t.splitn(most.saturating_add(1), separator) {
                push(part)?;
            }
        }
        (Some(separator), true) => {
            for part in t.rsplitn(most.saturating_add(1), separator) {
                push(part)?;
            }
        }
        (None, false) => {
            let mut rest = t.trim_start_matches(is_space);
            for _ in 0..most {
                let Some(end) = rest.find(is_space) else {
                    break;
                };
                push(&rest[..end])?;
                rest = rest[end..].trim_start_matches(is_space);
            }
            if !rest.is_empty() {
                let has_more = rest.contains(is_space);
                // What is left over keeps its spaces, at its end too.
                push(if has_more {
                    rest
                } else {
                    rest.trim_end_matches(is_space)
                })?;
            }
        }
        (None, true) => {
            let mut rest = t.trim_end_matches(is_space);
            for _ in 0..most {
                let Some(end) = rest.rfind(is_space) else {
                    break;
                };
                let after = end + rest[end..].chars().next().map_or(0, char::len_utf8);
                push(&rest[after..])?;
                rest = rest[..end].trim_end_matches(is_space);
            }
            if !rest.is_empty() {
                push(rest)?;
            }
        }
    }
    if from_end {
        parts.reverse();
    }
    Value::list(parts)
}

/// `text.splitlines(keepends)`
pub(in super::super) fn lines(t: &str, keeps: bool) -> impl Iterator<Item = &str> {
    let mut rest = t;
    std::iter::from_fn(move || {
        let Some(end) = rest.find(is_line_end) else {
            return Some(std::mem::take(&mut rest)).filter(|line| !line.is_empty());
        };
        let bytes = match &rest[end..] {
            after if after.starts_with("\r\n") => 2,
            after => after.chars().next().map_or(0, char::len_utf8),
        };
        let line = &rest[..if keeps { end + bytes } else { end }];
        rest = &rest[end + bytes..];
        Some(line)
    })
}

/// `text.replace(old, new, most)`. `value` is the text.
pub(in super::super) fn replace(
    value: &Value,
    t: &str,
    old: &str,
    new: &str,
    most: usize,
) -> Res<Value> {
    budget::chars(t.len())?;
    budget::bytes(old.len())?;
    if most == 0 || (!old.is_empty() && !t.contains(old)) {
        return Ok(value.clone());
    }
    let mut out = Buffer::default();
    let mut plain = 0;
    for (at, found) in t.match_indices(old).take(most) {
        out.push(&t[plain..at])?;
        out.push(new)?;
        plain = at + found.len();
    }
    out.push(&t[plain..])?;
    Ok(Value::buffer(out))
}

pub(in super::super) fn justify(
    value: &Value,
    this: &Text,
    width: usize,
    fill: char,
    method: &str,
) -> Res<Value> {
    let missing = width.saturating_sub(this.len()?);
    if missing == 0 {
        return Ok(value.clone());
    }
    let before = match method {
        "ljust" => 0,
        "rjust" => missing,
        // The odd one stands left where the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let mut out = Buffer::default();
    out.fill(fill, before)?;
    out.push(this.as_str())?;
    out.fill(fill, missing - before)?;
    Ok(Value::buffer(out))
}
