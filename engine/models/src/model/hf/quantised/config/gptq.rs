//! `quant_method: gptq` of AutoGPTQ and GPTQModel.

use super::modules::{ModuleList, RegexBudget, Syntax};
use super::{Quantisation, bits, group_size, one_of};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::formats::{Gptq, Scheme};

const BITS: [usize; 2] = [4, 8];

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
    let versions = ["gptq", "gptq_v2"];
    let version = one_of(settings, "checkpoint_format", &versions)?;
    if settings.bool("is_marlin_format")? == Some(true) {
        let field = settings.name("is_marlin_format");
        return Err(Refusal::unsupported(field, true, "false"));
    }
    one_of(settings, "pack_dtype", &["int32"])?;
    let common = Gptq {
        bits: bits(settings, "bits", &BITS)?,
        group: group_size(settings, "group_size")?,
        indexed: settings.bool("desc_act")?.unwrap_or(false),
        zeros_less_one: version == "gptq",
        symmetric: settings.bool("sym")?.unwrap_or(true),
    };
    let mut budget = RegexBudget::new();
    let key = "modules_to_not_convert";
    let ignored = ModuleList::read(settings, key, Syntax::Parts, &mut budget)?;
    let mut quantisation = Quantisation::of_all(Scheme::Gptq(common), ignored);
    let Some(exceptions) = settings.object("dynamic")? else {
        return Ok(quantisation);
    };
    for key in exceptions.keys() {
        let mut targets = ModuleList::empty(exceptions.name(key));
        let scheme = match key.strip_prefix("-:") {
            Some(pattern) => {
                targets.add_regex(pattern, &mut budget)?;
                None
            }
            None => {
                targets.add_regex(key.strip_prefix("+:").unwrap_or(key), &mut budget)?;
                let own = exceptions.object(key)?.unwrap_or_default();
                Some(Scheme::Gptq(exception(&own, common)?))
            }
        };
        quantisation.groups.push((targets, scheme));
    }
    Ok(quantisation)
}

/// What a group of modules has in place of the common settings.
fn exception(own: &Object, common: Gptq) -> Result<Gptq, Refusal> {
    Ok(Gptq {
        bits: match own.get("bits") {
            Some(_) => bits(own, "bits", &BITS)?,
            None => common.bits,
        },
        group: match own.get("group_size") {
            Some(_) => group_size(own, "group_size")?,
            None => common.group,
        },
        indexed: own.bool("desc_act")?.unwrap_or(common.indexed),
        ..common
    })
}
