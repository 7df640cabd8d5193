//! JSON as Python's `json` module writes it.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// Parses JSON in which numbers may be `Infinity`, `-Infinity` or `NaN`. Each is read as a text of
/// that name, so that a field that is read as a number refuses it by name.
///
/// # Errors
/// When the bytes are no JSON, or have another shape than `T`.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(&quoted(bytes))
}

/// The bytes with quotes around each such number. Other bytes keep their order.
fn quoted(bytes: &[u8]) -> Cow<'_, [u8]> {
    const NAMES: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut out: Vec<u8> = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    let mut in_text = false;
    while let Some(&byte) = bytes.get(at) {
        let name = match byte {
            // What follows a backslash ends no text.
            b'\\' if in_text => {
                at += 2;
                continue;
            }
            b'"' => {
                in_text = !in_text;
                None
            }
            b'-' | b'I' | b'N' if !in_text => {
                NAMES.into_iter().find(|name| bytes[at..].starts_with(name))
            }
            _ => None,
        };
        let Some(name) = name else {
            at += 1;
            continue;
        };
        out.extend_from_slice(&bytes[copied..at]);
        out.push(b'"');
        out.extend_from_slice(name);
        out.push(b'"');
        at += name.len();
        copied = at;
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    out.extend_from_slice(&bytes[copied..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_python_writes_is_read() {
        let read = |text: &str| from_slice::<Value>(text.as_bytes());
        assert_eq!(
            read(r#"{"a": [0.0, Infinity, -Infinity], "b":NaN, "c": "\"NaN\\", "d": -1}"#).unwrap(),
            json!({"a": [0.0, "Infinity", "-Infinity"], "b": "NaN", "c": "\"NaN\\", "d": -1}),
        );
        assert_eq!(read(r#""-Infinity""#).unwrap(), json!("-Infinity"));
        for wrong in ["Inf", "{NaN: 1", "+Infinity", "\"NaN", "\"\\", "NaNaN"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
