//! Arguments of calls, bound to names as Python does.

use super::budget::{self, Charge};
use super::fail::{Named, Res, fail};
use super::value::Value;

/// Bytes that an argument takes beside its value, and that a named one takes beside its name.
const ARGUMENT_BYTES: usize = 32;
const NAMED_BYTES: usize = 72;

/// The arguments of a call.
#[derive(Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
    charge: Charge,
}

impl Arguments {
    /// So many arguments, which are pushed next. They are paid and charged.
    pub(super) fn reserve(&mut self, count: usize) -> Res<()> {
        budget::steps(count / 4)?;
        self.charge.grow(count.saturating_mul(ARGUMENT_BYTES))?;
        self.positional.reserve(count);
        Ok(())
    }

    /// One more argument with a name.
    pub(super) fn push_named(&mut self, name: &str, value: Value) -> Res<()> {
        budget::bytes(name.len())?;
        self.charge.grow(NAMED_BYTES + name.len())?;
        self.named.push((name.to_owned(), value));
        Ok(())
    }

    /// The same again, for a filter that hands them on for each element.
    pub(super) fn copy(&self) -> Res<Self> {
        let mut copy = Self::default();
        copy.reserve(self.positional.len())?;
        copy.positional.extend_from_slice(&self.positional);
        for (name, value) in &self.named {
            copy.push_named(name, value.clone())?;
        }
        Ok(copy)
    }

    /// The arguments by the names of the parameters, of which the first few are required. A
    /// parameter whose name begins with a slash is known by its place alone.
    pub(super) fn bind<const N: usize>(
        self,
        function: &str,
        required: usize,
        names: [&str; N],
    ) -> Res<[Option<Value>; N]> {
        if self.positional.len() > N {
            return fail(format!(
                "{function}() takes at most {N} arguments, not {}",
                self.positional.len()
            ));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let Some(at) = names.iter().position(|n| *n == name) else {
                return fail(format!("{function}() has no parameter '{}'", Named(&name)));
            };
            if bound[at].replace(value).is_some() {
                return fail(format!("{function}() got '{}' twice", Named(&name)));
            }
        }
        if let Some(at) = bound[..required].iter().position(Option::is_none) {
            let name = names[at].trim_start_matches('/');
            return fail(format!("{function}() needs an argument '{name}'"));
        }
        Ok(bound)
    }

    /// No arguments at all.
    pub(super) fn none(self, function: &str) -> Res<()> {
        self.bind::<0>(function, 0, []).map(drop)
    }
}

/// A whole number, or `default` where there is none.
pub(super) fn int(value: Option<Value>, default: i128) -> Res<i128> {
    match value {
        None => Ok(default),
        Some(value) => value.as_int().map_or_else(
            || match value {
                Value::Undefined(message) => fail(&*message),
                other => fail(format!(
                    "'{}' object cannot be interpreted as an integer",
                    other.type_name()
                )),
            },
            Ok,
        ),
    }
}

/// Truth, or `default` where there is none.
pub(super) fn truth(value: Option<Value>, default: bool) -> bool {
    value.map_or(default, |v| v.is_true())
}

/// A text, which nothing else stands for.
pub(super) fn text(value: &Value) -> Res<&str> {
    match value.as_text() {
        Some(text) => Ok(text),
        None => fail(format!("expected a str, not '{}'", value.type_name())),
    }
}

/// A number of characters to make, 0 for less.
pub(super) fn width(value: Option<Value>, default: i128) -> Res<usize> {
    let width = int(value, default)?.max(0);
    Ok(usize::try_from(width).unwrap_or(usize::MAX))
}
