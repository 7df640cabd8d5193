//! Which tensors of a linear layer stay packed.

use super::{LoadError, LoadOptions};
use crate::cpu::gemm::PackedMatrix;
use crate::cpu::packed::QuantisedMatrix;
use crate::model::ops::LinearName;
use crate::model::{LayerTensor, ModelSpec, TensorName, WeightSource};
use crate::weight_formats::WeightFormat;

/// How a part of a linear layer is kept.
pub(super) enum Part {
    /// In bf16: gate and up, or neighbouring tensors.
    Expanded(Vec<TensorName>),
    /// Packed: gate and up, or one tensor.
    Packed(Vec<(TensorName, WeightFormat)>),
}

impl Part {
    pub(super) fn bytes(&self, spec: &ModelSpec, is_gated: bool) -> usize {
        match self {
            Self::Expanded(names) => {
                let (inputs, outputs) = shape(spec, names);
                let outputs = if is_gated { outputs / 2 } else { outputs };
                PackedMatrix::bytes(inputs, outputs, is_gated)
            }
            Self::Packed(tensors) => tensors
                .iter()
                .map(|(name, format)| packed_bytes(spec, *name, *format).unwrap_or(0))
                .fold(0, usize::saturating_add),
        }
    }
}

/// Inputs, and outputs of all.
pub(super) fn shape(spec: &ModelSpec, names: &[TensorName]) -> (usize, usize) {
    let shapes = names.iter().map(|name| name.matrix_shape(spec));
    shapes.fold((0, 0), |(_, sum), [outputs, inputs]| {
        (inputs, sum + outputs)
    })
}

/// Bytes of a packed tensor, or of one of stacked matrices, if there is a layout.
pub(super) fn packed_bytes(
    spec: &ModelSpec,
    name: TensorName,
    format: WeightFormat,
) -> Option<usize> {
    let [outputs, inputs] = name.matrix_shape(spec);
    QuantisedMatrix::bytes(format, inputs, outputs)
}

/// How a tensor is to be kept packed, if it can.
pub(super) fn format_of<W: WeightSource>(
    spec: &ModelSpec,
    source: &W,
    options: LoadOptions,
    name: TensorName,
) -> Result<Option<WeightFormat>, LoadError<W::Error>> {
    use LayerTensor as L;
    // A rotation mixes weights of different groups.
    let is_folded = options.fold_v && matches!(name, TensorName::Layer(_, L::V | L::O));
    if options.expand || is_folded {
        return Ok(None);
    }
    let format = source.packed(name);
    let format = format.map_err(|source| LoadError::Source { name, source })?;
    Ok(format.filter(|format| packed_bytes(spec, name, *format).is_some()))
}

/// How a linear layer is kept, in order of its outputs; of stacked ones, each.
pub(super) fn parts_of<W: WeightSource>(
    spec: &ModelSpec,
    source: &W,
    options: LoadOptions,
    linear: LinearName,
    is_gated: bool,
) -> Result<Vec<Part>, LoadError<W::Error>> {
    let names = linear.weights(spec);
    let mut tensors = Vec::with_capacity(names.len());
    for name in &names {
        tensors.push((*name, format_of(spec, source, options, *name)?));
    }
    if is_gated {
        return Ok(vec![match tensors[..] {
            [(gate, Some(a)), (up, Some(b))] if QuantisedMatrix::can_join(a, b) => {
                Part::Packed(vec![(gate, a), (up, b)])
            }
            _ => Part::Expanded(names),
        }]);
    }
    let mut parts = Vec::new();
    for (name, format) in tensors {
        match (format, parts.last_mut()) {
            (Some(format), _) => parts.push(Part::Packed(vec![(name, format)])),
            (None, Some(Part::Expanded(names))) => names.push(name),
            (None, _) => parts.push(Part::Expanded(vec![name])),
        }
    }
    Ok(parts)
}
