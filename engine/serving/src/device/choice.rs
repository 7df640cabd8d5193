//! What `--device` says.

use std::fmt;
use std::str::FromStr;

/// A device, as people name it: `cpu`, `cuda`, `cuda:1` or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU if there is one that can be used, else the CPU.
    #[default]
    Auto,
    /// The cores of this machine.
    Cpu,
    /// The GPU of this number, as the driver counts them.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a device; write cpu, cuda, cuda:1 or auto");
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or_else(wrong)?;
                ordinal.parse().map(Self::Cuda).map_err(|_| wrong())
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_people_write_them() {
        let parse = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(parse("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(parse("cpu"), Ok(DeviceChoice::Cpu));
        assert_eq!(parse("cuda"), Ok(DeviceChoice::Cuda(0)));
        assert_eq!(parse("cuda:3"), Ok(DeviceChoice::Cuda(3)));
        assert_eq!(
            DeviceChoice::Cuda(3).to_string().parse(),
            Ok(DeviceChoice::Cuda(3))
        );
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA", "cpu:0"] {
            assert!(parse(wrong).unwrap_err().contains("cuda:1"), "{wrong}");
        }
    }
}
