//! Server-sent events, as far as APIs of models use them: lines that begin with `data:`.

/// The bytes of a stream on their way to becoming data.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// Bytes of the lines that were taken.
    taken: usize,
}

impl Lines {
    /// More bytes have come.
    pub(super) fn push(&mut self, more: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(more);
    }

    /// The data of the next whole event; none until more bytes come.
    pub(super) fn next(&mut self) -> Option<String> {
        loop {
            let rest = &self.bytes[self.taken..];
            let end = rest.iter().position(|&byte| byte == b'\n')?;
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            self.taken += end + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                let data = data.strip_prefix(b" ").unwrap_or(data);
                return Some(String::from_utf8_lossy(data).into_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_however_the_bytes_come() {
        let text =
            "event: x\r\ndata: {\"a\": 1}\r\n\r\n: still here\n\ndata:two\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for part in text.as_bytes().chunks(size) {
                lines.push(part);
                found.extend(std::iter::from_fn(|| lines.next()));
            }
            assert_eq!(found, ["{\"a\": 1}", "two", "[DONE]"], "parts of {size}");
        }
    }
}
