//! A key: its digest, its name for logs, and what it has used.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use sha2::Digest as _;
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::usage::Usage;
use super::{Denied, KeyLimits};

/// Bytes that a key may have: it has to fit into a header beside others.
const KEY_BYTES_MAX: usize = 512;

/// SHA-256 of a key. The key itself is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(key: &str) -> Self {
        Self(sha2::Sha256::digest(key.as_bytes()).into())
    }
}

/// What is wrong with a text as a key.
pub(super) fn check(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        Err("is empty; give a key, or leave the flag and the variable out")
    } else if key.len() > KEY_BYTES_MAX {
        Err("is longer than 512 bytes; give a shorter one")
    } else if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        Err("has characters other than visible ASCII ones, which headers cannot carry")
    } else {
        Ok(())
    }
}

/// The key that this text is. How long this takes tells nothing of the keys but their number.
pub(super) fn find(keys: &[Arc<Key>], text: &str) -> Option<Arc<Key>> {
    let digest = Digest::of(text);
    let (mut found, mut at) = (Choice::from(0), 0_u64);
    for (i, key) in (0_u64..).zip(keys) {
        let equal = key.digest.0.ct_eq(&digest.0);
        at.conditional_assign(&i, equal);
        found |= equal;
    }
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    bool::from(found).then(|| keys.get(at).cloned()).flatten()
}

/// A key that may call.
pub struct Key {
    pub(super) digest: Digest,
    name: String,
    usage: Arc<Usage>,
}

impl Key {
    /// A key; with a `usage`, the one that it had before the file was read again.
    pub(super) fn new(
        digest: Digest,
        name: String,
        limits: KeyLimits,
        usage: Option<Arc<Usage>>,
    ) -> Self {
        let usage = usage.unwrap_or_default();
        usage.limit(limits);
        Self {
            digest,
            name,
            usage,
        }
    }

    /// What logs call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn usage(&self) -> Arc<Usage> {
        self.usage.clone()
    }

    /// Begins a call, if the limits allow one.
    ///
    /// # Errors
    /// [`Denied`] with the limit that is reached; then nothing is counted.
    pub fn begin(self: &Arc<Self>, now: Instant) -> Result<Running, Denied> {
        self.usage.begin(now)?;
        Ok(Running(self.clone()))
    }
}

/// Shows the name alone.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A call of a key, which counts until this is dropped.
#[derive(Debug)]
pub struct Running(Arc<Key>);

impl Running {
    /// Counts tokens that were computed for the call.
    pub(crate) fn charge(&self, tokens: usize, now: Instant) {
        self.0.usage.charge(tokens, now);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.usage.end();
    }
}
