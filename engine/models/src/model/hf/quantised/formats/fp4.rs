//! Codes of four bits that are numbers themselves: E2M1, two a byte, the low half first.
//!
//! ```text
//! MXFP4, as gpt-oss has it:
//!     MODULE.weight_blocks  U8 [outputs, inputs / 32, 16]
//!     MODULE.weight_scales  U8 (E8M0) [outputs, inputs / 32]
//!     weight = E2M1(code) · scale
//!     of stacked experts: NAME_blocks [experts, outputs, inputs / 32, 16], NAME_scales likewise
//! MXFP4, as compressed-tensors has it:
//!     MODULE.weight_packed  U8 [outputs, inputs / 2]
//!     MODULE.weight_scale   U8 (E8M0) [outputs, inputs / 32]
//!     weight = E2M1(code) · scale
//! NVFP4, as compressed-tensors has it:
//!     MODULE.weight_packed        U8 [outputs, inputs / 2]
//!     MODULE.weight_scale         E4M3 [outputs, inputs / 16]
//!     MODULE.weight_global_scale  F32 [1]
//!     weight = E2M1(code) · (scale / global scale)
//! NVFP4, as ModelOpt has it:
//!     MODULE.weight          U8 [outputs, inputs / 2]
//!     MODULE.weight_scale    E4M3 [outputs, inputs / 16]
//!     MODULE.weight_scale_2  F32 []
//!     weight = E2M1(code) · (scale · second scale)
//! ```

use ebb_kernels::weight_formats::Codes;
use safetensors::Dtype;

use super::{QuantisedTensor, Stored};
use crate::model::error::Refusal;
use crate::model::hf::quantised::parts::Parts;
use crate::model::hf::quantised::scales::{Factor, Scales, Sharing, group_size, number};

/// Whose layout it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fp4 {
    MxBlocks,
    MxPacked,
    NvPacked,
    NvModelOpt,
}

impl Fp4 {
    /// Inputs that share a scale.
    pub(super) fn group(self) -> usize {
        match self {
            Self::MxBlocks | Self::MxPacked => 32,
            Self::NvPacked | Self::NvModelOpt => 16,
        }
    }
}

pub(super) fn read(parts: &mut Parts<'_>, fp4: Fp4) -> Result<QuantisedTensor, Refusal> {
    let shape = parts.shape;
    let [rows, columns] = shape;
    let (codes, scale) = match fp4 {
        Fp4::MxBlocks => ("weight_blocks", "weight_scales"),
        Fp4::MxPacked | Fp4::NvPacked => ("weight_packed", "weight_scale"),
        Fp4::NvModelOpt => ("weight", "weight_scale"),
    };
    let size = group_size(parts, fp4.group())?;
    let in_blocks = parts.stack(&[rows, columns / 32, 16]);
    let in_rows = [rows, columns / 2];
    let codes_shape = match fp4 {
        Fp4::MxBlocks => in_blocks.as_slice(),
        _ => in_rows.as_slice(),
    };
    let (_, codes) = parts.take_shaped(codes, &[Dtype::U8], &[codes_shape])?;
    let scale_types = match fp4 {
        Fp4::MxBlocks | Fp4::MxPacked => [Dtype::U8, Dtype::F8_E8M0].as_slice(),
        Fp4::NvPacked | Fp4::NvModelOpt => [Dtype::F8_E4M3].as_slice(),
    };
    let (scales, groups) = Scales::read(parts, scale, Sharing::Group(size), scale_types)?;
    let scales = match fp4 {
        Fp4::MxBlocks | Fp4::MxPacked => scales,
        Fp4::NvPacked => scales.with_factor(Factor::Over(one(parts, "weight_global_scale")?)),
        Fp4::NvModelOpt => scales.with_factor(Factor::Times(one(parts, "weight_scale_2")?)),
    };
    Ok(QuantisedTensor {
        shape,
        stored: Stored::Halves(codes),
        codes: Codes::E2M1,
        zeros: None,
        scales,
        groups,
    })
}

/// A tensor of one number.
fn one(parts: &mut Parts<'_>, part: &str) -> Result<f32, Refusal> {
    let (dtype, bytes) = parts.take_shaped(part, &[Dtype::F32], &[&[1], &[]])?;
    Ok(number(dtype, &bytes, 0))
}
