//! From a model's name to its files and tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ebb_kernels::weight_formats::Quantisation;
use thiserror::Error;

use crate::model::{
    LFS_ADVICE, LoadFormat, LoadedModel, ModelError, ModelRef, TokenizerSource, default_cache_dir,
    is_lfs_pointer,
};
use crate::tokenizer::{
    ChatError, ChatTemplate, TemplateTokens, Tokenizer, TokenizerConfig, TokenizerError,
};

/// Why a model cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The model cannot be found, fetched or read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its weights cannot be quantised.
    #[error("--quantization {asked}: {why}; leave it out")]
    Quantization {
        /// What they were to become.
        asked: Quantisation,
        /// Why they cannot.
        why: String,
    },
    /// Its tokenizer or chat template is unusable.
    #[error("the model's tokenizer cannot be used: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// The chat template that was asked for cannot be compiled.
    #[error("--chat-template {path}: {source}")]
    Template {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: ChatError,
    },
    /// The chat template that was asked for cannot be read.
    #[error("cannot read the chat template {path}: {source}")]
    TemplateFile {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Its tokenizer's file cannot be read.
    #[error("cannot read {path}: {source}")]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// The largest tokenizer.json accepted, in bytes. The largest known ones have some 35 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// A model with its tokenizer, before any weight is read.
pub struct Opened {
    /// The checked files.
    pub model: LoadedModel,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, if it has one. One that cannot be compiled stands for itself: it says so
    /// to whoever renders it, and the model answers prompts.
    pub template: Option<ChatTemplate>,
}

impl Opened {
    /// Takes the chat template in a file instead of the model's own.
    ///
    /// # Errors
    /// When it cannot be read or compiled.
    pub fn use_chat_template(&mut self, path: &Path) -> Result<(), OpenError> {
        let source = std::fs::read_to_string(path).map_err(|source| OpenError::TemplateFile {
            path: path.to_owned(),
            source,
        })?;
        let tokens = template_tokens(&self.model, &self.tokenizer);
        let template =
            ChatTemplate::new(&source, tokens).map_err(|source| OpenError::Template {
                path: path.to_owned(),
                source,
            })?;
        self.template = Some(template);
        Ok(())
    }
}

/// Finds (or fetches) a model and builds its tokenizer.
///
/// # Errors
/// When the model or its tokenizer cannot be used.
pub fn open(model: &str, cache_dir: Option<PathBuf>) -> Result<Opened, OpenError> {
    open_as(model, cache_dir, LoadFormat::Auto, None)
}

/// [`open`] with a choice of the weights, and of what plain ones are quantised to as they are read.
///
/// # Errors
/// As there, and when weights that are to be quantised are quantised already, or the model has none
/// that the quantisation takes.
pub fn open_as(
    model: &str,
    cache_dir: Option<PathBuf>,
    format: LoadFormat,
    quantisation: Option<Quantisation>,
) -> Result<Opened, OpenError> {
    let mut model = ModelRef::parse(model)?;
    if let Some(dir) = &cache_dir {
        model = model.kept_in(dir);
    }
    let cache_dir = cache_dir.or_else(default_cache_dir);
    let files = model.files_for(format, cache_dir.as_deref())?;
    let mut model = LoadedModel::open_as(&files, format)?;
    if let Some(asked) = quantisation {
        let quantised = model.quantise(asked);
        quantised.map_err(|why| OpenError::Quantization { asked, why })?;
    }
    let tokenizer = Arc::new(tokenizer(&model.tokenizer)?);
    end_with_eos_token(&mut model, &tokenizer);
    let template = model.chat_template.as_ref().map(|source| {
        let tokens = template_tokens(&model, &tokenizer);
        let template = ChatTemplate::with_tool_use(source, model.tool_template.as_deref(), tokens);
        template.unwrap_or_else(ChatTemplate::unusable)
    });
    Ok(Opened {
        model,
        tokenizer,
        template,
    })
}

/// The `eos_token` that only the tokenizer's files name ends an answer too.
fn end_with_eos_token(model: &mut LoadedModel, tokenizer: &Tokenizer) {
    let eos = match &model.tokenizer {
        TokenizerSource::Hf(_) => tokenizer.special().eos,
        // A GGUF file's own list has it.
        TokenizerSource::Gguf(_) | TokenizerSource::StandIn(_) => None,
    };
    if let Some(eos) = eos.filter(|id| (*id as usize) < model.spec.vocab)
        && let Err(place) = model.end_ids.binary_search(&eos)
    {
        model.end_ids.insert(place, eos);
    }
}

fn read_tokenizer(path: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > TOKENIZER_BYTES_MAX {
        let limit = TOKENIZER_BYTES_MAX;
        let problem = format!("it has {bytes} bytes; at most {limit} are supported");
        return Err(std::io::Error::other(problem));
    }
    let bytes = std::fs::read(path)?;
    match is_lfs_pointer(&bytes) {
        true => Err(std::io::Error::other(LFS_ADVICE)),
        false => Ok(bytes),
    }
}

fn tokenizer(source: &TokenizerSource) -> Result<Tokenizer, OpenError> {
    match source {
        TokenizerSource::Gguf(vocab) => Ok(Tokenizer::from_gguf(vocab.clone())?),
        TokenizerSource::StandIn(vocab) => Ok(Tokenizer::stand_in(*vocab)?),
        TokenizerSource::Hf(files) => {
            let path = &files.tokenizer_json;
            let json = read_tokenizer(path).map_err(|source| OpenError::TokenizerFile {
                path: path.clone(),
                source,
            })?;
            let named = |name: &Option<String>, class: Option<&str>| {
                name.clone().or_else(|| class.map(str::to_owned))
            };
            let config = TokenizerConfig {
                bos_token: named(&files.bos_token, files.class_tokens.bos),
                eos_token: named(&files.eos_token, files.class_tokens.eos),
                unk_token: named(&files.unk_token, files.class_tokens.unk),
                chat_template: files.chat_template.clone(),
                affixes: files.affixes,
                added_tokens: files.added_tokens.clone(),
            };
            Ok(Tokenizer::from_tokenizer_json(&json, &config)?)
        }
    }
}

/// The special tokens that a template may name, as they are spelt.
fn template_tokens(model: &LoadedModel, tokenizer: &Tokenizer) -> TemplateTokens {
    let special = tokenizer.special();
    let spelt = |id: Option<u32>| {
        let bytes = tokenizer.token_bytes(id?)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let by_id = TemplateTokens {
        bos: spelt(special.bos),
        eos: spelt(special.eos),
        ..TemplateTokens::default()
    };
    match &model.tokenizer {
        TokenizerSource::Hf(files) => TemplateTokens {
            bos: files.bos_token.clone(),
            eos: files.eos_token.clone(),
            unk: files.unk_token.clone(),
            sep: files.sep_token.clone(),
            pad: files.pad_token.clone(),
            cls: files.cls_token.clone(),
            mask: files.mask_token.clone(),
            additional: files.additional_special_tokens.clone(),
        },
        TokenizerSource::Gguf(_) => TemplateTokens {
            unk: spelt(special.unk),
            pad: spelt(model.padding_id),
            ..by_id
        },
        TokenizerSource::StandIn(_) => by_id,
    }
}
