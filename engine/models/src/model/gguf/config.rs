//! A GGUF file's `{architecture}.*` keys → the shapes and constants of the model.

use ebb_kernels::model::{
    ExpertsSpec, LayerTensor, ModelSpec, Rope, Routing, TensorName, UniformModel,
};

use super::file::GgufFile;
use super::keys::Keys;
use super::metadata::{GgufMetadata, required};
use super::rope_scaling::{has_long_factors, long_factors, scaling};
use crate::model::error::Refusal;
use crate::model::experts::plain_experts;
use crate::model::families::{FAMILIES, Family, GgufFamily};
use crate::model::rope::{Scaling, rope};
use crate::model::tensors::{check_spec, layer_count};
use crate::model::window::put_windows;

/// The key of an architecture that has windows in some layers only and gives them itself
/// ([`GgufConfig::put_windows`]): one layer of so many has none.
pub(crate) const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// The key of an architecture whose norms are LayerNorm.
pub(crate) const LAYER_NORM_EPS: &str = "attention.layer_norm_epsilon";

/// What the metadata say of the computation.
pub(crate) struct GgufModel {
    pub(crate) family: &'static Family,
    pub(crate) names: &'static GgufFamily,
    pub(crate) spec: ModelSpec,
}

/// Reads the architecture, refusing every key that is not understood.
pub(crate) fn read_config(file: &GgufFile) -> Result<GgufModel, Refusal> {
    let metadata = file.metadata();
    let (family, names) = family(metadata)?;
    let keys = Keys {
        metadata,
        prefix: names.architecture,
        own: names.keys,
    };
    keys.refuse_unknown()?;
    let config = GgufConfig { keys, file, names };
    let mut spec = (names.spec)(&config)?;
    if !names.keys.contains(&WINDOW_PATTERN) {
        put_windows(&mut spec, config.window()?, |_| true);
    }
    Ok(GgufModel {
        family,
        names,
        spec: check_spec(spec)?,
    })
}

fn family(metadata: &GgufMetadata) -> Result<(&'static Family, &'static GgufFamily), Refusal> {
    const KIND: &str = "general.type";
    const ARCHITECTURE: &str = "general.architecture";
    if let Some(kind) = metadata.text(KIND)?
        && kind != "model"
    {
        return Err(Refusal::unsupported(KIND, format!("{kind:?}"), "model"));
    }
    let architecture = required(metadata.text(ARCHITECTURE)?, ARCHITECTURE, "the model")?;
    Family::of_gguf(architecture).ok_or_else(|| {
        let known = FAMILIES.iter().filter_map(|family| family.gguf.as_ref());
        let known: Vec<_> = known.map(|gguf| gguf.architecture).collect();
        let supported = known
            .join(", ")
            .replace("llama,", "llama (also for Mistral),");
        Refusal::unsupported(ARCHITECTURE, format!("{architecture:?}"), &supported)
    })
}

/// The keys of a file's architecture, for a family to read.
pub(crate) struct GgufConfig<'a> {
    keys: Keys<'a>,
    file: &'a GgufFile,
    names: &'static GgufFamily,
}

impl GgufConfig<'_> {
    /// Whether the file has a tensor of this name.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A number under the architecture's name.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f32>, Refusal> {
        Ok(self.keys.metadata.f32(&self.keys.name(key))?)
    }

    /// Refuses a key that is there and false.
    pub(crate) fn refuse_false(&self, key: &str) -> Result<(), Refusal> {
        let name = self.keys.name(key);
        match self.keys.metadata.bool(&name)? {
            Some(false) => Err(Refusal::unsupported(name, false, "true")),
            _ => Ok(()),
        }
    }

    /// Gives layers windows but one of an interval: what the file says, else `interval`. Tells
    /// which have one.
    pub(crate) fn put_windows(
        &self,
        spec: &mut ModelSpec,
        window: Option<usize>,
        interval: usize,
    ) -> Result<Vec<bool>, Refusal> {
        let interval = self.size(WINDOW_PATTERN)?.unwrap_or(interval);
        if interval == 0 {
            let name = self.keys.name(WINDOW_PATTERN);
            return Err(Refusal::invalid(name, 0, "a number of layers above 0"));
        }
        let layers = 1..=spec.layers.len();
        let sliding: Vec<_> = layers
            .map(|layer| window.is_some() && layer % interval != 0)
            .collect();
        put_windows(spec, window, |layer| sliding[layer]);
        Ok(sliding)
    }

    /// The RoPE of layers with windows, where it is not that of the others: not scaled, and its
    /// base is `base` unless the file says otherwise.
    pub(crate) fn sliding_rope(&self, head_dim: usize, base: f64) -> Result<Rope, Refusal> {
        let found = self.number("rope.freq_base_swa")?;
        rope(found.map_or(base, f64::from), head_dim, &Scaling::None)
    }

    /// A size under the architecture's name.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Refusal> {
        let size = self.keys.metadata.u32(&self.keys.name(key))?;
        Ok(size.map(|size| size as usize))
    }

    /// True or false under the architecture's name.
    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, Refusal> {
        Ok(self.keys.metadata.bool(&self.keys.name(key))?)
    }

    /// Refuses a size that is there with another value than the only one computed.
    pub(crate) fn refuse_other(&self, key: &str, only: usize) -> Result<(), Refusal> {
        match self.size(key)? {
            Some(found) if found != only => {
                let supported = only.to_string();
                Err(Refusal::unsupported(self.keys.name(key), found, &supported))
            }
            _ => Ok(()),
        }
    }

    /// Plain experts by the keys that most architectures share: as wide as the file says, or as the
    /// gates of `layer` are.
    pub(crate) fn experts(&self, layer: usize, routing: Routing) -> Result<ExpertsSpec, Refusal> {
        let gate = TensorName::Layer(layer, LayerTensor::ExpertGate);
        let gate = (self.names.tensor)(gate).name;
        let width = match self.size("expert_feed_forward_length")? {
            Some(width) => width,
            None => match self.file.tensor(&gate).map(|tensor| &tensor.shape[..]) {
                Some([_, width, _]) => *width,
                _ => return Err(Refusal::MissingTensor(gate)),
            },
        };
        let experts = self.keys.size("expert_count")?;
        let per_token = self.keys.size("expert_used_count")?;
        Ok(plain_experts(experts, per_token, width, routing))
    }

    /// The keys that most architectures share, as a model of equal layers without biases and norms
    /// of heads.
    ///
    /// # Errors
    /// [`Refusal`], naming the key that is missing, wrong or not supported.
    pub(crate) fn uniform(&self) -> Result<UniformModel, Refusal> {
        let head_dim = self.head_dim()?;
        let rotary_dim = self.rotary_dim()?.unwrap_or(head_dim);
        if rotary_dim != head_dim {
            let supported = format!("the head dimension, {head_dim}");
            let name = self.keys.name("rope.dimension_count");
            return Err(Refusal::unsupported(name, rotary_dim, &supported));
        }
        self.uniform_with_part(false)
    }

    /// [`Self::uniform`] for an architecture whose heads may rotate in part, and with
    /// `has_long_rope` by LongRoPE if the file has its factors.
    pub(crate) fn uniform_with_part(&self, has_long_rope: bool) -> Result<UniformModel, Refusal> {
        let rotary_dim = match self.rotary_dim()? {
            Some(rotary_dim) => rotary_dim,
            None => self.head_dim()?,
        };
        let positions = self.keys.size("context_length")?;
        if has_long_rope {
            if let Some(factors) = long_factors(&self.keys, self.file, rotary_dim)? {
                return self.model(&Scaling::Long(factors), rotary_dim, positions);
            }
        } else if let Some(tensor) = has_long_factors(self.file) {
            let architecture = self.keys.prefix;
            return Err(Refusal::Contradiction {
                tensor: tensor.to_owned(),
                problem: format!("is LongRoPE's, which is not computed for {architecture}"),
            });
        }
        let (scaling, scaled_positions) = scaling(&self.keys, self.file, rotary_dim)?;
        let positions = positions.max(scaled_positions.unwrap_or(0.0) as usize);
        self.model(&scaling, rotary_dim, positions)
    }

    fn model(
        &self,
        scaling: &Scaling,
        rotary_dim: usize,
        max_positions: usize,
    ) -> Result<UniformModel, Refusal> {
        let keys = &self.keys;
        let eps = keys.name(match keys.own.contains(&LAYER_NORM_EPS) {
            true => LAYER_NORM_EPS,
            false => "attention.layer_norm_rms_epsilon",
        });
        let base = keys.metadata.f32(&keys.name("rope.freq_base"))?;
        let q_heads = self.q_heads()?;
        let kv_heads = keys.per_layer_size("attention.head_count_kv")?;
        let lm_head = (self.names.tensor)(TensorName::LmHead).name;
        Ok(UniformModel {
            hidden: keys.size("embedding_length")?,
            layers: layer_count(keys.size("block_count")?)?,
            q_heads,
            kv_heads: kv_heads.unwrap_or(q_heads),
            head_dim: self.head_dim()?,
            intermediate: keys
                .per_layer_size("feed_forward_length")?
                .ok_or_else(|| Refusal::Missing(keys.name("feed_forward_length")))?,
            vocab: self.vocab()?,
            norm_eps: required(keys.metadata.f32(&eps)?, &eps, "the model")?,
            rope: rope(base.unwrap_or(10_000.0).into(), rotary_dim, scaling)?,
            tied_embeddings: !self.has_tensor(&lm_head),
            max_positions,
            ..UniformModel::default()
        })
    }

    fn q_heads(&self) -> Result<usize, Refusal> {
        const KEY: &str = "attention.head_count";
        let heads = self.keys.per_layer_size(KEY)?;
        heads.ok_or_else(|| Refusal::Missing(self.keys.name(KEY)))
    }

    fn head_dim(&self) -> Result<usize, Refusal> {
        let (keys, q_heads) = (&self.keys, self.q_heads()?);
        let hidden = keys.size("embedding_length")?;
        let key = keys.name("attention.key_length");
        let head_dim = match keys.metadata.u32(&key)? {
            Some(head_dim) => head_dim as usize,
            None if q_heads > 0 && hidden.is_multiple_of(q_heads) => hidden / q_heads,
            None => {
                let field = keys.name("attention.head_count");
                let expected = format!("a divisor of {hidden}");
                return Err(Refusal::invalid(field, q_heads, expected));
            }
        };
        let name = keys.name("attention.value_length");
        if let Some(found) = keys.metadata.u32(&name)?
            && found as usize != head_dim
        {
            let supported = format!("the head dimension, {head_dim}");
            return Err(Refusal::unsupported(name, found, &supported));
        }
        Ok(head_dim)
    }

    fn rotary_dim(&self) -> Result<Option<usize>, Refusal> {
        let name = self.keys.name("rope.dimension_count");
        Ok(self.keys.metadata.u32(&name)?.map(|dim| dim as usize))
    }

    fn vocab(&self) -> Result<usize, Refusal> {
        let embedding = (self.names.tensor)(TensorName::Embedding).name;
        let Some(tensor) = self.file.tensor(&embedding) else {
            return Err(Refusal::MissingTensor(embedding));
        };
        let rows = tensor.shape[0];
        let name = self.keys.name("vocab_size");
        match self.keys.metadata.u32(&name)? {
            Some(vocab) if vocab as usize != rows => Err(Refusal::invalid(
                name,
                vocab,
                format!("{rows}, the rows of `{embedding}`"),
            )),
            _ => Ok(rows),
        }
    }

    /// Refuses attention windows; `supported` ends the sentence.
    pub(crate) fn refuse_window(&self, supported: &str) -> Result<(), Refusal> {
        let name = self.keys.name("attention.sliding_window");
        match self.window()? {
            Some(window) => Err(Refusal::unsupported(name, window, supported)),
            None => Ok(()),
        }
    }

    /// The attention window, if there is one.
    pub(crate) fn window(&self) -> Result<Option<usize>, Refusal> {
        let name = self.keys.name("attention.sliding_window");
        // 0 stands for no window.
        let window = self.keys.metadata.u32(&name)?.filter(|window| *window > 0);
        Ok(window.map(|window| window as usize))
    }
}
