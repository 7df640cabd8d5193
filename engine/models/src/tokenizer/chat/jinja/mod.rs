//! Jinja for chat templates: what jinja2 makes of a template in Python, within bounds.
//!
//! Templates of models are written for jinja2 as transformers sets it up, and lean on Python: its
//! texts' methods, its numbers, how its lists print. So the values here are Python's, and each
//! operator, filter, test and method is what Python has under that name
//! (`tests/golden/chat/snippets.json` has what jinja2 itself makes of some hundred of them).
//!
//! A template comes out of a file that somebody else made. Nothing that it says may take more time,
//! memory or stack than [`budget`] gives it: parsing is bounded by the source's length and by
//! nesting; evaluating pays a step for everything it looks at and a charge for everything it keeps,
//! before it is made; recursion is counted.
//!
//! What jinja2 has and this has not: loading other templates, `random`, `lipsum`, `urlize`,
//! `encode`, `translate`, automatic escaping, whole numbers of more than 127 bits.

mod args;
mod ast;
mod attributes;
mod budget;
mod chars;
mod eval;
mod fail;
mod filters;
mod lexer;
mod methods;
mod ops;
mod parser;
mod printf;
mod scope;
mod show;
mod strformat;
mod symbols;
mod tests;
mod value;

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::host::RenderHost;
pub(super) use ast::Template;
use fail::Res;
pub(super) use fail::{Fail, Why};
use value::{Dict, Value};

/// Parses a template.
pub(super) fn parse(source: &str) -> Result<Template, Fail> {
    let known = parser::Known {
        filter: filters::exists,
        test: tests::exists,
    };
    parser::parse(source, known)
}

/// What a template is rendered with.
pub(super) struct Input<'a> {
    /// Its variables, later ones before earlier ones of the same name.
    pub(super) variables: Vec<(&'a str, &'a Json)>,
    /// The variable `messages`, which comes before all others.
    pub(super) messages: &'a [Json],
    /// What `strftime_now` takes for now.
    pub(super) now: SystemTime,
    /// Who wants the text.
    pub(super) host: Option<Arc<dyn RenderHost>>,
}

/// Renders a template.
pub(super) fn render(template: &Template, input: &Input<'_>) -> Result<String, Fail> {
    budget::unlimited();
    let _hosted = input.host.clone().map(budget::Hosted::by);
    let mut bytes = 0;
    let mut variables = Vec::new();
    for (name, json) in &input.variables {
        variables.push(((*name).to_owned(), of_json(json, &mut bytes)?));
    }
    let messages = input.messages.iter().map(|m| of_json(m, &mut bytes));
    let messages = Value::list(messages.collect::<Res<_>>()?)?;
    variables.push(("messages".to_owned(), messages));
    budget::begin(bytes, input.messages.len());
    eval::render(template, variables, input.now)
}

/// A value, and the bytes of its texts and something for each of its parts.
fn of_json(json: &Json, bytes: &mut usize) -> Res<Value> {
    *bytes += 8;
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => {
            let whole = number
                .as_i64()
                .map(i128::from)
                .or(number.as_u64().map(i128::from));
            match whole {
                Some(whole) => Value::Int(whole),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            }
        }
        Json::String(text) => {
            *bytes += text.len();
            Value::text(text.as_str())?
        }
        Json::Array(items) => {
            let items = items.iter().map(|item| of_json(item, bytes));
            Value::list(items.collect::<Res<_>>()?)?
        }
        Json::Object(fields) => {
            let mut dict = Dict::new()?;
            for (key, value) in fields {
                *bytes += key.len();
                dict.insert(Value::text(key.as_str())?, of_json(value, bytes)?)?;
            }
            Value::Dict(dict.into())
        }
    })
}
