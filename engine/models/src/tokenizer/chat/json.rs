//! `tojson` as Hugging Face defines it: Python's `json.dumps` with `ensure_ascii=False`.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

/// The widest indentation accepted.
const INDENT_MAX: usize = 32;

/// The filter. Python's spacing by default; `indent` and `separators` as there.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => Some((text(&pair, 0)?, text(&pair, 1)?)),
        _ => None,
    };
    // What this filter always does.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if value.is_undefined() {
        let message = "tojson was given something that is not defined";
        return Err(Error::new(ErrorKind::UndefinedError, message));
    }

    let mut out = Vec::new();
    let written = match (indent, separators) {
        (Some(indent), None) if indent <= INDENT_MAX => {
            let indent = " ".repeat(indent);
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
        (Some(_), _) => {
            let message =
                format!("tojson takes an indent of at most {INDENT_MAX}, without separators");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        (None, separators) => {
            let (item, key) = separators.unwrap_or_else(|| (", ".to_owned(), ": ".to_owned()));
            let formatter = Python { item, key };
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    let fail = |e: String| Error::new(ErrorKind::BadSerialization, e);
    written.map_err(|e| fail(e.to_string()))?;
    String::from_utf8(out).map_err(|e| fail(e.to_string()))
}

fn text(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    let wrong = || Error::new(ErrorKind::InvalidOperation, "separators must be two texts");
    item.as_str().map(str::to_owned).ok_or_else(wrong)
}

/// One line, with these separators.
struct Python {
    item: String,
    key: String,
}

impl Python {
    fn separate<W: ?Sized + Write>(&self, writer: &mut W, first: bool) -> io::Result<()> {
        if first {
            return Ok(());
        }
        writer.write_all(self.item.as_bytes())
    }
}

impl Formatter for Python {
    fn begin_array_value<W>(&mut self, writer: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        self.separate(writer, first)
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        self.separate(writer, first)
    }

    fn begin_object_value<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        writer.write_all(self.key.as_bytes())
    }
}
