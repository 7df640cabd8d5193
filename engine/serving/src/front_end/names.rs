//! Names for requests whose clients give none.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// A name that no other request has: the prefix and 64 random bits.
pub(crate) fn new_name(prefix: &str) -> String {
    // A fresh RandomState has fresh keys; the standard library's only source of randomness is
    // enough for a name.
    format!(
        "{prefix}{:016x}",
        RandomState::new().build_hasher().finish()
    )
}
