//! config.json → the shapes and constants of the model.

use std::cell::{Cell, RefCell};

use ebb_kernels::bf16;
use ebb_kernels::model::{Activation, ModelSpec, Rope, UniformModel};
use half::f16;
use serde_json::Value;

use super::json::{Object, brief};
use super::quantised::{Quantisation, read_quantisation};
use super::rope_scaling::{read_rope, read_sliding_base, rope_parameters};
use super::text_part::text_part;
use crate::model::error::Refusal;
use crate::model::families::Family;
use crate::model::rope::{Scaling, rope};
use crate::model::tensors::{check_spec, layer_count};
use crate::model::window::put_windows;

/// The field that says of which kind each layer is.
const LAYER_TYPES: &str = "layer_types";

/// The kinds, and what older files call the first.
pub(crate) const ATTENTION: &str = "attention";
pub(crate) const LINEAR: &str = "linear_attention";
pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";

/// What the type of the weights in memory is called, and was.
pub(super) const DTYPE: [&str; 2] = ["dtype", "torch_dtype"];

/// What config.json says.
pub(crate) struct HfModel {
    pub(crate) family: &'static Family,
    /// Whether the checkpoint has parts beside its language model.
    pub(crate) has_other_parts: bool,
    /// Layers behind the model's own that predict further tokens.
    pub(crate) unused_layers: usize,
    /// Whether the checkpoint may lack an output projection although `spec` has one.
    pub(crate) may_be_tied: bool,
    pub(crate) spec: ModelSpec,
    pub(crate) end_ids: Vec<u32>,
    /// How the weights are quantised, if they are.
    pub(crate) quantisation: Option<Quantisation>,
    pub(crate) notes: Vec<String>,
}

/// Reads config.json, refusing values that ask for another computation than the family's own.
pub(crate) fn read_config(bytes: &[u8]) -> Result<HfModel, Refusal> {
    let part = text_part(Object::parse(bytes)?)?;
    let config = HfConfig {
        object: part.config,
        reads_windows: Cell::default(),
        reads_kinds: Cell::default(),
        notes: RefCell::default(),
    };
    let family = part.family;
    let quantisation = read_quantisation(&config.object)?;
    let spec = (family.hf_spec)(&config)?;
    config.check_layer_kinds(&spec)?;
    let mut notes = config.notes.take();
    if part.has_others {
        notes.push(
            "the checkpoint also reads images or sounds; its language model alone is served"
                .to_owned(),
        );
    }
    Ok(HfModel {
        family,
        has_other_parts: part.has_others,
        may_be_tied: part.may_be_tied,
        unused_layers: layer_count(config.size("num_nextn_predict_layers")?.unwrap_or(0))?,
        spec: check_spec(spec)?,
        end_ids: config.object.ids("eos_token_id")?,
        quantisation,
        notes,
    })
}

/// The fields of a config.json, for a family to read.
pub(crate) struct HfConfig {
    object: Object,
    /// Whether the family has taken what the file says of windows.
    reads_windows: Cell<bool>,
    /// Whether it has taken which layers have attention.
    reads_kinds: Cell<bool>,
    /// What the user should know of what was read.
    notes: RefCell<Vec<String>>,
}

/// What a family's config.json may leave out or say beyond the common fields.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HfDefaults {
    /// What `attention_bias` says.
    pub(crate) attention_bias: AttentionBias,
    /// `partial_rotary_factor` may be below 1.
    pub(crate) rotates_part_of_a_head: bool,
    /// How RoPE may be scaled.
    pub(crate) rope_scalings: RopeScalings,
    /// The MLP has no gates: `mlp_bias` says nothing that is not computed.
    pub(crate) has_plain_mlp: bool,
    /// `rope_parameters` may have an object for each kind of layers.
    pub(crate) has_ropes_by_kind: bool,
    /// `hidden_activation` names the activation, which is Gemma's without it; otherwise
    /// `hidden_act` does, which is SiLU without it.
    pub(crate) has_gemma_activation: bool,
}

/// What `attention_bias` says of a family's projections of attention.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AttentionBias {
    /// That they have no bias: no other value is computed.
    #[default]
    None,
    /// Whether all of them have one.
    OfAll,
    /// Nothing, or something else that the family reads.
    Other,
}

/// How a family's RoPE may be scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RopeScalings {
    /// Not at all: its scalings compute something of their own.
    None,
    /// As transformers does for every family.
    #[default]
    Common,
    /// Also by `longrope`.
    WithLong,
    /// By `proportional` alone (Gemma 4).
    Proportional,
    /// `dynamic` may have an `alpha` that its base is multiplied by (HunYuan).
    WithAlpha,
    /// Its object also says how queries grow (Ministral 3).
    WithQueryGrowth,
}

/// Whether `sliding_window` means anything where neither `use_sliding_window` nor `layer_types`
/// says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowRule {
    /// It does.
    Always,
    /// It does not: such files carry a window that is off.
    IfFlagged,
}

impl HfConfig {
    /// A whole number.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Refusal> {
        self.object.size(key)
    }

    /// A number of layers, one of which differs from the others.
    pub(crate) fn interval(&self, key: &str, default: usize) -> Result<usize, Refusal> {
        match self.object.size(key)?.unwrap_or(default) {
            0 => Err(Refusal::invalid(key, 0, "a number of layers above 0")),
            interval => Ok(interval),
        }
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Refusal> {
        self.object.number(key)
    }

    /// A number that is `default` where the field is missing, and absent where it is `null`.
    pub(crate) fn number_unless_null(
        &self,
        key: &str,
        default: f64,
    ) -> Result<Option<f64>, Refusal> {
        match self.object.has(key) {
            true => self.object.number(key),
            false => Ok(Some(default)),
        }
    }

    /// A list of numbers.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, Refusal> {
        self.object.numbers(key)
    }

    /// A number of the object that says how RoPE is scaled.
    pub(crate) fn rope_number(&self, key: &str) -> Result<Option<f64>, Refusal> {
        match rope_parameters(&self.object)? {
            Some(parameters) => parameters.number(key),
            None => Ok(None),
        }
    }

    /// Whether RoPE has a base: `null` alone says that it has none.
    pub(crate) fn has_rope_base(&self) -> Result<bool, Refusal> {
        match rope_parameters(&self.object)? {
            Some(parameters) => {
                let is_null =
                    parameters.has("rope_theta") && parameters.get("rope_theta").is_none();
                Ok(!is_null)
            }
            None => Ok(true),
        }
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Refusal> {
        self.object.text(key)
    }

    /// True or false.
    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, Refusal> {
        self.object.bool(key)
    }

    /// Refuses a field unless it is absent, `null` or false.
    pub(crate) fn refuse(&self, key: &str) -> Result<(), Refusal> {
        match self.object.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(found) => Err(Refusal::unsupported(key, brief(found), "its absence")),
        }
    }

    /// Refuses an activation other than SiLU, where more than a dense MLP goes through it:
    /// `supported` is what the user reads.
    pub(crate) fn refuse_all_but_silu(&self, supported: &str) -> Result<(), Refusal> {
        const KEY: &str = "hidden_act";
        match self.object.text(KEY)? {
            None | Some("silu" | "swish") => Ok(()),
            Some(found) => Err(Refusal::unsupported(KEY, format!("{found:?}"), supported)),
        }
    }

    /// Refuses a field that says anything but `supported`, unless it is absent.
    pub(crate) fn refuse_other_text(&self, key: &str, supported: &str) -> Result<(), Refusal> {
        match self.object.text(key)? {
            Some(found) if found != supported => {
                Err(Refusal::unsupported(key, format!("{found:?}"), supported))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a whole number other than `supported`, unless it is absent.
    pub(crate) fn refuse_other_size(&self, key: &str, supported: usize) -> Result<(), Refusal> {
        match self.object.size(key)? {
            Some(found) if found != supported => {
                Err(Refusal::unsupported(key, found, &supported.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// A constant as transformers rounds it: to the type that weights have in memory, bfloat16
    /// unless it is said otherwise.
    pub(crate) fn round(&self, value: f32) -> Result<f32, Refusal> {
        let [new, old] = DTYPE;
        let name = self.object.text(new)?.or(self.object.text(old)?);
        Ok(match name {
            None | Some("bfloat16") => bf16::from_f32(value).to_f32(),
            Some("float16") => f16::from_f32(value).to_f32(),
            Some(_) => value,
        })
    }

    /// Whether there is such a field, and not `null`.
    pub(crate) fn says(&self, key: &str) -> bool {
        self.object.get(key).is_some()
    }

    /// What `per_layer_config` says of a layer: a whole number for each of `keys`, and no more.
    pub(crate) fn layer_sizes<const N: usize>(
        &self,
        layer: usize,
        keys: [&str; N],
    ) -> Result<[Option<usize>; N], Refusal> {
        let Some(layers) = self.object.object("per_layer_config")? else {
            return Ok([None; N]);
        };
        let Some(own) = layers.object(&layer.to_string())? else {
            return Ok([None; N]);
        };
        if let Some(other) = own.keys().find(|key| !keys.contains(key)) {
            let found = own.get(other).map_or_else(|| "null".to_owned(), brief);
            return Err(Refusal::unsupported(own.name(other), found, "its absence"));
        }
        let mut sizes = [None; N];
        for (size, key) in sizes.iter_mut().zip(keys) {
            *size = own.size(key)?;
        }
        Ok(sizes)
    }

    /// The RoPE of heads of `head_dim` channels that rotate whole, in layers that see everything.
    pub(crate) fn full_rope(
        &self,
        head_dim: usize,
        defaults: &HfDefaults,
    ) -> Result<Rope, Refusal> {
        let config = read_rope(&self.object, 0, defaults)?;
        rope(config.base, config.rotary_dim(head_dim)?, &config.scaling)
    }

    /// A list of whole numbers.
    pub(crate) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, Refusal> {
        self.object.typed(key, "a list of whole numbers", |list| {
            let sizes = list.as_array()?.iter();
            sizes.map(|size| size.as_u64()?.try_into().ok()).collect()
        })
    }

    /// A whole number, or a list that has the same one for each layer.
    pub(crate) fn size_of_all(&self, key: &str) -> Result<Option<usize>, Refusal> {
        if !self.object.get(key).is_some_and(Value::is_array) {
            return self.object.size(key);
        }
        let sizes = self.sizes(key)?.unwrap_or_default();
        match sizes.split_first() {
            Some((first, rest)) if rest.iter().all(|size| size == first) => Ok(Some(*first)),
            _ => {
                let found = format!("{} numbers that differ", sizes.len());
                Err(Refusal::unsupported(
                    key,
                    found,
                    "the same number for every layer",
                ))
            }
        }
    }

    /// A list of as many texts as there are layers, each of them one of `known`.
    pub(super) fn kinds_of_layers(
        &self,
        key: &str,
        known: &[&str],
        layers: usize,
    ) -> Result<Option<Vec<&str>>, Refusal> {
        let kinds = self.texts(key)?;
        if let Some(kinds) = &kinds {
            check_kinds(key, kinds, known, layers)?;
        }
        Ok(kinds)
    }

    /// Gives layers the attention windows that the configuration says they have: those that
    /// `layer_types` says, else those of `layers`.
    pub(crate) fn put_windows(
        &self,
        spec: &mut ModelSpec,
        rule: WindowRule,
        layers: impl Fn(usize) -> bool,
    ) -> Result<(), Refusal> {
        self.reads_windows.set(true);
        let kinds = self.layer_kinds(spec)?;
        let flag = self.object.bool("use_sliding_window")?;
        let by_default = kinds.is_some() || rule == WindowRule::Always;
        let is_on = flag.unwrap_or(by_default);
        let window = self.object.size("sliding_window")?.filter(|_| is_on);
        let Some(kinds) = kinds else {
            put_windows(spec, window, layers);
            return Ok(());
        };
        if window.is_none() && is_on && kinds.contains(&SLIDING) {
            return Err(Refusal::Missing("sliding_window".to_owned()));
        }
        put_windows(spec, window, |layer| kinds[layer] == SLIDING);
        Ok(())
    }

    /// Which layers have windows, as far as `layer_types` does not say so, one layer of an interval
    /// that sees everything: `sliding_window_pattern`, else `interval`.
    pub(crate) fn sliding_layers(
        &self,
        spec: &ModelSpec,
        interval: usize,
    ) -> Result<Vec<bool>, Refusal> {
        if let Some(sliding) = self.sliding_kinds(spec)? {
            return Ok(sliding);
        }
        let interval = self.interval("sliding_window_pattern", interval)?;
        let layers = 1..=spec.layers.len();
        Ok(layers.map(|layer| layer % interval != 0).collect())
    }

    /// Which layers have windows: as `layer_types` says, else `by_default`.
    pub(crate) fn sliding_layers_or(
        &self,
        spec: &ModelSpec,
        by_default: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, Refusal> {
        let by_default = || (0..spec.layers.len()).map(by_default).collect();
        Ok(self.sliding_kinds(spec)?.unwrap_or_else(by_default))
    }

    /// Which layers have windows, if `layer_types` says it.
    fn sliding_kinds(&self, spec: &ModelSpec) -> Result<Option<Vec<bool>>, Refusal> {
        let kinds = self.layer_kinds(spec)?;
        Ok(kinds.map(|kinds| kinds.iter().map(|kind| *kind == SLIDING).collect()))
    }

    /// Refuses `layer_types` that are wrong, or ask a family for windows that has none.
    fn check_layer_kinds(&self, spec: &ModelSpec) -> Result<(), Refusal> {
        if self.reads_kinds.get() {
            return Ok(());
        }
        match self.layer_kinds(spec)? {
            Some(kinds) if !self.reads_windows.get() && kinds.contains(&SLIDING) => {
                let found = format!("{SLIDING:?}");
                Err(Refusal::unsupported(LAYER_TYPES, found, FULL))
            }
            _ => Ok(()),
        }
    }

    /// What `layer_types` says of each layer, if it is there.
    fn layer_kinds(&self, spec: &ModelSpec) -> Result<Option<Vec<&str>>, Refusal> {
        self.kinds_of_layers(LAYER_TYPES, &[FULL, SLIDING], spec.layers.len())
    }

    /// Which of `layers` layers have attention over all tokens and which are of another kind, as
    /// `layer_types` says. `others` are those kinds, and `attention` where files call it so, too.
    pub(crate) fn attention_layers(
        &self,
        layers: usize,
        others: &[&str],
    ) -> Result<Option<Vec<bool>>, Refusal> {
        self.reads_kinds.set(true);
        let known = [&[FULL], others].concat();
        let kinds = self.kinds_of_layers(LAYER_TYPES, &known, layers)?;
        let has_attention = |kind: &&str| [FULL, ATTENTION].contains(kind);
        Ok(kinds.map(|kinds| kinds.iter().map(has_attention).collect()))
    }

    /// The kind of each layer, as a list of names or as a text with a character for each of
    /// `known`.
    pub(crate) fn layer_pattern(
        &self,
        (list, key): (&str, &str),
        known: &[(char, &[&str])],
    ) -> Result<Option<Vec<char>>, Refusal> {
        self.reads_kinds.set(true);
        if let Some(pattern) = self.object.text(key)? {
            let is_known = |c: &char| known.iter().any(|(known, _)| known == c);
            if let Some(other) = pattern.chars().find(|c| !is_known(c)) {
                let supported: Vec<_> = known.iter().map(|(c, _)| c.to_string()).collect();
                let found = format!("{other:?}");
                return Err(Refusal::unsupported(key, found, &supported.join(", ")));
            }
            return Ok(Some(pattern.chars().collect()));
        }
        let Some(kinds) = self.texts(list)? else {
            return Ok(None);
        };
        let names: Vec<&str> = known
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        check_kinds(list, &kinds, &names, kinds.len())?;
        let of = |kind: &&str| known.iter().find(|(_, names)| names.contains(kind));
        Ok(Some(kinds.iter().filter_map(of).map(|(c, _)| *c).collect()))
    }

    /// A whole number; none where the field is missing or `"auto"`.
    pub(crate) fn size_or_auto(&self, key: &str) -> Result<Option<usize>, Refusal> {
        match self.object.get(key) {
            Some(Value::String(text)) if text == "auto" => Ok(None),
            _ => self.object.size(key),
        }
    }

    /// A least and a largest value, 0 and infinity where the field is missing.
    pub(crate) fn limits(&self, key: &str) -> Result<[f32; 2], Refusal> {
        let number = |value: &Value| {
            // As newer files write it.
            let text = value.get("__float__").unwrap_or(value).as_str();
            match text {
                Some("Infinity") => Some(f32::INFINITY),
                _ => Some(value.as_f64()? as f32),
            }
        };
        let limits = self.object.typed(key, "two numbers in order", |list| {
            let [least, most] = list.as_array()?.as_slice() else {
                return None;
            };
            let limits = [number(least)?, number(most)?];
            (limits[0] <= limits[1]).then_some(limits)
        })?;
        Ok(limits.unwrap_or([0.0, f32::INFINITY]))
    }

    fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, Refusal> {
        self.object.typed(key, "a list of texts", |kinds| {
            let kinds = kinds.as_array()?.iter();
            kinds.map(|kind| kind.as_str()).collect::<Option<Vec<_>>>()
        })
    }

    /// The RoPE of layers with a window, where it is not that of the others. Its base is `base`
    /// where `rope_parameters` does not say so, or that of the others without it.
    pub(crate) fn sliding_rope(&self, head_dim: usize, base: Option<f64>) -> Result<Rope, Refusal> {
        let base = read_sliding_base(&self.object, base)?;
        rope(base, head_dim, &Scaling::None)
    }

    /// The RoPE of layers whose base is not what the configuration has for all.
    pub(crate) fn rope_with_base(
        &self,
        defaults: &HfDefaults,
        head_dim: usize,
        base: f64,
    ) -> Result<Rope, Refusal> {
        let positions = self.required_size("max_position_embeddings")?;
        let config = read_rope(&self.object, positions, defaults)?;
        rope(base, config.rotary_dim(head_dim)?, &config.scaling)
    }

    /// The fields that most families share, as a model of equal layers without biases and norms of
    /// heads.
    ///
    /// # Errors
    /// [`Refusal`], naming the field that is missing, wrong or not supported.
    pub(crate) fn uniform(&self, defaults: &HfDefaults) -> Result<UniformModel, Refusal> {
        let config = &self.object;
        self.refuse_unsupported(defaults)?;
        let size = |key| config.size(key).and_then(|size| config.required(key, size));
        let hidden = size("hidden_size")?;
        let q_heads = size("num_attention_heads")?;
        let kv_heads = match config.size("num_key_value_heads")? {
            Some(kv_heads) => kv_heads,
            None if config.has("num_key_value_heads") => q_heads,
            None => return Err(Refusal::Missing("num_key_value_heads".to_owned())),
        };
        let head_dim = match config.size("head_dim")? {
            Some(head_dim) => head_dim,
            None if q_heads > 0 && hidden.is_multiple_of(q_heads) => hidden / q_heads,
            None => {
                let expected = format!("a divisor of hidden_size, {hidden}");
                return Err(Refusal::invalid("num_attention_heads", q_heads, expected));
            }
        };
        let has_bias = defaults.attention_bias == AttentionBias::OfAll
            && config.bool("attention_bias")? == Some(true);
        let positions = size("max_position_embeddings")?;
        let rope_config = read_rope(config, positions, defaults)?;
        let rotary_dim = rope_config.rotary_dim(head_dim)?;
        self.notes.borrow_mut().extend(rope_config.notes);
        Ok(UniformModel {
            hidden,
            layers: layer_count(size("num_hidden_layers")?)?,
            q_heads,
            kv_heads,
            head_dim,
            intermediate: size("intermediate_size")?,
            vocab: size("vocab_size")?,
            norm_eps: config.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: rope(rope_config.base, rotary_dim, &rope_config.scaling)?,
            qkv_bias: has_bias,
            o_bias: has_bias,
            activation: self.activation(defaults)?,
            tied_embeddings: config.bool("tie_word_embeddings")?.unwrap_or(false),
            max_positions: rope_config.positions,
            ..UniformModel::default()
        })
    }

    /// What opens the gates of MLPs, or what is between the products of those without.
    pub(super) fn activation(&self, defaults: &HfDefaults) -> Result<Activation, Refusal> {
        let (key, default) = match defaults.has_gemma_activation {
            true => ("hidden_activation", Activation::GeluTanh),
            false => ("hidden_act", Activation::Silu),
        };
        match self.object.text(key)? {
            None => Ok(default),
            Some("silu" | "swish") => Ok(Activation::Silu),
            // The older ones are the same formula.
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
            Some("relu2") => Ok(Activation::Relu2),
            Some("xielu") if defaults.has_plain_mlp => Ok(Activation::Xielu),
            Some(found) => {
                let supported = "silu, gelu_pytorch_tanh, relu2";
                Err(Refusal::unsupported(key, format!("{found:?}"), supported))
            }
        }
    }

    fn refuse_unsupported(&self, defaults: &HfDefaults) -> Result<(), Refusal> {
        let config = &self.object;
        let has_none = defaults.attention_bias == AttentionBias::None;
        let attention_bias = has_none.then_some("attention_bias");
        let mlp_bias = (!defaults.has_plain_mlp).then_some("mlp_bias");
        let all = [attention_bias, mlp_bias, Some("rope_interleaved")];
        for key in all.into_iter().flatten() {
            if config.bool(key)? == Some(true) {
                return Err(Refusal::unsupported(key, true, "false"));
            }
        }
        Ok(())
    }
}

/// Refuses kinds of layers that are not known, or not as many as layers.
fn check_kinds(key: &str, kinds: &[&str], known: &[&str], layers: usize) -> Result<(), Refusal> {
    if let Some(other) = kinds.iter().find(|kind| !known.contains(kind)) {
        let other = format!("{other:?}");
        return Err(Refusal::unsupported(key, other, &known.join(", ")));
    }
    if kinds.len() != layers {
        let expected = format!("one kind for each of {layers} layers");
        return Err(Refusal::invalid(key, kinds.len(), expected));
    }
    Ok(())
}
