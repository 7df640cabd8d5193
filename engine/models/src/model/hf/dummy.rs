//! In which formats a checkpoint of a configuration would have its weights.

use std::collections::HashMap;

use ebb_kernels::model::{LayerTensor, TensorName};
use ebb_kernels::weight_formats::WeightFormat;

use super::config::HfModel;
use super::quantised::{Class, Module};
use super::tensor_prefix::TensorPrefix;
use crate::model::error::Refusal;

/// The formats of linear layers that `quantization_config` has quantised and that can be packed.
/// Embedding and output projection are plain, as they are in nearly all checkpoints.
pub(crate) fn packed_formats(
    model: &HfModel,
) -> Result<HashMap<TensorName, WeightFormat>, Refusal> {
    use LayerTensor as L;
    let mut formats = HashMap::new();
    let Some(quantisation) = &model.quantisation else {
        return Ok(formats);
    };
    for name in TensorName::all(&model.spec) {
        let TensorName::Layer(_, L::Q | L::K | L::V | L::O | L::Gate | L::Up | L::Down) = name
        else {
            continue;
        };
        let stem = |tensor: &str| tensor.trim_end_matches(".weight").to_owned();
        let tensor = (model.family.hf_tensor)(name).name;
        let others = TensorPrefix::spellings(&tensor);
        let module = Module {
            name: stem(&tensor),
            others: others.iter().map(|name| stem(name)).collect(),
            class: Class::Linear,
        };
        let inputs = name.shape(&model.spec).last().copied().unwrap_or(1);
        if let Some(format) = quantisation.format(&module, inputs)? {
            formats.insert(name, format);
        }
    }
    Ok(formats)
}
