//! `quant_method: awq`, in AutoAWQ's layout `gemm`.

use super::modules::{ModuleList, RegexBudget, Syntax};
use super::{Quantisation, bits, group_size, one_of};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::formats::Scheme;

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
    // The older names are of AutoAWQ's own file.
    let either = |new, old| match settings.get(new) {
        Some(_) => new,
        None if settings.get(old).is_some() => old,
        None => new,
    };
    bits(settings, either("bits", "w_bit"), &[4])?;
    one_of(settings, "version", &["gemm"])?;
    let scheme = Scheme::Awq {
        group: group_size(settings, either("group_size", "q_group_size"))?,
        zeros: settings.bool("zero_point")?.unwrap_or(true),
    };
    let ignored = ModuleList::read(
        settings,
        "modules_to_not_convert",
        Syntax::Parts,
        &mut RegexBudget::new(),
    )?;
    Ok(Quantisation::of_all(scheme, ignored))
}
