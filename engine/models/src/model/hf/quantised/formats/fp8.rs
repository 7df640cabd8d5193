//! Codes of eight bits that are numbers themselves: E4M3.
//!
//! ```text
//! MODULE.weight                             E4M3 [outputs, inputs]
//! MODULE.weight_scale or .weight_scale_inv  F32, F16, BF16, or E8M0 (also as U8)
//!     [] or [1]                        one for all
//!     [outputs] or [outputs, 1]        one for each output
//!     [⌈outputs / a⌉, ⌈inputs / b⌉]    one for each block of a × b; MXFP8 has 1 × 32
//! weight = E4M3(code) · scale
//! ```
//! Despite its name `weight_scale_inv` multiplies (DeepSeek-V3's `weight_dequant`).

use ebb_kernels::weight_formats::Codes;
use safetensors::Dtype;

use super::{QuantisedTensor, Stored};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::Parts;
use crate::model::hf::quantised::scales::{FLOATS, Scales, Sharing};

pub(super) fn read(parts: &mut Parts<'_>, sharing: Sharing) -> Result<QuantisedTensor, Refusal> {
    let shape = parts.shape;
    let (_, codes) = parts.take_shaped("weight", &[Dtype::F8_E4M3], &[&shape])?;
    let named_inverse = parts.get("weight_scale").is_none();
    let name = match named_inverse && parts.get("weight_scale_inv").is_some() {
        true => "weight_scale_inv",
        false => "weight_scale",
    };
    let [f32, f16, bf16] = FLOATS;
    let types = [f32, f16, bf16, Dtype::F8_E8M0, Dtype::U8];
    let (scales, groups) = Scales::read(parts, name, sharing, &types)?;
    Ok(QuantisedTensor {
        shape,
        stored: Stored::Bytes(codes),
        codes: Codes::E4M3,
        zeros: None,
        scales,
        groups,
    })
}
