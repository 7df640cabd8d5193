//! JSON objects with typed access that names the field in every error.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::model::error::{ModelError, Refusal};
use crate::model::lfs::is_lfs_pointer;
use crate::python_json;

/// The largest JSON file accepted, in bytes; bounds the memory that parsing takes.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// Reads a file of at most [`MAX_JSON_BYTES`]; `None` if there is none.
pub(crate) fn read_small(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ModelError::io(path, error)),
    };
    let mut bytes = Vec::new();
    let limited = file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes);
    limited.map_err(|error| ModelError::io(path, error))?;
    if bytes.len() as u64 > MAX_JSON_BYTES {
        let bytes = std::fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
        return Err(Refusal::TooLarge {
            bytes,
            limit: MAX_JSON_BYTES,
        }
        .at(path));
    }
    if is_lfs_pointer(&bytes) {
        return Err(Refusal::LfsPointer.at(path));
    }
    Ok(Some(bytes))
}

/// Parses a file's bytes.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    Ok(python_json::from_slice(bytes)?)
}

/// A JSON object; `null` counts as absent.
#[derive(Debug, Default)]
pub(super) struct Object {
    map: Map<String, Value>,
    /// What stands before a field's name in messages: empty, or the path to this object and a dot.
    prefix: String,
}

impl Object {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        Ok(Self {
            map: parse(bytes)?,
            prefix: String::new(),
        })
    }

    /// The field's name as messages give it.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether there is such a field, `null` or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The names of all fields that are not `null`.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, _)| key.as_str())
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, Refusal> {
        self.typed(key, "a whole number", |value| {
            value.as_u64()?.try_into().ok()
        })
    }

    /// A number, always finite.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, Refusal> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A list of numbers, all finite.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, Refusal> {
        self.typed(key, "a list of numbers", |list| {
            list.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, Refusal> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, Refusal> {
        self.typed(key, "a text", Value::as_str)
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, Refusal> {
        let map = self.typed(key, "an object", Value::as_object)?;
        let prefix = format!("{}.", self.name(key));
        Ok(map.map(|map| Self {
            map: map.clone(),
            prefix,
        }))
    }

    /// Takes over fields of another object, also in place of its own, unless they are `null`.
    pub(super) fn put(&mut self, other: &Self, keys: &[&str]) {
        for key in keys {
            if let Some(value) = other.get(key) {
                self.map.insert((*key).to_owned(), value.clone());
            }
        }
    }

    /// Takes over the fields of another object that this one does not have, not even as `null`.
    pub(super) fn fill(&mut self, defaults: &Self) {
        for (key, value) in &defaults.map {
            if !self.map.contains_key(key) {
                self.map.insert(key.clone(), value.clone());
            }
        }
    }

    /// Token ids: one, or a list.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>, Refusal> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let ids = self.typed(key, "a token id or a list of them", |value| match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    pub(super) fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(Refusal::invalid(self.name(key), brief(value), expected)),
        }
    }

    /// Turns an absent value into an error.
    pub(super) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, Refusal> {
        value.ok_or_else(|| Refusal::Missing(self.name(key)))
    }
}

/// A value as it fits into a sentence.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {} elements", list.len()),
        Value::Object(map) => format!("an object of {} fields", map.len()),
        Value::String(text) if text.len() > 80 => format!("a text of {} bytes", text.len()),
        value => value.to_string(),
    }
}
