//! `quant_method: fp8` of transformers, AutoFP8 and DeepSeek; `fbgemm_fp8`.

use super::{ModuleList, Quantisation, block, one_of};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::config::modules::{RegexBudget, Syntax};
use crate::model::hf::quantised::formats::Scheme;
use crate::model::hf::quantised::scales::Sharing;

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
    one_of(settings, "fmt", &["e4m3", "float8_e4m3fn"])?;
    one_of(settings, "activation_scheme", &["dynamic", "static"])?;
    let sharing = match block(settings, "weight_block_size")? {
        Some(block) => Sharing::Block(block),
        None => Sharing::TensorOrChannel,
    };
    let key = match settings.get("ignored_layers") {
        Some(_) => "ignored_layers",
        None => "modules_to_not_convert",
    };
    let ignored = ModuleList::read(settings, key, Syntax::Trees, &mut RegexBudget::new())?;
    Ok(Quantisation {
        has_kv_cache: settings.get("kv_cache_scheme").is_some(),
        ..Quantisation::of_all(Scheme::Fp8(sharing), ignored)
    })
}
