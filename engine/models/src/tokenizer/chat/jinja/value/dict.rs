//! Dictionaries.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::budget::{self, Charge};
use super::super::fail::Res;
use super::super::ops;
use super::{ENTRY_BYTES, LONG_NAME, OBJECT_BYTES, Value, depth_above};

/// Dictionaries of more entries have an index.
const SEARCHED_MAX: usize = 8;

pub(in super::super) struct Dict {
    entries: Vec<(Value, Value)>,
    index: Option<HashMap<u64, Vec<usize>>>,
    pub(super) depth: usize,
    charge: Charge,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum View {
    Keys,
    Values,
    Items,
}

impl Dict {
    pub(in super::super) fn new() -> Res<Self> {
        Ok(Self {
            entries: Vec::new(),
            index: None,
            depth: 1,
            charge: Charge::new(OBJECT_BYTES)?,
        })
    }

    pub(in super::super) fn of(entries: impl IntoIterator<Item = (Value, Value)>) -> Res<Rc<Self>> {
        let mut dict = Self::new()?;
        for (key, value) in entries {
            dict.insert(key, value)?;
        }
        Ok(Rc::new(dict))
    }

    pub(in super::super) fn insert(&mut self, key: Value, value: Value) -> Res<()> {
        budget::steps(1)?;
        self.depth = self.depth.max(depth_above([&key, &value].into_iter())?);
        let hash = ops::hash(&key)?;
        if let Some(at) = self.position(&key, hash)? {
            self.entries[at].1 = value;
            return Ok(());
        }
        self.charge.grow(ENTRY_BYTES)?;
        let at = self.entries.len();
        self.entries.push((key, value));
        if let Some(index) = &mut self.index {
            index.entry(hash).or_default().push(at);
        } else if self.entries.len() > SEARCHED_MAX {
            let mut index: HashMap<u64, Vec<usize>> = HashMap::new();
            for (at, (key, _)) in self.entries.iter().enumerate() {
                index.entry(ops::hash(key)?).or_default().push(at);
            }
            self.index = Some(index);
        }
        Ok(())
    }

    fn position(&self, key: &Value, hash: u64) -> Res<Option<usize>> {
        let candidates: &mut dyn Iterator<Item = usize> = match &self.index {
            Some(index) => &mut index.get(&hash).into_iter().flatten().copied(),
            None => &mut (0..self.entries.len()),
        };
        for at in candidates {
            if ops::equal(&self.entries[at].0, key)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When it cannot be a key.
    pub(in super::super) fn get(&self, key: &Value) -> Res<Option<&Value>> {
        let hash = ops::hash(key)?;
        Ok(self.position(key, hash)?.map(|at| &self.entries[at].1))
    }

    pub(in super::super) fn get_text(&self, key: &str) -> Res<Option<&Value>> {
        if self.index.is_none() {
            if key.len() >= LONG_NAME {
                budget::bytes(key.len().saturating_mul(self.entries.len()))?;
            }
            let is_it = |k: &Value| matches!(k, Value::Text(t) if t.as_str() == key);
            return Ok(self.entries.iter().find(|(k, _)| is_it(k)).map(|(_, v)| v));
        }
        self.get(&Value::text(key)?)
    }

    pub(in super::super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}
