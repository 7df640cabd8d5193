//! Methods of Python's texts, lists and dictionaries, and of jinja2's own objects.

use std::rc::Rc;

use super::args::{Arguments, int, text, truth, width};
use super::budget::{self, Buffer};
use super::chars::{
    decimal, is_cased, is_digit, is_line_end, is_printable, is_space, is_title, push_title,
};
use super::fail::{Fail, Res, fail};
use super::ops::{self, equal};
use super::show::escape;
use super::strformat;
use super::value::{Dict, Text, Value, View};

/// `value.method(…)`
pub(super) fn call(value: &Value, method: &'static str, args: Arguments) -> Res<Value> {
    match value {
        Value::Text(t) => text_method(value, t, method, args)?.marked_if(t.is_markup()),
        Value::Dict(dict) => dict_method(dict, method, args),
        Value::List(seq) | Value::Tuple(seq) => match method {
            "copy" => {
                args.none("copy")?;
                Ok(value.clone())
            }
            _ => search(&seq.items, method, args),
        },
        Value::Range(_) => search(&value.items()?.items, method, args),
        Value::Int(_) | Value::Bool(_) => {
            args.none(method)?;
            let number = value.as_int().unwrap_or(0);
            let size = number.unsigned_abs();
            Ok(match method {
                "bit_length" => Value::Int(i128::from(u128::BITS - size.leading_zeros())),
                "bit_count" => Value::Int(i128::from(size.count_ones())),
                "is_integer" => Value::Bool(true),
                "as_integer_ratio" => Value::tuple(vec![Value::Int(number), Value::Int(1)])?,
                _ => Value::Int(number),
            })
        }
        Value::Float(number) => {
            args.none(method)?;
            Ok(match method {
                "is_integer" => Value::Bool(number.fract() == 0.0),
                _ => value.clone(),
            })
        }
        Value::Loop(state) if method == "cycle" => {
            if !args.named.is_empty() {
                return fail("cycle() takes no keyword arguments");
            }
            let len = args.positional.len();
            let at = state.index.get().checked_rem(len);
            let item = at.and_then(|at| args.positional.get(at));
            item.cloned()
                .ok_or_else(|| Fail::new("no items for cycling given"))
        }
        Value::Loop(state) => {
            if !args.named.is_empty() {
                return fail("changed() takes no keyword arguments");
            }
            let now = Value::tuple(args.positional)?;
            let before = state.changed.borrow().clone();
            let same = match before.as_deref() {
                Some([before]) => equal(before, &now)?,
                _ => false,
            };
            if !same {
                let before = state.changed.replace(Some(vec![now]));
                drop(before);
            }
            Ok(Value::Bool(!same))
        }
        Value::Cycler(cycler) => {
            args.none(method)?;
            let at = cycler.at.get();
            if method == "reset" {
                cycler.at.set(0);
                return Ok(Value::None);
            }
            cycler.at.set((at + 1) % cycler.items.items.len().max(1));
            cycler
                .items
                .items
                .get(at)
                .cloned()
                .ok_or_else(|| Fail::new("nothing to cycle through"))
        }
        other => fail(format!(
            "'{}' object has no method {method}",
            other.type_name()
        )),
    }
}

fn search(items: &[Value], method: &'static str, args: Arguments) -> Res<Value> {
    if method == "count" {
        let [wanted] = args.bind("count", 1, ["/value"])?;
        let wanted = wanted.unwrap_or(Value::None);
        let mut count = 0;
        for item in items {
            count += i128::from(equal(item, &wanted)?);
        }
        return Ok(Value::Int(count));
    }
    let [wanted, from, to] = args.bind("index", 1, ["/value", "/start", "/stop"])?;
    let wanted = wanted.unwrap_or(Value::None);
    let bound = |value, default: usize| {
        let at = int(value, default as i128)?;
        let at = if at < 0 {
            at.saturating_add(items.len() as i128)
        } else {
            at
        };
        Ok(at.clamp(0, items.len() as i128) as usize)
    };
    let (from, to) = (bound(from, 0)?, bound(to, items.len())?);
    for (at, item) in items.iter().enumerate().take(to).skip(from) {
        if equal(item, &wanted)? {
            return Ok(Value::Int(at as i128));
        }
    }
    fail("the value is not in the list")
}

fn dict_method(dict: &Rc<Dict>, method: &'static str, args: Arguments) -> Res<Value> {
    match method {
        "keys" | "values" | "items" => {
            args.none(method)?;
            let view = match method {
                "keys" => View::Keys,
                "values" => View::Values,
                _ => View::Items,
            };
            Ok(Value::View(view, dict.clone()))
        }
        "copy" => {
            args.none("copy")?;
            Ok(Value::Dict(dict.clone()))
        }
        "get" => {
            let [key, default] = args.bind("get", 1, ["/key", "/default"])?;
            let found = dict.get(&key.unwrap_or(Value::None))?;
            Ok(found.cloned().or(default).unwrap_or(Value::None))
        }
        _ => {
            let [keys, value] = args.bind("fromkeys", 1, ["/iterable", "/value"])?;
            let value = value.unwrap_or(Value::None);
            let keys = keys.unwrap_or(Value::None).items()?;
            let entries = keys.items.iter().map(|key| (key.clone(), value.clone()));
            Ok(Value::Dict(Dict::of(entries)?))
        }
    }
}

/// A text and where its characters are counted from, for methods that take a part of it.
struct Part<'a> {
    text: &'a str,
    /// Bytes before it.
    start: usize,
    /// Whether there is a part, which there is not when it begins after its end.
    exists: bool,
}

fn part<'a>(whole: &'a Text, from: Option<Value>, to: Option<Value>) -> Res<Part<'a>> {
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
fn char_at(whole: &Text, byte: usize) -> i128 {
    if whole.is_ascii() {
        return byte as i128;
    }
    whole.as_str()[..byte].chars().count() as i128
}

fn optional_text(value: &Option<Value>) -> Res<Option<&str>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => text(value).map(Some),
    }
}

fn text_method(value: &Value, this: &Text, method: &'static str, args: Arguments) -> Res<Value> {
    let t = this.as_str();
    budget::bytes(t.len())?;
    match method {
        "upper" => cased(t, args, method, |t| t.to_uppercase()),
        "lower" => cased(t, args, method, |t| t.to_lowercase()),
        "casefold" => cased(t, args, method, casefold),
        "title" => cased(t, args, method, title),
        "capitalize" => cased(t, args, method, capitalize),
        "swapcase" => cased(t, args, method, swapcase),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(method, 0, ["/chars"])?;
            let chars = optional_text(&chars)?;
            strip(value, t, chars, method != "rstrip", method != "lstrip")
        }
        "split" | "rsplit" => {
            let [separator, most] = args.bind(method, 0, ["sep", "maxsplit"])?;
            let most = usize::try_from(int(most, -1)?).unwrap_or(usize::MAX);
            split(t, optional_text(&separator)?, most, method == "rsplit")
        }
        "splitlines" => {
            let [keeps] = args.bind(method, 0, ["keepends"])?;
            let keeps = truth(keeps, false);
            budget::chars(t.len())?;
            let lines = lines(t, keeps).map(Value::text);
            Value::list(lines.collect::<Res<_>>()?)
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(method, 1, ["/sep"])?;
            let separator = separator.unwrap_or(Value::None);
            let sep = text(&separator)?;
            budget::bytes(sep.len())?;
            if sep.is_empty() {
                return fail("empty separator");
            }
            let parts = match method {
                "partition" => t
                    .split_once(sep)
                    .map(|(a, b)| [a, sep, b])
                    .unwrap_or([t, "", ""]),
                _ => t
                    .rsplit_once(sep)
                    .map(|(a, b)| [a, sep, b])
                    .unwrap_or(["", "", t]),
            };
            Value::tuple(parts.into_iter().map(Value::text).collect::<Res<_>>()?)
        }
        "startswith" | "endswith" => {
            let [affix, from, to] = args.bind(method, 1, ["/affix", "/start", "/end"])?;
            let part = part(this, from, to)?;
            let has = |affix: &Value| {
                let affix = text(affix)?;
                budget::bytes(affix.len().min(t.len()))?;
                Ok(part.exists
                    && match method {
                        "startswith" => part.text.starts_with(affix),
                        _ => part.text.ends_with(affix),
                    })
            };
            match affix.unwrap_or(Value::None) {
                Value::Tuple(seq) => {
                    for affix in &seq.items {
                        if has(affix)? {
                            return Ok(Value::Bool(true));
                        }
                    }
                    Ok(Value::Bool(false))
                }
                affix => has(&affix).map(Value::Bool),
            }
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [wanted, from, to] = args.bind(method, 1, ["/sub", "/start", "/end"])?;
            let wanted = wanted.unwrap_or(Value::None);
            let wanted = text(&wanted)?;
            budget::bytes(wanted.len())?;
            let part = part(this, from, to)?;
            if method == "count" {
                budget::chars(t.len())?;
                let count = match wanted {
                    _ if !part.exists => 0,
                    "" => part.text.chars().count() + 1,
                    _ => part.text.matches(wanted).count(),
                };
                return Ok(Value::Int(count as i128));
            }
            let at = match method {
                _ if !part.exists => None,
                "find" | "index" => part.text.find(wanted),
                _ => part.text.rfind(wanted),
            };
            match at {
                Some(at) => Ok(Value::Int(char_at(this, part.start + at))),
                None if method.ends_with("find") => Ok(Value::Int(-1)),
                None => fail("substring not found"),
            }
        }
        "replace" => {
            let [old, new, most] = args.bind(method, 2, ["/old", "/new", "count"])?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let most = usize::try_from(int(most, -1)?).unwrap_or(usize::MAX);
            let mut escaped = Buffer::default();
            let new = match &new {
                Value::Text(new) if this.is_markup() && !new.is_markup() => {
                    escape(new.as_str(), &mut escaped)?;
                    escaped.as_str()
                }
                new => text(new)?,
            };
            replace(value, t, text(&old)?, new, most)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(method, 1, ["/affix"])?;
            let affix = affix.unwrap_or(Value::None);
            let affix = text(&affix)?;
            let rest = match method {
                "removeprefix" => t.strip_prefix(affix),
                _ => t.strip_suffix(affix),
            };
            rest.map_or_else(|| Ok(value.clone()), Value::text)
        }
        "join" => {
            let [items] = args.bind(method, 1, ["/iterable"])?;
            let items = items.unwrap_or(Value::None).items()?;
            let mut out = Buffer::default();
            for (at, item) in items.items.iter().enumerate() {
                let Value::Text(item) = item else {
                    let name = item.type_name();
                    return fail(format!(
                        "sequence item {at}: expected str instance, {name} found"
                    ));
                };
                if at > 0 {
                    out.push(t)?;
                }
                match this.is_markup() && !item.is_markup() {
                    true => escape(item.as_str(), &mut out)?,
                    false => out.push(item.as_str())?,
                }
            }
            Ok(Value::buffer(out))
        }
        "center" | "ljust" | "rjust" => {
            let [wide, fill] = args.bind(method, 1, ["/width", "/fillchar"])?;
            let fill = match optional_text(&fill)? {
                None => ' ',
                Some(fill) => {
                    let mut chars = fill.chars();
                    match (chars.next(), chars.next()) {
                        (Some(fill), None) => fill,
                        _ => return fail("The fill character must be exactly one character long"),
                    }
                }
            };
            justify(value, this, width(wide, 0)?, fill, method)
        }
        "zfill" => {
            let [wide] = args.bind(method, 1, ["/width"])?;
            let missing = width(wide, 0)?.saturating_sub(this.len()?);
            let digits = t.strip_prefix(['+', '-']).unwrap_or(t);
            let mut out = Buffer::default();
            out.push(&t[..t.len() - digits.len()])?;
            out.fill('0', missing)?;
            out.push(digits)?;
            Ok(Value::buffer(out))
        }
        "expandtabs" => {
            let [size] = args.bind(method, 0, ["tabsize"])?;
            let size = width(size, 8)?;
            let mut out = Buffer::default();
            let mut column = 0;
            for c in t.chars() {
                match c {
                    '\t' => {
                        let spaces = if size == 0 { 0 } else { size - column % size };
                        out.fill(' ', spaces)?;
                        column += spaces;
                    }
                    _ => {
                        out.push_char(c)?;
                        column = if matches!(c, '\n' | '\r') {
                            0
                        } else {
                            column + 1
                        };
                    }
                }
            }
            Ok(Value::buffer(out))
        }
        "format" => strformat::format(t, &args),
        "format_map" => {
            let [map] = args.bind(method, 1, ["/mapping"])?;
            let Some(Value::Dict(map)) = map else {
                return fail("format_map() takes a mapping");
            };
            let mut all = Arguments::default();
            for (key, value) in map.entries() {
                if let Some(key) = key.as_text() {
                    all.push_named(key, value.clone())?;
                }
            }
            strformat::format(t, &all)
        }
        "encode" | "maketrans" | "translate" => {
            fail(format!("the method {method} of texts is not supported"))
        }
        _ => {
            args.none(method)?;
            budget::chars(t.len())?;
            Ok(Value::Bool(is_kind(t, method)))
        }
    }
}

/// `str.isalpha` and its like.
pub(super) fn is_kind(t: &str, method: &str) -> bool {
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

fn cased(t: &str, args: Arguments, method: &str, change: impl Fn(&str) -> String) -> Res<Value> {
    args.none(method)?;
    budget::chars(t.len())?;
    Value::text(change(t))
}

fn casefold(t: &str) -> String {
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
fn title(text: &str) -> String {
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

fn swapcase(t: &str) -> String {
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

/// `text.strip(chars)` at either end or both. `value` is the text.
pub(super) fn strip(
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

fn split(t: &str, separator: Option<&str>, most: usize, from_end: bool) -> Res<Value> {
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
pub(super) fn lines(t: &str, keeps: bool) -> impl Iterator<Item = &str> {
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
pub(super) fn replace(value: &Value, t: &str, old: &str, new: &str, most: usize) -> Res<Value> {
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

pub(super) fn justify(
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

/// `sum` of two values, for filters.
pub(super) fn add(a: &Value, b: &Value) -> Res<Value> {
    ops::binary(super::ast::Binary::Add, a, b)
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
