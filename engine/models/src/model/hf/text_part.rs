//! The text part of a checkpoint that also reads images or sounds.
//!
//! transformers has such models as `…ForConditionalGeneration`. Their config.json describes the
//! language model in `text_config`, and older ones (Qwen2-VL) beside `vision_config`.

use super::config::DTYPE;
use super::json::Object;
use super::quantised::QUANTIZATION_KEYS;
use crate::model::error::Refusal;
use crate::model::families::{FAMILIES, Family};

/// Fields of config.json that say that there are other parts.
const OTHER_PARTS: [&str; 3] = ["vision_config", "audio_config", "text_config"];

const TIED: &str = "tie_word_embeddings";

/// Fields that count for the text part although they may stand beside it.
const OUTER: [&str; 6] = [
    TIED,
    "eos_token_id",
    DTYPE[0],
    DTYPE[1],
    QUANTIZATION_KEYS[0],
    QUANTIZATION_KEYS[1],
];

/// What a checkpoint is, by its config.json.
pub(super) struct TextPart {
    pub(super) family: &'static Family,
    /// The fields that describe it.
    pub(super) config: Object,
    /// Whether the checkpoint has other parts too.
    pub(super) has_others: bool,
    /// Whether it or the whole says that the embedding is the output projection, too. They differ
    /// in some checkpoints (LLaVA-OneVision), which then lack the projection.
    pub(super) may_be_tied: bool,
}

/// Finds what describes the language model.
///
/// # Errors
/// [`Refusal`] where no family computes it.
pub(super) fn text_part(config: Object) -> Result<TextPart, Refusal> {
    let model_type = config.text("model_type")?;
    let model_type = config.required("model_type", model_type)?;
    if let Some(family) = Family::named(model_type) {
        check_class(&config, family)?;
        let mut config = config;
        if let Some(own) = family.own_text() {
            config.fill(&Object::parse(own.constants.as_bytes())?);
        }
        return Ok(TextPart {
            family,
            config,
            has_others: false,
            may_be_tied: false,
        });
    }
    let has_others = OTHER_PARTS.iter().any(|key| config.get(key).is_some());
    let (outer, mut text) = match config.object("text_config")? {
        Some(text) => (Some(config), text),
        None => (None, config),
    };
    let text_type = text.text("model_type")?;
    let text_type = text.required("model_type", text_type)?;
    let Some((family, own)) = Family::of_text_part(text_type).filter(|_| has_others) else {
        return Err(unknown(&text, text_type));
    };
    check_generates(outer.as_ref().unwrap_or(&text))?;
    check_sees_before(outer.as_ref())?;
    let mut may_be_tied = text.bool(TIED)? == Some(true);
    if let Some(outer) = &outer {
        text.put(outer, &OUTER);
    }
    for left_out in [own.sizes, own.constants] {
        text.fill(&Object::parse(left_out.as_bytes())?);
    }
    may_be_tied |= text.bool(TIED)? == Some(true);
    Ok(TextPart {
        family,
        config: text,
        has_others,
        may_be_tied,
    })
}

/// There are rerankers and embedders of this kind, too.
fn check_generates(config: &Object) -> Result<(), Refusal> {
    const SUFFIX: &str = "ForConditionalGeneration";
    let Some(architectures) = config.get("architectures") else {
        return Ok(());
    };
    let mut classes = architectures.as_array().into_iter().flatten();
    if classes.any(|class| class.as_str().is_some_and(|class| class.ends_with(SUFFIX))) {
        return Ok(());
    }
    let supported = format!("classes that end in {SUFFIX}");
    Err(Refusal::unsupported(
        "architectures",
        architectures,
        &supported,
    ))
}

/// PaliGemma's text part is Gemma's, but a token of a prompt sees all of it.
fn check_sees_before(outer: Option<&Object>) -> Result<(), Refusal> {
    const TYPE: &str = "model_type";
    match outer.map(|outer| outer.text(TYPE)).transpose()?.flatten() {
        Some(found @ "paligemma") => {
            let supported = "models whose tokens see only those before them";
            Err(Refusal::unsupported(TYPE, format!("{found:?}"), supported))
        }
        _ => Ok(()),
    }
}

fn unknown(config: &Object, model_type: &str) -> Refusal {
    let names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    let found = format!("{model_type:?}");
    Refusal::unsupported(config.name("model_type"), found, &names.join(", "))
}

/// The same layers also serve as classifiers and embedders, which have another head.
fn check_class(config: &Object, family: &Family) -> Result<(), Refusal> {
    let Some(architectures) = config.get("architectures") else {
        return Ok(());
    };
    let classes = architectures.as_array().map_or(&[][..], Vec::as_slice);
    let class = family.hf_class;
    // Phi-3.5-MoE's file has PhiMoEForCausalLM, transformers PhimoeForCausalLM; ERNIE's first ones
    // have Ernie4_5_ForCausalLM.
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    let is_class = |found: &str| plain(found) == plain(class);
    if classes
        .iter()
        .any(|found| found.as_str().is_some_and(is_class))
    {
        return Ok(());
    }
    Err(Refusal::unsupported("architectures", architectures, class))
}
