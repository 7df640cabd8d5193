//! A flag's value that must not be printed.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A text that is not shown where arguments are printed.
#[derive(Clone)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    /// Takes any text: a refusal here would print it.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
