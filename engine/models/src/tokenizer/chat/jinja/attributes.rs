//! `value.name` and `value[key]`, by the rules of jinja2's immutable sandbox.

use super::fail::{Named, Res, fail};
use super::ops;
use super::show;
use super::value::{Seq, Value};

const TEXT_METHODS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const DICT_METHODS: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const SEQ_METHODS: &[&str] = &["count", "index"];
const LOOP_METHODS: &[&str] = &["changed", "cycle"];
const CYCLER_METHODS: &[&str] = &["next", "reset"];
const INT_METHODS: &[&str] = &[
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "is_integer",
];
const FLOAT_METHODS: &[&str] = &["conjugate", "is_integer"];

/// What changes a list or a dictionary, which the sandbox keeps from templates.
const LIST_CHANGES: &[&str] = &[
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];
const DICT_CHANGES: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];

fn unsafe_attribute(value: &Value, name: &str) -> Res<Value> {
    let (name, type_name) = (Named(name), value.type_name());
    Value::undefined(format!(
        "access to attribute '{name}' of '{type_name}' object is unsafe."
    ))
}

fn missing(value: &Value, name: &str) -> Res<Value> {
    Value::undefined(format!(
        "'{} object' has no attribute '{}'",
        value.type_name(),
        Named(name)
    ))
}

/// Python's own attribute of a value, if it has it.
fn own(value: &Value, name: &str) -> Res<Option<Value>> {
    let method = |names: &[&'static str]| {
        let found = names.iter().find(|n| **n == name);
        let method = found.map(|n| Value::method(value.clone(), n));
        method.transpose()
    };
    let refused = || unsafe_attribute(value, name).map(Some);
    let found = match value {
        Value::Undefined(message) if !name.starts_with("__") => return fail(&**message),
        _ if name.starts_with("__") && name.ends_with("__") => {
            const KNOWN: [&str; 12] = [
                "__class__",
                "__dict__",
                "__doc__",
                "__init__",
                "__len__",
                "__getitem__",
                "__iter__",
                "__str__",
                "__repr__",
                "__eq__",
                "__hash__",
                "__add__",
            ];
            match KNOWN.contains(&name) {
                true => refused()?,
                false => None,
            }
        }
        Value::Text(_) => method(TEXT_METHODS)?,
        Value::Dict(_) if DICT_CHANGES.contains(&name) => refused()?,
        Value::Dict(_) => method(DICT_METHODS)?,
        Value::List(_) if LIST_CHANGES.contains(&name) => refused()?,
        Value::List(_) if name == "copy" => method(&["copy"])?,
        Value::List(_) => method(SEQ_METHODS)?,
        Value::Tuple(seq) if seq.is_group && name == "grouper" => seq.items.first().cloned(),
        Value::Tuple(seq) if seq.is_group && name == "list" => seq.items.get(1).cloned(),
        Value::Tuple(_) => method(SEQ_METHODS)?,
        Value::Range(range) => match name {
            "start" => Some(Value::Int(range.start)),
            "stop" => Some(Value::Int(range.stop)),
            "step" => Some(Value::Int(range.step)),
            _ => method(SEQ_METHODS)?,
        },
        Value::Int(_) | Value::Bool(_) => match name {
            "real" | "numerator" => value.as_int().map(Value::Int),
            "imag" => Some(Value::Int(0)),
            "denominator" => Some(Value::Int(1)),
            _ => method(INT_METHODS)?,
        },
        Value::Float(_) => match name {
            "real" => Some(value.clone()),
            "imag" => Some(Value::Float(0.0)),
            _ => method(FLOAT_METHODS)?,
        },
        Value::Namespace(namespace) => match namespace.get(name)? {
            Some(_) if name.starts_with('_') => refused()?,
            found => found,
        },
        Value::Loop(state) => {
            let (at, len) = (state.index.get(), state.items.items.len());
            let int = |number: usize| Some(Value::Int(number as i128));
            let item = |at: Option<usize>, message: &'static str| {
                let item = at.and_then(|at| state.items.items.get(at).cloned());
                item.map_or_else(|| Value::undefined(message), Ok).map(Some)
            };
            match name {
                "index" => int(at + 1),
                "index0" => int(at),
                "revindex" => int(len.saturating_sub(at)),
                "revindex0" => int(len.saturating_sub(at + 1)),
                "first" => Some(Value::Bool(at == 0)),
                "last" => Some(Value::Bool(at + 1 >= len)),
                "length" => int(len),
                "depth" => int(state.depth + 1),
                "depth0" => int(state.depth),
                "previtem" => item(at.checked_sub(1), "there is no previous item")?,
                "nextitem" => item(Some(at + 1), "there is no next item")?,
                _ => method(LOOP_METHODS)?,
            }
        }
        Value::Cycler(cycler) => match name {
            "current" => cycler.items.items.get(cycler.at.get()).cloned(),
            "items" => Some(Value::Tuple(cycler.items.clone())),
            "pos" => Some(Value::Int(cycler.at.get() as i128)),
            _ => method(CYCLER_METHODS)?,
        },
        Value::Joiner(joiner) => match name {
            "sep" => Some(joiner.separator.clone()),
            "used" => Some(Value::Bool(joiner.used.get())),
            _ => None,
        },
        Value::Macro(function) => match name {
            "name" => Some(match &function.name {
                Some(name) => Value::text(&**name)?,
                None => Value::None,
            }),
            "catch_kwargs" => Some(Value::Bool(function.definition.kwargs)),
            "catch_varargs" => Some(Value::Bool(function.definition.varargs)),
            "caller" => Some(Value::Bool(function.definition.caller)),
            _ => None,
        },
        _ => None,
    };
    Ok(found)
}

/// The element of a key, if there is one.
fn element(value: &Value, key: &Value) -> Res<Option<Value>> {
    let at = |len: usize| {
        let index = key.as_int()?;
        let index = if index < 0 {
            index + len as i128
        } else {
            index
        };
        usize::try_from(index).ok().filter(|&index| index < len)
    };
    Ok(match value {
        Value::Undefined(message) => return fail(&**message),
        // What cannot be a key has no element.
        Value::Dict(dict) => match ops::hash(key) {
            Ok(_) => dict.get(key)?.cloned(),
            Err(error) if error.is_limit() => return Err(error),
            Err(_) => None,
        },
        Value::List(seq) | Value::Tuple(seq) => element_of(seq, at(seq.items.len())),
        Value::Range(range) => at(range.len).map(|at| range.get(at)),
        Value::Text(text) => match at(text.len()?) {
            Some(at) if text.is_ascii() => {
                Some(Value::text(&text.as_str()[at..=at])?.marked_if(text.is_markup())?)
            }
            Some(at) => match text.as_str().chars().nth(at) {
                Some(c) => {
                    super::budget::chars(text.as_str().len())?;
                    Some(Value::text(c)?.marked_if(text.is_markup())?)
                }
                None => None,
            },
            None => None,
        },
        _ => None,
    })
}

fn element_of(seq: &Seq, at: Option<usize>) -> Option<Value> {
    seq.items.get(at?).cloned()
}

/// `value.name`
pub(super) fn attribute(value: &Value, name: &str) -> Res<Value> {
    if let Some(found) = own(value, name)? {
        return Ok(found);
    }
    if let Value::Undefined(message) = value {
        return fail(&**message);
    }
    if let Value::Dict(dict) = value
        && let Some(found) = dict.get_text(name)?
    {
        return Ok(found.clone());
    }
    missing(value, name)
}

/// Whether `value` has an attribute that is not an element.
pub(super) fn own_attribute(value: &Value, name: &str) -> Res<Value> {
    own(value, name)?.map_or_else(|| missing(value, name), Ok)
}

/// `value[key]`
pub(super) fn item(value: &Value, key: &Value) -> Res<Value> {
    if let Some(found) = element(value, key)? {
        return Ok(found);
    }
    let Some(name) = key.as_text() else {
        let type_name = value.type_name();
        let mut shown = super::budget::Buffer::default();
        show::write_repr(key, &mut shown, 0)?;
        let shown = Named(shown.as_str());
        return Value::undefined(format!("{type_name} object has no element {shown}"));
    };
    own_attribute(value, name)
}
