//! `format % arguments`, and the format of numbers that `str.format` shares.

use super::budget::{self, Buffer};
use super::fail::{Fail, Named, Res, fail};
use super::ops::as_float;
use super::show::{escape, quoted, write_repr, write_str};
use super::value::{Text, Value};

/// The most digits behind the point.
const PRECISION_MAX: usize = 1000;

/// How one number or text is laid out.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    pub(super) align: Option<char>,
    /// `+`, `-` or a space.
    pub(super) sign: Option<char>,
    pub(super) alternate: bool,
    pub(super) width: usize,
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
}

impl Layout {
    /// Writes a sign and digits in their width.
    pub(super) fn write(&self, sign: &str, body: &str, default: char, out: &mut Buffer) -> Res<()> {
        let length = sign.chars().count() + body.chars().count();
        let missing = self.width.saturating_sub(length);
        let fill = self.fill.unwrap_or(' ');
        let (before, between, after) = match self.align.unwrap_or(default) {
            '<' => (0, 0, missing),
            '^' => (missing / 2, 0, missing - missing / 2),
            '=' => (0, missing, 0),
            _ => (missing, 0, 0),
        };
        out.fill(fill, before)?;
        out.push(sign)?;
        out.fill(fill, between)?;
        out.push(body)?;
        out.fill(fill, after)
    }

    fn sign_of(&self, is_negative: bool) -> &'static str {
        match self.sign {
            _ if is_negative => "-",
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        }
    }

    pub(super) fn integer(&self, number: i128, kind: char, out: &mut Buffer) -> Res<()> {
        let size = number.unsigned_abs();
        let (prefix, digits) = match kind {
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'o' => ("0o", format!("{size:o}")),
            'b' => ("0b", format!("{size:b}")),
            _ => ("", size.to_string()),
        };
        let prefix = if self.alternate { prefix } else { "" };
        let digits = self.grouped(&digits);
        let digits = match self.precision {
            // The least number of digits, for `%`.
            Some(least) if digits.len() < least => "0".repeat(least - digits.len()) + &digits,
            _ => digits,
        };
        let sign = self.sign_of(number < 0).to_owned() + prefix;
        self.write(&sign, &digits, '>', out)
    }

    /// `e`, `f`, `g`, their capitals, and `%`.
    pub(super) fn float(&self, number: f64, kind: char, out: &mut Buffer) -> Res<()> {
        let precision = self.precision.unwrap_or(6);
        if precision > PRECISION_MAX {
            return fail(format!(
                "a precision above {PRECISION_MAX} is not supported"
            ));
        }
        budget::steps(precision)?;
        let is_negative = number.is_sign_negative() && !number.is_nan();
        let size = number.abs();
        let mut digits = if size.is_nan() {
            "nan".to_owned()
        } else if size.is_infinite() {
            "inf".to_owned()
        } else {
            match kind.to_ascii_lowercase() {
                'e' => scientific(size, precision),
                'g' => general(size, precision, self.alternate),
                '%' => format!("{:.precision$}%", size * 100.0),
                _ => format!("{size:.precision$}"),
            }
        };
        if kind.is_ascii_uppercase() {
            digits = digits.to_uppercase();
        }
        if self.alternate && precision == 0 && kind.eq_ignore_ascii_case(&'f') {
            digits.push('.');
        }
        let digits = self.grouped(&digits);
        self.write(self.sign_of(is_negative), &digits, '>', out)
    }

    /// With separators between thousands.
    fn grouped(&self, digits: &str) -> String {
        let Some(separator) = self.grouping else {
            return digits.to_owned();
        };
        let whole = digits.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let (whole, rest) = digits.split_at(whole);
        let mut out = String::new();
        for (at, c) in whole.chars().enumerate() {
            if at > 0 && (whole.len() - at) % 3 == 0 {
                out.push(separator);
            }
            out.push(c);
        }
        out + rest
    }
}

fn scientific(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn general(number: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{number:.*e}", precision - 1);
    let exponent: i32 = text
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    let without_zeros = |text: &str| {
        if keeps_zeros || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = scientific(number, precision - 1);
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", without_zeros(digits));
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    without_zeros(&format!("{number:.decimals$}"))
}

/// `format % arguments`
pub(super) fn format(format: &Text, arguments: &Value) -> Res<Value> {
    // Flags and widths are looked at one by one.
    budget::chars(format.as_str().len())?;
    let mut out = Buffer::default();
    let mut source = Source::of(arguments);
    source.escapes = format.is_markup();
    let mut rest = format.as_str();
    while let Some((text, spec)) = rest.split_once('%') {
        out.push(text)?;
        rest = source.conversion(spec, &mut out)?;
    }
    out.push(rest)?;
    if !source.is_used_up() {
        return fail("not all arguments converted during string formatting");
    }
    Value::buffer(out).marked_if(format.is_markup())
}

/// Where a format's values come from.
struct Source<'a> {
    whole: &'a Value,
    items: &'a [Value],
    at: usize,
    by_name: bool,
    /// Whether what is put in is escaped, unless it is HTML.
    escapes: bool,
}

impl<'a> Source<'a> {
    fn of(arguments: &'a Value) -> Self {
        let items = match arguments {
            Value::Tuple(seq) => &seq.items[..],
            other => std::slice::from_ref(other),
        };
        Self {
            whole: arguments,
            items,
            at: 0,
            by_name: false,
            escapes: false,
        }
    }

    fn is_used_up(&self) -> bool {
        // A list and whatever else has items by key may be left over.
        let may_be_left = matches!(
            self.whole,
            Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_)
        );
        self.by_name || self.at >= self.items.len() || may_be_left
    }

    fn next(&mut self) -> Res<&'a Value> {
        let item = self.items.get(self.at);
        self.at += 1;
        item.ok_or_else(|| Fail::new("not enough arguments for format string"))
    }

    /// A number written in the format, or `*`.
    fn number<'f>(&mut self, rest: &'f str) -> Res<(Option<i128>, &'f str)> {
        if let Some(rest) = rest.strip_prefix('*') {
            return match self.next()?.as_int() {
                Some(number) => Ok((Some(number), rest)),
                None => fail("* wants int"),
            };
        }
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(end);
        match digits.parse() {
            _ if digits.is_empty() => Ok((None, rest)),
            Ok(number) => Ok((Some(number), rest)),
            Err(_) => fail("a width of a format is too large"),
        }
    }

    /// Writes the value of one `%`, and gives what follows it.
    fn conversion<'f>(&mut self, spec: &'f str, out: &mut Buffer) -> Res<&'f str> {
        let mut rest = spec;
        let mut named = None;
        if let Some(key) = rest.strip_prefix('(') {
            let mut open = 1;
            let end = key.char_indices().find(|(_, c)| {
                open += i32::from(*c == '(') - i32::from(*c == ')');
                open == 0
            });
            let Some((end, _)) = end else {
                return fail("incomplete format key");
            };
            let Value::Dict(dict) = self.whole else {
                return fail("format requires a mapping");
            };
            self.by_name = true;
            let value = dict.get(&Value::text(&key[..end])?)?;
            named = Some(
                value.ok_or_else(|| Fail::new(format!("KeyError: '{}'", Named(&key[..end]))))?,
            );
            rest = &key[end + 1..];
        }
        let mut layout = Layout::default();
        let mut is_zero = false;
        while let Some(flag) = rest.chars().next().filter(|c| "#0- +".contains(*c)) {
            match flag {
                '#' => layout.alternate = true,
                '0' => is_zero = true,
                '-' => layout.align = Some('<'),
                '+' => layout.sign = Some('+'),
                _ => layout.sign = layout.sign.or(Some(' ')),
            }
            rest = &rest[1..];
        }
        let (width, after) = self.number(rest)?;
        rest = after;
        let width = width.unwrap_or(0);
        if width < 0 {
            layout.align = Some('<');
        }
        layout.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = self.number(after)?;
            let precision = precision.unwrap_or(0).max(0);
            layout.precision = Some(usize::try_from(precision).unwrap_or(usize::MAX));
            rest = after;
        }
        rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let Some(kind) = rest.chars().next() else {
            return fail("incomplete format");
        };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push("%")?;
            return Ok(rest);
        }
        let value = match named {
            Some(value) => value,
            None => self.next()?,
        };
        if is_zero && layout.align.is_none() && !"srac".contains(kind) {
            (layout.fill, layout.align) = (Some('0'), Some('='));
        }
        self.write(value, kind, &layout, out)?;
        Ok(rest)
    }

    fn write(&self, value: &Value, kind: char, layout: &Layout, out: &mut Buffer) -> Res<()> {
        match kind {
            's' | 'r' | 'a' => {
                let mut text = Buffer::default();
                match (kind, value) {
                    ('s', value) => write_str(value, &mut text)?,
                    ('a', Value::Text(t)) => quoted(t.as_str(), true, &mut text)?,
                    (_, value) => write_repr(value, &mut text, 0)?,
                }
                let is_markup = matches!(value, Value::Text(t) if t.is_markup()) && kind == 's';
                if self.escapes && !is_markup {
                    let plain = std::mem::take(&mut text);
                    escape(plain.as_str(), &mut text)?;
                }
                write_text(text.as_str(), layout, '>', out)
            }
            'c' => match (value.as_text(), value.as_int()) {
                (Some(text), _) if text.chars().count() == 1 => layout.write("", text, '>', out),
                (None, Some(code)) => {
                    let c = u32::try_from(code).ok().and_then(char::from_u32);
                    let c = c.ok_or_else(|| Fail::new("%c arg not in range(0x110000)"))?;
                    layout.write("", &c.to_string(), '>', out)
                }
                _ => fail("%c requires int or char"),
            },
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                if layout.precision.is_some_and(|p| p > PRECISION_MAX) {
                    return fail(format!(
                        "a precision above {PRECISION_MAX} is not supported"
                    ));
                }
                let whole = match (kind, value) {
                    ('d' | 'i' | 'u', Value::Float(number)) => int_of_float(*number)?,
                    (_, Value::Undefined(message)) => return fail(&**message),
                    (_, value) => match value.as_int() {
                        Some(number) => number,
                        None => {
                            let name = value.type_name();
                            return fail(format!(
                                "%{kind} format: a number is required, not {name}"
                            ));
                        }
                    },
                };
                layout.integer(whole, kind, out)
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match (value, as_float(value)) {
                (_, Some(number)) => layout.float(number, kind, out),
                (Value::Undefined(message), _) => fail(&**message),
                _ => fail(format!("must be real number, not {}", value.type_name())),
            },
            other => fail(format!("unsupported format character '{other}'")),
        }
    }
}

/// A text, cut at its precision.
pub(super) fn write_text(text: &str, layout: &Layout, default: char, out: &mut Buffer) -> Res<()> {
    let text = match layout.precision {
        Some(most) => text
            .char_indices()
            .nth(most)
            .map_or(text, |(end, _)| &text[..end]),
        None => text,
    };
    layout.write("", text, default, out)
}

/// `int(number)`
pub(super) fn int_of_float(number: f64) -> Res<i128> {
    if number.is_nan() {
        return fail("cannot convert float NaN to integer");
    }
    if number.is_infinite() {
        return fail("cannot convert float infinity to integer");
    }
    if number.abs() >= 1.7e38 {
        return fail("a whole number has more than 127 bits");
    }
    Ok(number.trunc() as i128)
}
