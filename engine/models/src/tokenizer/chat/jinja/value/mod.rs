//! Python's values, as far as templates have them.
//!
//! Lists and dictionaries never change, as in jinja2's immutable sandbox. Only namespaces do.

mod dict;
mod objects;
mod seq;
mod text;

use std::rc::Rc;

use super::budget::{self, Charge};
use super::fail::{Res, fail};
pub(super) use dict::{Dict, View};
pub(super) use objects::{Cycler, Function, Joiner, Loop, Macro, Namespace};
pub(super) use seq::{Iter, Range, Seq};
pub(super) use text::{Message, Text};

/// Lists, tuples and dictionaries in each other.
const DEPTH_MAX: usize = 200;
/// Bytes that an entry takes in its dictionary, and a field in its namespace.
const ENTRY_BYTES: usize = 128;
/// Bytes that a value takes which is neither a text nor a list.
const OBJECT_BYTES: usize = 128;
/// Bytes of a name that are more than looking at it pays for.
const LONG_NAME: usize = 64;

#[derive(Clone)]
pub(super) enum Value {
    /// With what to say when it is used.
    Undefined(Rc<Message>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<Text>),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    Range(Rc<Range>),
    /// `dict.keys()` and its like.
    View(View, Rc<Dict>),
    /// What can be gone through once.
    Iterator(Rc<Iter>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    Function(Function),
    /// A method of a value.
    Method(Rc<(Value, &'static str, Charge)>),
}

/// The depth of what holds `values`.
fn depth_above<'a>(values: impl Iterator<Item = &'a Value>) -> Res<usize> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > DEPTH_MAX {
        return fail(format!("values are nested more than {DEPTH_MAX} deep"));
    }
    Ok(depth)
}

impl Value {
    /// A method of a value.
    pub(super) fn method(value: Self, method: &'static str) -> Res<Self> {
        let charge = Charge::new(OBJECT_BYTES)?;
        Ok(Self::Method(Rc::new((value, method, charge))))
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// A whole number, which truths are too.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(truth) => Some(i128::from(*truth)),
            _ => None,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(seq) | Self::Tuple(seq) => seq.depth,
            Self::Dict(dict) | Self::View(_, dict) => dict.depth,
            Self::Iterator(iter) => iter.depth,
            Self::Method(bound) => 1 + bound.0.depth(),
            Self::Cycler(cycler) => 1 + cycler.items.depth,
            Self::Joiner(joiner) => 1 + joiner.separator.depth(),
            Self::Loop(state) => 1 + state.items.depth,
            // What namespaces and functions hold is taken apart by itself.
            _ => 0,
        }
    }

    /// Python's name of its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(truth) => *truth,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.as_str().is_empty(),
            Self::List(seq) | Self::Tuple(seq) => !seq.items.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => !dict.entries().is_empty(),
            Self::Range(range) => range.len > 0,
            Self::Loop(state) => !state.items.items.is_empty(),
            _ => true,
        }
    }

    /// `len()`
    pub(super) fn len(&self) -> Res<usize> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::Text(text) => text.len(),
            Self::List(seq) | Self::Tuple(seq) => Ok(seq.items.len()),
            Self::Dict(dict) | Self::View(_, dict) => Ok(dict.entries().len()),
            Self::Range(range) => Ok(range.len),
            Self::Loop(state) => Ok(state.items.items.len()),
            other => fail(format!(
                "object of type '{}' has no len()",
                other.type_name()
            )),
        }
    }

    /// What going through it gives. It shares a list's elements.
    pub(super) fn items(&self) -> Res<Rc<Seq>> {
        let items = match self {
            Self::List(seq) | Self::Tuple(seq) => {
                // Whoever asks for them goes through them.
                budget::steps(seq.items.len())?;
                return Ok(seq.clone());
            }
            Self::Undefined(_) => Vec::new(),
            Self::Text(text) => {
                let text = text.as_str();
                budget::steps(text.len())?;
                let letters = text.chars().map(|c| Self::text(c.to_string()));
                letters.collect::<Res<_>>()?
            }
            Self::Dict(dict) | Self::View(View::Keys, dict) => {
                dict.entries().iter().map(|(key, _)| key.clone()).collect()
            }
            Self::View(View::Values, dict) => dict
                .entries()
                .iter()
                .map(|(_, value)| value.clone())
                .collect(),
            Self::View(View::Items, dict) => {
                budget::steps(dict.entries().len())?;
                let pairs = dict.entries().iter();
                let pairs = pairs.map(|(k, v)| Self::tuple(vec![k.clone(), v.clone()]));
                pairs.collect::<Res<_>>()?
            }
            Self::Range(range) => {
                budget::steps(range.len / 8)?;
                (0..range.len).map(|at| range.get(at)).collect()
            }
            Self::Iterator(iter) => Vec::from(iter.left.take()),
            other => return fail(format!("'{}' object is not iterable", other.type_name())),
        };
        Seq::new(items)
    }

    pub(super) fn is_iterable(&self) -> bool {
        matches!(
            self,
            Self::Undefined(_)
                | Self::Text(_)
                | Self::List(_)
                | Self::Tuple(_)
                | Self::Dict(_)
                | Self::View(..)
                | Self::Range(_)
                | Self::Iterator(_)
                | Self::Loop(_)
        )
    }

    pub(super) fn is_callable(&self) -> bool {
        matches!(
            self,
            Self::Undefined(_)
                | Self::Macro(_)
                | Self::Loop(_)
                | Self::Joiner(_)
                | Self::Function(_)
                | Self::Method(_)
        )
    }
}
