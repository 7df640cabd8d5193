//! Where a GPU's memory goes, and what is left for the KV cache.

use std::fmt;

/// The sum that gives the KV cache its memory. Bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Of the device.
    pub total: u64,
    /// Of those, free before anything of this engine is on it.
    pub free: u64,
    /// Share of `total` that may be used, by all its users together.
    pub utilization: f64,
    /// What the engine needs besides the KV cache.
    pub needs: Vec<(String, u64)>,
}

impl Budget {
    fn needed(&self) -> u64 {
        self.needs.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What is left for the KV cache within the share that may be used; `None` if the rest alone
    /// does not fit.
    pub fn left(&self) -> Option<u64> {
        let usable = (self.total as f64 * self.utilization) as u64;
        usable
            .checked_sub(self.total - self.free)?
            .checked_sub(self.needed())
    }

    /// What is left for the KV cache if everything free may be used.
    pub fn left_of_free(&self) -> Option<u64> {
        self.free.checked_sub(self.needed())
    }

    /// The sum, line by line.
    pub fn lines(&self) -> Vec<String> {
        let line =
            |sign: char, bytes: u64, what: &str| format!("{sign} {:>8.2} GiB  {what}", gib(bytes));
        let share = (self.total as f64 * self.utilization) as u64;
        let what = format!(
            "{} of the device's {:.2} GiB (--gpu-memory-utilization)",
            self.utilization,
            gib(self.total)
        );
        let mut lines = vec![line(' ', share, &what)];
        lines.push(line('-', self.total - self.free, "in use already"));
        lines.extend(
            self.needs
                .iter()
                .map(|(what, bytes)| line('-', *bytes, what)),
        );
        lines.push(match self.left() {
            Some(left) => line('=', left, "left for the KV cache"),
            None => {
                let used = self.total - self.free + self.needed();
                format!("= {:>8.2} GiB short", gib(used - share))
            }
        });
        lines
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn budget(free: u64, weights: u64) -> Budget {
        Budget {
            total: 80 * GIB,
            free: free * GIB,
            utilization: 0.75,
            needs: vec![
                ("weights".to_owned(), weights * GIB),
                ("reserve".to_owned(), GIB),
            ],
        }
    }

    #[test]
    fn what_is_left_is_what_the_lines_say() {
        let b = budget(78, 16);
        assert_eq!(b.left(), Some((60 - 2 - 16 - 1) * GIB));
        assert_eq!(b.left_of_free(), Some((78 - 17) * GIB));
        let text = b.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "     60.00 GiB  0.75 of the device's 80.00 GiB (--gpu-memory-utilization)"
        );
        assert_eq!(lines[1], "-     2.00 GiB  in use already");
        assert_eq!(lines[2], "-    16.00 GiB  weights");
        assert_eq!(lines[4], "=    41.00 GiB  left for the KV cache");
    }

    #[test]
    fn what_packed_weights_leave_is_for_the_kv_cache() {
        let (bf16, packed) = (budget(78, 16), budget(78, 5));
        assert_eq!(packed.left(), bf16.left().map(|left| left + 11 * GIB));
        assert_eq!(packed.left_of_free(), Some((78 - 6) * GIB));
    }

    #[test]
    fn too_little_is_said_with_what_is_missing() {
        let b = budget(30, 16);
        assert_eq!(b.left(), None);
        assert_eq!(b.left_of_free(), Some(13 * GIB));
        assert!(b.to_string().ends_with("=     7.00 GiB short"), "{b}");
        assert_eq!(budget(10, 16).left_of_free(), None);
        // Others use more than the share.
        assert_eq!(budget(5, 0).left(), None);
    }
}
