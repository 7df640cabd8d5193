//! What a decoder-only transformer is: plain data that every backend walks.
//!
//! A model family (`engine/models`) reads a checkpoint's configuration and returns a [`ModelSpec`].
//! Nothing else about the family reaches a backend. A backend refuses at load, by name, what it
//! does not compute ([`ModelSpec::refuse_beyond`]).

use super::attention::{AttentionSpec, HeadShape};
use super::experts::ExpertsSpec;
use super::kv_place::{self, KvPlace};
use super::plain_mlp::PlainMlp;
use super::recurrent::RecurrentSpec;
use super::rope::Rope;
use super::spec_error::SpecError;
use crate::kv::{KvGeometry, WindowedLayers};

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding, and length of a row of logits.
    pub vocab: usize,
    /// Added to the mean square, or the variance, in every norm.
    pub norm_eps: f32,
    /// How every norm is computed.
    pub norms: Norms,
    /// Embeddings are multiplied by it as they are looked up.
    pub embedding_multiplier: f32,
    /// Embeddings are RMS-normalised behind that, without weights (nanochat).
    pub embedding_norm: bool,
    /// What a part of a layer puts out is multiplied by it before it is added.
    pub residual_multiplier: f32,
    /// Logits are multiplied by it.
    pub logit_multiplier: f32,
    /// After that they become `cap * tanh(logit / cap)`.
    pub logit_soft_cap: Option<f32>,
    /// What layers get of each token beside the residual stream, if they do.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// The embedding is also the output projection; there is no `LmHead` tensor.
    pub tied_embeddings: bool,
    /// The output projection has a bias (Phi).
    pub lm_head_bias: bool,
    /// Positions the model was made for.
    pub max_positions: usize,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
}

/// Each layer gets an input of its own for every token (Gemma 4's per-layer embeddings): with `e`
/// the token's embedding as it enters the first layer,
/// `(norm(W_model e / sqrt(hidden)) + multiplier * table[token]) / sqrt(2)`. Behind its MLP a layer
/// adds `norm(W_out (activation(W_gate x) ⊙ input))` to the residual stream `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerLayerInputs {
    /// Channels of a layer's input.
    pub width: usize,
    /// Rows of the table are multiplied by it as they are looked up.
    pub embedding_multiplier: f32,
}

/// How norms are computed: all of a model's, with [`ModelSpec::norm_eps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Norms {
    /// Of the residual stream and what is added to it; those of queries and keys are always
    /// [`NormKind::Rms`].
    pub kind: NormKind,
    /// Weights count from 1: the multiplier is `1 + weight`, in f32. Those of queries and keys, too
    /// (Gemma).
    pub from_one: bool,
    /// Norms of the residual stream and what is added to it have a bias.
    pub bias: bool,
}

/// What a norm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) * weight`.
    #[default]
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight`.
    Layer,
}

/// One layer: what mixes tokens, then what follows, each added to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// Where the mixer is normalised.
    pub mixer_norm: NormPlace,
    /// What follows, token by token.
    pub mlp: Mlp,
    /// Where that is normalised.
    pub mlp_norm: NormPlace,
    /// At its end the residual stream is multiplied by a learned number (Gemma 4).
    pub output_scale: bool,
}

/// What mixes the tokens of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Attention over the KV cache.
    Attention(AttentionSpec),
    /// A state of fixed size that stands for all tokens before.
    Recurrent(RecurrentSpec),
    /// Nothing: the layer is what follows.
    None,
}

/// What a layer does token by token.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    /// `W_down (activation(W_gate x) ⊙ W_up x)`.
    Dense {
        /// Rows of `W_gate` and `W_up`.
        intermediate: usize,
        /// What opens the gates.
        activation: Activation,
    },
    /// `W_down activation(W_up x)`, without gates (Nemotron, StarCoder2).
    Plain(PlainMlp),
    /// Several MLPs, of which each token goes through a few.
    Experts(ExpertsSpec),
    /// Nothing: the layer is what mixes tokens.
    None,
}

/// What opens the gates of an MLP, or what its first product goes through where it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    #[default]
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / π) (x + 0.044715 x³)))`, the approximation of GELU (Gemma).
    GeluTanh,
    /// `max(x, 0)²` (Nemotron).
    Relu2,
    /// xIELU (Huang and Schlag 2024), of numbers that each layer has as tensors (Apertus); only
    /// between the products of an MLP without gates:
    ///
    /// ```text
    /// x > 0: softplus(positive) x² + beta x
    /// else:  (beta + softplus(negative)) (expm1(min(x, eps)) - x) + beta x
    /// ```
    Xielu,
}

/// Where the norm of a part of a layer stands. `f` is the part, `x` the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NormPlace {
    /// `x + f(norm(x))`, as in Llama.
    #[default]
    Before,
    /// `x + norm(f(x))`, as in OLMo 2.
    After,
    /// `x + norm(f(norm(x)))`, as in Gemma 2.
    Both,
    /// Of an MLP beside attention: it reads what attention reads, `x + attention(norm(x)) +
    /// mlp(norm(x))`, as in Cohere 2.
    Shared,
}

impl NormPlace {
    /// Whether the part's input has a norm of its own.
    pub fn is_before(self) -> bool {
        matches!(self, Self::Before | Self::Both)
    }

    /// Whether the part's output is normalised.
    pub fn is_after(self) -> bool {
        matches!(self, Self::After | Self::Both)
    }
}

impl LayerSpec {
    /// Its attention, if it has any.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Recurrent(_) | Mixer::None => None,
        }
    }

    /// Its attention, to change.
    ///
    /// # Panics
    /// If tokens are mixed by something else.
    pub fn attention_mut(&mut self) -> &mut AttentionSpec {
        match &mut self.mixer {
            Mixer::Attention(attention) => attention,
            Mixer::Recurrent(_) | Mixer::None => panic!("a layer without attention"),
        }
    }

    /// Its recurrence, if it has one.
    pub fn recurrent(&self) -> Option<&RecurrentSpec> {
        match &self.mixer {
            Mixer::Attention(_) | Mixer::None => None,
            Mixer::Recurrent(recurrent) => Some(recurrent),
        }
    }

    /// Whether the output projection of what mixes tokens has a bias.
    pub(crate) fn has_o_bias(&self) -> bool {
        match &self.mixer {
            Mixer::Attention(attention) => attention.o_bias,
            Mixer::Recurrent(recurrent) => recurrent.has_bias(),
            Mixer::None => false,
        }
    }

    /// Whether anything mixes tokens.
    pub(crate) fn has_mixer(&self) -> bool {
        !matches!(self.mixer, Mixer::None)
    }

    /// Whether anything follows that.
    pub(crate) fn has_mlp(&self) -> bool {
        !matches!(self.mlp, Mlp::None)
    }

    /// Whether the shared expert has no gates, as the others have none.
    pub(crate) fn is_shared_plain(&self) -> bool {
        let experts = self.experts();
        experts.is_some_and(|experts| experts.shared.is_some() && !experts.activation.is_gated())
    }

    /// Rows of `W_up`, and of `W_gate`, that every token is multiplied with: in a layer of experts
    /// those of the shared one, 0 if there is none.
    pub fn intermediate(&self) -> usize {
        match &self.mlp {
            Mlp::Dense { intermediate, .. } => *intermediate,
            Mlp::Plain(plain) => plain.intermediate,
            Mlp::Experts(experts) => experts.shared.map_or(0, |shared| shared.intermediate),
            Mlp::None => 0,
        }
    }

    /// Its experts, if it has any.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match &self.mlp {
            Mlp::Dense { .. } | Mlp::Plain(_) | Mlp::None => None,
            Mlp::Experts(experts) => Some(experts),
        }
    }

    /// Its MLP, if that has no gates.
    pub fn plain_mlp(&self) -> Option<&PlainMlp> {
        match &self.mlp {
            Mlp::Plain(plain) => Some(plain),
            Mlp::Dense { .. } | Mlp::Experts(_) | Mlp::None => None,
        }
    }

    /// What opens the gates of its MLP, and of per-layer inputs, or what is between the products of
    /// an MLP without gates.
    pub fn activation(&self) -> Activation {
        match &self.mlp {
            Mlp::Dense { activation, .. } => *activation,
            Mlp::Plain(plain) => plain.activation,
            Mlp::Experts(experts) => experts.activation.of_gates(),
            Mlp::None => Activation::default(),
        }
    }
}

/// Beyond any real dimension (2^24): likely a corrupt file.
const DIMENSION_MAX: usize = 1 << 24;

impl ModelSpec {
    /// The heads of the first layer with attention of a valid spec, and of all others unless
    /// [`ModelSpec::has_one_head_shape`] says otherwise.
    pub fn heads(&self) -> HeadShape {
        let mut attentions = self.attentions();
        let (_, first) = attentions.next().expect("a valid model has attention");
        first.heads()
    }

    /// The attention of a layer.
    ///
    /// # Panics
    /// If the layer has none.
    pub fn attention(&self, layer: usize) -> &AttentionSpec {
        let attention = self.layers[layer].attention();
        attention.unwrap_or_else(|| panic!("layer {layer} has no attention"))
    }

    /// The layers with attention, in order: their number among all layers, and what it is.
    pub fn attentions(&self) -> impl Iterator<Item = (usize, &AttentionSpec)> + Clone {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.attention()?)))
    }

    /// Channels of a layer's own input; 0 without such.
    pub fn input_width(&self) -> usize {
        self.per_layer_inputs.map_or(0, |inputs| inputs.width)
    }

    /// Channels of all layers' inputs.
    pub fn per_layer_width(&self) -> usize {
        self.layers.len() * self.input_width()
    }

    /// Whether all layers with attention have heads of one shape, and keys and values of their own:
    /// the KV cache has a layer for each then.
    pub fn has_one_head_shape(&self) -> bool {
        let heads = self.heads();
        let mut attentions = self.attentions();
        attentions.all(|(_, spec)| spec.heads() == heads && spec.kv_from.is_none())
    }

    /// Whether layers differ whose keys and values have the same shape: in their query heads.
    pub(crate) fn has_uneven_queries(&self) -> bool {
        let all = || self.attentions().map(|(_, attention)| attention.heads());
        let of_keys = |heads: HeadShape| (heads.kv_heads, heads.head_dim);
        all().any(|one| {
            let mut alike = all().filter(|other| of_keys(*other) == of_keys(one));
            alike.any(|other| other.q_heads != one.q_heads)
        })
    }

    /// Where the keys and values that each layer reads lie in the KV cache, if it has attention.
    pub fn kv_places(&self) -> Vec<Option<KvPlace>> {
        KvPlace::all(self)
    }

    /// The KV cache's layers, in order: the attention layer that writes each.
    pub fn kv_layers(&self) -> Vec<usize> {
        let places = self.kv_places();
        let own = self.attentions().filter(|(_, spec)| spec.kv_from.is_none());
        let layers = own.flat_map(|(layer, _)| {
            let count = places[layer].map_or(0, |place| place.layers());
            std::iter::repeat_n(layer, count)
        });
        layers.collect()
    }

    /// Floats of a sequence's states, those of all recurrent layers together.
    pub fn state_floats(&self) -> usize {
        let recurrent = self.layers.iter().filter_map(LayerSpec::recurrent);
        recurrent.map(|spec| spec.state_floats(self.hidden)).sum()
    }

    /// Where each layer's state begins in a sequence's.
    pub(crate) fn state_places(&self) -> Vec<usize> {
        let floats = |layer: &LayerSpec| {
            let recurrent = layer.recurrent();
            recurrent.map_or(0, |spec| spec.state_floats(self.hidden))
        };
        let layers = self.layers.iter();
        let places = layers.scan(0, |next, layer| {
            let end = *next + floats(layer);
            Some(std::mem::replace(next, end))
        });
        places.collect()
    }

    /// Whether a layer is recurrent: sequences have states beside the KV cache.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.recurrent().is_some())
    }

    /// Whether any attention opens what it puts out.
    pub(crate) fn has_output_gates(&self) -> bool {
        let mut attentions = self.attentions();
        attentions.any(|(_, attention)| attention.output_gate.is_some())
    }

    /// Whether attention's values can be rotated by its weights, for the output projection to
    /// rotate back: nothing is between the two.
    pub fn can_fold_v(&self) -> bool {
        !self.has_output_gates()
    }

    /// The widest MLP that every token goes through.
    pub fn intermediate_max(&self) -> usize {
        self.layers
            .iter()
            .map(LayerSpec::intermediate)
            .max()
            .unwrap_or(0)
    }

    /// The geometry of this model's KV cache.
    pub fn kv_geometry(&self) -> KvGeometry {
        let (kv_heads, head_dim) = kv_place::records(self);
        let windows = self.kv_layers().into_iter().map(|layer| {
            let window = self.attention(layer).window?;
            let is_short = window < self.max_positions;
            u32::try_from(window).ok().filter(|_| is_short)
        });
        let windows: Vec<_> = windows.collect();
        KvGeometry {
            layers: windows.len(),
            kv_heads,
            head_dim,
            windowed: WindowedLayers::of(windows.into_iter()),
        }
    }

    /// Checks every dimension and constant; the backends assume a valid spec.
    ///
    /// # Errors
    /// [`SpecError`], naming the dimension.
    pub fn validate(&self) -> Result<(), SpecError> {
        dimension("hidden", self.hidden)?;
        dimension("vocab", self.vocab)?;
        dimension("layers", self.layers.len())?;
        // `max_positions` only bounds requests; the others are sizes that get multiplied.
        if self.max_positions == 0 {
            return Err(SpecError::Zero("max_positions"));
        }
        if !is_sound(self.norm_eps) {
            return Err(SpecError::NotFinite("norm_eps"));
        }
        let multipliers = [
            ("the embedding multiplier", self.embedding_multiplier),
            ("the residual multiplier", self.residual_multiplier),
            ("the logit multiplier", self.logit_multiplier),
        ];
        if let Some((name, _)) = multipliers.iter().find(|(_, value)| !is_sound(*value)) {
            return Err(SpecError::NotFinite(name));
        }
        if !self
            .logit_soft_cap
            .is_none_or(|cap| cap > 0.0 && is_sound(cap))
        {
            return Err(SpecError::NotFinite("the soft cap of logits"));
        }
        if let Some(inputs) = &self.per_layer_inputs {
            dimension("per-layer inputs", inputs.width)?;
            if !is_sound(inputs.embedding_multiplier) {
                return Err(SpecError::NotFinite(
                    "the multiplier of per-layer embeddings",
                ));
            }
        }
        if self.attentions().next().is_none() {
            return Err(SpecError::NoAttention);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            match &layer.mlp {
                Mlp::Dense { intermediate, .. } => dimension("intermediate", *intermediate)?,
                Mlp::Plain(plain) => dimension("intermediate", plain.intermediate)?,
                Mlp::Experts(experts) => experts.validate()?,
                Mlp::None if layer.has_mixer() => {}
                Mlp::None => return Err(SpecError::NothingInLayer { layer: index }),
            }
            let opens_gates = layer.plain_mlp().is_none() || self.per_layer_inputs.is_some();
            if layer.activation() == Activation::Xielu && opens_gates {
                return Err(SpecError::XieluOfGates { layer: index });
            }
            let norms = [layer.mixer_norm, layer.mlp_norm];
            let has_norm = layer.has_mixer() && layer.mixer_norm.is_before();
            if norms.contains(&NormPlace::Shared) && !has_norm {
                return Err(SpecError::NothingToShare { layer: index });
            }
            let has_norms = layer.experts().is_some_and(ExpertsSpec::has_norms);
            if has_norms && (layer.mlp_norm == NormPlace::Shared || self.norms.bias) {
                let problem = "norms of their own beside attention, or with biases";
                return Err(SpecError::Experts(problem));
            }
            match &layer.mixer {
                Mixer::Attention(attention) => self.validate_attention(index, attention)?,
                Mixer::Recurrent(recurrent) => recurrent.validate()?,
                Mixer::None => {}
            }
        }
        Ok(self.kv_geometry().validate()?)
    }

    fn validate_attention(&self, layer: usize, spec: &AttentionSpec) -> Result<(), SpecError> {
        let (q_heads, kv_heads) = (spec.q_heads, spec.kv_heads);
        dimension("q_heads", q_heads)?;
        dimension("kv_heads", kv_heads)?;
        dimension("head_dim", spec.head_dim)?;
        if !q_heads.is_multiple_of(kv_heads) {
            return Err(SpecError::Heads { q_heads, kv_heads });
        }
        if let Some(from) = spec.kv_from {
            let source = self.layers[..layer]
                .get(from)
                .and_then(LayerSpec::attention);
            let is_alike = source.is_some_and(|source| {
                let heads = (source.kv_heads, source.head_dim, source.window);
                source.kv_from.is_none() && heads == (kv_heads, spec.head_dim, spec.window)
            });
            if !is_alike {
                return Err(SpecError::SharedKv { layer, from });
            }
        }
        if !is_sound(spec.scale) {
            return Err(SpecError::NotFinite("the attention scale"));
        }
        if !spec.soft_cap.is_none_or(|cap| cap > 0.0 && is_sound(cap)) {
            return Err(SpecError::NotFinite("the attention soft cap"));
        }
        if spec.window == Some(0) {
            return Err(SpecError::Zero("window"));
        }
        if spec.chunked && spec.window.is_none() {
            return Err(SpecError::NoChunkLength { layer });
        }
        if let Some(growth) = spec.query_growth {
            growth.validate()?;
        }
        let Some(index) = spec.rope else {
            return Ok(());
        };
        let Some(rope) = self.ropes.get(index) else {
            return Err(SpecError::NoSuchRope {
                layer,
                rope: index,
                ropes: self.ropes.len(),
            });
        };
        rope.validate(spec.head_dim)
    }
}

pub(super) fn dimension(name: &'static str, value: usize) -> Result<(), SpecError> {
    match value {
        0 => Err(SpecError::Zero(name)),
        _ if value > DIMENSION_MAX => Err(SpecError::TooLarge { name, value }),
        _ => Ok(()),
    }
}

/// A constant that is finite and not negative.
pub(super) fn is_sound(value: f32) -> bool {
    value.is_finite() && value >= 0.0
}
