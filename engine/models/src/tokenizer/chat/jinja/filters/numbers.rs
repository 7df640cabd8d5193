//! Filters that make numbers, or of lists one of their elements.

// Templates choose these numbers: what could overflow is checked, or meets a bound on purpose.
#![deny(clippy::arithmetic_side_effects)]

use std::cmp::Ordering;

use super::super::args::{Arguments, int, truth};
use super::super::budget;
use super::super::chars::is_space;
use super::super::fail::{Fail, Res, fail};
use super::super::methods;
use super::super::ops;
use super::super::printf::int_of_float;
use super::super::value::Value;
use super::lists::{Key, Path};

pub(super) fn numbers(name: &str, value: Value, args: Arguments) -> Res<Value> {
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
            best.map_or_else(
                || Value::undefined("No aggregated item, sequence was empty."),
                |(_, item)| Ok(item.clone()),
            )
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
        match super::super::chars::decimal(c) {
            Some(digit) => plain.push(char::from_digit(digit, 10)?),
            None if c == '_' => {
                let next_is_digit = letters
                    .peek()
                    .is_some_and(|c| super::super::chars::decimal(*c).is_some());
                if super::super::chars::decimal(before).is_none() || !next_is_digit {
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
        let digit = super::super::chars::decimal(c)
            .or_else(|| c.to_digit(36))
            .filter(|d| *d < base)?;
        was_digit = true;
        number = number
            .checked_mul(i128::from(base))?
            .checked_add(i128::from(digit))?;
    }
    match (was_digit, is_negative) {
        (true, true) => number.checked_neg(),
        (true, false) => Some(number),
        (false, _) => None,
    }
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
            None => round_float(number, precision).map(Value::Float),
        },
        Some(kind @ ("ceil" | "floor")) => {
            let scale = ops::binary(
                super::super::ast::Binary::Pow,
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
            ops::binary(super::super::ast::Binary::Div, &Value::Int(whole), &scale)
        }
        _ => fail("method must be common, ceil or floor"),
    }
}

fn methods_mul(a: &Value, b: &Value) -> Res<Value> {
    ops::binary(super::super::ast::Binary::Mul, a, b)
}

fn round_int(number: i128, precision: i128) -> Res<Value> {
    if precision >= 0 {
        return Ok(Value::Int(number));
    }
    let Some(unit) = precision
        .checked_neg()
        .and_then(|digits| u32::try_from(digits).ok())
        .and_then(|digits| 10_i128.checked_pow(digits))
    else {
        return Ok(Value::Int(0));
    };
    let (down, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let up = match rest.cmp(&unit.saturating_sub(rest)) {
        Ordering::Less => 0,
        Ordering::Greater => 1,
        Ordering::Equal => down.rem_euclid(2),
    };
    Ok(Value::Int(down.saturating_add(up).saturating_mul(unit)))
}

/// To the nearest number of so many decimals, to the even one of two.
fn round_float(number: f64, precision: i128) -> Res<f64> {
    if !number.is_finite() || precision > 330 {
        return Ok(number);
    }
    if let Ok(digits) = usize::try_from(precision) {
        budget::steps(digits)?;
        // Exact digits are rounded to the nearest, ties to even.
        return Ok(format!("{number:.digits$}").parse().unwrap_or(number));
    }
    // The largest number has 309 digits before the point. Exact digits again, all there are.
    let zero = 0.0_f64.copysign(number);
    let kept = match usize::try_from(precision.unsigned_abs()) {
        Ok(zeros) if zeros < 309 => zeros,
        _ => return Ok(zero),
    };
    // Their exponents are negative.
    if number.abs() < 1.0 {
        return Ok(zero);
    }
    budget::steps(DIGITS_MAX / 8)?;
    let exact = format!("{:.DIGITS_MAX$e}", number.abs());
    let (digits, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
    let exponent = exponent.parse::<usize>().unwrap_or(0);
    let rounded = match exponent.checked_sub(kept) {
        Some(decimals) => format!("{number:.decimals$e}").parse().unwrap_or(number),
        // Above a half of the last digit that is left.
        None if exponent.saturating_add(1) == kept && is_above_half(digits) => {
            let unit: f64 = format!("1e{kept}").parse().unwrap_or(f64::INFINITY);
            unit.copysign(number)
        }
        None => zero,
    };
    if rounded.is_infinite() {
        return fail("rounded value too large to represent");
    }
    Ok(rounded)
}

/// Digits of the number that has the most, in all.
const DIGITS_MAX: usize = 770;

/// Whether `d.ddd` is above 5.
fn is_above_half(digits: &str) -> bool {
    let above = digits.starts_with(['6', '7', '8', '9']);
    above || digits.starts_with('5') && digits.bytes().skip(2).any(|digit| digit != b'0')
}
