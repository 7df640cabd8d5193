//! In which formats a checkpoint of a configuration would have its weights.

use std::collections::HashMap;

use ebb_kernels::model::TensorName;
use ebb_kernels::weight_formats::WeightFormat;

use super::config::HfModel;
use super::quantised::{Class, Module};
use crate::model::error::Refusal;

/// The formats of linear layers that `quantization_config` has quantised and that can be packed,
/// and of the output projection where the settings have it quantised. The embedding is plain, as it
/// is in nearly all checkpoints.
pub(crate) fn packed_formats(
    model: &HfModel,
) -> Result<HashMap<TensorName, WeightFormat>, Refusal> {
    let mut formats = HashMap::new();
    let Some(quantisation) = &model.quantisation else {
        return Ok(formats);
    };
    for name in TensorName::all(&model.spec) {
        let is_asked = name.is_linear() || name == TensorName::LmHead && quantisation.has_head();
        if !is_asked {
            continue;
        }
        // All experts are stored alike.
        let tensor = (model.family.hf_tensor)(name).name_of(0);
        let module = Module::new(&tensor, &tensor, Class::Linear);
        let inputs = name.shape(&model.spec).last().copied().unwrap_or(1);
        if let Some(format) = quantisation.format(&module, inputs)? {
            formats.insert(name, format);
        }
    }
    Ok(formats)
}
