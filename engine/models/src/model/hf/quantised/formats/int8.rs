//! Integers of eight bits, one a byte.
//!
//! ```text
//! MODULE.weight             I8 [outputs, inputs]
//! MODULE.weight_scale       F32, F16 or BF16: [1], [outputs, 1] or [outputs, groups]
//! MODULE.weight_zero_point  I8, as the scales; only if not symmetric
//! weight = (code − zero) · scale
//! ```

use ebb_kernels::weight_formats::Codes;
use safetensors::Dtype;

use super::{QuantisedTensor, Stored, Zeros as AnyZeros};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::Parts;
use crate::model::hf::quantised::scales::{FLOATS, Scales, Sharing};

/// What [`unpack`] adds to signed codes.
pub(super) const MIDDLE: u8 = 128;

/// Zeros stored as scales are.
pub(super) type Zeros = Scales;

pub(super) fn read(
    parts: &mut Parts<'_>,
    sharing: Sharing,
    symmetric: bool,
) -> Result<QuantisedTensor, Refusal> {
    let shape = parts.shape;
    let (_, codes) = parts.take_shaped("weight", &[Dtype::I8], &[&shape])?;
    let (scales, groups) = Scales::read(parts, "weight_scale", sharing, &FLOATS)?;
    let zeros = match symmetric {
        true => {
            parts.has_no_zeros("weight_zero_point")?;
            None
        }
        false => {
            let part = "weight_zero_point";
            let zeros = Scales::read(parts, part, sharing, &[Dtype::I8])?.0;
            Some(AnyZeros::Int8(zeros))
        }
    };
    Ok(QuantisedTensor {
        shape,
        stored: Stored::SignedBytes(codes),
        codes: Codes::Int {
            bits: 8,
            zero: if symmetric { MIDDLE } else { 0 },
        },
        zeros,
        scales,
        groups,
    })
}

/// Signed bytes as codes from 0 on.
pub(super) fn unpack(bytes: &[u8], out: &mut [u8]) {
    for (code, byte) in out.iter_mut().zip(bytes) {
        *code = byte ^ MIDDLE;
    }
}
