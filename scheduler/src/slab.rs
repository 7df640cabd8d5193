//! Dense storage whose keys are never reused.

use std::ops::{Index, IndexMut};

/// Key of an entry of a [`Slab`]. Indices are reused, so a generation tells an old key from a new
/// one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A vector with holes.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                value: None,
            });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Key {
            index,
            generation: entry.generation,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> T {
        let entry = &mut self.entries[key.index as usize];
        assert_eq!(
            entry.generation, key.generation,
            "removing an entry that is gone"
        );
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index);
        entry
            .value
            .take()
            .expect("an entry of the current generation has a value")
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation == key.generation {
            entry.value.as_ref()
        } else {
            None
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation == key.generation {
            entry.value.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| {
                let key = Key {
                    index: index as u32,
                    generation: entry.generation,
                };
                entry.value.as_ref().map(|value| (key, value))
            })
    }
}

impl<T> Index<Key> for Slab<T> {
    type Output = T;

    fn index(&self, key: Key) -> &T {
        self.get(key).expect("the entry is alive")
    }
}

impl<T> IndexMut<Key> for Slab<T> {
    fn index_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect("the entry is alive")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_index_has_a_new_name() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), 'a');
        let b = slab.insert('b');
        assert_eq!(a.index, b.index);
        assert_eq!(slab.get(a), None);
        assert_eq!(slab[b], 'b');
        assert_eq!(slab.len(), 1);
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(b, &'b')]);
    }

    #[test]
    #[should_panic(expected = "gone")]
    fn removing_twice_is_a_bug() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        slab.remove(a);
        slab.insert('b');
        slab.remove(a);
    }
}
