//! Names of weight formats, for logs, messages and flags.

use std::fmt;
use std::str::FromStr;

use super::{Codes, Quantisation, WeightFormat};

/// No quantisation has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no quantisation; there are fp8, int4 and mxfp4")]
pub struct UnknownQuantisation(String);

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

/// What a quantisation is called in flags and hashes.
impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp8 => f.write_str("fp8"),
            Self::Int4 => f.write_str("int4"),
            Self::Mxfp4 => f.write_str("mxfp4"),
            Self::Nearest(format) => format.fmt(f),
        }
    }
}

/// Those that have a name of their own.
impl FromStr for Quantisation {
    type Err = UnknownQuantisation;

    fn from_str(name: &str) -> Result<Self, UnknownQuantisation> {
        let mut named = [Self::Fp8, Self::Int4, Self::Mxfp4].into_iter();
        let found = named.find(|quantisation| quantisation.to_string() == name);
        found.ok_or_else(|| UnknownQuantisation(name.to_owned()))
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

    #[test]
    fn quantisations_are_known_by_name() {
        for quantisation in [Quantisation::Fp8, Quantisation::Int4, Quantisation::Mxfp4] {
            assert_eq!(quantisation.to_string().parse(), Ok(quantisation));
        }
        let unknown = "int3".parse::<Quantisation>().unwrap_err().to_string();
        assert_eq!(
            unknown,
            "`int3` is no quantisation; there are fp8, int4 and mxfp4"
        );
    }
}
