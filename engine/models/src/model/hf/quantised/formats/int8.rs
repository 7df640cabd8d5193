//! Integers of eight bits, one a byte.
//!
//! ```text
//! MODULE.weight             I8 [outputs, inputs]
//! MODULE.weight_scale       F32, F16 or BF16: [1], [outputs, 1] or [outputs, groups]
//! MODULE.weight_zero_point  I8, as the scales; only if not symmetric
//! weight = (code − zero) · scale
//! ```

use safetensors::Dtype;

use super::{Codes, QuantisedTensor, Zeros as AnyZeros};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::Parts;
use crate::model::hf::quantised::scales::{FLOATS, Scales, Sharing};

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
            AnyZeros::All(0.0)
        }
        false => {
            let part = "weight_zero_point";
            AnyZeros::Int8(Scales::read(parts, part, sharing, &[Dtype::I8])?.0)
        }
    };
    Ok(QuantisedTensor {
        shape,
        codes: Codes::Int8(codes),
        zeros,
        scales,
        groups,
    })
}

/// A byte for each value.
pub(super) fn unpack(codes: &[u8], out: &mut [f32]) {
    for (value, code) in out.iter_mut().zip(codes) {
        *value = f32::from(*code as i8);
    }
}
