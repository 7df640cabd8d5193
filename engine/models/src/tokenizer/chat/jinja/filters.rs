//! `value | filter`

use std::cmp::Ordering;

use super::args::{Arguments, int, text, truth, width};
use super::attributes::{item, own_attribute};
use super::budget::{self, Buffer};
use super::chars::is_space;
use super::fail::{Fail, Res, fail};
use super::ops;
use super::printf::int_of_float;
use super::show::{Json, escape, to_str, write_repr, write_str};
use super::value::{Dict, Seq, Text, Value};
use super::{methods, printf, tests};

/// The widest indentation that `tojson` takes.
const INDENT_MAX: usize = 32;

/// Whether there is such a filter.
pub(super) fn exists(name: &str) -> bool {
    matches!(
        name,
        "abs"
            | "attr"
            | "batch"
            | "capitalize"
            | "center"
            | "count"
            | "d"
            | "default"
            | "dictsort"
            | "e"
            | "escape"
            | "filesizeformat"
            | "first"
            | "float"
            | "forceescape"
            | "format"
            | "groupby"
            | "indent"
            | "int"
            | "items"
            | "join"
            | "last"
            | "length"
            | "list"
            | "lower"
            | "map"
            | "max"
            | "min"
            | "pprint"
            | "random"
            | "reject"
            | "rejectattr"
            | "replace"
            | "reverse"
            | "round"
            | "safe"
            | "select"
            | "selectattr"
            | "slice"
            | "sort"
            | "string"
            | "striptags"
            | "sum"
            | "title"
            | "tojson"
            | "trim"
            | "truncate"
            | "unique"
            | "upper"
            | "urlencode"
            | "urlize"
            | "wordcount"
            | "wordwrap"
            | "xmlattr"
    )
}

/// Applies a filter.
pub(super) fn call(name: &str, value: Value, args: Arguments) -> Res<Value> {
    budget::steps(1)?;
    match name {
        "abs" | "round" | "int" | "float" | "sum" | "min" | "max" | "filesizeformat" => {
            numbers(name, value, args)
        }
        "attr" | "batch" | "count" | "length" | "first" | "last" | "items" | "list" | "map"
        | "reject" | "rejectattr" | "select" | "selectattr" | "reverse" | "slice" | "join"
        | "dictsort" | "sort" | "unique" | "groupby" => lists(name, value, args),
        "d" | "default" => {
            let [default, boolean] = args.bind(name, 0, ["default_value", "boolean"])?;
            if value.is_undefined() || (truth(boolean, false) && !value.is_true()) {
                return default.map_or_else(|| Value::text(""), Ok);
            }
            Ok(value)
        }
        "tojson" => to_json(&value, args),
        "random" => fail("the filter random is not supported: answers would differ each time"),
        "urlize" => fail("the filter urlize is not supported"),
        _ => texts(name, value, args),
    }
}

// ---- texts

fn texts(name: &str, value: Value, args: Arguments) -> Res<Value> {
    // Those of Python's methods, and those that take what is there without making a text of it.
    match name {
        "format" => {
            let Arguments { positional, named } = args;
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
    let ends_with_line = t.is_empty() || t.ends_with(super::chars::is_line_end);
    let extra = ends_with_line.then_some("");
    let mut out = Buffer::default();
    if first {
        out.push(indention)?;
    }
    for (at, line) in lines.into_iter().chain(extra).enumerate() {
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
    for (at, line) in methods::lines(t, false).into_iter().enumerate() {
        if at > 0 {
            out.push(with)?;
        }
        for (at, part) in wrapped(line, wide, break_long, hyphens)
            .into_iter()
            .enumerate()
        {
            if at > 0 {
                out.push(with)?;
            }
            out.push(&part)?;
        }
    }
    Ok(Value::buffer(out))
}

/// Python's `textwrap.wrap` of one line.
fn wrapped(line: &str, wide: usize, break_long: bool, hyphens: bool) -> Vec<String> {
    let mut chunks: Vec<Vec<char>> = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let spaces = is_space(first);
        let end = rest.find(|c| is_space(c) != spaces).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        let letters: Vec<char> = run.chars().collect();
        if spaces || !hyphens {
            chunks.push(letters);
            continue;
        }
        // Behind a hyphen between two letters each, a line may end.
        let mut from = 0;
        for at in 2..letters.len().saturating_sub(1) {
            let breaks = letters[at] == '-'
                && letters[at - 2..at].iter().all(|c| c.is_alphabetic())
                && letters
                    .get(at + 1..at + 3)
                    .is_some_and(|l| l.iter().all(|c| c.is_alphabetic()));
            if breaks {
                chunks.push(letters[from..=at].to_vec());
                from = at + 1;
            }
        }
        chunks.push(letters[from..].to_vec());
    }
    let mut lines: Vec<String> = Vec::new();
    let mut chunks = std::collections::VecDeque::from(chunks);
    while !chunks.is_empty() {
        let is_blank = |chunk: &Vec<char>| chunk.iter().all(|c| is_space(*c));
        if !lines.is_empty() && chunks.front().is_some_and(is_blank) {
            chunks.pop_front();
        }
        let mut current: Vec<Vec<char>> = Vec::new();
        let mut length = 0;
        while let Some(chunk) = chunks.pop_front() {
            if length + chunk.len() <= wide {
                length += chunk.len();
                current.push(chunk);
                continue;
            }
            if chunk.len() > wide && break_long {
                let room = (wide - length).max(usize::from(current.is_empty()));
                let (now, later) = chunk.split_at(room.min(chunk.len()));
                if !now.is_empty() {
                    current.push(now.to_vec());
                }
                chunks.push_front(later.to_vec());
            } else if chunk.len() > wide && current.is_empty() {
                current.push(chunk);
            } else {
                chunks.push_front(chunk);
            }
            break;
        }
        if current.last().is_some_and(is_blank) {
            current.pop();
        }
        if !current.is_empty() {
            lines.push(current.into_iter().flatten().collect());
        }
    }
    lines
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
    let mut plain = String::with_capacity(t.len());
    let mut rest = t;
    // Comments first, then tags.
    while let Some(start) = rest.find("<!--") {
        let Some(end) = rest[start..].find("-->") else {
            break;
        };
        plain.push_str(&rest[..start]);
        rest = &rest[start + end + 3..];
    }
    plain.push_str(rest);
    let mut without = String::with_capacity(plain.len());
    let mut rest = &plain[..];
    while let Some(start) = rest.find('<') {
        let Some(end) = rest[start..].find('>') else {
            break;
        };
        without.push_str(&rest[..start]);
        rest = &rest[start + end + 1..];
    }
    without.push_str(rest);
    let words: Vec<&str> = without.split(is_space).filter(|w| !w.is_empty()).collect();
    let text = words.join(" ");
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", "\u{a0}"),
        ("&amp;", "&"),
    ];
    let text = entities
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to));
    Value::text(text)
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

fn to_json(value: &Value, args: Arguments) -> Res<Value> {
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
            [item, key] => (text(item)?.to_owned(), text(key)?.to_owned()),
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

// ---- numbers

fn numbers(name: &str, value: Value, args: Arguments) -> Res<Value> {
    match name {
        "abs" => {
            args.none(name)?;
            match (&value, value.as_int()) {
                (Value::Float(number), _) => Ok(Value::Float(number.abs())),
                (_, Some(number)) => number
                    .checked_abs()
                    .map(Value::Int)
                    .ok_or_else(|| Fail::new("a whole number has more than 127 bits")),
                _ => fail(format!(
                    "bad operand type for abs(): '{}'",
                    value.type_name()
                )),
            }
        }
        "round" => round(&value, args),
        "int" => {
            let [default, base] = args.bind(name, 0, ["default", "base"])?;
            let base = int(base, 10)?;
            let default = default.unwrap_or(Value::Int(0));
            to_int(&value, default, base)
        }
        "float" => {
            let [default] = args.bind(name, 0, ["default"])?;
            Ok(match to_float(&value)? {
                Some(number) => Value::Float(number),
                None => default.unwrap_or(Value::Float(0.0)),
            })
        }
        "sum" => {
            let [attribute, start] = args.bind(name, 0, ["attribute", "start"])?;
            let path = Path::optional(attribute)?;
            let mut sum = start.unwrap_or(Value::Int(0));
            if let Value::Text(_) = sum {
                return fail("sum() can't sum strings [use ''.join(seq) instead]");
            }
            for item in &value.items()?.items {
                sum = methods::add(&sum, &path.get(item)?)?;
            }
            Ok(sum)
        }
        "min" | "max" => {
            let [case, attribute] = args.bind(name, 0, ["case_sensitive", "attribute"])?;
            let key = Key::new(Path::optional(attribute)?, truth(case, false));
            let items = value.items()?;
            let mut best: Option<(Value, &Value)> = None;
            for item in &items.items {
                let new = key.get(item)?;
                let is_better = match &best {
                    None => true,
                    Some((old, _)) if name == "max" => {
                        ops::order(">", &new, old)? == Some(Ordering::Greater)
                    }
                    Some((old, _)) => ops::order("<", &new, old)? == Some(Ordering::Less),
                };
                if is_better {
                    best = Some((new, item));
                }
            }
            Ok(best.map_or_else(
                || Value::undefined("No aggregated item, sequence was empty."),
                |(_, item)| item.clone(),
            ))
        }
        _ => {
            let [binary] = args.bind(name, 0, ["binary"])?;
            let Some(bytes) = to_float(&value)? else {
                return fail("filesizeformat needs a number");
            };
            Value::text(file_size(bytes, truth(binary, false))?)
        }
    }
}

fn file_size(bytes: f64, is_binary: bool) -> Res<String> {
    let base: f64 = if is_binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", int_of_float(bytes)?));
    }
    let letters = if is_binary { "KMGTPEZY" } else { "kMGTPEZY" };
    let infix = if is_binary { "i" } else { "" };
    let mut unit = base;
    let mut shown = String::new();
    for letter in letters.chars() {
        unit *= base;
        shown = format!("{:.1} {letter}{infix}B", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    Ok(shown)
}

/// `float(value)`, none where Python has a type or value error.
fn to_float(value: &Value) -> Res<Option<f64>> {
    match value {
        Value::Undefined(message) => fail(&**message),
        Value::Text(t) => {
            budget::steps(t.as_str().len())?;
            Ok(float_of_text(t.as_str()))
        }
        other => Ok(ops::as_float(other)),
    }
}

fn float_of_text(t: &str) -> Option<f64> {
    let t = t.trim_matches(is_space);
    let mut plain = String::with_capacity(t.len());
    let mut before = ' ';
    let mut letters = t.chars().peekable();
    while let Some(c) = letters.next() {
        match super::chars::decimal(c) {
            Some(digit) => plain.push(char::from_digit(digit, 10)?),
            None if c == '_' => {
                let next_is_digit = letters
                    .peek()
                    .is_some_and(|c| super::chars::decimal(*c).is_some());
                if super::chars::decimal(before).is_none() || !next_is_digit {
                    return None;
                }
            }
            None => plain.push(c),
        }
        before = c;
    }
    // Rust reads the same spellings, `infinity` and `nan` included.
    plain.parse().ok()
}

fn int_of_text(t: &str, base: i128) -> Option<i128> {
    let base = u32::try_from(base)
        .ok()
        .filter(|b| *b == 0 || (2..=36).contains(b))?;
    let t = t.trim_matches(is_space);
    let (is_negative, t) = match t.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, t.strip_prefix('+').unwrap_or(t)),
    };
    let prefixed = match t.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 0,
    };
    let (base, digits) = match (base, prefixed) {
        (0, 0) => (10, t),
        (0, prefixed) => (prefixed, &t[2..]),
        (base, prefixed) if base == prefixed => (base, &t[2..]),
        (base, _) => (base, t),
    };
    let digits = if digits.len() < t.len() {
        digits.strip_prefix('_').unwrap_or(digits)
    } else {
        digits
    };
    let mut number: i128 = 0;
    let mut was_digit = false;
    for c in digits.chars() {
        if c == '_' && was_digit {
            was_digit = false;
            continue;
        }
        let digit = super::chars::decimal(c)
            .or_else(|| c.to_digit(36))
            .filter(|d| *d < base)?;
        was_digit = true;
        number = number
            .checked_mul(i128::from(base))?
            .checked_add(i128::from(digit))?;
    }
    was_digit.then_some(if is_negative { -number } else { number })
}

fn to_int(value: &Value, default: Value, base: i128) -> Res<Value> {
    if let Value::Undefined(message) = value {
        return fail(&**message);
    }
    if let Value::Text(t) = value {
        budget::steps(t.as_str().len())?;
        if let Some(number) = int_of_text(t.as_str(), base) {
            return Ok(Value::Int(number));
        }
        let number = float_of_text(t.as_str()).and_then(|number| int_of_float(number).ok());
        return Ok(number.map_or(default, Value::Int));
    }
    match value {
        Value::Float(number) if number.is_infinite() => {
            fail("cannot convert float infinity to integer")
        }
        Value::Float(number) if number.is_nan() => Ok(default),
        Value::Float(number) => int_of_float(*number).map(Value::Int),
        other => Ok(other.as_int().map_or(default, Value::Int)),
    }
}

fn round(value: &Value, args: Arguments) -> Res<Value> {
    let [precision, method] = args.bind("round", 0, ["precision", "method"])?;
    let method = method.map_or_else(|| Value::text("common"), Ok)?;
    let precision = int(precision, 0)?;
    if let Value::Undefined(message) = value {
        return fail(&**message);
    }
    let Some(number) = ops::as_float(value) else {
        return fail(format!(
            "type {} doesn't define __round__ method",
            value.type_name()
        ));
    };
    match method.as_text() {
        Some("common") => match value.as_int() {
            Some(whole) => round_int(whole, precision),
            None => Ok(Value::Float(round_float(number, precision))),
        },
        Some(kind @ ("ceil" | "floor")) => {
            let scale = ops::binary(
                super::ast::Binary::Pow,
                &Value::Int(10),
                &Value::Int(precision),
            )?;
            let scaled = methods_mul(value, &scale)?;
            let whole = match (&scaled, scaled.as_int()) {
                (_, Some(whole)) => whole,
                (Value::Float(f), _) if kind == "ceil" => int_of_float(f.ceil())?,
                (Value::Float(f), _) => int_of_float(f.floor())?,
                _ => 0,
            };
            ops::binary(super::ast::Binary::Div, &Value::Int(whole), &scale)
        }
        _ => fail("method must be common, ceil or floor"),
    }
}

fn methods_mul(a: &Value, b: &Value) -> Res<Value> {
    ops::binary(super::ast::Binary::Mul, a, b)
}

fn round_int(number: i128, precision: i128) -> Res<Value> {
    if precision >= 0 {
        return Ok(Value::Int(number));
    }
    let Some(unit) = u32::try_from(-precision)
        .ok()
        .and_then(|p| 10_i128.checked_pow(p))
    else {
        return Ok(Value::Int(0));
    };
    let (down, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let up = match (rest * 2).cmp(&unit) {
        Ordering::Less => 0,
        Ordering::Greater => 1,
        Ordering::Equal => down.rem_euclid(2),
    };
    Ok(Value::Int((down + up).saturating_mul(unit)))
}

/// To the nearest number of so many decimals, to the even one of two.
fn round_float(number: f64, precision: i128) -> f64 {
    if !number.is_finite() || precision > 330 {
        return number;
    }
    if precision >= 0 {
        // Exact digits are rounded to the nearest, ties to even.
        return format!("{number:.*}", precision as usize)
            .parse()
            .unwrap_or(number);
    }
    if precision < -310 {
        return 0.0_f64.copysign(number);
    }
    let unit = 10_f64.powi(-precision as i32);
    let rounded = (number / unit).round_ties_even() * unit;
    if rounded.is_finite() { rounded } else { number }
}

// ---- lists

/// A path of attributes, as filters take it: `a.b.0`.
struct Path(Vec<Value>);

impl Path {
    fn new(path: &Value) -> Res<Self> {
        let Value::Text(t) = path else {
            return Ok(Self(vec![path.clone()]));
        };
        let parts = t.as_str().split('.').map(|part| {
            let is_number = !part.is_empty() && part.chars().all(super::chars::is_digit);
            match part.parse() {
                Ok(number) if is_number => Ok(Value::Int(number)),
                _ => Value::text(part),
            }
        });
        Ok(Self(parts.collect::<Res<_>>()?))
    }

    fn optional(path: Option<Value>) -> Res<Self> {
        match path {
            None | Some(Value::None) => Ok(Self(Vec::new())),
            Some(path) => Self::new(&path),
        }
    }

    fn get(&self, value: &Value) -> Res<Value> {
        self.get_or(value, None)
    }

    fn get_or(&self, value: &Value, default: Option<&Value>) -> Res<Value> {
        let mut value = value.clone();
        for part in &self.0 {
            budget::steps(1)?;
            value = item(&value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// What values are compared by.
struct Key {
    path: Path,
    by_case: bool,
}

impl Key {
    fn new(path: Path, by_case: bool) -> Self {
        Self { path, by_case }
    }

    fn get(&self, value: &Value) -> Res<Value> {
        self.get_or(value, None)
    }

    fn get_or(&self, value: &Value, default: Option<&Value>) -> Res<Value> {
        let value = self.path.get_or(value, default)?;
        match &value {
            Value::Text(t) if !self.by_case => {
                budget::chars(t.as_str().len())?;
                Value::text(t.as_str().to_lowercase())
            }
            _ => Ok(value),
        }
    }
}

/// A stable sort by an order that may fail, and need not be one.
pub(super) fn sort_by<T: Clone>(
    items: &mut [T],
    order: impl Fn(&T, &T) -> Res<Option<Ordering>>,
) -> Res<()> {
    let mut sorted = items.to_vec();
    let mut width = 1;
    while width < items.len() {
        for start in (0..items.len()).step_by(2 * width) {
            let middle = (start + width).min(items.len());
            let end = (start + 2 * width).min(items.len());
            let (mut left, mut right) = (start, middle);
            for slot in &mut sorted[start..end] {
                let takes_right = right < end
                    && (left >= middle
                        || order(&items[right], &items[left])? == Some(Ordering::Less));
                let from = if takes_right { &mut right } else { &mut left };
                *slot = items[*from].clone();
                *from += 1;
            }
        }
        items.clone_from_slice(&sorted);
        width *= 2;
    }
    Ok(())
}

/// Sorts values by their keys.
fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Res<Vec<(Value, Value)>> {
    // Equal elements keep their order in reverse, too.
    if reverse {
        keyed.reverse();
    }
    sort_by(&mut keyed, |a, b| ops::order("<", &a.0, &b.0))?;
    if reverse {
        keyed.reverse();
    }
    Ok(keyed)
}

fn lists(name: &str, value: Value, args: Arguments) -> Res<Value> {
    match name {
        "attr" => {
            let [name] = args.bind(name, 1, ["name"])?;
            let name = name.unwrap_or(Value::None);
            own_attribute(&value, text(&name)?)
        }
        "count" | "length" => {
            args.none(name)?;
            Ok(Value::Int(value.len()? as i128))
        }
        "first" => {
            args.none(name)?;
            let first = match &value {
                Value::Iterator(iter) => iter.next(),
                Value::Text(t) => {
                    let first = t.as_str().chars().next();
                    first.map(Value::text).transpose()?
                }
                Value::Range(range) => (range.len > 0).then(|| range.get(0)),
                other => other.items()?.items.first().cloned(),
            };
            Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
        }
        "last" => {
            args.none(name)?;
            let last = match &value {
                Value::Text(t) => {
                    let last = t.as_str().chars().next_back();
                    last.map(Value::text).transpose()?
                }
                Value::Range(range) => range.len.checked_sub(1).map(|at| range.get(at)),
                Value::Iterator(_) => {
                    let name = value.type_name();
                    return fail(format!("'{name}' object is not reversible"));
                }
                other => other.items()?.items.last().cloned(),
            };
            Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
        }
        "items" => {
            args.none(name)?;
            match &value {
                Value::Undefined(_) => Value::iterator(Vec::new()),
                Value::Dict(dict) => {
                    let view = Value::View(super::value::View::Items, dict.clone());
                    Value::iterator(view.items()?.items.clone())
                }
                _ => fail("Can only get item pairs from a mapping."),
            }
        }
        "list" => {
            args.none(name)?;
            Ok(Value::List(value.items()?))
        }
        "reverse" => {
            args.none(name)?;
            if let Value::Text(t) = &value {
                budget::chars(t.as_str().len())?;
                let reversed: String = t.as_str().chars().rev().collect();
                return Value::text(reversed);
            }
            let items = value.items()?;
            let reversed = items.items.iter().rev().cloned().collect();
            match &value {
                Value::Iterator(_) => Value::list(reversed),
                _ => Value::iterator(reversed),
            }
        }
        "batch" => {
            let [count, fill] = args.bind(name, 1, ["linecount", "fill_with"])?;
            batch(&value, int(count, 0)?, fill)
        }
        "slice" => {
            let [count, fill] = args.bind(name, 1, ["slices", "fill_with"])?;
            slice(&value, int(count, 0)?, fill)
        }
        "join" => {
            let [separator, attribute] = args.bind(name, 0, ["d", "attribute"])?;
            let attribute = attribute.filter(|a| !matches!(a, Value::None));
            let path = Path::optional(attribute)?;
            let separator = separator.map_or_else(|| Value::text(""), |s| to_str(&s))?;
            let mut out = Buffer::default();
            for (at, item) in value.items()?.items.iter().enumerate() {
                if at > 0 {
                    out.push(text(&separator)?)?;
                }
                write_str(&path.get(item)?, &mut out)?;
            }
            Ok(Value::buffer(out))
        }
        "map" => map(&value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, &value, args),
        "dictsort" => {
            let names = ["case_sensitive", "by", "reverse"];
            let [case, by, reverse] = args.bind(name, 0, names)?;
            let Value::Dict(dict) = &value else {
                return fail(format!(
                    "'{}' object has no attribute 'items'",
                    value.type_name()
                ));
            };
            let by_value = match by.as_ref().map(Value::as_text) {
                None | Some(Some("key")) => false,
                Some(Some("value")) => true,
                _ => return fail("You can only sort by either \"key\" or \"value\""),
            };
            let key = Key::new(Path(Vec::new()), truth(case, false));
            let mut keyed = Vec::new();
            for (name, value) in dict.entries() {
                let by = key.get(if by_value { value } else { name })?;
                keyed.push((by, Value::tuple(vec![name.clone(), value.clone()])?));
            }
            let keyed = sorted(keyed, int(reverse, 0)? != 0)?;
            Value::list(keyed.into_iter().map(|(_, pair)| pair).collect())
        }
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, case, attribute] = args.bind(name, 0, names)?;
            let by_case = truth(case, false);
            let paths = match &attribute {
                Some(Value::Text(t)) => {
                    let parts = t.as_str().split(',').map(|p| Path::new(&Value::text(p)?));
                    parts.collect::<Res<Vec<_>>>()?
                }
                _ => vec![Path::optional(attribute)?],
            };
            let keys: Vec<Key> = paths.into_iter().map(|p| Key::new(p, by_case)).collect();
            let mut keyed = Vec::new();
            for item in &value.items()?.items {
                let parts = keys.iter().map(|key| key.get(item)).collect::<Res<_>>()?;
                keyed.push((Value::list(parts)?, item.clone()));
            }
            let keyed = sorted(keyed, int(reverse, 0)? != 0)?;
            Value::list(keyed.into_iter().map(|(_, item)| item).collect())
        }
        "unique" => {
            let [case, attribute] = args.bind(name, 0, ["case_sensitive", "attribute"])?;
            let key = Key::new(Path::optional(attribute)?, truth(case, false));
            let mut seen = Dict::new();
            let mut unique = Vec::new();
            for item in &value.items()?.items {
                let by = key.get(item)?;
                if seen.get(&by)?.is_none() {
                    seen.insert(by, Value::None)?;
                    unique.push(item.clone());
                }
            }
            Value::iterator(unique)
        }
        _ => group_by(&value, args),
    }
}

fn group_by(value: &Value, args: Arguments) -> Res<Value> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case] = args.bind("groupby", 1, names)?;
    let default = default.filter(|d| !matches!(d, Value::None));
    let path = attribute.unwrap_or(Value::None);
    let key = Key::new(Path::new(&path)?, truth(case, false));
    let mut keyed = Vec::new();
    for item in &value.items()?.items {
        keyed.push((key.get_or(item, default.as_ref())?, item.clone()));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (by, item) in sorted(keyed, false)? {
        match groups.last_mut() {
            Some((last, items)) if ops::equal(last, &by)? => items.push(item),
            _ => groups.push((by, vec![item])),
        }
    }
    let mut tuples = Vec::new();
    for (mut by, items) in groups {
        if !key.by_case
            && let Some(first) = items.first()
        {
            by = key.path.get_or(first, default.as_ref())?;
        }
        tuples.push(Value::Tuple(Seq::make(
            vec![by, Value::list(items)?],
            true,
        )?));
    }
    Value::list(tuples)
}

fn batch(value: &Value, count: i128, fill: Option<Value>) -> Res<Value> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let items = value.items()?;
    let fill = fill.filter(|f| !matches!(f, Value::None));
    let mut batches = Vec::new();
    let mut rest = &items.items[..];
    if count == 0 && !rest.is_empty() {
        // Python's condition holds before the first element alone.
        batches.push(Value::list(Vec::new())?);
        batches.push(Value::list(rest.to_vec())?);
        return Value::iterator(batches);
    }
    while !rest.is_empty() {
        let (now, later) = rest.split_at(count.min(rest.len()));
        let mut batch = now.to_vec();
        if let Some(fill) = &fill {
            ops::reserve(count)?;
            batch.resize(count, fill.clone());
        }
        batches.push(Value::list(batch)?);
        rest = later;
    }
    Value::iterator(batches)
}

fn slice(value: &Value, slices: i128, fill: Option<Value>) -> Res<Value> {
    let items = value.items()?;
    let Some(slices) = usize::try_from(slices).ok().filter(|s| *s > 0) else {
        if slices == 0 {
            return fail("integer division or modulo by zero");
        }
        return Value::iterator(Vec::new());
    };
    ops::reserve(slices)?;
    let fill = fill.filter(|f| !matches!(f, Value::None));
    let (each, extra) = (items.items.len() / slices, items.items.len() % slices);
    let mut rest = &items.items[..];
    let mut all = Vec::new();
    for at in 0..slices {
        budget::steps(1)?;
        let (now, later) = rest.split_at(each + usize::from(at < extra));
        let mut part = now.to_vec();
        if let Some(fill) = &fill
            && at >= extra
        {
            part.push(fill.clone());
        }
        all.push(Value::list(part)?);
        rest = later;
    }
    Value::iterator(all)
}

fn map(value: &Value, args: Arguments) -> Res<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let Arguments {
        mut positional,
        mut named,
    } = args;
    let items = value.items()?;
    let mut mapped = Vec::with_capacity(items.items.len());
    let by_attribute = named.iter().position(|(n, _)| n == "attribute");
    if let (true, Some(at)) = (positional.is_empty(), by_attribute) {
        let (_, path) = named.swap_remove(at);
        let mut default = None;
        if let Some(at) = named.iter().position(|(n, _)| n == "default") {
            default = Some(named.swap_remove(at).1).filter(|d| !matches!(d, Value::None));
        }
        if let Some((name, _)) = named.first() {
            return fail(format!("Unexpected keyword argument '{name}'"));
        }
        let path = Path::new(&path)?;
        for item in &items.items {
            mapped.push(path.get_or(item, default.as_ref())?);
        }
        return Value::iterator(mapped);
    }
    if positional.is_empty() {
        return fail("map requires a filter argument");
    }
    let filter = positional.remove(0);
    let filter = text(&filter)?;
    for item in &items.items {
        if !exists(filter) {
            return fail(format!("No filter named '{filter}'."));
        }
        let args = Arguments {
            positional: positional.clone(),
            named: named.clone(),
        };
        mapped.push(call(filter, item.clone(), args)?);
    }
    Value::iterator(mapped)
}

fn select(name: &str, value: &Value, args: Arguments) -> Res<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let Arguments {
        mut positional,
        named,
    } = args;
    let mut path = Path(Vec::new());
    if name.ends_with("attr") {
        if positional.is_empty() {
            return fail("Missing parameter for attribute name");
        }
        path = Path::new(&positional.remove(0))?;
    }
    let wanted = name.starts_with("select");
    let items = value.items()?;
    let mut selected = Vec::new();
    let mut positional = positional.into_iter();
    let test = positional.next();
    let more: Vec<Value> = positional.collect();
    for item in &items.items {
        let part = path.get(item)?;
        budget::steps(1)?;
        let is = match &test {
            None => part.is_true(),
            Some(test) => {
                let test = text(test)?;
                let args = Arguments {
                    positional: more.clone(),
                    named: named.clone(),
                };
                tests::call(test, &part, args)?
            }
        };
        if is == wanted {
            selected.push(item.clone());
        }
    }
    Value::iterator(selected)
}
