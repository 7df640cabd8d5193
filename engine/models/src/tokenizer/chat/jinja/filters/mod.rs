//! `value | filter`

mod lists;
mod numbers;
mod texts;

use super::args::{Arguments, truth};
use super::budget;
use super::fail::{Res, fail};
use super::value::Value;
use lists::lists;
use numbers::numbers;
use texts::{texts, to_json};

pub(super) use lists::sort_by;

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
    budget::filter(|| apply(name, value, args))
}

fn apply(name: &str, value: Value, args: Arguments) -> Res<Value> {
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
