//! Values as text: Python's `str`, `repr` and `json.dumps`.

use super::budget::{self, Buffer};
use super::chars::is_printable;
use super::fail::{Fail, Res, fail};
use super::value::{Function, Value, View};

/// Values in each other that are shown, namespaces included.
const DEPTH_MAX: usize = 250;

/// The nearest floating-point number.
pub(super) fn float_of_int(number: i128) -> f64 {
    number as f64
}

pub(super) fn type_error(op: &str, a: &Value, b: &Value) -> Fail {
    let (a, b) = (a.type_name(), b.type_name());
    Fail::new(format!(
        "unsupported operand type(s) for {op}: '{a}' and '{b}'"
    ))
}

/// `repr` of a floating-point number.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

/// `str(value)` into `out`.
pub(super) fn write_str(value: &Value, out: &mut Buffer) -> Res<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Text(text) => out.push(text.as_str()),
        other => write_repr(other, out, 0),
    }
}

/// `str(value)`
pub(super) fn to_str(value: &Value) -> Res<Value> {
    if let Value::Text(_) = value {
        return Ok(value.clone());
    }
    let mut out = Buffer::default();
    write_str(value, &mut out)?;
    Ok(Value::buffer(out))
}

/// `repr(value)` into `out`.
pub(super) fn write_repr(value: &Value, out: &mut Buffer, depth: usize) -> Res<()> {
    if depth > DEPTH_MAX {
        return fail("values that are shown are nested too deep");
    }
    let depth = depth + 1;
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&float(*number)),
        Value::Text(text) if text.is_markup() => {
            out.push("Markup(")?;
            quoted(text.as_str(), false, out)?;
            out.push(")")
        }
        Value::Text(text) => quoted(text.as_str(), false, out),
        Value::List(seq) => {
            out.push("[")?;
            write_items(&seq.items, out, depth)?;
            out.push("]")
        }
        Value::Tuple(seq) => {
            out.push("(")?;
            write_items(&seq.items, out, depth)?;
            out.push(if seq.items.len() == 1 { ",)" } else { ")" })
        }
        Value::Dict(dict) => {
            out.push("{")?;
            write_pairs(dict.entries().iter().map(|(k, v)| (k, v)), out, depth)?;
            out.push("}")
        }
        Value::Range(range) => {
            out.push(&format!("range({}, {}", range.start, range.stop))?;
            if range.step != 1 {
                out.push(&format!(", {}", range.step))?;
            }
            out.push(")")
        }
        Value::View(view, _) => {
            let brackets = match view {
                View::Keys => "dict_keys([",
                View::Values => "dict_values([",
                View::Items => "dict_items([",
            };
            out.push(brackets)?;
            write_items(&value.items()?.items, out, depth)?;
            out.push("])")
        }
        Value::Namespace(namespace) => {
            out.push("<Namespace {")?;
            let fields = namespace.fields.borrow();
            for (at, (name, value)) in fields.iter().enumerate() {
                if at > 0 {
                    out.push(", ")?;
                }
                quoted(name, false, out)?;
                out.push(": ")?;
                write_repr(value, out, depth)?;
            }
            out.push("}>")
        }
        Value::Macro(function) => {
            out.push("<Macro ")?;
            match &function.name {
                Some(name) => quoted(name, false, out)?,
                None => out.push("anonymous")?,
            }
            out.push(">")
        }
        Value::Loop(state) => {
            let (at, len) = (state.index.get() + 1, state.items.items.len());
            out.push(&format!("<LoopContext {at}/{len}>"))
        }
        Value::Function(Function::Dict) => out.push("<class 'dict'>"),
        // With an address in Python, which says nothing here.
        other => out.push(&format!("<{} object>", other.type_name())),
    }
}

fn write_items(items: &[Value], out: &mut Buffer, depth: usize) -> Res<()> {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(", ")?;
        }
        write_repr(item, out, depth)?;
    }
    Ok(())
}

fn write_pairs<'a>(
    pairs: impl Iterator<Item = (&'a Value, &'a Value)>,
    out: &mut Buffer,
    depth: usize,
) -> Res<()> {
    for (at, (key, value)) in pairs.enumerate() {
        if at > 0 {
            out.push(", ")?;
        }
        write_repr(key, out, depth)?;
        out.push(": ")?;
        write_repr(value, out, depth)?;
    }
    Ok(())
}

/// `repr` (or `ascii`) of a text.
pub(super) fn quoted(text: &str, as_ascii: bool, out: &mut Buffer) -> Res<()> {
    budget::chars(text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push_char(quote)?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let is_plain = c != quote && c != '\\' && is_printable(c) && (c.is_ascii() || !as_ascii);
        if is_plain {
            continue;
        }
        out.push(&text[plain..at])?;
        plain = at + c.len_utf8();
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' | '\'' | '"' => {
                out.push("\\")?;
                out.push_char(c)?;
            }
            _ => match c as u32 {
                code @ ..0x100 => out.push(&format!("\\x{code:02x}"))?,
                code @ ..0x1_0000 => out.push(&format!("\\u{code:04x}"))?,
                code => out.push(&format!("\\U{code:08x}"))?,
            },
        }
    }
    out.push(&text[plain..])?;
    out.push_char(quote)
}

/// A text whose signs mean nothing in HTML.
pub(super) fn escape(t: &str, out: &mut Buffer) -> Res<()> {
    budget::chars(t.len())?;
    let mut plain = 0;
    for (at, c) in t.char_indices() {
        let escaped = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '"' => "&#34;",
            '\'' => "&#39;",
            _ => continue,
        };
        out.push(&t[plain..at])?;
        out.push(escaped)?;
        plain = at + 1;
    }
    out.push(&t[plain..])
}

/// How `json.dumps` writes.
pub(super) struct Json {
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// What a level is indented by, if each element has a line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
}

impl Json {
    pub(super) fn write(&self, value: &Value, out: &mut Buffer, depth: usize) -> Res<()> {
        if depth > DEPTH_MAX {
            return fail("values given to tojson are nested too deep");
        }
        match value {
            Value::None => out.push("null"),
            Value::Bool(true) => out.push("true"),
            Value::Bool(false) => out.push("false"),
            Value::Int(number) => out.push(&number.to_string()),
            Value::Float(number) => out.push(&json_float(*number)),
            Value::Text(text) => self.text(text.as_str(), out),
            Value::List(seq) | Value::Tuple(seq) => {
                if seq.items.is_empty() {
                    return out.push("[]");
                }
                out.push("[")?;
                for (at, item) in seq.items.iter().enumerate() {
                    self.separate(at, depth + 1, out)?;
                    self.write(item, out, depth + 1)?;
                }
                self.new_line(depth, out)?;
                out.push("]")
            }
            Value::Dict(dict) => {
                if dict.entries().is_empty() {
                    return out.push("{}");
                }
                let mut entries: Vec<&(Value, Value)> = dict.entries().iter().collect();
                if self.sort_keys {
                    super::filters::sort_by(&mut entries, |a, b| {
                        super::ops::order("<", &a.0, &b.0)
                    })?;
                }
                out.push("{")?;
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    self.separate(at, depth + 1, out)?;
                    self.key(key, out)?;
                    out.push(&self.key_separator)?;
                    self.write(value, out, depth + 1)?;
                }
                self.new_line(depth, out)?;
                out.push("}")
            }
            other => {
                let name = other.type_name();
                fail(format!("Object of type {name} is not JSON serializable"))
            }
        }
    }

    fn key(&self, key: &Value, out: &mut Buffer) -> Res<()> {
        match key {
            Value::Text(text) => self.text(text.as_str(), out),
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                out.push("\"")?;
                self.write(key, out, 0)?;
                out.push("\"")
            }
            other => fail(format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            )),
        }
    }

    fn separate(&self, at: usize, depth: usize, out: &mut Buffer) -> Res<()> {
        if at > 0 {
            out.push(&self.item_separator)?;
        }
        self.new_line(depth, out)
    }

    fn new_line(&self, depth: usize, out: &mut Buffer) -> Res<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        out.push("\n")?;
        for _ in 0..depth {
            out.push(indent)?;
        }
        Ok(())
    }

    fn text(&self, text: &str, out: &mut Buffer) -> Res<()> {
        budget::chars(text.len())?;
        out.push("\"")?;
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            let is_plain = match c {
                '"' | '\\' | '\0'..='\x1f' => false,
                '\x7f' => true,
                _ => c.is_ascii() || !self.ensure_ascii,
            };
            if is_plain {
                continue;
            }
            out.push(&text[plain..at])?;
            plain = at + c.len_utf8();
            match c {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\x08' => out.push("\\b")?,
                '\x0c' => out.push("\\f")?,
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
            }
        }
        out.push(&text[plain..])?;
        out.push("\"")
    }
}

fn json_float(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned()
    } else {
        float(number)
    }
}
