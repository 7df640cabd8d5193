//! Filters of texts, and `tojson`.

use super::super::args::{Arguments, int, text, truth, width};
use super::super::budget::{self, Buffer};
use super::super::chars::is_space;
use super::super::fail::{Fail, Res, fail};
use super::super::ops;
use super::super::show::{Json, escape, to_str, write_repr};
use super::super::value::{Dict, Seq, Text, Value};
use super::super::{methods, printf};
use super::lists::sort_by;

/// The widest indentation that `tojson` takes.
const INDENT_MAX: usize = 32;

pub(super) fn texts(name: &str, value: Value, args: Arguments) -> Res<Value> {
    // Those of Python's methods, and those that take what is there without making a text of it.
    match name {
        "format" => {
            let Arguments {
                positional, named, ..
            } = args;
            let whole = match (positional.is_empty(), named.is_empty()) {
                (false, false) => {
                    return fail("format takes arguments by place or by name, not both");
                }
                (_, true) => Value::tuple(positional)?,
                _ => {
                    let entries = named.into_iter();
                    let entries = entries.map(|(n, v)| Ok((Value::text(n)?, v)));
                    Value::Dict(Dict::of(entries.collect::<Res<Vec<_>>>()?)?)
                }
            };
            let format = to_str(&value)?;
            return match &format {
                Value::Text(format) => printf::format(format, &whole),
                _ => fail("format needs a text"),
            };
        }
        "indent" => return indent(&value, args),
        "truncate" => return truncate(&value, args),
        "wordwrap" => return wordwrap(&value, args),
        "urlencode" => {
            args.none(name)?;
            return urlencode(&value);
        }
        "xmlattr" => return xmlattr(&value, args),
        "pprint" => {
            args.none(name)?;
            return pprint(&value);
        }
        _ => {}
    }
    let whole = to_str(&value)?;
    let Value::Text(this) = &whole else {
        return Ok(whole);
    };
    let t = this.as_str();
    budget::chars(t.len())?;
    match name {
        "upper" | "lower" => methods::call(
            &whole,
            if name == "upper" { "upper" } else { "lower" },
            args,
        ),
        "capitalize" => methods::call(&whole, "capitalize", args),
        "title" => {
            args.none(name)?;
            title(t)
        }
        "trim" => {
            let [chars] = args.bind(name, 0, ["chars"])?;
            match chars.as_ref().filter(|c| !matches!(c, Value::None)) {
                Some(chars) => methods::strip(&whole, t, Some(text(chars)?), true, true),
                None => methods::strip(&whole, t, None, true, true),
            }?
            .marked_if(this.is_markup())
        }
        "replace" => {
            let [old, new, most] = args.bind(name, 2, ["old", "new", "count"])?;
            let most = most.filter(|m| !matches!(m, Value::None));
            let most = usize::try_from(int(most, -1)?).unwrap_or(usize::MAX);
            let old = to_str(&old.unwrap_or(Value::None))?;
            let new = to_str(&new.unwrap_or(Value::None))?;
            methods::replace(&whole, t, text(&old)?, text(&new)?, most)
        }
        "center" => {
            let [wide] = args.bind(name, 0, ["width"])?;
            methods::justify(&whole, this, width(wide, 80)?, ' ', "center")
        }
        "e" | "escape" | "forceescape" => {
            args.none(name)?;
            if this.is_markup() && name != "forceescape" {
                return Ok(whole);
            }
            let mut out = Buffer::default();
            escape(t, &mut out)?;
            Value::buffer(out).marked()
        }
        "string" => {
            args.none(name)?;
            Ok(whole)
        }
        "safe" => {
            args.none(name)?;
            whole.marked()
        }
        "striptags" => {
            args.none(name)?;
            striptags(t)
        }
        "wordcount" => {
            args.none(name)?;
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let words = t.split(|c| !is_part(c)).filter(|w| !w.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        _ => fail(format!("there is no filter `{name}`")),
    }
}

/// jinja2's own `title`, which begins words after hyphens and brackets.
fn title(t: &str) -> Res<Value> {
    let is_break = |c: char| is_space(c) || "-({[<".contains(c);
    let mut out = String::with_capacity(t.len());
    let mut rest = t;
    while !rest.is_empty() {
        let end = rest.find(is_break).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let mut chars = word.chars();
        if let Some(first) = chars.next() {
            out.extend(first.to_uppercase());
            out.push_str(&chars.as_str().to_lowercase());
        }
        let end = after.find(|c| !is_break(c)).unwrap_or(after.len());
        let (breaks, after) = after.split_at(end);
        out.push_str(breaks);
        rest = after;
    }
    Value::text(out)
}

fn indent(value: &Value, args: Arguments) -> Res<Value> {
    let [by, first, blank] = args.bind("indent", 0, ["width", "first", "blank"])?;
    let t = match value {
        Value::Undefined(message) => return fail(&**message),
        value => text(value)?,
    };
    let mut indention = Buffer::default();
    match &by {
        Some(Value::Text(by)) => indention.push(by.as_str())?,
        _ => indention.fill(' ', width(by, 4)?)?,
    }
    let indention = indention.as_str();
    let (first, blank) = (truth(first, false), truth(blank, false));
    budget::chars(t.len())?;
    // The text has one newline more when it is taken apart.
    let lines = methods::lines(t, false);
    let ends_with_line = t.is_empty() || t.ends_with(super::super::chars::is_line_end);
    let extra = ends_with_line.then_some("");
    let mut out = Buffer::default();
    if first {
        out.push(indention)?;
    }
    for (at, line) in lines.chain(extra).enumerate() {
        if at > 0 {
            out.push("\n")?;
            if blank || !line.is_empty() {
                out.push(indention)?;
            }
        }
        out.push(line)?;
    }
    Ok(Value::buffer(out))
}

/// The first so many characters.
fn head(t: &Text, count: usize) -> &str {
    let t = t.as_str();
    t.char_indices().nth(count).map_or(t, |(end, _)| &t[..end])
}

fn truncate(value: &Value, args: Arguments) -> Res<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill, end, leeway] = args.bind("truncate", 0, names)?;
    let end = end.map_or_else(|| Value::text("..."), Ok)?;
    let Value::Text(end) = &end else {
        return fail("the end given to truncate is not a text");
    };
    let leeway = leeway.filter(|l| !matches!(l, Value::None));
    let (length, leeway) = (int(length, 255)?, int(leeway, 5)?);
    let end_length = end.len()? as i128;
    if length < end_length || leeway < 0 {
        return fail("truncate needs a length of at least its end's, and a leeway of at least 0");
    }
    let length_of_value = value.len()? as i128;
    if length_of_value <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let Value::Text(this) = value else {
        return fail(format!("expected a str, not '{}'", value.type_name()));
    };
    budget::chars(this.as_str().len())?;
    let mut kept = head(this, (length - end_length) as usize);
    if !truth(kill, false) {
        kept = kept.rsplit_once(' ').map_or(kept, |(kept, _)| kept);
    }
    let mut out = Buffer::default();
    out.push(kept)?;
    out.push(end.as_str())?;
    Ok(Value::buffer(out))
}

fn wordwrap(value: &Value, args: Arguments) -> Res<Value> {
    let names = [
        "width",
        "break_long_words",
        "wrapstring",
        "break_on_hyphens",
    ];
    let [wide, break_long, with, hyphens] = args.bind("wordwrap", 0, names)?;
    let t = text(value)?;
    let wide = width(wide, 79)?;
    if wide == 0 {
        return fail("wordwrap needs a width of at least 1");
    }
    let with = match with.filter(|w| !matches!(w, Value::None)) {
        Some(with) => with,
        None => Value::text("\n")?,
    };
    let with = text(&with)?;
    let (break_long, hyphens) = (truth(break_long, true), truth(hyphens, true));
    budget::steps(t.len())?;
    let mut out = Buffer::default();
    for (at, line) in methods::lines(t, false).enumerate() {
        if at > 0 {
            out.push(with)?;
        }
        for (at, part) in wrapped(line, wide, break_long, hyphens).enumerate() {
            if at > 0 {
                out.push(with)?;
            }
            out.push(part)?;
        }
    }
    Ok(Value::buffer(out))
}

/// Characters that a line is not broken between, unless they are too many.
#[derive(Clone, Copy)]
struct Chunk {
    bytes: usize,
    chars: usize,
    is_blank: bool,
}

/// The chunk that a text begins with: spaces, or a word. Behind a hyphen between two letters each,
/// a line may end.
fn chunk(text: &str, hyphens: bool) -> Option<Chunk> {
    let is_blank = is_space(text.chars().next()?);
    let mut chunk = Chunk {
        bytes: 0,
        chars: 0,
        is_blank,
    };
    let mut letters_before = 0;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if is_space(c) != is_blank {
            break;
        }
        chunk.bytes += c.len_utf8();
        chunk.chars += 1;
        let letters_follow = || rest.clone().take(2).filter(|c| c.is_alphabetic()).count() == 2;
        if hyphens && c == '-' && letters_before >= 2 && letters_follow() {
            break;
        }
        letters_before = if c.is_alphabetic() {
            letters_before + 1
        } else {
            0
        };
    }
    Some(chunk)
}

/// Python's `textwrap.wrap` of one line.
fn wrapped(line: &str, wide: usize, break_long: bool, hyphens: bool) -> impl Iterator<Item = &str> {
    let mut rest = line;
    let mut waiting = None;
    let mut is_first = true;
    std::iter::from_fn(move || {
        while let Some(first) = waiting.take().or_else(|| chunk(rest, hyphens)) {
            let mut next = Some(first);
            if !is_first && first.is_blank {
                rest = &rest[first.bytes..];
                next = chunk(rest, hyphens);
            }
            let (mut bytes, mut length, mut last) = (0, 0, None::<Chunk>);
            while let Some(chunk_now) = next {
                let mut taken = chunk_now;
                if length + taken.chars > wide {
                    if taken.chars > wide && break_long {
                        taken.chars = (wide - length).max(usize::from(last.is_none()));
                        let mut letters = rest[bytes..].chars();
                        let head = letters.by_ref().take(taken.chars);
                        taken.bytes = head.map(char::len_utf8).sum();
                        waiting = Some(Chunk {
                            bytes: chunk_now.bytes - taken.bytes,
                            chars: chunk_now.chars - taken.chars,
                            ..chunk_now
                        });
                        if taken.bytes == 0 {
                            break;
                        }
                    } else if taken.chars <= wide || last.is_some() {
                        waiting = Some(taken);
                        break;
                    }
                    bytes += taken.bytes;
                    last = Some(taken);
                    break;
                }
                bytes += taken.bytes;
                length += taken.chars;
                last = Some(taken);
                next = chunk(&rest[bytes..], hyphens);
            }
            let blank = last.filter(|last| last.is_blank);
            let kept = &rest[..bytes - blank.map_or(0, |last| last.bytes)];
            rest = &rest[bytes..];
            if !kept.is_empty() {
                is_first = false;
                return Some(kept);
            }
        }
        None
    })
}

fn urlencode(value: &Value) -> Res<Value> {
    let mut out = Buffer::default();
    let pairs: Vec<(Value, Value)> = match value {
        Value::Text(_) => {
            quote_url(value, false, &mut out)?;
            return Ok(Value::buffer(out));
        }
        Value::Dict(dict) => dict.entries().to_vec(),
        other if other.is_iterable() => {
            let items = other.items()?;
            let mut pairs = Vec::new();
            for pair in &items.items {
                match &pair.items()?.items[..] {
                    [key, value] => pairs.push((key.clone(), value.clone())),
                    _ => return fail("urlencode needs pairs"),
                }
            }
            pairs
        }
        other => {
            quote_url(other, false, &mut out)?;
            return Ok(Value::buffer(out));
        }
    };
    for (at, (key, value)) in pairs.iter().enumerate() {
        if at > 0 {
            out.push("&")?;
        }
        quote_url(key, true, &mut out)?;
        out.push("=")?;
        quote_url(value, true, &mut out)?;
    }
    Ok(Value::buffer(out))
}

fn quote_url(value: &Value, for_query: bool, out: &mut Buffer) -> Res<()> {
    let shown = to_str(value)?;
    for byte in text(&shown)?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push_char(char::from(byte))?;
            }
            b'/' if !for_query => out.push("/")?,
            b' ' if for_query => out.push("+")?,
            _ => out.push(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}

fn xmlattr(value: &Value, args: Arguments) -> Res<Value> {
    let [space] = args.bind("xmlattr", 0, ["autospace"])?;
    let Value::Dict(dict) = value else {
        return fail(format!(
            "'{}' object has no attribute 'items'",
            value.type_name()
        ));
    };
    let space = truth(space, true);
    let mut out = Buffer::default();
    for (key, value) in dict.entries() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let key = text(key)?;
        if key.contains([' ', '\t', '\n', '\r', '\x0b', '\x0c', '/', '>', '=']) {
            return fail("Invalid character in attribute name");
        }
        if space || !out.as_str().is_empty() {
            out.push(" ")?;
        }
        escape(key, &mut out)?;
        out.push("=\"")?;
        let shown = to_str(value)?;
        escape(text(&shown)?, &mut out)?;
        out.push("\"")?;
    }
    Ok(Value::buffer(out))
}

fn striptags(t: &str) -> Res<Value> {
    // Comments first, then tags.
    let mut plain = Buffer::default();
    without(t, "<!--", "-->", &mut plain)?;
    let mut text = Buffer::default();
    without(plain.as_str(), "<", ">", &mut text)?;
    let mut words = Buffer::default();
    let each = text.as_str().split(is_space);
    for word in each.filter(|word| !word.is_empty()) {
        if !words.as_str().is_empty() {
            words.push(" ")?;
        }
        words.push(word)?;
    }
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", "\u{a0}"),
        ("&amp;", "&"),
    ];
    entities
        .iter()
        .try_fold(Value::buffer(words), |value, (from, to)| {
            methods::replace(
                &value,
                super::super::args::text(&value)?,
                from,
                to,
                usize::MAX,
            )
        })
}

/// Writes a text without what is between two marks, and without these.
fn without(text: &str, start: &str, end: &str, out: &mut Buffer) -> Res<()> {
    let mut rest = text;
    while let Some(from) = rest.find(start) {
        let Some(to) = rest[from..].find(end) else {
            break;
        };
        out.push(&rest[..from])?;
        rest = &rest[from + to + end.len()..];
    }
    out.push(rest)
}

/// Python's `pprint.pformat` of what fits in a line of 80 characters; dictionaries are sorted.
fn pprint(value: &Value) -> Res<Value> {
    let sorted = sorted_dicts(value)?;
    let mut out = Buffer::default();
    write_repr(&sorted, &mut out, 0)?;
    let is_nested = !matches!(sorted, Value::Text(_));
    if out.as_str().chars().count() > 80 && is_nested {
        return fail("pprint of more than a line is not supported");
    }
    Ok(Value::buffer(out))
}

fn sorted_dicts(value: &Value) -> Res<Value> {
    budget::steps(1)?;
    let parts = |items: &[Value]| {
        let items = items.iter().map(sorted_dicts);
        Seq::new(items.collect::<Res<_>>()?)
    };
    Ok(match value {
        Value::List(seq) => Value::List(parts(&seq.items)?),
        Value::Tuple(seq) => Value::Tuple(parts(&seq.items)?),
        Value::Dict(dict) => {
            let mut entries = dict.entries().to_vec();
            sort_by(&mut entries, |a, b| ops::order("<", &a.0, &b.0))?;
            for entry in &mut entries {
                entry.1 = sorted_dicts(&entry.1)?;
            }
            Value::Dict(Dict::of(entries)?)
        }
        other => other.clone(),
    })
}

pub(super) fn to_json(value: &Value, args: Arguments) -> Res<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = args.bind("tojson", 0, names)?;
    let too_wide = || Fail::new(format!("tojson takes an indent of at most {INDENT_MAX}"));
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(t)) if t.as_str().len() <= INDENT_MAX => Some(t.as_str().to_owned()),
        Some(Value::Text(_)) => return Err(too_wide()),
        by => {
            let by = width(by, 0)?;
            if by > INDENT_MAX {
                return Err(too_wide());
            }
            Some(" ".repeat(by))
        }
    };
    let (item_separator, key_separator) = match separators {
        None | Some(Value::None) => {
            let item = if indent.is_some() { "," } else { ", " };
            (item.to_owned(), ": ".to_owned())
        }
        Some(pair) => match &pair.items()?.items[..] {
            [item, key] => {
                let (item, key) = (text(item)?, text(key)?);
                budget::bytes(item.len().saturating_add(key.len()))?;
                (item.to_owned(), key.to_owned())
            }
            _ => return fail("separators must be two texts"),
        },
    };
    let json = Json {
        ensure_ascii: truth(ensure_ascii, false),
        sort_keys: truth(sort_keys, false),
        indent,
        item_separator,
        key_separator,
    };
    let mut out = Buffer::default();
    json.write(value, &mut out, 0)?;
    Ok(Value::buffer(out))
}
