//! Sizes in bytes, as people write them.

use std::str::FromStr;

/// A number of bytes, written `512MiB`, `4GiB` or `1.5GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let parsed = units.iter().find_map(|(unit, shift)| {
            let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
            let bytes = number * f64::from(1u32 << shift);
            (bytes >= 1.0 && bytes < 2f64.powi(50)).then_some(Self(bytes as u64))
        });
        parsed.ok_or_else(|| format!("{text:?} is not a size; write it like 4GiB or 512MiB"))
    }
}

impl Size {
    /// In GiB.
    pub fn gib(self) -> f64 {
        self.0 as f64 / f64::from(1u32 << 30)
    }
}
