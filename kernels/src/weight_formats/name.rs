//! Names of weight formats, for logs and messages.

use std::fmt;

use super::{Codes, WeightFormat};

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int { bits, .. } => write!(f, "int{bits}"),
            Self::E4M3 => f.write_str("e4m3"),
            Self::E2M1 => f.write_str("e2m1"),
            Self::Iq4 => f.write_str("iq4"),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in groups of {}", self.codes, self.group)?;
        if self.has_offsets {
            f.write_str(" with offsets")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let codes = Codes::Int { bits: 4, zero: 0 };
        let mut format = WeightFormat {
            codes,
            group: 32,
            has_offsets: true,
        };
        assert_eq!(format.to_string(), "int4 in groups of 32 with offsets");
        (format.codes, format.has_offsets) = (Codes::E4M3, false);
        assert_eq!(format.to_string(), "e4m3 in groups of 32");
    }
}
