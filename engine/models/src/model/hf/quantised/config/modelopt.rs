//! `quant_method: modelopt` of NVIDIA's Model Optimizer.

use super::modules::{ModuleList, RegexBudget, Syntax};
use super::{Quantisation, one_of};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::formats::{Fp4, Scheme};
use crate::model::hf::quantised::scales::Sharing;

const KEY: &str = "quant_algo";

const PER_TENSOR: &str = "FP8";
const PER_CHANNEL: &str = "FP8_PER_CHANNEL_PER_TOKEN";
const PER_BLOCK: &str = "FP8_PB_WO";
const MXFP8: &str = "MXFP8";
const NVFP4: &str = "NVFP4";
/// The same weights, for activations of 16 bits.
const NVFP4_WEIGHTS: &str = "W4A16_NVFP4";

/// Each module has an algorithm of its own, in [`LAYERS`].
const MIXED: &str = "MIXED_PRECISION";

/// Modules by name, with the settings of each.
pub(super) const LAYERS: &str = "quantized_layers";

const ALGORITHMS: [&str; 6] = [
    PER_TENSOR,
    PER_CHANNEL,
    PER_BLOCK,
    MXFP8,
    NVFP4,
    NVFP4_WEIGHTS,
];

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
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
            has_head: false,
        });
    }
    settings.required(KEY, algorithm)?;
    let key = match settings.get("exclude_modules") {
        Some(_) => "exclude_modules",
        None => "ignore",
    };
    let ignored = ModuleList::read(settings, key, Syntax::Trees, &mut RegexBudget::new())?;
    let known: Vec<_> = ALGORITHMS.into_iter().chain([MIXED]).collect();
    let quantisation = match one_of(settings, KEY, &known)? {
        MIXED => mixed(settings, ignored)?,
        algorithm => Quantisation::of_all(scheme(settings, algorithm)?, ignored),
    };
    Ok(Quantisation {
        has_kv_cache,
        ..quantisation
    })
}

/// Modules by name; the others are not quantised.
fn mixed(settings: &Object, ignored: ModuleList) -> Result<Quantisation, Refusal> {
    let layers = settings.object(LAYERS)?;
    let layers = settings.required(LAYERS, layers)?;
    // By the scheme, of which there are few.
    let mut groups: Vec<(ModuleList, Option<Scheme>)> = Vec::new();
    for name in layers.keys() {
        let own = layers.object(name)?.unwrap_or_default();
        let found = own.get(KEY);
        own.required(KEY, found)?;
        let scheme = Some(scheme(&own, one_of(&own, KEY, &ALGORITHMS)?)?);
        let at = match groups.iter().position(|(_, known)| *known == scheme) {
            Some(at) => at,
            None => {
                groups.push((ModuleList::empty(settings.name(LAYERS)), scheme));
                groups.len() - 1
            }
        };
        groups[at].0.add_name(name);
    }
    Ok(Quantisation {
        method: "",
        ignored,
        groups,
        others: None,
        has_kv_cache: false,
        has_head: false,
    })
}

/// The scheme of an algorithm with its settings.
fn scheme(settings: &Object, algorithm: &str) -> Result<Scheme, Refusal> {
    // Each has groups of one size, or none; a size that is given besides says nothing.
    let (scheme, group) = match algorithm {
        PER_TENSOR => (Scheme::Fp8(Sharing::Tensor), None),
        PER_CHANNEL => (Scheme::Fp8(Sharing::Channel), None),
        PER_BLOCK => (Scheme::Fp8(Sharing::Block([128, 128])), Some(128)),
        MXFP8 => (Scheme::Fp8(Sharing::Group(32)), Some(32)),
        _ => (Scheme::Fp4(Fp4::NvModelOpt), Some(16)),
    };
    match (settings.size("group_size")?, group) {
        (Some(found), Some(group)) if found != group => {
            let supported = format!("{group} with {algorithm}");
            let field = settings.name("group_size");
            Err(Refusal::unsupported(field, found, &supported))
        }
        _ => Ok(scheme),
    }
}
