//! Methods of Python's texts, lists and dictionaries, and of jinja2's own objects.

mod case;
mod parts;
mod texts;

use std::rc::Rc;

use super::args::{Arguments, int};
use super::fail::{Fail, Res, fail};
use super::ops::{self, equal};
use super::value::{Dict, Value, View};
pub(super) use case::is_kind;
pub(super) use parts::{justify, lines, replace, strip};
use texts::text_method;

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

/// `sum` of two values, for filters.
pub(super) fn add(a: &Value, b: &Value) -> Res<Value> {
    ops::binary(super::ast::Binary::Add, a, b)
}
