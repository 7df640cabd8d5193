//! A GGUF file's `{architecture}.*` keys → the shapes and constants of the model.

use std::cell::RefCell;

use ebb_kernels::model::{ModelSpec, Rope, TensorName, UniformModel};

use super::experts::EXPERT_WIDTH;
use super::file::GgufFile;
use super::keys::Keys;
use super::metadata::{GgufMetadata, required};
use super::rope_scaling::{has_long_factors, long_factors, scaling};
use crate::model::error::Refusal;
use crate::model::families::{Family, GgufFamily};
use crate::model::rope::{Scaling, rope};
use crate::model::tensors::{check_spec, layer_count};
use crate::model::window::put_windows;

/// The key of an architecture that has windows in some layers only and gives them itself
/// ([`GgufConfig::put_windows`]): one layer of so many has none.
pub(crate) const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// The key of an architecture whose layers with windows may have a RoPE base of their own
/// ([`GgufConfig::sliding_rope`]).
pub(crate) const SLIDING_BASE: &str = "rope.freq_base_swa";

/// The key of an architecture whose norms are LayerNorm.
pub(crate) const LAYER_NORM_EPS: &str = "attention.layer_norm_epsilon";

/// The key of an architecture whose layers without heads of keys mix tokens by a short convolution:
/// the tokens that it sees.
pub(crate) const SHORT_CONV_TAPS: &str = "shortconv.l_cache";

/// The key of an architecture with recurrent layers whose convolution sees so many tokens. Layers
/// without heads of keys are recurrent, unless the architecture says it otherwise.
pub(crate) const RECURRENT_TAPS: &str = "ssm.conv_kernel";

/// The key of how many channels all heads of a recurrence have.
pub(crate) const RECURRENT_WIDTH: &str = "ssm.inner_size";

/// The key of how many heads these are.
pub(crate) const RECURRENT_HEADS: &str = "ssm.time_step_rank";

/// The key of whether Granite has RoPE.
pub(crate) const HAS_ROPE: &str = "rope.scaling.finetuned";

/// The key of the channels of heads that rotate by a token's time, height, width and a fourth
/// place.
pub(crate) const ROPE_SECTIONS: &str = "rope.dimension_sections";

/// The key of how many of the last layers predict further tokens, and are not used
/// ([`GgufConfig::leave_out_predicting`]).
pub(crate) const PREDICTING: &str = "nextn_predict_layers";

/// The key of a number of heads of keys and values.
pub(crate) const KV_HEADS: &str = "attention.head_count_kv";

/// The key of how wide dense MLPs are.
pub(crate) const MLP_WIDTH: &str = "feed_forward_length";

/// The key of RMSNorm's epsilon. An architecture that has it and [`LAYER_NORM_EPS`] among its own
/// keys has files of either.
pub(crate) const RMS_NORM_EPS: &str = "attention.layer_norm_rms_epsilon";

/// What the metadata say of the computation.
pub(crate) struct GgufModel {
    pub(crate) family: &'static Family,
    pub(crate) names: &'static GgufFamily,
    pub(crate) spec: ModelSpec,
    /// Sentences for the user.
    pub(crate) notes: Vec<String>,
}

/// Reads the architecture, refusing every key that is not understood.
pub(crate) fn read_config(file: &GgufFile) -> Result<GgufModel, Refusal> {
    let metadata = file.metadata();
    let (family, names) = family(metadata)?;
    let keys = Keys {
        metadata,
        family: names,
    };
    keys.refuse_unknown()?;
    let config = GgufConfig {
        keys,
        file,
        names,
        notes: RefCell::default(),
    };
    let mut spec = (names.spec)(&config)?;
    if !names.has_key(WINDOW_PATTERN) {
        put_windows(&mut spec, config.window()?, |_| true);
    }
    Ok(GgufModel {
        family,
        names,
        spec: check_spec(spec)?,
        notes: config.notes.into_inner(),
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
        let known: Vec<_> = Family::all_gguf()
            .map(|(_, gguf)| gguf.architecture)
            .collect();
        let supported = known
            .join(", ")
            .replace("llama,", "llama (also for Mistral and Mixtral),");
        Refusal::unsupported(ARCHITECTURE, format!("{architecture:?}"), &supported)
    })
}

/// The keys of a file's architecture, for a family to read.
pub(crate) struct GgufConfig<'a> {
    pub(super) keys: Keys<'a>,
    pub(super) file: &'a GgufFile,
    pub(super) names: &'static GgufFamily,
    notes: RefCell<Vec<String>>,
}

impl GgufConfig<'_> {
    /// Whether the file has a tensor of this name.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A key with the architecture's name in front.
    pub(crate) fn name(&self, key: &str) -> String {
        self.keys.name(key)
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
        let layers = spec.layers.len();
        let sliding = match self.keys.flags(WINDOW_PATTERN, layers)? {
            Some(sliding) => sliding,
            None => self.all_but_every(WINDOW_PATTERN, interval, layers)?,
        };
        let sliding: Vec<_> = sliding.iter().map(|s| *s && window.is_some()).collect();
        put_windows(spec, window, |layer| sliding[layer]);
        Ok(sliding)
    }

    /// Which of `layers` are not the last of an interval: of so many as the file says, else
    /// `interval`.
    pub(crate) fn all_but_every(
        &self,
        key: &str,
        interval: usize,
        layers: usize,
    ) -> Result<Vec<bool>, Refusal> {
        let interval = self.interval(key, interval)?;
        Ok((1..=layers).map(|layer| layer % interval != 0).collect())
    }

    /// A number of layers after which something comes again: what the file says, else `interval`.
    pub(crate) fn interval(&self, key: &str, interval: usize) -> Result<usize, Refusal> {
        match self.size(key)?.unwrap_or(interval) {
            0 => {
                let name = self.keys.name(key);
                Err(Refusal::invalid(name, 0, "a number of layers above 0"))
            }
            interval => Ok(interval),
        }
    }

    /// True or false for each of `layers`, if the file has a list of them.
    pub(crate) fn flags(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, Refusal> {
        self.keys.flags(key, layers)
    }

    /// Whole numbers under the architecture's name, if the file has a list of them.
    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, Refusal> {
        self.keys.integers(key)
    }

    /// Which of `layers` have heads of keys: all of them, unless the file says 0 for some.
    pub(crate) fn layers_with_keys(&self, layers: usize) -> Result<Vec<bool>, Refusal> {
        match self.integers(KV_HEADS)? {
            None => Ok(vec![true; layers]),
            Some(heads) if heads.len() == layers => Ok(heads.iter().map(|n| *n != 0).collect()),
            Some(heads) => {
                let expected = format!("one number for each of {layers} layers");
                let found = format!("{} numbers", heads.len());
                Err(Refusal::invalid(self.keys.name(KV_HEADS), found, expected))
            }
        }
    }

    /// A size of each of `layers`, if the file has a list of them. The family has the key among its
    /// own, for the model to be of the first one.
    pub(crate) fn layer_sizes(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, Refusal> {
        let Some(sizes) = self.integers(key)? else {
            return Ok(None);
        };
        let list: Option<Vec<usize>> = sizes.iter().map(|size| (*size).try_into().ok()).collect();
        match list.filter(|list| list.len() == layers) {
            Some(list) => Ok(Some(list)),
            None => {
                let found = format!("a list of {} numbers", sizes.len());
                let expected = format!("a number from 0 for each of {layers} layers");
                Err(Refusal::invalid(self.keys.name(key), found, expected))
            }
        }
    }

    /// Takes the layers off a model that predict further tokens.
    pub(crate) fn leave_out_predicting(&self, model: &mut UniformModel) -> Result<(), Refusal> {
        let predicting = self.size(PREDICTING)?.unwrap_or(0);
        model.layers = model.layers.saturating_sub(predicting);
        Ok(())
    }

    /// A size under the architecture's name that has to be there.
    pub(crate) fn required_size(&self, key: &str) -> Result<usize, Refusal> {
        self.keys.size(key)
    }

    /// The heads of a recurrence, and the channels of each.
    pub(crate) fn recurrent_heads(&self) -> Result<(usize, usize), Refusal> {
        let heads = self.required_size(RECURRENT_HEADS)?;
        let width = self.required_size(RECURRENT_WIDTH)?;
        if heads == 0 || !width.is_multiple_of(heads) {
            let expected = format!("a multiple of {RECURRENT_HEADS}, {heads}");
            let name = self.name(RECURRENT_WIDTH);
            return Err(Refusal::invalid(name, width, expected));
        }
        Ok((heads, width / heads))
    }

    /// Limits a context to what comes before something that is not computed. A note says so:
    /// `reason` goes on after "because".
    pub(crate) fn limit_context(&self, spec: &mut ModelSpec, positions: usize, reason: &str) {
        if positions >= spec.max_positions {
            return;
        }
        let context = std::mem::replace(&mut spec.max_positions, positions);
        self.notes.borrow_mut().push(format!(
            "the context is limited to {positions} of the model's {context} tokens, because \
             {reason}"
        ));
    }

    /// The RoPE of layers with windows, where it is not that of the others: not scaled, and its
    /// base is `base` unless the file says otherwise.
    pub(crate) fn sliding_rope(&self, head_dim: usize, base: f64) -> Result<Rope, Refusal> {
        let found = self.number(SLIDING_BASE)?;
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
            let architecture = self.keys.family.architecture;
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
        let has_rms_eps = keys.metadata.get(&keys.name(RMS_NORM_EPS)).is_some();
        let eps = keys.name(match self.names.has_key(LAYER_NORM_EPS) {
            true if has_rms_eps && self.names.has_key(RMS_NORM_EPS) => RMS_NORM_EPS,
            true => LAYER_NORM_EPS,
            false => RMS_NORM_EPS,
        });
        let base = keys.metadata.f32(&keys.name("rope.freq_base"))?;
        let q_heads = self.q_heads()?;
        let mut recurrent = [SHORT_CONV_TAPS, RECURRENT_TAPS].into_iter();
        let has_layers_without = recurrent.any(|key| self.names.has_key(key));
        let kv_heads = match keys.integers(KV_HEADS)? {
            Some(mut heads) if has_layers_without => {
                heads.retain(|heads| *heads != 0);
                match heads.is_empty() {
                    true => None,
                    false => keys.same_size(KV_HEADS, &heads)?,
                }
            }
            _ => keys.per_layer_size(KV_HEADS)?,
        };
        let lm_head = (self.names.tensor)(TensorName::LmHead).name;
        Ok(UniformModel {
            hidden: keys.size("embedding_length")?,
            layers: layer_count(keys.size("block_count")?)?,
            q_heads,
            kv_heads: kv_heads.unwrap_or(q_heads),
            head_dim: self.head_dim()?,
            intermediate: self.intermediate()?,
            vocab: self.vocab()?,
            norm_eps: required(keys.metadata.f32(&eps)?, &eps, "the model")?,
            rope: rope(base.unwrap_or(10_000.0).into(), rotary_dim, scaling)?,
            tied_embeddings: !self.has_tensor(&lm_head),
            max_positions,
            ..UniformModel::default()
        })
    }

    /// Rows of a dense MLP's gate. No layer may have one, and then files need not say it.
    fn intermediate(&self) -> Result<usize, Refusal> {
        match self.keys.per_layer_size(MLP_WIDTH)? {
            Some(rows) => Ok(rows),
            None if self.names.has_key(EXPERT_WIDTH) => self.keys.size(EXPERT_WIDTH),
            None => Err(Refusal::Missing(self.keys.name(MLP_WIDTH))),
        }
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

    /// The attention window, if there is one.
    pub(crate) fn window(&self) -> Result<Option<usize>, Refusal> {
        let name = self.keys.name("attention.sliding_window");
        // 0 stands for no window.
        let window = self.keys.metadata.u32(&name)?.filter(|window| *window > 0);
        Ok(window.map(|window| window as usize))
    }
}
