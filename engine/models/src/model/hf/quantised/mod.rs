//! Quantised checkpoints: what `quantization_config` says, and how stored codes become weights.
//!
//! A linear layer's weight is stored as codes of a few bits and as scales that many codes share:
//! `weight = (code − zero) · scale`. Families see plain tensors: of one of that name, codes and
//! scales are handed out as they are, or computed in f32 and rounded to bf16 once.
//!
//! [`config`] reads a method's settings, and says which scheme a module has. [`formats`] has a
//! file for each way that codes lie in a file:
//!
//! | format | `quant_method` | codes | scales |
//! |---|---|---|---|
//! | `fp8` | fp8, fbgemm_fp8, compressed-tensors, modelopt | E4M3 | per tensor, channel or block |
//! | `int8` | compressed-tensors | 8-bit integers | per tensor, channel or group |
//! | `packed` | compressed-tensors | 4 or 8 bits in words, by rows | per tensor, channel or group |
//! | `awq` | awq | 4 bits in words, by inputs, eight outputs a word | per group |
//! | `gptq` | gptq | 4 or 8 bits in words, by inputs, eight or four inputs a word | per group |
//! | `fp4` | mxfp4, modelopt, compressed-tensors | E2M1 | per 32 or 16, E8M0 or E4M3 |
//!
//! What is stored decides whether a tensor is quantised. Codes that the settings exclude are
//! refused. Activations stay as they are: scales for them, and for a KV cache of 8 bits, are not
//! used.

mod config;
mod formats;
mod parts;
mod scales;

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::shards::Shards;
use crate::model::error::Refusal;
pub(super) use config::{Class, Module, QUANTIZATION_KEYS, read_quantisation};
pub(crate) use config::{Quantisation, read_modelopt_file};
use formats::QuantisedTensor;
use parts::Parts;

/// Quantised tensors of a checkpoint, by the name that a plain tensor would have.
pub(super) type QuantisedTensors = BTreeMap<String, InParts>;

/// A quantised tensor, which is stored in several.
#[derive(Clone, Debug)]
pub(super) struct InParts {
    pub(super) codes: QuantisedTensor,
    /// The shape that a plain tensor of the name would have.
    pub(super) shape: Vec<usize>,
    /// The names of the stored ones.
    pub(super) parts: Vec<String>,
}

/// What follows a module's name in the names of codes that are not called `weight`.
const CODES: [&str; 3] = ["qweight", "weight_packed", "weight_blocks"];

/// What follows the name of all experts' matrices, stacked, in that of their codes.
const STACKED_BLOCKS: &str = "_blocks";

/// Tensors beside a module's weight that have no part in it: scales of activations.
const OF_ACTIVATIONS: [&str; 5] = [
    "activation_scale",
    "input_global_scale",
    "input_scale",
    "input_scale_ub",
    "input_zero_point",
];

/// Tensors for KV caches of 8 bits, and for attention on them.
const OF_KV_CACHES: [&str; 7] = [
    "k_scale",
    "k_zero_point",
    "kv_scale",
    "output_scale",
    "q_scale",
    "v_scale",
    "v_zero_point",
];

/// Whether a checkpoint has the tensor of this name, quantised or not.
pub(super) fn is_stored(shards: &Shards, tensor: &str) -> bool {
    shards.get(tensor).is_some() || codes(shards, tensor).is_some()
}

/// Whether a tensor of this name is for activations or a KV cache, neither of which needs it here.
pub(super) fn is_for_activations(tensor: &str) -> bool {
    let last = tensor.rsplit('.').next().unwrap_or(tensor);
    OF_ACTIVATIONS.contains(&last) || is_for_kv_cache(tensor)
}

/// Whether a tensor of this name is a scale of a KV cache.
pub(super) fn is_for_kv_cache(tensor: &str) -> bool {
    let last = tensor.rsplit('.').next().unwrap_or(tensor);
    OF_KV_CACHES.contains(&last) && tensor.contains(".layers.")
}

/// The name of the codes of a tensor that is stored under no name of plain ones.
pub(super) fn quantised_codes(shards: &Shards, tensor: &str) -> Option<String> {
    codes(shards, tensor).filter(|codes| codes != tensor)
}

/// The name of the codes of a quantised tensor.
fn codes(shards: &Shards, tensor: &str) -> Option<String> {
    let Some(module) = tensor.strip_suffix(".weight") else {
        // All experts' in one, which is no module's weight.
        let blocks = format!("{tensor}{STACKED_BLOCKS}");
        return shards.get(&blocks).map(|_| blocks);
    };
    if let Some(stored) = shards.get(tensor) {
        let plain = matches!(stored.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        return (!plain).then(|| tensor.to_owned());
    }
    let names = CODES.iter().map(|suffix| format!("{module}.{suffix}"));
    names.into_iter().find(|name| shards.get(name).is_some())
}

impl Quantisation {
    /// The quantised tensor of `module`; `None` where the checkpoint stores it plain, or not at
    /// all.
    ///
    /// `shape` is what the model's configuration calls for, `[experts, outputs, inputs]` of
    /// matrices that are stored by rows, one if they are not stacked.
    ///
    /// # Errors
    /// [`Refusal`] where settings and tensors do not fit each other, by name.
    pub(super) fn tensor(
        &self,
        shards: &Shards,
        tensor: &str,
        module: &Module,
        [stacked, rows, columns]: [usize; 3],
    ) -> Result<Option<InParts>, Refusal> {
        let Some(codes) = codes(shards, tensor) else {
            return Ok(None);
        };
        let scheme = self.scheme(&codes, module)?;
        let stem = tensor.strip_suffix(".weight").unwrap_or(tensor);
        let mut parts = Parts::new(shards, stem, [stacked * rows, columns], stacked);
        let codes = scheme.tensor(&mut parts)?;
        Ok(Some(InParts {
            codes,
            shape: Vec::new(),
            parts: parts.taken(),
        }))
    }
}
