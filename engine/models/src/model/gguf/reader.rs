//! A cursor over a file's bytes on which every step is checked against the end.

use super::error::GgufError;

/// Reads little-endian numbers and length-prefixed strings, never past the end.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            at: at.min(bytes.len()),
        }
    }

    /// Bytes from the start of the file.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len));
        match end.and_then(|end| Some((end, self.bytes.get(self.at..end)?))) {
            Some((end, taken)) => {
                self.at = end;
                Ok(taken)
            }
            None => Err(GgufError::Truncated {
                what,
                offset: self.at,
                needed: len,
                left: self.left(),
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, GgufError> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, GgufError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count that must not exceed `limit`, nor what the rest of the file can hold when each
    /// counted thing takes at least `min_bytes`.
    pub(super) fn count(
        &mut self,
        what: &'static str,
        limit: u64,
        min_bytes: u64,
    ) -> Result<u64, GgufError> {
        let offset = self.at;
        let found = self.u64(what)?;
        if found > limit {
            return Err(GgufError::TooMany { what, found, limit });
        }
        let needed = found.saturating_mul(min_bytes);
        if needed > self.left() as u64 {
            return Err(GgufError::Truncated {
                what,
                offset,
                needed,
                left: self.left(),
            });
        }
        Ok(found)
    }

    /// A string: its length as u64, then that many bytes of UTF-8.
    pub(super) fn string(
        &mut self,
        what: &'static str,
        max_bytes: u64,
    ) -> Result<&'a str, GgufError> {
        let offset = self.at;
        let len = self.u64(what)?;
        if len > max_bytes {
            let (found, limit) = (len, max_bytes);
            return Err(GgufError::TooLong {
                what,
                offset,
                found,
                limit,
            });
        }
        std::str::from_utf8(self.take(len, what)?).map_err(|_| GgufError::NotUtf8 { what, offset })
    }
}
