//! `quant_method: mxfp4` of gpt-oss.

use super::Quantisation;
use super::modules::{ModuleList, RegexBudget, Syntax};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::formats::{Fp4, Scheme};

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
    let ignored = ModuleList::read(
        settings,
        "modules_to_not_convert",
        Syntax::Trees,
        &mut RegexBudget::new(),
    )?;
    Ok(Quantisation::of_all(Scheme::Fp4(Fp4::MxBlocks), ignored))
}
