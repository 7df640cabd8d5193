//! Python's operators.

// Templates choose these numbers: what could overflow is checked, or meets a bound on purpose.
#![deny(clippy::arithmetic_side_effects)]

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::LazyLock;

use super::ast::{Binary, Compare};
use super::budget::{self, Buffer};
use super::fail::{Fail, Res, fail};
use super::printf;
use super::show::{escape, float_of_int, type_error};
use super::value::{Range, Seq, Value, View};

static HASHES: LazyLock<std::hash::RandomState> = LazyLock::new(Default::default);

/// `hash()`: the same for equal values.
pub(super) fn hash(value: &Value) -> Res<u64> {
    let mut hasher = HASHES.build_hasher();
    hash_into(value, &mut hasher)?;
    Ok(hasher.finish())
}

fn hash_into(value: &Value, hasher: &mut impl Hasher) -> Res<()> {
    budget::steps(1)?;
    match value {
        Value::Undefined(_) => 1_u8.hash(hasher),
        Value::None => 2_u8.hash(hasher),
        Value::Bool(_) | Value::Int(_) => (3_u8, value.as_int()).hash(hasher),
        Value::Float(number) => {
            let whole = *number as i128;
            if float_of_int(whole) == *number {
                (3_u8, Some(whole)).hash(hasher);
            } else {
                (4_u8, number.to_bits()).hash(hasher);
            }
        }
        Value::Text(text) => {
            budget::bytes(text.as_str().len())?;
            (5_u8, text.as_str()).hash(hasher);
        }
        Value::Tuple(seq) => {
            (6_u8, seq.items.len()).hash(hasher);
            for item in &seq.items {
                hash_into(item, hasher)?;
            }
        }
        Value::List(_) | Value::Dict(_) | Value::View(..) => {
            return fail(format!("unhashable type: '{}'", value.type_name()));
        }
        // By identity, which equality looks at.
        _ => 7_u8.hash(hasher),
    }
    Ok(())
}

/// `a is b`, where values that are the same number or text are taken for the same.
pub(super) fn identical(a: &Value, b: &Value) -> Res<bool> {
    budget::steps(1)?;
    Ok(match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => same_text(a.as_str(), b.as_str())?,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Iterator(a), Value::Iterator(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Cycler(a), Value::Cycler(b)) => Rc::ptr_eq(a, b),
        (Value::Joiner(a), Value::Joiner(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Undefined(a), Value::Undefined(b)) => Rc::ptr_eq(a, b),
        _ => false,
    })
}

fn same_text(a: &str, b: &str) -> Res<bool> {
    if a.len() == b.len() {
        budget::bytes(a.len())?;
    }
    Ok(a == b)
}

fn equal_items(a: &[Value], b: &[Value]) -> Res<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (a, b) in a.iter().zip(b) {
        if !equal(a, b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `a == b`
pub(super) fn equal(a: &Value, b: &Value) -> Res<bool> {
    budget::steps(1)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) => true,
        (Value::Text(a), Value::Text(b)) => same_text(a.as_str(), b.as_str())?,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            equal_items(&a.items, &b.items)?
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries().len() != b.entries().len() {
                return Ok(false);
            }
            for (key, value) in a.entries() {
                match b.get(key)? {
                    Some(other) if equal(value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len == b.len
                && (a.len == 0 || (a.start == b.start && (a.len == 1 || a.step == b.step)))
        }
        _ => match number_order(a, b) {
            Some(order) => order == Some(Ordering::Equal),
            None => identical(a, b)?,
        },
    })
}

/// The order of two numbers, `Some(None)` beside what is not a number.
fn number_order(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Some(Some(a.cmp(&b)));
    }
    let order = match (a, b) {
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Float(a), b) => int_order(b.as_int()?, *a).map(Ordering::reverse),
        (a, Value::Float(b)) => int_order(a.as_int()?, *b),
        _ => return None,
    };
    Some(order)
}

/// The order of a whole number and another, exactly.
fn int_order(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    if b >= 1.7e38 {
        return Some(Ordering::Less);
    }
    if b <= -1.7e38 {
        return Some(Ordering::Greater);
    }
    let whole = b.trunc();
    let order = a.cmp(&(whole as i128));
    Some(order.then(if b > whole {
        Ordering::Less
    } else if b < whole {
        Ordering::Greater
    } else {
        Ordering::Equal
    }))
}

/// The order of two values, `None` where each comparison is false.
pub(super) fn order(op: &str, a: &Value, b: &Value) -> Res<Option<Ordering>> {
    budget::steps(1)?;
    for value in [a, b] {
        if let Value::Undefined(message) = value {
            return fail(&**message);
        }
    }
    if let Some(order) = number_order(a, b) {
        return Ok(order);
    }
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            budget::bytes(a.as_str().len().min(b.as_str().len()))?;
            Ok(Some(a.as_str().cmp(b.as_str())))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (x, y) in a.items.iter().zip(&b.items) {
                if !equal(x, y)? {
                    return order(op, x, y);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => fail(format!(
            "'{op}' not supported between instances of '{}' and '{}'",
            a.type_name(),
            b.type_name()
        )),
    }
}

pub(super) fn compare(op: Compare, a: &Value, b: &Value) -> Res<bool> {
    Ok(match op {
        Compare::Eq => equal(a, b)?,
        Compare::Ne => !equal(a, b)?,
        Compare::Lt => order("<", a, b)? == Some(Ordering::Less),
        Compare::Gt => order(">", a, b)? == Some(Ordering::Greater),
        Compare::Le => order("<=", a, b)?.is_some_and(Ordering::is_le),
        Compare::Ge => order(">=", a, b)?.is_some_and(Ordering::is_ge),
        Compare::In => contains(b, a)?,
        Compare::NotIn => !contains(b, a)?,
    })
}

/// `item in all`
pub(super) fn contains(all: &Value, item: &Value) -> Res<bool> {
    match all {
        Value::Text(text) => match item.as_text() {
            Some(part) => {
                budget::bytes(text.as_str().len())?;
                Ok(text.as_str().contains(part))
            }
            None => fail(format!(
                "'in <string>' requires string as left operand, not {}",
                item.type_name()
            )),
        },
        Value::Dict(dict) | Value::View(View::Keys, dict) => Ok(dict.get(item)?.is_some()),
        Value::Range(range) => Ok(match number_as_int(item) {
            // A number so far away that the distance is none of ours is not in it.
            Some(number) => number.checked_sub(range.start).is_some_and(|offset| {
                let at = offset.checked_div(range.step);
                offset.checked_rem(range.step) == Some(0)
                    && at.is_some_and(|at| (0..range.len as i128).contains(&at))
            }),
            None => false,
        }),
        Value::Iterator(iter) => loop {
            let Some(next) = iter.next() else {
                return Ok(false);
            };
            if equal(&next, item)? {
                return Ok(true);
            }
        },
        other if other.is_iterable() => {
            for value in &other.items()?.items {
                if equal(value, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => fail(format!(
            "argument of type '{}' is not iterable",
            other.type_name()
        )),
    }
}

fn number_as_int(value: &Value) -> Option<i128> {
    match value {
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e30 => Some(*f as i128),
        other => other.as_int(),
    }
}

fn too_large() -> Fail {
    Fail::new("a whole number has more than 127 bits")
}

pub(super) fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        other => other.as_int().map(float_of_int),
    }
}

pub(super) fn binary(op: Binary, a: &Value, b: &Value) -> Res<Value> {
    budget::steps(1)?;
    for value in [a, b] {
        if let Value::Undefined(message) = value
            // A text's own `%` comes first, and prints it.
            && !(op == Binary::Mod && a.as_text().is_some())
        {
            return fail(&**message);
        }
    }
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        return integers(op, x, y);
    }
    if let (Some(x), Some(y)) = (as_float(a), as_float(b)) {
        return floats(op, x, y);
    }
    match (op, a, b) {
        (Binary::Add, Value::Text(x), Value::Text(y)) => {
            let is_markup = x.is_markup() || y.is_markup();
            let mut sum = Buffer::default();
            for part in [x, y] {
                match is_markup && !part.is_markup() {
                    true => escape(part.as_str(), &mut sum)?,
                    false => sum.push(part.as_str())?,
                }
            }
            Value::buffer(sum).marked_if(is_markup)
        }
        (Binary::Add, Value::List(x), Value::List(y)) => joined(x, y).map(Value::List),
        (Binary::Add, Value::Tuple(x), Value::Tuple(y)) => joined(x, y).map(Value::Tuple),
        (Binary::Mul, x, y) => match (x.as_int(), y.as_int()) {
            (None, Some(times)) => repeated(x, times, || type_error("*", a, b)),
            (Some(times), None) => repeated(y, times, || type_error("*", a, b)),
            _ => Err(type_error("*", a, b)),
        },
        (Binary::Mod, Value::Text(format), arguments) => printf::format(format, arguments),
        (op, a, b) => Err(type_error(symbol(op), a, b)),
    }
}

fn symbol(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        Binary::FloorDiv => "//",
        Binary::Mod => "%",
        Binary::Pow => "** or pow()",
    }
}

fn joined(x: &Seq, y: &Seq) -> Res<Rc<Seq>> {
    let len = x.items.len().saturating_add(y.items.len());
    reserve(len)?;
    let mut items = Vec::with_capacity(len);
    items.extend_from_slice(&x.items);
    items.extend_from_slice(&y.items);
    Seq::new(items)
}

/// Refuses a list of so many elements before it is made, if it is too long.
pub(super) fn reserve(len: usize) -> Res<()> {
    budget::steps(len / 4)?;
    budget::Charge::new(len.saturating_mul(48)).map(drop)
}

fn repeated(value: &Value, times: i128, wrong: impl FnOnce() -> Fail) -> Res<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Text(text) => {
            let bytes = text.as_str().len().saturating_mul(times);
            budget::text(bytes)?;
            budget::bytes(bytes)?;
            let repeated = match bytes {
                0 => String::new(),
                _ => text.as_str().repeat(times),
            };
            Value::text(repeated)?.marked_if(text.is_markup())
        }
        Value::List(seq) | Value::Tuple(seq) => {
            let len = seq.items.len().saturating_mul(times);
            reserve(len)?;
            let mut items = Vec::with_capacity(len);
            if len > 0 {
                for _ in 0..times {
                    items.extend_from_slice(&seq.items);
                }
            }
            let seq = Seq::new(items)?;
            Ok(match value {
                Value::List(_) => Value::List(seq),
                _ => Value::Tuple(seq),
            })
        }
        _ => Err(wrong()),
    }
}

fn integers(op: Binary, x: i128, y: i128) -> Res<Value> {
    let zero = || Fail::new("division by zero");
    let result = match op {
        Binary::Add => x.checked_add(y),
        Binary::Sub => x.checked_sub(y),
        Binary::Mul => x.checked_mul(y),
        Binary::Div => {
            if y == 0 {
                return Err(zero());
            }
            return Ok(Value::Float(float_of_int(x) / float_of_int(y)));
        }
        Binary::FloorDiv | Binary::Mod if y == 0 => return Err(zero()),
        Binary::FloorDiv => x
            .checked_div(y)
            .zip(x.checked_rem(y))
            .and_then(|(q, r)| q.checked_sub(i128::from(r != 0 && (x < 0) != (y < 0)))),
        Binary::Mod => x.checked_rem(y).and_then(|r| {
            if r != 0 && (r < 0) != (y < 0) {
                r.checked_add(y)
            } else {
                Some(r)
            }
        }),
        Binary::Pow if y < 0 => {
            if x == 0 {
                return fail("zero to a negative power");
            }
            return Ok(Value::Float(float_of_int(x).powf(float_of_int(y))));
        }
        Binary::Pow => match u32::try_from(y) {
            Ok(y) => x.checked_pow(y),
            Err(_) if x == 0 || x == 1 => Some(x),
            Err(_) if x == -1 => Some(if y % 2 == 0 { 1 } else { -1 }),
            Err(_) => None,
        },
    };
    result.map(Value::Int).ok_or_else(too_large)
}

fn floats(op: Binary, x: f64, y: f64) -> Res<Value> {
    if matches!(op, Binary::Div | Binary::FloorDiv | Binary::Mod) && y == 0.0 {
        return fail("float division by zero");
    }
    let modulo = || {
        let rest = x % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
            rest + y
        } else if rest == 0.0 {
            0.0_f64.copysign(y)
        } else {
            rest
        }
    };
    let result = match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::FloorDiv => {
            let quotient = (x - modulo()) / y;
            let floor = quotient.floor();
            if quotient - floor > 0.5 {
                floor + 1.0
            } else {
                floor
            }
        }
        Binary::Mod => modulo(),
        Binary::Pow => {
            if x == 0.0 && y < 0.0 {
                return fail("zero to a negative power");
            }
            let power = x.powf(y);
            if power.is_infinite() && x.is_finite() && y.is_finite() {
                return fail("the result of ** is too large");
            }
            if power.is_nan() && !x.is_nan() && !y.is_nan() {
                return fail("complex numbers are not supported");
            }
            power
        }
    };
    Ok(Value::Float(result))
}

/// `-value` and `+value`
pub(super) fn signed(value: &Value, is_minus: bool) -> Res<Value> {
    if let Value::Undefined(message) = value {
        return fail(&**message);
    }
    match (value, value.as_int()) {
        (Value::Float(number), _) => Ok(Value::Float(if is_minus { -number } else { *number })),
        (_, Some(number)) if is_minus => number.checked_neg().map(Value::Int).ok_or_else(too_large),
        (_, Some(number)) => Ok(Value::Int(number)),
        _ => fail(format!(
            "bad operand type for unary sign: '{}'",
            value.type_name()
        )),
    }
}

/// How many numbers there are from `start` to before `stop`.
pub(super) fn numbers_between(start: i128, stop: i128, step: i128) -> i128 {
    let (from, to) = if step > 0 {
        (start, stop)
    } else {
        (stop, start)
    };
    let last = to.saturating_sub(from).saturating_sub(1);
    let steps = last.checked_div(step.saturating_abs());
    steps
        .filter(|_| last >= 0)
        .map_or(0, |n| n.saturating_add(1))
}

/// A slice's elements: first, step and number.
fn slice_bounds(len: usize, parts: &[Option<Value>; 3]) -> Res<(i128, i128, usize)> {
    let part = |at: usize| match &parts[at] {
        None | Some(Value::None) => Ok(None),
        Some(Value::Undefined(message)) => fail(&**message),
        Some(value) => match value.as_int() {
            Some(number) => Ok(Some(number)),
            None => fail("slice indices must be integers or None"),
        },
    };
    let len = len as i128;
    let step = part(2)?.unwrap_or(1).clamp(-(1 << 64), 1 << 64);
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    let (lowest, highest) = if step > 0 {
        (0, len)
    } else {
        (-1, len.saturating_sub(1))
    };
    let clamp = |number: i128| {
        let number = if number < 0 {
            number.saturating_add(len)
        } else {
            number
        };
        number.clamp(lowest, highest)
    };
    let start = part(0)?.map_or(if step > 0 { lowest } else { highest }, clamp);
    let stop = part(1)?.map_or(if step > 0 { highest } else { lowest }, clamp);
    let count = numbers_between(start, stop, step);
    Ok((start, step, usize::try_from(count).unwrap_or(usize::MAX)))
}

/// `value[from:to:step]`
pub(super) fn slice(value: &Value, parts: &[Option<Value>; 3]) -> Res<Value> {
    let indices = |(start, step, count): (i128, i128, usize)| {
        let offset = move |at: usize| step.saturating_mul(at as i128);
        (0..count).map(move |at| start.saturating_add(offset(at)) as usize)
    };
    match value {
        Value::Undefined(message) => fail(&**message),
        Value::Text(text) => {
            let bounds = slice_bounds(text.len()?, parts)?;
            let (start, step, count) = bounds;
            let text_of = |range: &str| Value::text(range)?.marked_if(text.is_markup());
            if text.is_ascii() && (step == 1 || count <= 1) {
                let start = start.max(0) as usize;
                let part = text.as_str().get(start..start.saturating_add(count));
                return text_of(part.unwrap_or_default());
            }
            if step == 1 {
                let mut ends = text
                    .as_str()
                    .char_indices()
                    .map(|(at, _)| at)
                    .skip(start as usize);
                budget::chars(text.as_str().len())?;
                let Some(from) = ends.next().filter(|_| count > 0) else {
                    return text_of("");
                };
                let to = ends
                    .nth(count.saturating_sub(1))
                    .unwrap_or(text.as_str().len());
                return text_of(&text.as_str()[from..to]);
            }
            budget::steps(text.as_str().len())?;
            let _held = budget::Charge::new(text.as_str().len().saturating_mul(4))?;
            let letters: Vec<char> = text.as_str().chars().collect();
            let letters: String = indices(bounds).filter_map(|at| letters.get(at)).collect();
            text_of(&letters)
        }
        Value::List(seq) | Value::Tuple(seq) => {
            let bounds = slice_bounds(seq.items.len(), parts)?;
            reserve(bounds.2)?;
            let items = indices(bounds)
                .filter_map(|at| seq.items.get(at).cloned())
                .collect();
            let part = Seq::new(items)?;
            Ok(match value {
                Value::List(_) => Value::List(part),
                _ => Value::Tuple(part),
            })
        }
        Value::Range(range) => {
            let (start, step, len) = slice_bounds(range.len, parts)?;
            let at = |index: i128| {
                let offset = range.step.checked_mul(index);
                let number = offset.and_then(|offset| range.start.checked_add(offset));
                number.ok_or_else(too_large)
            };
            let behind = step.checked_mul(len as i128);
            let behind = behind.and_then(|all| start.checked_add(all));
            let step = range.step.checked_mul(step).ok_or_else(too_large)?;
            Range::value(at(start)?, step, len, at(behind.ok_or_else(too_large)?)?)
        }
        other => fail(format!("'{}' object cannot be sliced", other.type_name())),
    }
}
