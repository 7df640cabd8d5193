//! What each token id means as bytes, and which ids are special.

/// For every id of a vocabulary: the bytes it decodes to, and whether it is a special token.
/// Ids that the vocabulary leaves out decode to nothing.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// Where each id's bytes end; they begin where the previous id's end.
    ends: Vec<usize>,
    special: Vec<bool>,
}

impl TokenTable {
    /// Appends the next id.
    pub(super) fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        let starts = [0].iter().chain(&self.ends);
        let lengths = self.ends.iter().zip(starts).map(|(end, start)| end - start);
        lengths.max().unwrap_or(0)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_bytes_apart() {
        let mut table = TokenTable::default();
        table.push(b"ab", false);
        table.push(b"", true);
        table.push(b"\xff", false);
        assert_eq!(table.bytes(0), Some(&b"ab"[..]));
        assert_eq!(table.bytes(1), Some(&b""[..]));
        assert_eq!(table.bytes(2), Some(&b"\xff"[..]));
        assert_eq!(table.bytes(3), None);
        assert!(table.is_special(1) && !table.is_special(0) && !table.is_special(9));
        assert_eq!(table.len(), 3);
        assert_eq!((table.longest(), TokenTable::default().longest()), (2, 0));
    }
}
