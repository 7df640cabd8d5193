//! `quant_method: modelopt` of NVIDIA's Model Optimizer.

use super::modules::{ModuleList, RegexBudget, Syntax};
use super::{Quantisation, one_of};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::formats::{Fp4, Scheme};
use crate::model::hf::quantised::scales::Sharing;

const PER_TENSOR: &str = "FP8";
const PER_CHANNEL: &str = "FP8_PER_CHANNEL_PER_TOKEN";
const PER_BLOCK: &str = "FP8_PB_WO";
const MXFP8: &str = "MXFP8";
const NVFP4: &str = "NVFP4";

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
    const KEY: &str = "quant_algo";
    let of_kv_cache = ["kv_cache_scheme", "kv_cache_quant_algo"];
    let has_kv_cache = of_kv_cache.iter().any(|key| settings.get(key).is_some());
    let algorithm = settings.get(KEY);
    if algorithm.is_none() && has_kv_cache {
        // Nothing but the KV cache is quantised.
        return Ok(Quantisation {
            method: "",
            ignored: ModuleList::empty(settings.name(KEY)),
            groups: Vec::new(),
            others: None,
            has_kv_cache,
        });
    }
    settings.required(KEY, algorithm)?;
    let known = [PER_TENSOR, PER_CHANNEL, PER_BLOCK, MXFP8, NVFP4];
    let scheme = match one_of(settings, KEY, &known)? {
        PER_TENSOR => Scheme::Fp8(Sharing::Tensor),
        PER_CHANNEL => Scheme::Fp8(Sharing::Channel),
        PER_BLOCK => Scheme::Fp8(Sharing::Block([128, 128])),
        MXFP8 => Scheme::Fp8(Sharing::Group(32)),
        _ => Scheme::Fp4(Fp4::NvModelOpt),
    };
    let is_fp4 = matches!(scheme, Scheme::Fp4(_));
    if let Some(size) = settings.size("group_size")?
        && is_fp4
        && size != 16
    {
        return Err(Refusal::unsupported(
            settings.name("group_size"),
            size,
            "16",
        ));
    }
    let key = match settings.get("exclude_modules") {
        Some(_) => "exclude_modules",
        None => "ignore",
    };
    let ignored = ModuleList::read(settings, key, Syntax::Trees, &mut RegexBudget::new())?;
    Ok(Quantisation {
        has_kv_cache,
        ..Quantisation::of_all(scheme, ignored)
    })
}
