//! The model families, one file each, which is all that a family needs.
//!
//! A family's file says what the family is called, how its configuration becomes a [`ModelSpec`],
//! and what its checkpoints call each tensor. What most families share is in
//! [`HfConfig::uniform`], [`GgufConfig::uniform`] and `names`. To add one, write the file and add
//! its name to the list below.

mod gemma4_gguf;
mod mamba;
mod names;
mod qwen3_next_gguf;
mod row_order;
mod stored;

use std::fmt;

use ebb_kernels::model::{Mixer, Mlp, ModelSpec, PlainMlp, RecurrentSpec, TensorName};

use super::error::Refusal;
use super::gguf::config::GgufConfig;
use super::hf::config::HfConfig;
pub(crate) use names::{llama_gguf, llama_hf};
pub(crate) use row_order::RowOrder;
pub(crate) use stored::{Columns, Run, StoredTensor};

/// Declares the modules and the list of all families.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        $(mod $family;)*

        /// Every family that this engine computes.
        pub static FAMILIES: &[&Family] = &[$(&$family::FAMILY),*];
    };
}

families!(
    afmoe,
    apertus,
    arcee,
    aria_text,
    bamba,
    cohere,
    cohere2,
    cohere2_moe,
    cwm,
    dots1,
    ernie4_5,
    ernie4_5_moe,
    exaone4,
    exaone_moe,
    flex_olmo,
    gemma,
    gemma2,
    gemma3_text,
    gemma4_text,
    glm,
    glm4,
    glm4_moe,
    gpt_oss,
    granite,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    granitemoehybrid,
    granitemoeshared,
    helium,
    hunyuan_v1_dense,
    hunyuan_v1_moe,
    hy_v3,
    hyperclovax,
    jais2,
    laguna,
    lfm2,
    lfm2_moe,
    llama,
    llama4_text,
    mellum,
    minimax_m2,
    ministral,
    ministral3,
    mistral,
    mixtral,
    nanochat,
    nemotron,
    nemotron_h,
    olmo,
    olmo2,
    olmo3,
    olmo_hybrid,
    olmoe,
    phi,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5_moe_text,
    qwen3_5_text,
    qwen3_moe,
    qwen3_next,
    qwen3_vl_moe_text,
    qwen3_vl_text,
    seed_oss,
    smollm3,
    solar_open,
    stablelm,
    starcoder2,
    vaultgemma,
);

/// A family of decoder-only transformers.
pub struct Family {
    /// `model_type` in config.json, and what the family is called.
    pub name: &'static str,
    /// The causal language model's class, in `architectures`.
    pub hf_class: &'static str,
    /// What this family's layers are called as the text part of a checkpoint that also reads images
    /// or sounds.
    pub(crate) hf_text: &'static [TextType],
    /// How config.json becomes a spec.
    pub(crate) hf_spec: fn(&HfConfig) -> Result<ModelSpec, Refusal>,
    /// What a Hugging Face checkpoint calls a tensor.
    pub(crate) hf_tensor: fn(TensorName) -> StoredTensor,
    /// How GGUF files have it, if they do.
    pub(crate) gguf: Option<GgufFamily>,
}

/// A configuration class of transformers for text parts.
#[derive(Debug)]
pub(crate) struct TextType {
    /// `model_type`, and that of the whole where the fields are not in a `text_config`.
    pub(crate) model_types: &'static [&'static str],
    /// What sizes a `text_config` has that leaves them out: a JSON object of the class's defaults,
    /// which transformers does not write there. A model by itself has to name its sizes.
    pub(crate) sizes: &'static str,
    /// What other fields mean that any config.json leaves out, as a JSON object, where that is not
    /// what most families take them for. `null` for `num_key_value_heads` says that there are as
    /// many as query heads.
    pub(crate) constants: &'static str,
}

/// A family in GGUF files.
#[derive(Debug)]
pub(crate) struct GgufFamily {
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
    /// Keys under the architecture's name that this family alone has, and those of sizes that it
    /// reads for each layer; in lists, as several families have some together.
    pub(crate) keys: &'static [&'static [&'static str]],
    /// How the metadata become a spec.
    pub(crate) spec: fn(&GgufConfig<'_>) -> Result<ModelSpec, Refusal>,
    /// What the file calls a tensor.
    pub(crate) tensor: fn(TensorName) -> StoredTensor,
    /// Whether converters permute Q and K for interleaved RoPE.
    pub(crate) permutes_qk: bool,
}

impl GgufFamily {
    /// Whether a key is among its own.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.keys.iter().any(|keys| keys.contains(&key))
    }

    /// Where a file has a tensor.
    pub(crate) fn stored(&self, name: TensorName) -> StoredTensor {
        let stored = (self.tensor)(name);
        match self.permutes_qk {
            true => stored.interleaved(),
            false => stored,
        }
    }
}

/// Families whose GGUF files, or some of them, are of another family's architecture, which they
/// then belong to: files do not tell the two apart.
const SHARED_ARCHITECTURES: [(&str, &str); 9] = [
    ("granitemoe_swa", "granite_swa"),
    ("granitemoehybrid", "granite"),
    ("granitemoehybrid", "granitemoe"),
    ("granitemoeshared", "granitemoe"),
    ("ministral", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("olmo3", "olmo2"),
    ("solar_open", "glm4moe"),
];

/// Families whose GGUF files are of two architectures of their own: the second one.
static SECOND_ARCHITECTURES: [(&Family, &GgufFamily); 1] =
    [(&nemotron_h::FAMILY, &nemotron_h::WITH_EXPERTS)];

impl Family {
    /// Every GGUF architecture that is read, and the family that has it.
    pub(crate) fn all_gguf() -> impl Iterator<Item = (&'static Self, &'static GgufFamily)> {
        let families = FAMILIES.iter().copied();
        families.flat_map(|family| {
            let mut second = SECOND_ARCHITECTURES.iter().copied();
            let second = second.find(|(of, _)| *of == family);
            let first = family.gguf.as_ref().map(|gguf| (family, gguf));
            first.into_iter().chain(second)
        })
    }

    /// `general.architecture` of GGUF files of this family: its own, and that of another one.
    pub fn gguf_architectures(&self) -> Vec<&'static str> {
        let own = Self::all_gguf().filter(|(family, _)| *family == self);
        let shared = SHARED_ARCHITECTURES.iter();
        let shared = shared.filter(|(family, _)| *family == self.name);
        own.map(|(_, gguf)| gguf.architecture)
            .chain(shared.map(|(_, architecture)| *architecture))
            .collect()
    }

    /// The family of this `model_type`.
    pub fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().copied().find(|family| family.name == name)
    }

    /// What transformers has for a model of this family by itself.
    pub(crate) fn own_text(&self) -> Option<&'static TextType> {
        let mut types = self.hf_text.iter();
        types.find(|text| text.model_types.contains(&self.name))
    }

    /// The family of a text part of this `model_type`.
    pub(crate) fn of_text_part(name: &str) -> Option<(&'static Self, &'static TextType)> {
        FAMILIES.iter().find_map(|family| {
            let mut types = family.hf_text.iter();
            let found = types.find(|text| text.model_types.contains(&name))?;
            Some((*family, found))
        })
    }

    /// The family of this GGUF architecture. Files of it may be another family's
    /// ([`Self::gguf_architectures`]).
    pub(crate) fn of_gguf(architecture: &str) -> Option<(&'static Self, &'static GgufFamily)> {
        Self::all_gguf().find(|(_, gguf)| gguf.architecture == architecture)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Family {}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Gives a recurrence to every layer that has no attention.
fn put_recurrent(spec: &mut ModelSpec, recurrent: RecurrentSpec, attention: &[bool]) {
    for (layer, has_attention) in spec.layers.iter_mut().zip(attention) {
        if !has_attention {
            layer.mixer = Mixer::Recurrent(recurrent);
        }
    }
}

/// Gives every layer an MLP without gates in place of one with.
fn put_plain_mlp(spec: &mut ModelSpec, bias: bool) {
    for layer in &mut spec.layers {
        layer.mlp = Mlp::Plain(PlainMlp {
            intermediate: layer.intermediate(),
            activation: layer.activation(),
            bias,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_classes_and_architectures_are_told_apart() {
        let mut seen = std::collections::HashSet::new();
        for family in FAMILIES {
            assert!(seen.insert(family.name) && seen.insert(family.hf_class));
            for text in family.hf_text {
                for name in text.model_types {
                    assert!(*name == family.name || seen.insert(name));
                }
                for object in [text.sizes, text.constants] {
                    serde_json::from_str::<serde_json::Map<_, _>>(object).expect("an object");
                }
            }
            assert!(family.own_text().is_some());
            assert_eq!(Family::named(family.name), Some(*family));
            for (_, gguf) in Family::all_gguf().filter(|(of, _)| of == family) {
                let (found, _) = Family::of_gguf(gguf.architecture).expect("registered");
                assert_eq!(found, *family);
            }
            for architecture in family.gguf_architectures() {
                assert!(Family::of_gguf(architecture).is_some(), "{architecture}");
            }
        }
        for (name, _) in SHARED_ARCHITECTURES {
            assert!(Family::named(name).is_some(), "{name}");
        }
        assert_eq!(Family::named("gpt2"), None);
    }
}
