//! Typed access to a GGUF file's metadata.

use std::collections::BTreeMap;

use super::error::GgufError;
use super::value::{GgufArray, GgufValue};

/// The key-value section of a GGUF file.
///
/// Every getter returns `Ok(None)` when the key is absent and an error that names the key when its
/// value has another type than asked for. Integers of any width serve where an integer is asked
/// for, and where a number is asked for.
#[derive(Clone, Debug, Default)]
pub struct GgufMetadata {
    entries: BTreeMap<String, GgufValue>,
}

impl GgufMetadata {
    /// Adds an entry; a key that is already there is an error.
    pub(super) fn insert(&mut self, key: String, value: GgufValue) -> Result<(), GgufError> {
        if self.entries.contains_key(&key) {
            return Err(GgufError::Duplicate {
                what: "metadata key",
                name: key,
            });
        }
        self.entries.insert(key, value);
        Ok(())
    }

    /// The raw value under `key`.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.entries.get(key)
    }

    /// Every key, in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// A text.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not a text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a text", |value| match value {
            GgufValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "true or false", |value| match value {
            GgufValue::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// An integer from 0 to 2³² − 1.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not an integer in that range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(
            key,
            "an integer from 0 to 4294967295",
            |value| match value {
                GgufValue::Int(value) => u32::try_from(*value).ok(),
                _ => None,
            },
        )
    }

    /// A finite number.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not a finite number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "a finite number", |value| match value {
            GgufValue::Float(value) => Some(*value as f32).filter(|value| value.is_finite()),
            GgufValue::Int(value) => Some(*value as f32),
            _ => None,
        })
    }

    /// An array of texts, copied.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not an array of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, GgufError> {
        self.elements(key, "an array of texts", |value| match value {
            GgufValue::Text(text) => Ok(text),
            other => Err(other),
        })
    }

    /// An array of integers that fit an i32, copied.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not an array of such integers.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.elements(key, "an array of 32-bit integers", |value| match value {
            GgufValue::Int(int) => i32::try_from(int).map_err(|_| value),
            other => Err(other),
        })
    }

    /// An array of booleans, or of whole numbers that stand for them, copied.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not such an array.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let expected = "an array of true or false, or of 1 or 0";
        self.elements(key, expected, |value| match value {
            GgufValue::Bool(flag) => Ok(flag),
            GgufValue::Int(0) => Ok(false),
            GgufValue::Int(1) => Ok(true),
            other => Err(other),
        })
    }

    /// An array of numbers, copied.
    ///
    /// # Errors
    /// [`GgufError::Value`] when the value is not an array of numbers.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.elements(key, "an array of numbers", |value| match value {
            GgufValue::Float(value) => Ok(value as f32),
            GgufValue::Int(value) => Ok(value as f32),
            other => Err(other),
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(GgufError::Value {
                key: key.to_owned(),
                found: value.to_string(),
                expected,
            }),
        }
    }

    fn elements<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(GgufValue) -> Result<T, GgufValue>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let array: Option<&GgufArray> = self.typed(key, expected, |value| match value {
            GgufValue::Array(array) => Some(array),
            _ => None,
        })?;
        let Some(array) = array else { return Ok(None) };
        let mut elements = Vec::new();
        for (index, element) in array.iter().enumerate() {
            elements.push(read(element?).map_err(|element| GgufError::Value {
                key: key.to_owned(),
                found: format!("an array whose element {index} is {element}"),
                expected,
            })?);
        }
        Ok(Some(elements))
    }
}

/// Turns an absent value into an error that says what it was needed for.
pub(super) fn required<T>(
    value: Option<T>,
    key: &str,
    needed_for: &'static str,
) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::Missing {
        key: key.to_owned(),
        needed_for,
    })
}
