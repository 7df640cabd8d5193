//! Builds a tokenizer from a Hugging Face tokenizer.json.
//!
//! Read part by part instead of with `tokenizers::Tokenizer::from_bytes`: a part that the engine
//! cannot honour (another model, dropout, an unknown decoder) is refused by name, and the
//! truncation and padding that some files carry over from training are left out.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::{AddedToken, Encoding, Model as _, PostProcessor, PostProcessorWrapper, Token};

use super::config::TokenizerConfig;
use super::encoding_size::Sizes;
use super::limits::{check_added, check_rules, check_unigram};
use super::pipeline::{Pipeline, Subwords};
use super::spelling::Spelling;
use super::stretch::stretch;
use super::table::TokenTable;
use super::{SpecialIds, Tokenizer, TokenizerError, VOCAB_MAX, byte_level};
use crate::model::{DeclaredToken, TokenAffixes};

const FILE: &str = "tokenizer.json";

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Value,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// The tokens of the file, and those that are declared beside it. The library numbers them by the
/// model's vocabulary, else on from its end in this order, whatever `id` says: models are trained
/// with that.
fn added_tokens(
    file: Vec<Added>,
    beside: &[DeclaredToken],
    model: &Subwords,
) -> Result<Vec<AddedToken>, TokenizerError> {
    for Added { id, token } in &file {
        if let Some(known) = model.token_to_id(&token.content)
            && known != *id
        {
            let content = &token.content;
            let problem =
                format!("gives {content:?} the id {id}, and the vocabulary gives it {known}");
            return Err(TokenizerError::invalid("added_tokens", problem));
        }
    }
    let mut tokens: Vec<AddedToken> = file.into_iter().map(|added| added.token).collect();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, token) in tokens.iter().enumerate() {
        places.entry(token.content.clone()).or_insert(place);
    }
    for declared in beside.iter().filter(|token| !token.content.is_empty()) {
        let token = AddedToken::from(declared.content.clone(), declared.special)
            .lstrip(declared.lstrip)
            .rstrip(declared.rstrip)
            .single_word(declared.single_word)
            .normalized(declared.normalized);
        match places.get(&token.content) {
            Some(&same) => tokens[same] = token,
            None => {
                places.insert(token.content.clone(), tokens.len());
                tokens.push(token);
            }
        }
    }
    Ok(tokens)
}

pub(super) fn build(json: &[u8], config: &TokenizerConfig) -> Result<Tokenizer, TokenizerError> {
    let file: File = serde_json::from_slice(json)
        .map_err(|source| TokenizerError::Json { file: FILE, source })?;
    let growth = check_rules(&file.normalizer, &file.pre_tokenizer)?;
    let lengths = |content: &str, normalized: bool| {
        let bytes = content.len();
        let growth = if normalized { growth } else { 1 };
        (bytes, bytes.saturating_mul(growth))
    };
    let tokens = file.added_tokens.iter().map(|added| &added.token);
    let tokens = tokens.map(|token| lengths(&token.content, token.normalized));
    check_added("added_tokens in tokenizer.json", tokens)?;
    let tokens = config.added_tokens.iter();
    let tokens = tokens.map(|token| lengths(&token.content, token.normalized));
    check_added("added_tokens_decoder in tokenizer_config.json", tokens)?;
    let spelling = Spelling::of_decoder(&file.decoder)?;
    let model = subwords(file.model)?;
    let added = added_tokens(file.added_tokens, &config.added_tokens, &model)?;
    let takes_spaces = added.iter().any(|token| token.lstrip || token.rstrip);
    let stretch = match takes_spaces || !model.spells_everything(&spelling) {
        true => None,
        false => stretch(&file.normalizer, &file.pre_tokenizer),
    };
    let sizes = Sizes::new(&file.normalizer, &file.pre_tokenizer, &added);
    let vocab = model.vocab();
    let (prefix, suffix) = affixes(part(file.post_processor)?)?;
    let pipeline = Pipeline::new(
        model,
        part(file.normalizer)?,
        part(file.pre_tokenizer)?,
        &added,
    )
    .map_err(|e| TokenizerError::invalid("added_tokens", format!("cannot be told apart: {e}")))?;
    let table = table(vocab, &pipeline, &added, &spelling)?;
    let size = table.len();
    if let Some(outside) = prefix
        .iter()
        .chain(&suffix)
        .find(|&&id| id as usize >= size)
    {
        let problem = format!(
            "adds the id {outside}, and the vocabulary ends at {}",
            size - 1
        );
        return Err(TokenizerError::invalid("post_processor", problem));
    }
    let id = |token: &Option<String>| token.as_deref().and_then(|t| pipeline.token_to_id(t));
    let special = SpecialIds {
        bos: id(&config.bos_token),
        eos: id(&config.eos_token),
        unk: id(&config.unk_token),
    };
    let (prefix, suffix) = match config.affixes {
        Some(TokenAffixes { bos, eos }) => {
            let ids = |adds: bool, id: Option<u32>| id.filter(|_| adds).into_iter().collect();
            (ids(bos, special.bos), ids(eos, special.eos))
        }
        None => (prefix, suffix),
    };
    Ok(Tokenizer {
        pipeline,
        table,
        special,
        prefix,
        suffix,
        stretch,
        sizes,
        strips_space: spelling.strips_space(),
    })
}

/// A part of the file that may be absent or `null`.
fn part<T: DeserializeOwned>(value: Value) -> Result<Option<T>, TokenizerError> {
    serde_json::from_value(value).map_err(|source| TokenizerError::Json { file: FILE, source })
}

impl Subwords {
    /// Whether every byte is a token, so that no character vanishes or joins others that are
    /// unknown.
    fn spells_everything(&self, spelling: &Spelling) -> bool {
        let falls_back = match self {
            Self::Bpe(model) => model.byte_fallback,
            Self::Unigram(model) => model.byte_fallback(),
            Self::Spm(_) => false,
        };
        let known = |token: String| self.token_to_id(&token).is_some();
        match spelling {
            Spelling::ByteLevel => (0..=255).all(|b| known(byte_level::byte_to_char(b).into())),
            Spelling::Spaces { .. } => {
                falls_back && (0..=255u8).all(|b| known(format!("<0x{b:02X}>")))
            }
        }
    }
}

fn subwords(model: Value) -> Result<Subwords, TokenizerError> {
    match model.get("type").and_then(Value::as_str) {
        Some("Unigram") => unigram(model).map(|model| Subwords::Unigram(Box::new(model))),
        _ => bpe(model).map(|model| Subwords::Bpe(Box::new(model))),
    }
}

fn unigram(mut model: Value) -> Result<Unigram, TokenizerError> {
    // The library panics on scores that are not numbers, and on a vocabulary without tokens.
    let vocab = model.get("vocab").and_then(Value::as_array);
    let Some(vocab) = vocab.filter(|vocab| !vocab.is_empty()) else {
        return Err(TokenizerError::invalid(
            "model.vocab in tokenizer.json",
            "has no tokens",
        ));
    };
    check_unigram(vocab.iter().filter_map(|entry| entry[0].as_str()))?;
    // The library reads this one only as borrowed text.
    if let Some(fields) = model.as_object_mut() {
        fields.remove("type");
    }
    serde_json::from_value(model).map_err(|source| TokenizerError::Json { file: FILE, source })
}

fn bpe(mut model: Value) -> Result<BPE, TokenizerError> {
    let text = |key: &str| model.get(key).and_then(Value::as_str).unwrap_or_default();
    // Files from before 2020 leave the type out; they are BPE when they have merges.
    if text("type") != "BPE" && !(text("type").is_empty() && model.get("merges").is_some()) {
        return Err(TokenizerError::Unsupported {
            field: "model.type in tokenizer.json",
            value: format!("{:?}", text("type")),
            supported: "BPE, Unigram",
        });
    }
    let absent = [
        ("model.dropout in tokenizer.json", "dropout"),
        (
            "model.continuing_subword_prefix in tokenizer.json",
            "continuing_subword_prefix",
        ),
        (
            "model.end_of_word_suffix in tokenizer.json",
            "end_of_word_suffix",
        ),
    ];
    for (field, key) in absent {
        match model.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(s)) if s.is_empty() => {}
            Some(other) => {
                return Err(TokenizerError::Unsupported {
                    field,
                    value: other.to_string(),
                    supported: "none",
                });
            }
        }
    }
    // The library reads this one only as borrowed text.
    if let Some(fields) = model.as_object_mut() {
        fields.remove("type");
    }
    let model: BPE = serde_json::from_value(model)
        .map_err(|source| TokenizerError::Json { file: FILE, source })?;
    if let Some(unk) = &model.unk_token
        && model.token_to_id(unk).is_none()
    {
        let problem = format!("is {unk:?}, which is not in the vocabulary");
        return Err(TokenizerError::invalid("model.unk_token", problem));
    }
    Ok(model)
}

fn table(
    vocab: Vec<(String, u32)>,
    pipeline: &Pipeline,
    added: &[AddedToken],
    spelling: &Spelling,
) -> Result<TokenTable, TokenizerError> {
    let mut tokens: Vec<(u32, Vec<u8>, bool)> = vocab
        .into_iter()
        .map(|(text, id)| (id, spelling.bytes(&text), false))
        .collect();
    // After the model's own entry for the same id, so that the added one wins. The library's
    // decoders treat both alike.
    tokens.extend(added.iter().filter_map(|token| {
        let id = pipeline.token_to_id(&token.content)?;
        Some((id, spelling.bytes(&token.content), token.special))
    }));
    tokens.sort_by_key(|&(id, _, _)| id);
    if let Some(&(id, _, _)) = tokens.last().filter(|t| t.0 as usize >= VOCAB_MAX) {
        let problem = format!("has the id {id}; ids below {VOCAB_MAX} are supported");
        return Err(TokenizerError::invalid("model.vocab", problem));
    }
    let mut table = TokenTable::default();
    let mut tokens = tokens.into_iter().peekable();
    while let Some((id, bytes, special)) = tokens.next() {
        if tokens.peek().is_some_and(|next| next.0 == id) {
            continue;
        }
        while table.len() < id as usize {
            table.push(b"", false);
        }
        table.push(&bytes, special);
    }
    Ok(table)
}

/// What the post-processor puts before and after a text, found by giving it a text of one token.
fn affixes(
    processor: Option<PostProcessorWrapper>,
) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    const TEXT: u32 = u32::MAX;
    let Some(processor) = processor else {
        return Ok((Vec::new(), Vec::new()));
    };
    let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
    let processed = processor
        .process(text, None, true)
        .map_err(|e| TokenizerError::invalid("post_processor", e.to_string()))?;
    let mut parts = processed.get_ids().split(|&id| id == TEXT);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(prefix), Some(suffix), None) => Ok((prefix.to_vec(), suffix.to_vec())),
        _ => Err(TokenizerError::invalid(
            "post_processor",
            "does not keep the text once",
        )),
    }
}
