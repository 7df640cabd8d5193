//! `str.format`, as the sandbox allows it.

use super::args::Arguments;
use super::attributes::{attribute, item};
use super::budget::{self, Buffer};
use super::fail::{Fail, Named, Res, fail};
use super::ops::as_float;
use super::printf::{Layout, write_text};
use super::show::{float, quoted, write_repr, write_str};
use super::value::Value;

/// `text.format(…)`
pub(super) fn format(text: &str, arguments: &Arguments) -> Res<Value> {
    let mut formatter = Formatter {
        arguments,
        automatic: None,
    };
    let mut out = Buffer::default();
    formatter.write(text, 2, &mut out)?;
    Ok(Value::buffer(out))
}

struct Formatter<'a> {
    arguments: &'a Arguments,
    /// The next place, if fields are numbered automatically; none once they are numbered.
    automatic: Option<Option<usize>>,
}

impl Formatter<'_> {
    fn write(&mut self, text: &str, depth: usize, out: &mut Buffer) -> Res<()> {
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push(&rest[..at])?;
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push(brace)?;
                rest = after;
                continue;
            }
            if brace == "}" {
                return fail("Single '}' encountered in format string");
            }
            let mut open = 1;
            let end = rest.char_indices().find(|(_, c)| {
                open += i32::from(*c == '{') - i32::from(*c == '}');
                open == 0
            });
            let Some((end, _)) = end else {
                return fail("expected '}' before end of string");
            };
            self.field(&rest[..end], depth, out)?;
            rest = &rest[end + 1..];
        }
        out.push(rest)
    }

    fn field(&mut self, field: &str, depth: usize, out: &mut Buffer) -> Res<()> {
        if depth == 0 {
            return fail("Max string recursion exceeded");
        }
        budget::chars(field.len())?;
        let mut in_brackets = false;
        let split = field.find(|c| {
            in_brackets = (in_brackets || c == '[') && c != ']';
            !in_brackets && (c == ':' || c == '!')
        });
        let (name, rest) = split.map_or((field, ""), |at| field.split_at(at));
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(after) => {
                let Some(kind) = after.chars().next() else {
                    return fail("end of string while looking for conversion specifier");
                };
                let after = &after[kind.len_utf8()..];
                if !(after.is_empty() || after.starts_with(':')) {
                    return fail("expected ':' after conversion specifier");
                }
                (Some(kind), after.strip_prefix(':').unwrap_or(""))
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let mut value = self.value(name)?;
        if let Some(kind) = conversion {
            let mut text = Buffer::default();
            match (kind, &value) {
                ('s', value) => write_str(value, &mut text)?,
                ('a', Value::Text(t)) => quoted(t.as_str(), true, &mut text)?,
                ('r' | 'a', value) => write_repr(value, &mut text, 0)?,
                _ => return fail(format!("Unknown conversion specifier {kind}")),
            }
            value = Value::buffer(text);
        }
        let mut expanded = Buffer::default();
        self.write(spec, depth - 1, &mut expanded)?;
        write_value(&value, expanded.as_str(), out)
    }

    /// The value of a field's name.
    fn value(&mut self, name: &str) -> Res<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = if first.is_empty() || first.bytes().all(|b| b.is_ascii_digit()) {
            let place = match (first.parse::<usize>(), &mut self.automatic) {
                (Ok(place), automatic @ (None | Some(None))) => {
                    *automatic = Some(None);
                    place
                }
                (Err(_), automatic @ None) => {
                    *automatic = Some(Some(1));
                    0
                }
                (Err(_), Some(Some(next))) => {
                    *next += 1;
                    *next - 1
                }
                _ => return fail("cannot mix manual and automatic field numbering"),
            };
            self.arguments
                .positional
                .get(place)
                .cloned()
                .ok_or_else(|| {
                    Fail::new("Replacement index out of range for positional args tuple")
                })?
        } else {
            budget::steps(self.arguments.named.len() / 8)?;
            let named = self.arguments.named.iter().find(|(n, _)| n == first);
            named
                .map(|(_, v)| v.clone())
                .ok_or_else(|| Fail::new(format!("KeyError: '{}'", Named(first))))?
        };
        while !rest.is_empty() {
            budget::steps(1)?;
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else if let Some((key, after)) =
                rest.strip_prefix('[').and_then(|r| r.split_once(']'))
            {
                let key = match key.parse::<i64>() {
                    Ok(index) if !key.starts_with(['-', '+']) => Value::Int(i128::from(index)),
                    _ => Value::text(key)?,
                };
                value = item(&value, &key)?;
                rest = after;
            } else {
                return fail("a field of a format cannot be read");
            }
        }
        Ok(value)
    }
}

/// `format(value, spec)`
fn write_value(value: &Value, spec: &str, out: &mut Buffer) -> Res<()> {
    if spec.is_empty() {
        return write_str(value, out);
    }
    let mut layout = Layout::default();
    let mut rest = spec;
    let is_align = |c: char| "<>^=".contains(c);
    let mut chars = spec.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if is_align(align) => {
            (layout.fill, layout.align) = (Some(fill), Some(align));
            rest = &rest[fill.len_utf8() + 1..];
        }
        (Some(align), _) if is_align(align) => {
            layout.align = Some(align);
            rest = &rest[1..];
        }
        _ => {}
    }
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        layout.sign = Some(sign);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        layout.alternate = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('0') {
        layout.fill = layout.fill.or(Some('0'));
        if layout.align.is_none() && as_float(value).is_some() {
            layout.align = Some('=');
        }
        rest = after;
    }
    let number = |rest: &mut &str| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        *rest = after;
        match digits.parse::<usize>() {
            _ if digits.is_empty() => Ok(None),
            Ok(number) => Ok(Some(number)),
            Err(_) => fail("Too many decimal digits in format string"),
        }
    };
    layout.width = number(&mut rest)?.unwrap_or(0);
    if let Some(grouping) = rest.chars().next().filter(|c| ",_".contains(*c)) {
        layout.grouping = Some(grouping);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        let precision = number(&mut rest)?;
        layout.precision =
            Some(precision.ok_or_else(|| Fail::new("Format specifier missing precision"))?);
    }
    let mut kinds = rest.chars();
    let kind = kinds.next();
    if kinds.next().is_some() {
        return fail("Invalid format specifier");
    }
    match (value, kind) {
        (Value::Text(text), None | Some('s')) => {
            if layout.sign.is_some() || layout.align == Some('=') {
                return fail("Sign and '=' are not allowed in string format specifier");
            }
            write_text(text.as_str(), &layout, '<', out)
        }
        (Value::Int(_) | Value::Bool(_), None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n')) => {
            if layout.precision.is_some() {
                return fail("Precision not allowed in integer format specifier");
            }
            layout.integer(value.as_int().unwrap_or(0), kind.unwrap_or('d'), out)
        }
        (Value::Int(code), Some('c')) => {
            let c = u32::try_from(*code).ok().and_then(char::from_u32);
            let c = c.ok_or_else(|| Fail::new("%c arg not in range(0x110000)"))?;
            layout.write("", &c.to_string(), '<', out)
        }
        (Value::Float(number), None) if layout.precision.is_none() => {
            let digits = float(number.abs());
            let sign = match layout.sign {
                _ if number.is_sign_negative() => "-",
                Some('+') => "+",
                Some(' ') => " ",
                _ => "",
            };
            layout.write(sign, &digits, '>', out)
        }
        (_, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) if as_float(value).is_some() => {
            layout.float(as_float(value).unwrap_or(0.0), kind.unwrap_or('g'), out)
        }
        (Value::Text(_) | Value::Int(_) | Value::Bool(_) | Value::Float(_), Some(kind)) => {
            let name = value.type_name();
            fail(format!(
                "Unknown format code '{kind}' for object of type '{name}'"
            ))
        }
        _ => fail(format!(
            "unsupported format string passed to {}.__format__",
            value.type_name()
        )),
    }
}
