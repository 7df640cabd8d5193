//! `value is test`

use super::args::Arguments;
use super::ast::Compare;
use super::budget::{self, Buffer};
use super::fail::{Res, fail};
use super::ops::{self, compare};
use super::show::write_str;
use super::value::Value;
use super::{filters, methods};

/// Whether there is such a test.
pub(super) fn exists(name: &str) -> bool {
    matches!(
        name,
        "odd"
            | "even"
            | "divisibleby"
            | "defined"
            | "undefined"
            | "filter"
            | "test"
            | "none"
            | "boolean"
            | "false"
            | "true"
            | "integer"
            | "float"
            | "lower"
            | "upper"
            | "string"
            | "mapping"
            | "number"
            | "sequence"
            | "iterable"
            | "callable"
            | "sameas"
            | "escaped"
    ) || comparison(name).is_some()
}

fn comparison(name: &str) -> Option<Compare> {
    Some(match name {
        "==" | "eq" | "equalto" => Compare::Eq,
        "!=" | "ne" => Compare::Ne,
        ">" | "gt" | "greaterthan" => Compare::Gt,
        ">=" | "ge" => Compare::Ge,
        "<" | "lt" | "lessthan" => Compare::Lt,
        "<=" | "le" => Compare::Le,
        "in" => Compare::In,
        _ => return None,
    })
}

/// Tests a value.
pub(super) fn call(name: &str, value: &Value, args: Arguments) -> Res<bool> {
    if let Some(op) = comparison(name) {
        let [other] = args.bind(name, 1, [if name == "in" { "seq" } else { "/other" }])?;
        return compare(op, value, &other.unwrap_or(Value::None));
    }
    match name {
        "divisibleby" => {
            let [number] = args.bind(name, 1, ["num"])?;
            return remainder_is(value, &number.unwrap_or(Value::None), 0);
        }
        "sameas" => {
            let [other] = args.bind(name, 1, ["other"])?;
            return ops::identical(value, &other.unwrap_or(Value::None));
        }
        _ => args.none(name)?,
    }
    Ok(match name {
        "odd" => remainder_is(value, &Value::Int(2), 1)?,
        "even" => remainder_is(value, &Value::Int(2), 0)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" | "test" => {
            ops::hash(value)?;
            let exists = if name == "filter" {
                filters::exists
            } else {
                exists
            };
            value.as_text().is_some_and(exists)
        }
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        ),
        "iterable" => value.is_iterable(),
        "callable" => value.is_callable(),
        "escaped" => matches!(value, Value::Text(t) if t.is_markup()),
        "lower" | "upper" => {
            let mut text = Buffer::default();
            write_str(value, &mut text)?;
            budget::chars(text.as_str().len())?;
            methods::is_kind(
                text.as_str(),
                if name == "lower" {
                    "islower"
                } else {
                    "isupper"
                },
            )
        }
        _ => return fail(format!("there is no test `{name}`")),
    })
}

fn remainder_is(value: &Value, by: &Value, wanted: i128) -> Res<bool> {
    let rest = ops::binary(super::ast::Binary::Mod, value, by)?;
    ops::equal(&rest, &Value::Int(wanted))
}
