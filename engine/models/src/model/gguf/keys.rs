//! The `{architecture}.*` keys: which are understood, and how sizes are read.

use super::config::HAS_ROPE;
use super::metadata::{GgufMetadata, required};
use super::value::GgufValue;
use crate::model::error::Refusal;
use crate::model::families::GgufFamily;

/// Keys under the architecture's name that are read.
const READ: [&str; 21] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
];
/// Keys that say nothing about the computation.
const SILENT: [&str; 2] = ["tensor_data_layout", HAS_ROPE];
/// Keys that are understood at one value, at which they change nothing.
const NEUTRAL: [(&str, f32); 4] = [
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

/// The keys under the architecture's name.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a GgufMetadata,
    pub(super) family: &'static GgufFamily,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.family.architecture)
    }

    pub(super) fn refuse_unknown(&self) -> Result<(), Refusal> {
        let ours = self.metadata.keys().filter_map(|name| {
            let key = name
                .strip_prefix(self.family.architecture)?
                .strip_prefix('.')?;
            Some((name, key))
        });
        for (name, key) in ours {
            if READ.contains(&key) || SILENT.contains(&key) || self.family.has_key(key) {
                continue;
            }
            match NEUTRAL.iter().find(|(neutral, _)| *neutral == key) {
                Some((_, value)) if self.metadata.f32(name)? == Some(*value) => {}
                neutral => {
                    let found = self
                        .metadata
                        .get(name)
                        .map_or(String::new(), GgufValue::to_string);
                    let supported = match neutral {
                        Some((_, value)) => value.to_string(),
                        None => format!("{}, and its absence", READ.join(", ")),
                    };
                    return Err(Refusal::unsupported(name, found, &supported));
                }
            }
        }
        Ok(())
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, Refusal> {
        let name = self.name(key);
        Ok(required(self.metadata.u32(&name)?, &name, "the model")? as usize)
    }

    /// A size that may be written once, or once for each layer if all are the same. Of a family
    /// that has the key among its own it is the first layer's: it reads the others itself.
    pub(super) fn per_layer_size(&self, key: &str) -> Result<Option<usize>, Refusal> {
        match self.integers(key)? {
            Some(sizes) if self.family.has_key(key) => {
                self.same_size(key, &sizes[..sizes.len().min(1)])
            }
            Some(sizes) => self.same_size(key, &sizes),
            None => {
                let size = self.metadata.u32(&self.name(key))?;
                Ok(size.map(|size| size as usize))
            }
        }
    }

    /// The size that all layers have.
    pub(super) fn same_size(&self, key: &str, sizes: &[i32]) -> Result<Option<usize>, Refusal> {
        match sizes.split_first() {
            Some((first, rest)) if *first >= 0 && rest.iter().all(|size| size == first) => {
                Ok(Some(*first as usize))
            }
            _ => {
                let found = format!("{} values that differ", sizes.len());
                Err(Refusal::unsupported(
                    self.name(key),
                    found,
                    "the same value for every layer",
                ))
            }
        }
    }

    /// Whole numbers, if the value is a list.
    pub(super) fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, Refusal> {
        let name = self.name(key);
        match self.metadata.get(&name) {
            Some(GgufValue::Array(_)) => Ok(self.metadata.i32s(&name)?),
            _ => Ok(None),
        }
    }

    /// True or false for each of `layers`, if the value is a list.
    pub(super) fn flags(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, Refusal> {
        let name = self.name(key);
        let Some(GgufValue::Array(_)) = self.metadata.get(&name) else {
            return Ok(None);
        };
        let flags = self.metadata.flags(&name)?.unwrap_or_default();
        if flags.len() != layers {
            let found = format!("{} long", flags.len());
            let expected = format!("one element for each of {layers} layers");
            return Err(Refusal::invalid(name, found, expected));
        }
        Ok(Some(flags))
    }
}
