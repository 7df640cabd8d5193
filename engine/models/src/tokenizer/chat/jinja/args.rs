//! Arguments of calls, bound to names as Python does.

use super::fail::{Res, fail};
use super::value::Value;

/// The arguments of a call.
#[derive(Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Arguments {
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
                return fail(format!("{function}() has no parameter '{name}'"));
            };
            if bound[at].replace(value).is_some() {
                return fail(format!("{function}() got '{name}' twice"));
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
