//! Who may call, and how much: keys and their limits, whatever the call is spoken in.
//!
//! Keys come from flags and from a file ([`key_file`]), which may change while the server runs.
//! Only their SHA-256 digests are kept, and compared in constant time. A front end looks a call's
//! key up ([`Access::key`]) and begins the call on it ([`Key::begin`]); the call counts until what
//! that gave is dropped. Tokens are charged as they are computed ([`Running::charge`]).
//!
//! | limit | what it counts | refused |
//! |---|---|---|
//! | `max-concurrency` | calls that run or wait | while as many are under way |
//! | `requests-per-minute` | calls that were let in | beyond a burst of N, then one every 60/N s |
//! | `tokens-per-minute` | tokens of prompts and answers | once N are used, until they have been earned back at N a minute |
//!
//! Tokens are known only when they have been computed: calls under way finish, and what they use
//! beyond the limit is paid back before the next one begins.

mod denied;
mod key;
mod key_file;
mod limits;
mod usage;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

pub use denied::Denied;
pub use key::{Key, Running};
pub use limits::KeyLimits;

use key::Digest;

use crate::small_file;

/// Why keys cannot be used. No text repeats a key.
#[derive(Debug, Error)]
pub enum AccessError {
    /// A key given by a flag is none.
    #[error("a key of --api-key (or EBB_API_KEY) {0}")]
    Flag(&'static str),
    /// The file cannot be read.
    #[error("cannot read --api-key-file {}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A line of it is wrong.
    #[error("--api-key-file {}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what is right.
        why: String,
    },
    /// It has no key. That must not open the server to everybody.
    #[error("--api-key-file {} has no key; write one a line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The keys of a server, and what they may do. Clones share them.
#[derive(Clone, Default)]
pub struct Access(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Digests of keys that flags gave.
    flags: Vec<Digest>,
    file: Option<PathBuf>,
    /// Limits of keys that have none of their own.
    defaults: KeyLimits,
    table: RwLock<Arc<Vec<Arc<Key>>>>,
}

impl Access {
    /// Everybody may call.
    pub fn open() -> Self {
        Self::default()
    }

    /// These keys and those of the file may call; everybody if there are neither.
    ///
    /// # Errors
    /// [`AccessError`] when a key or the file cannot be used.
    pub fn new(
        keys: &[String],
        file: Option<PathBuf>,
        defaults: KeyLimits,
    ) -> Result<Self, AccessError> {
        for key in keys {
            key::check(key).map_err(AccessError::Flag)?;
        }
        let access = Self(Arc::new(Inner {
            flags: keys.iter().map(|key| Digest::of(key)).collect(),
            file,
            defaults,
            table: RwLock::default(),
        }));
        let text = match access.file() {
            Some(path) => Some(small_file::read(path).map_err(|why| access.unread(why))?),
            None => None,
        };
        access.load(text.as_deref())?;
        Ok(access)
    }

    /// The file that keys come from.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    pub(crate) fn unread(&self, why: String) -> AccessError {
        let path = self.0.file.clone().unwrap_or_default();
        AccessError::Read { path, why }
    }

    /// Whether a key is asked for.
    pub fn required(&self) -> bool {
        !self.0.flags.is_empty() || self.0.file.is_some()
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.0.table.read().len()
    }

    /// Takes over the keys of this text of the file. What a key has used stays used.
    ///
    /// # Errors
    /// [`AccessError`]; then the keys stay as they were.
    pub(crate) fn load(&self, text: Option<&[u8]>) -> Result<(), AccessError> {
        let inner = &*self.0;
        let mut entries = Vec::new();
        if let (Some(text), Some(path)) = (text, &inner.file) {
            entries = key_file::parse(path, text)?;
        }
        let mut seen: FxHashSet<Digest> = entries.iter().map(|entry| entry.digest).collect();
        for (i, &digest) in inner.flags.iter().enumerate() {
            if seen.insert(digest) {
                entries.push(key_file::Entry {
                    digest,
                    name: format!("flag-{}", i + 1),
                    limits: KeyLimits::default(),
                });
            }
        }
        let mut table = inner.table.write();
        let known: FxHashMap<Digest, &Arc<Key>> =
            table.iter().map(|key| (key.digest, key)).collect();
        let keys = entries.into_iter().map(|entry| {
            let limits = entry.limits.or(inner.defaults);
            let usage = known.get(&entry.digest).map(|key| key.usage());
            Arc::new(Key::new(entry.digest, entry.name, limits, usage))
        });
        let keys = keys.collect();
        *table = Arc::new(keys);
        Ok(())
    }

    /// Whose key this is: none where everybody may call. `presented` are the texts that a call
    /// brings as keys.
    ///
    /// # Errors
    /// [`Denied::NoKey`], [`Denied::WrongKey`].
    pub fn key<'a>(
        &self,
        presented: impl Iterator<Item = &'a str>,
    ) -> Result<Option<Arc<Key>>, Denied> {
        if !self.required() {
            return Ok(None);
        }
        let keys = self.0.table.read().clone();
        let mut why = Denied::NoKey;
        for text in presented {
            if let Some(key) = key::find(&keys, text) {
                return Ok(Some(key));
            }
            why = Denied::WrongKey;
        }
        Err(why)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("keys", &self.count())
            .field("file", &self.0.file)
            .finish_non_exhaustive()
    }
}
