//! The text part of a checkpoint that also reads images or sounds.
//!
//! transformers has such models as `…ForConditionalGeneration`. Their config.json describes the
//! language model in `text_config`, and older ones (Qwen2-VL) beside `vision_config`; their
//! checkpoints put a prefix before its tensors.

use super::json::Object;
use crate::model::error::Refusal;
use crate::model::families::{FAMILIES, Family};

/// Fields of config.json that say that there are other parts.
const OTHER_PARTS: [&str; 3] = ["vision_config", "audio_config", "text_config"];

const TIED: &str = "tie_word_embeddings";

/// Fields that count for the text part although they may stand beside it.
const OUTER: [&str; 3] = [TIED, "eos_token_id", "quantization_config"];

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
    let Some((family, defaults)) = Family::of_text_part(text_type).filter(|_| has_others) else {
        return Err(unknown(&text, text_type));
    };
    check_generates(outer.as_ref().unwrap_or(&text))?;
    let mut may_be_tied = text.bool(TIED)? == Some(true);
    if let Some(outer) = &outer {
        text.put(outer, &OUTER);
    }
    text.fill(&Object::parse(defaults.defaults.as_bytes())?);
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
    if classes.iter().any(|found| found.as_str() == Some(class)) {
        return Ok(());
    }
    Err(Refusal::unsupported("architectures", architectures, class))
}

/// Where a checkpoint has the tensors of its language model: what it has in place of `model.` and
/// of `lm_head.` at the beginning of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    model: &'static str,
    head: &'static str,
}

impl Place {
    /// As a language model alone has them.
    const PLAIN: Self = Self {
        model: MODEL,
        head: HEAD,
    };

    /// Those that transformers has written, the newest first.
    const ALL: [Self; 4] = [
        Self {
            model: "model.language_model.",
            head: HEAD,
        },
        Self {
            model: "language_model.model.",
            head: "language_model.lm_head.",
        },
        Self {
            model: "model.text_model.",
            head: HEAD,
        },
        Self::PLAIN,
    ];

    /// Where the tensor is that a language model alone would call `name`.
    pub(super) fn find(name: &str, is_there: impl Fn(&str) -> bool) -> Self {
        let found = Self::ALL.into_iter().find(|p| is_there(&p.put(name)));
        found.unwrap_or(Self::PLAIN)
    }

    /// The name here of what a language model alone calls `name`.
    pub(super) fn put(self, name: &str) -> String {
        for (from, to) in [(MODEL, self.model), (HEAD, self.head)] {
            if let Some(rest) = name.strip_prefix(from) {
                return format!("{to}{rest}");
            }
        }
        name.to_owned()
    }

    /// Whether a tensor of this name belongs to the language model.
    pub(super) fn has(self, name: &str) -> bool {
        name.starts_with(self.model) || name.starts_with(self.head)
    }
}

/// How a language model's tensors begin, without and with its output projection.
const MODEL: &str = "model.";
const HEAD: &str = "lm_head.";
