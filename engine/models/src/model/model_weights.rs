//! A model's weights, whatever file they come from.

use std::collections::HashMap;
use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{ModelSpec, TensorName, WeightSource};
use ebb_kernels::weight_formats::{PackedRows, Quantisation, QuantisedWeights, WeightFormat};

use super::dummy::DummyWeights;
use super::error::ModelError;
use super::gguf::GgufFile;
use super::gguf::weights::GgufWeights;
use super::hf::HfWeights;
use super::key_scales::KeyScales;

/// The weights as the model's files have them.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Gguf {
        weights: GgufWeights,
        file: Arc<GgufFile>,
    },
    Hf(HfWeights),
    Dummy(DummyWeights),
}

impl Stored {
    /// Random weights in the formats of these.
    pub(super) fn dummy(&self, spec: &ModelSpec) -> Result<Self, ModelError> {
        let mut formats = HashMap::new();
        for name in TensorName::all(spec) {
            if let Some(format) = self.packed(name)? {
                formats.insert(name, format);
            }
        }
        Ok(Self::Dummy(DummyWeights::new(spec, formats)))
    }

    /// Whether linear layers are stored in fewer bits than 16, packed or to be expanded.
    pub(super) fn is_quantised(&self, spec: &ModelSpec) -> Result<bool, ModelError> {
        match self {
            Self::Hf(weights) => Ok(weights.is_quantised()),
            _ => self.source().is_packed(spec),
        }
    }

    fn source(&self) -> &dyn WeightSource<Error = ModelError> {
        match self {
            Self::Gguf { weights, .. } => weights,
            Self::Hf(weights) => weights,
            Self::Dummy(weights) => weights,
        }
    }
}

impl WeightSource for Stored {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        self.source().shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        self.source().read_rows(name, first_row, out)
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        self.source().packed(name)
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        self.source().read_packed(name, first_row, out)
    }

    fn done_reading(&self, name: TensorName) {
        self.source().done_reading(name);
    }
}

/// A model's weights, to be read tensor by tensor, or rows of one.
#[derive(Clone, Debug)]
pub struct ModelWeights {
    source: QuantisedWeights<Stored>,
    /// Folded into the tensors that they belong to, which are not packed any more.
    folded: Option<(Arc<KeyScales>, ModelSpec)>,
    /// Whether nothing is packed.
    is_expanded: bool,
}

impl ModelWeights {
    pub(super) fn new(stored: Stored, quantisation: Option<Quantisation>) -> Self {
        Self {
            source: QuantisedWeights::new(stored, quantisation),
            folded: None,
            is_expanded: false,
        }
    }

    pub(super) fn folded(self, scales: Option<Arc<KeyScales>>, spec: &ModelSpec) -> Self {
        let folded = scales.map(|scales| (scales, spec.clone()));
        Self { folded, ..self }
    }

    /// The same weights, all of them as bf16.
    #[must_use]
    pub fn expanded(self) -> Self {
        Self {
            is_expanded: true,
            ..self
        }
    }

    /// The seed of plain random weights ([`RandomWeights`](ebb_kernels::model::RandomWeights)) and
    /// what they are quantised to, if these are no more than that: devices can make them by
    /// themselves then.
    pub fn random(&self) -> Option<(u64, Option<Quantisation>)> {
        let Stored::Dummy(weights) = self.source.source() else {
            return None;
        };
        let quantisation = self.source.quantisation();
        let is_changed = self.folded.is_some() || self.is_expanded && quantisation.is_some();
        let is_random = weights.is_plain() && !is_changed;
        is_random.then(|| (weights.seed(), quantisation))
    }
}

impl WeightSource for ModelWeights {
    type Error = ModelError;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, ModelError> {
        self.source.shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), ModelError> {
        self.source.read_rows(name, first_row, out)?;
        if let Some((scales, spec)) = &self.folded {
            scales.fold(spec, name, first_row, out);
        }
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, ModelError> {
        match &self.folded {
            _ if self.is_expanded => Ok(None),
            Some((_, spec)) if KeyScales::change(spec, name) => Ok(None),
            _ => self.source.packed(name),
        }
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), ModelError> {
        self.source.read_packed(name, first_row, out)
    }

    fn done_reading(&self, name: TensorName) {
        self.source.done_reading(name);
    }
}
