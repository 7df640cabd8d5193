//! A model's identity: what a cache or a log can tell two models apart by.

use sha2::{Digest, Sha256};

/// SHA-256 in lower-case hexadecimal.
pub(super) fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 over parts, each preceded by its length so that no two lists of parts collide.
pub(super) fn hash_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}
