//! A fast fingerprint of weights: tells two checkpoints of one shape apart.

use xxhash_rust::xxh3::xxh3_128;

/// Bytes hashed at once; a constant of the fingerprint, not a matter of taste.
const CHUNK_BYTES: usize = 16 << 20;

/// XXH3-128 over every byte: of each 16 MiB of each part, and then of those hashes and the parts'
/// lengths in order. Chunks are hashed by all cores, at the speed of memory. It catches mistakes;
/// it is no protection against malice.
pub(super) fn weights_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let parts: Vec<&[u8]> = parts.into_iter().collect();
    let chunks: Vec<&[u8]> = parts.iter().flat_map(|p| p.chunks(CHUNK_BYTES)).collect();
    let mut hashes = vec![0u128; chunks.len()];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let each = chunks.len().div_ceil(cores).max(1);
    std::thread::scope(|scope| {
        for (chunks, hashes) in chunks.chunks(each).zip(hashes.chunks_mut(each)) {
            scope.spawn(move || {
                for (chunk, hash) in chunks.iter().zip(hashes) {
                    *hash = xxh3_128(chunk);
                }
            });
        }
    });
    let lengths = parts.iter().map(|p| (p.len() as u64).to_le_bytes());
    let mut all: Vec<u8> = lengths.flatten().collect();
    all.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
    format!("xxh3-{:032x}", xxh3_128(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_every_boundary_counts() {
        let mut bytes = vec![7u8; CHUNK_BYTES + 100];
        let whole = weights_hash([&bytes[..]]);
        assert_eq!(whole, weights_hash([&bytes[..]]));
        assert_eq!(whole.len(), 5 + 32);
        for at in [0, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 99] {
            bytes[at] ^= 1;
            assert_ne!(weights_hash([&bytes[..]]), whole, "byte {at}");
            bytes[at] ^= 1;
        }
        let (a, b) = bytes.split_at(CHUNK_BYTES);
        assert_ne!(weights_hash([a, b]), whole);
        assert_ne!(weights_hash([b, a]), weights_hash([a, b]));
    }
}
