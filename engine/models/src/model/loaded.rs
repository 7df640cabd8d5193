//! An opened model: everything but the weights' values, checked and ready to serve.

use std::path::Path;
use std::sync::Arc;

use ebb_kernels::model::{
    Mixer, ModelSpec, OnlineKeyScales, QueryGrowth, TensorName, WeightSource,
};
use ebb_kernels::weight_formats::Quantisation;
use sha2::{Digest, Sha256};

use super::content_hash::{hash_parts, hex};
use super::dummy::DummyWeights;
use super::error::{ModelError, Refusal};
use super::families::Family;
use super::generation_defaults::GenerationDefaults;
use super::gguf::config::read_config as read_gguf_config;
use super::gguf::weights::GgufWeights;
use super::gguf::{GgufFile, GgufTokenizer};
use super::hf::{self, HfTokenizer, HfWeights};
use super::identity::Identity;
use super::key_scales::{KEY_SCALE_FEATURES, KeyScales};
use super::locate::ModelFiles;
use super::look::is_file;
use super::model_weights::{ModelWeights, Stored};
use super::weights_hash::weights_hash;
use super::window::limit_to_windows;

/// What the tokenizer is to be built from.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizerSource {
    /// The metadata of a GGUF file.
    Gguf(GgufTokenizer),
    /// tokenizer.json and what stands beside it.
    Hf(HfTokenizer),
    /// Nothing: a byte is a token, and the other ids up to this many stand for their numbers.
    StandIn(usize),
}

/// Where the values of the weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LoadFormat {
    /// The model's files.
    #[default]
    Auto,
    /// Random numbers, the same at every start; of a directory only config.json is needed.
    Dummy,
}

/// A model whose files have been read and checked against each other.
#[derive(Clone, Debug)]
pub struct LoadedModel {
    /// What the model is called to clients.
    pub name: String,
    /// Which family it belongs to.
    pub family: &'static Family,
    /// Shapes and constants; `max_positions` is the longest context that can be served.
    pub spec: ModelSpec,
    /// Tokens that end a generation, ascending.
    pub end_ids: Vec<u32>,
    /// Recommended sampling parameters.
    pub generation: GenerationDefaults,
    /// The Jinja template that turns chat messages into a prompt.
    pub chat_template: Option<String>,
    /// The one that takes its place for conversations with tools, if it is another.
    pub tool_template: Option<String>,
    /// The token that fills rows of a batch, where a GGUF file names one.
    pub padding_id: Option<u32>,
    /// What the tokenizer is to be built from.
    pub tokenizer: TokenizerSource,
    /// SHA-256, in hexadecimal, of everything but the weights' values: configuration, and each
    /// tensor's name, type, shape and place. Changes when another model takes the file's place.
    pub content_hash: String,
    /// Sentences the user should see, such as a context that had to be limited.
    pub notes: Vec<String>,
    stored: Stored,
    /// What plain weights are quantised to as they are read.
    quantisation: Option<Quantisation>,
    /// Folded into the weights as they are read.
    key_scales: Option<Arc<KeyScales>>,
}

impl LoadedModel {
    /// Reads a model's files. The weights are mapped, not read.
    ///
    /// # Errors
    /// [`ModelError`], naming the file and the field that is wrong or not supported.
    pub fn open(files: &ModelFiles) -> Result<Self, ModelError> {
        Self::open_as(files, LoadFormat::Auto)
    }

    /// [`LoadedModel::open`] with a choice of the weights.
    ///
    /// # Errors
    /// As there.
    pub fn open_as(files: &ModelFiles, format: LoadFormat) -> Result<Self, ModelError> {
        match files {
            ModelFiles::Directory(dir) => Self::open_directory(dir, files.name(), format),
            ModelFiles::Gguf(path) => {
                let mut model = Self::open_gguf(path, files.name())?;
                if format == LoadFormat::Dummy {
                    model.stored = model.stored.dummy(&model.spec)?;
                }
                Ok(model)
            }
        }
    }

    fn open_gguf(path: &Path, name: String) -> Result<Self, ModelError> {
        let file = GgufFile::open(path).map_err(|error| ModelError::io(path, error))?;
        let build = || -> Result<Self, Refusal> {
            let file = Arc::new(file?);
            let config = read_gguf_config(&file)?;
            let tokenizer = GgufTokenizer::from_metadata(file.metadata())?;
            if tokenizer.tokens.len() > config.spec.vocab {
                let expected = format!("at most {}, the rows of the embedding", config.spec.vocab);
                let found = format!("{} long", tokenizer.tokens.len());
                return Err(Refusal::invalid("tokenizer.ggml.tokens", found, expected));
            }
            let tool_template = file.metadata().text("tokenizer.chat_template.tool_use")?;
            let owned = path.to_owned();
            let weights = GgufWeights::new(file.clone(), owned, config.names, &config.spec)?;
            let content_hash = hash_of_gguf(&file);
            Ok(Self {
                name,
                family: config.family,
                spec: config.spec,
                end_ids: tokenizer.end_ids(),
                generation: file.metadata().generation_defaults()?,
                chat_template: tokenizer.chat_template.clone(),
                tool_template: tool_template.map(str::to_owned),
                padding_id: file
                    .metadata()
                    .u32("tokenizer.ggml.padding_token_id")
                    .ok()
                    .flatten(),
                tokenizer: TokenizerSource::Gguf(tokenizer),
                content_hash,
                notes: config.notes,
                stored: Stored::Gguf { weights, file },
                quantisation: None,
                key_scales: None,
            })
        };
        build().map_err(|refusal| refusal.at(path))
    }

    fn open_directory(dir: &Path, name: String, format: LoadFormat) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let Some(mut config_bytes) = hf::read_small(&path)? else {
            return Err(Refusal::MissingFile("config.json is missing".to_owned()).at(dir));
        };
        let mut config = hf::read_config(&config_bytes).map_err(|refusal| refusal.at(&path))?;
        let path = dir.join("hf_quant_config.json");
        if config.quantisation.is_none()
            && let Some(bytes) = hf::read_small(&path)?
        {
            let quantisation = hf::read_modelopt_file(&bytes);
            config.quantisation = Some(quantisation.map_err(|refusal| refusal.at(&path))?);
            // It is a part of the configuration.
            config_bytes.extend_from_slice(&bytes);
        }
        let path = dir.join("generation_config.json");
        let mut notes = std::mem::take(&mut config.notes);
        let generation = match hf::read_generation(&path) {
            Ok(generation) => generation,
            // The model can do without. A value that makes no sense is its author's mistake.
            Err(ModelError::Refused { reason, .. }) if reason.is_unreadable() => {
                notes.push(format!(
                    "generation_config.json is left out of account: {reason}"
                ));
                hf::Generation::default()
            }
            Err(error) => return Err(error),
        };
        let mut end_ids = std::mem::take(&mut config.end_ids);
        end_ids.extend(generation.end_ids);
        end_ids.sort_unstable();
        end_ids.dedup();
        if let Some(outside) = end_ids.iter().find(|id| **id as usize >= config.spec.vocab) {
            let expected = format!("ids below vocab_size, {}", config.spec.vocab);
            return Err(Refusal::invalid("eos_token_id", outside, expected).at(dir));
        }
        let dummy = format == LoadFormat::Dummy;
        let tokenizer = if dummy && !is_file(&dir.join("tokenizer.json"))? {
            TokenizerSource::StandIn(config.spec.vocab)
        } else {
            TokenizerSource::Hf(hf::read_tokenizer_files(dir, config.family)?)
        };
        let (chat_template, tool_template) = match &tokenizer {
            TokenizerSource::Hf(files) => {
                (files.chat_template.clone(), files.tool_template.clone())
            }
            _ => (None, None),
        };
        let (stored, content_hash) = if dummy {
            let parts = [b"dummy".as_slice(), &config_bytes];
            let formats = hf::packed_formats(&config).map_err(|refusal| refusal.at(dir))?;
            (
                Stored::Dummy(DummyWeights::new(&config.spec, formats)),
                hash_parts(parts),
            )
        } else {
            let weights = HfWeights::open(dir, &config)?;
            config.spec = weights.spec().clone();
            notes.extend_from_slice(weights.notes());
            let hash = hash_of_directory(&config_bytes, &weights);
            (Stored::Hf(weights), hash)
        };
        Ok(Self {
            name,
            family: config.family,
            spec: config.spec,
            end_ids,
            generation: generation.defaults,
            chat_template,
            tool_template,
            padding_id: None,
            tokenizer,
            content_hash,
            notes,
            stored,
            quantisation: None,
            key_scales: None,
        })
    }

    /// Says that contexts will have at most `max_positions` tokens. A model with LongRoPE then has
    /// the frequencies for that length, and one whose queries grow with their position has none
    /// that do where contexts end before; others do not change.
    pub fn limit_context(&mut self, max_positions: usize) {
        if self.spec.ropes.iter().any(|rope| rope.long.is_some()) {
            self.spec.max_positions = self.spec.max_positions.min(max_positions);
        }
        for layer in &mut self.spec.layers {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                // The last position is one less than there are.
                let last = u32::try_from(max_positions.saturating_sub(1)).unwrap_or(u32::MAX);
                let grows = |growth: &QueryGrowth| growth.steps(last) > 0;
                attention.query_growth = attention.query_growth.filter(grows);
            }
        }
    }

    /// Has attention see every token, for a `device` (as the user's sentence has it) that does not
    /// compute windows. The context is then limited to the smallest of them, which a note says.
    pub fn limit_to_windows(&mut self, device: &str) {
        self.notes.extend(limit_to_windows(&mut self.spec, device));
    }

    /// What the model's checkpoint calls each tensor in Hugging Face form.
    pub fn hf_name(&self, name: TensorName) -> String {
        (self.family.hf_tensor)(name).name
    }

    /// The longest context, in tokens.
    pub fn max_context(&self) -> usize {
        self.spec.max_positions
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        let elements = |name: TensorName| {
            name.shape(&self.spec)
                .iter()
                .map(|size| *size as u64)
                .product::<u64>()
        };
        TensorName::all(&self.spec).into_iter().map(elements).sum()
    }

    /// The weights, to be read tensor by tensor, or rows of one, with key scales folded in. Cheap:
    /// the files stay mapped once.
    pub fn weights(&self) -> ModelWeights {
        self.unfolded_weights()
            .folded(self.key_scales.clone(), &self.spec)
    }

    /// [`Self::weights`] without key scales, for backends that compute them in every step
    /// ([`Self::online_key_scales`]): packed weights cannot be changed.
    pub fn unfolded_weights(&self) -> ModelWeights {
        ModelWeights::new(self.stored.clone(), self.quantisation)
    }

    /// Whether any of the weights can be had packed.
    ///
    /// # Errors
    /// When a tensor is missing.
    pub fn is_packed(&self) -> Result<bool, ModelError> {
        self.unfolded_weights().is_packed(&self.spec)
    }

    /// Has the weights that a quantisation takes, of linear layers or of experts alone, quantised
    /// whenever they are read from now on. It is another model then ([`Self::identity`]).
    ///
    /// # Errors
    /// When they are quantised already, or there are none that it takes; a clause for a sentence.
    pub fn quantise(&mut self, quantisation: Quantisation) -> Result<(), String> {
        let is_quantised = self.stored.is_quantised(&self.spec);
        if is_quantised.map_err(|error| error.to_string())? {
            return Err("the weights of this model are quantised already".to_owned());
        }
        if !TensorName::all(&self.spec)
            .into_iter()
            .any(|name| quantisation.takes(name))
        {
            return Err("it quantises experts alone, and this model has none".to_owned());
        }
        self.quantisation = Some(quantisation);
        Ok(())
    }

    /// What plain weights are quantised to.
    pub fn quantisation(&self) -> Option<Quantisation> {
        self.quantisation
    }

    /// The key scales that a backend is to compute which gets [`Self::unfolded_weights`].
    pub fn online_key_scales(&self) -> Option<OnlineKeyScales> {
        let scales = self.key_scales.as_ref()?;
        Some(OnlineKeyScales {
            heads: scales.heads,
            scales: scales.scales.clone(),
        })
    }

    /// Has key scales folded into the weights whenever they are read from now on, or none.
    /// [`Self::identity`] stays.
    ///
    /// # Errors
    /// When they are not for keys of this shape; a clause for a sentence.
    pub fn fold_key_scales(&mut self, scales: Option<Arc<KeyScales>>) -> Result<(), String> {
        if let Some(scales) = &scales {
            let spec = &self.spec;
            spec.refuse_beyond("PM-KVQ's key scaling", &KEY_SCALE_FEATURES)
                .map_err(|error| error.to_string())?;
            let heads = spec.heads();
            scales.check(spec.attentions().count(), heads.kv_heads, heads.head_dim)?;
            if scales.heads != KeyScales::heads_of(spec) {
                return Err(
                    "this model norms its heads, so that key scales must be one for all heads"
                        .to_owned(),
                );
            }
        }
        self.key_scales = scales;
        Ok(())
    }

    /// What this model can be told apart by, down to the last weight. Reads all weight files once,
    /// at the speed of memory.
    pub fn identity(&self) -> Identity {
        let weights = match &self.stored {
            Stored::Gguf { file, .. } => weights_hash(file.files()),
            Stored::Hf(weights) => weights_hash(weights.files()),
            Stored::Dummy(weights) => format!("random-{}", weights.seed()),
        };
        let weights = match self.quantisation {
            None => weights,
            Some(quantisation) => format!("{weights}+{quantisation}"),
        };
        Identity {
            name: self.name.clone(),
            config: self.content_hash.clone(),
            weights,
        }
    }

    /// SHA-256, in hexadecimal, over the whole weight files, or the seed of random ones. Reads all
    /// of them.
    pub fn weights_sha256(&self) -> String {
        let mut hash = Sha256::new();
        match &self.stored {
            Stored::Gguf { file, .. } => file.files().for_each(|bytes| hash.update(bytes)),
            Stored::Hf(weights) => weights.files().for_each(|bytes| hash.update(bytes)),
            Stored::Dummy(weights) => hash.update(weights.seed().to_le_bytes()),
        }
        if let Some(quantisation) = self.quantisation {
            hash.update(quantisation.to_string());
        }
        hex(&hash.finalize())
    }
}

fn hash_of_gguf(file: &GgufFile) -> String {
    let (mut contents, mut lengths) = (Vec::new(), Vec::new());
    for (part, length) in file.contents() {
        contents.push(part);
        lengths.extend((length as u64).to_le_bytes());
    }
    let parts = [b"gguf".as_slice()].into_iter().chain(contents);
    hash_parts(parts.chain([lengths.as_slice()]))
}

fn hash_of_directory(config: &[u8], weights: &HfWeights) -> String {
    let lengths: Vec<u8> = weights
        .headers()
        .flat_map(|(_, length)| (length as u64).to_le_bytes())
        .collect();
    let parts = [b"hf".as_slice(), config, &lengths];
    let headers = weights.headers().map(|(header, _)| header);
    hash_parts(parts.into_iter().chain(headers))
}
