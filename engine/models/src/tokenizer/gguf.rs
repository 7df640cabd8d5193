//! Rebuilds a tokenizer from the `tokenizer.ggml.*` metadata of a GGUF file.

use serde_json::{Value, json};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use crate::model::gguf::{GgufTokenizer, TokenType};

use super::encoding_size::Sizes;
use super::limits::check_added;
use super::pipeline::{Pipeline, Subwords};
use super::pre_tokenizer::{LINES, PreTokenizer};
use super::spm::SpmModel;
use super::stretch::COMPOSED;
use super::table::TokenTable;
use super::{SpecialIds, Tokenizer, TokenizerError, VOCAB_MAX, byte_level};

/// Cut out of the text whole, before any merge.
fn is_added(kind: TokenType) -> bool {
    matches!(
        kind,
        TokenType::Unknown | TokenType::Control | TokenType::UserDefined
    )
}

/// Not part of the text that a reader should see.
fn is_special(kind: TokenType) -> bool {
    matches!(kind, TokenType::Unknown | TokenType::Control)
}

pub(super) fn build(vocab: GgufTokenizer) -> Result<Tokenizer, TokenizerError> {
    let kinds = kinds(&vocab)?;
    let added: Vec<AddedToken> = vocab
        .tokens
        .iter()
        .zip(&kinds)
        .filter(|&(text, &kind)| is_added(kind) && !text.is_empty())
        .map(|(text, kind)| AddedToken::from(text.clone(), is_special(*kind)).normalized(false))
        .collect();
    let lengths = added.iter().map(|a| (a.content.len(), a.content.len()));
    check_added("tokenizer.ggml.tokens", lengths)?;
    match vocab.model.as_str() {
        "gpt2" => byte_level_bpe(vocab, &kinds, &added),
        "llama" => sentencepiece(vocab, &kinds, &added),
        "gemma4" => spaced_bpe(vocab, &kinds, &added),
        other => Err(TokenizerError::Unsupported {
            field: "tokenizer.ggml.model",
            value: format!("{other:?}"),
            supported: "gpt2, llama, gemma4",
        }),
    }
}

/// One kind for each token.
fn kinds(vocab: &GgufTokenizer) -> Result<Vec<TokenType>, TokenizerError> {
    let n = vocab.tokens.len();
    if n > VOCAB_MAX {
        let problem = format!("has {n} tokens; at most {VOCAB_MAX} are supported");
        return Err(TokenizerError::invalid("tokenizer.ggml.tokens", problem));
    }
    match &vocab.token_types {
        None => Ok(vec![TokenType::Normal; n]),
        Some(types) if types.len() == n => Ok(types.clone()),
        Some(types) => {
            let problem = format!("has {} entries for {n} tokens", types.len());
            Err(TokenizerError::invalid(
                "tokenizer.ggml.token_type",
                problem,
            ))
        }
    }
}

fn byte_level_bpe(
    vocab: GgufTokenizer,
    kinds: &[TokenType],
    added: &[AddedToken],
) -> Result<Tokenizer, TokenizerError> {
    let pre = PreTokenizer::from_name(vocab.pre.as_deref().unwrap_or("default"))?;
    let mut table = TokenTable::default();
    for (text, kind) in vocab.tokens.iter().zip(kinds) {
        match kind {
            TokenType::Unused => table.push(b"", false),
            kind if is_added(*kind) => table.push(text.as_bytes(), is_special(*kind)),
            _ => match byte_level::token_bytes(text) {
                Some(bytes) => table.push(&bytes, false),
                None => table.push(text.as_bytes(), false),
            },
        }
    }
    let special = SpecialIds::of(&vocab);
    let (prefix, suffix) = affixes(&vocab, pre.adds_bos())?;
    let merges = split_merges(vocab.merges.as_deref().unwrap_or_default())?;
    let ids: Vocab = vocab.tokens.into_iter().zip(0..).collect();
    // Every byte needs a token of its own: the merges start from them, and a character without
    // one would silently vanish from the text.
    let missing = |b: &u8| !ids.contains_key(&*byte_level::byte_to_char(*b).to_string());
    let lost = (0..=255).find(missing);
    let loses_spaces = b" \t\n\r".iter().any(missing);
    if let Some(byte) = lost {
        tracing::debug!(
            byte,
            "the vocabulary has no token for this byte; texts lose it"
        );
    }
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(pre.ignores_merges())
        .build()
        .map_err(|e| {
            TokenizerError::invalid(
                "tokenizer.ggml.merges",
                format!("do not fit the vocabulary: {e}"),
            )
        })?;
    let rules = match pre.composes() {
        true => json!({"type": "NFC"}),
        false => Value::Null,
    };
    let spelled = json!({"type": "ByteLevel", "add_prefix_space": false});
    let normalizer = pre.composes().then_some(NormalizerWrapper::NFC(NFC));
    let model = Subwords::Bpe(Box::new(model));
    let pipeline =
        Pipeline::new(model, normalizer, Some(pre.build()?), added).map_err(indistinct)?;
    Ok(Tokenizer {
        pipeline,
        table,
        special,
        prefix,
        suffix,
        sizes: Sizes::new(&rules, &spelled, added),
        stretch: match (loses_spaces, pre.composes()) {
            (true, _) => None,
            (false, true) => Some(COMPOSED),
            (false, false) => Some(1),
        },
        strips_space: false,
    })
}

/// Ranked merges over SentencePiece's spelling: spaces are `▁`, and characters without a token are
/// bytes. Lines are cut apart, as llama.cpp does.
fn spaced_bpe(
    vocab: GgufTokenizer,
    kinds: &[TokenType],
    added: &[AddedToken],
) -> Result<Tokenizer, TokenizerError> {
    let mut table = TokenTable::default();
    let mut bytes = 0;
    for (text, kind) in vocab.tokens.iter().zip(kinds) {
        match (kind, byte_of(text)) {
            (TokenType::Unused, _) => table.push(b"", false),
            (TokenType::Byte, Some(byte)) => {
                table.push(&[byte], false);
                bytes += 1;
            }
            (kind, _) if is_added(*kind) => table.push(text.as_bytes(), is_special(*kind)),
            _ => table.push(text.replace('▁', " ").as_bytes(), false),
        }
    }
    if bytes != 256 {
        let problem = format!("has {bytes} tokens of type byte; 256 are needed");
        return Err(TokenizerError::invalid("tokenizer.ggml.tokens", problem));
    }
    let special = SpecialIds::of(&vocab);
    let (prefix, suffix) = affixes(&vocab, true)?;
    let merges = split_merges(vocab.merges.as_deref().unwrap_or_default())?;
    let ids: Vocab = vocab.tokens.into_iter().zip(0..).collect();
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .byte_fallback(true)
        .build()
        .map_err(|e| {
            TokenizerError::invalid(
                "tokenizer.ggml.merges",
                format!("do not fit the vocabulary: {e}"),
            )
        })?;
    let pipeline = Pipeline::new(
        Subwords::Bpe(Box::new(model)),
        Some(spaces(false)?),
        Some(PreTokenizer::lines()?),
        added,
    )
    .map_err(indistinct)?;
    Ok(Tokenizer {
        pipeline,
        table,
        special,
        prefix,
        suffix,
        stretch: Some(1),
        sizes: Sizes::new(
            &spaces_json(false),
            &json!({"type": "Split", "pattern": {"Regex": LINES}, "behavior": "Isolated"}),
            added,
        ),
        strips_space: false,
    })
}

fn split_merges(merges: &[String]) -> Result<Merges, TokenizerError> {
    let split = |(i, merge): (usize, &String)| match merge.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(TokenizerError::invalid(
            "tokenizer.ggml.merges",
            format!("entry {i} is {merge:?}, not two parts with a space between"),
        )),
    };
    merges.iter().enumerate().map(split).collect()
}

fn sentencepiece(
    vocab: GgufTokenizer,
    kinds: &[TokenType],
    added: &[AddedToken],
) -> Result<Tokenizer, TokenizerError> {
    let n = vocab.tokens.len();
    let field = "tokenizer.ggml.scores";
    let scores = vocab.scores.as_deref().unwrap_or_default();
    if scores.len() != n {
        let problem = format!("has {} entries for {n} tokens", scores.len());
        return Err(TokenizerError::invalid(field, problem));
    }
    if let Some(i) = scores.iter().position(|score| score.is_nan()) {
        return Err(TokenizerError::invalid(
            field,
            format!("entry {i} is not a number"),
        ));
    }
    let mut table = TokenTable::default();
    let mut model = SpmModel::default();
    let mut bytes = [None; 256];
    for (id, (text, kind)) in (0..).zip(vocab.tokens.iter().zip(kinds)) {
        match kind {
            TokenType::Normal => {
                table.push(text.replace('▁', " ").as_bytes(), false);
                model.add_piece(text, id, scores[id as usize], false);
            }
            TokenType::Unused => {
                table.push(b"", false);
                model.add_piece(text, id, scores[id as usize], true);
            }
            TokenType::Byte => {
                let byte = byte_of(text).ok_or_else(|| {
                    let problem = format!("entry {id} is {text:?}, of type byte but not <0xNN>");
                    TokenizerError::invalid("tokenizer.ggml.tokens", problem)
                })?;
                table.push(&[byte], false);
                model.add_reserved(text, id);
                bytes[usize::from(byte)] = Some(id);
            }
            TokenType::Unknown | TokenType::Control | TokenType::UserDefined => {
                table.push(text.as_bytes(), is_special(*kind));
                model.add_reserved(text, id);
            }
        }
    }
    let bytes: Option<Vec<u32>> = bytes.into_iter().collect();
    if bytes.is_none() && vocab.unknown.is_none() {
        return Err(TokenizerError::invalid(
            "tokenizer.ggml.tokens",
            "has neither a token for every byte nor an unknown token, so some texts cannot be \
             tokenised",
        ));
    }
    let has_bytes = bytes.is_some();
    model.set_fallback(bytes, vocab.unknown);
    let (prefix, suffix) = affixes(&vocab, true)?;
    let prefixed = vocab.add_space_prefix.unwrap_or(true);
    let pipeline = Pipeline::new(
        Subwords::Spm(model),
        Some(spaces(prefixed)?),
        None::<PreTokenizerWrapper>,
        added,
    )
    .map_err(indistinct)?;
    Ok(Tokenizer {
        pipeline,
        table,
        special: SpecialIds::of(&vocab),
        prefix,
        suffix,
        stretch: has_bytes.then_some(1),
        sizes: Sizes::new(&spaces_json(prefixed), &Value::Null, added),
        strips_space: prefixed,
    })
}

fn indistinct(error: tokenizers::Error) -> TokenizerError {
    let problem = format!("has special tokens that cannot be told apart: {error}");
    TokenizerError::invalid("tokenizer.ggml.tokens", problem)
}

/// Spaces become `▁`, and (unless the file says otherwise) one more goes before each run of
/// text: `add_dummy_prefix` of SentencePiece, applied after every added token as llama.cpp does.
fn spaces(prefixed: bool) -> Result<NormalizerWrapper, TokenizerError> {
    let replace = Replace::new(" ", "▁")
        .map_err(|e| TokenizerError::invalid("tokenizer.ggml.model", e.to_string()))?;
    let mut steps = Vec::new();
    if prefixed {
        steps.push(NormalizerWrapper::Prepend(Prepend::new("▁".to_owned())));
    }
    steps.push(NormalizerWrapper::Replace(replace));
    Ok(NormalizerWrapper::Sequence(Sequence::new(steps)))
}

/// [`spaces`] as tokenizer.json has it.
fn spaces_json(prefixed: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let rules: Vec<Value> = prefixed
        .then_some(prepend)
        .into_iter()
        .chain([replace])
        .collect();
    json!({"type": "Sequence", "normalizers": rules})
}

/// `<0xNN>` → the byte.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// What `add_special` puts before and after a text.
fn affixes(
    vocab: &GgufTokenizer,
    bos_default: bool,
) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let missing = |field, id_field| {
        let problem = format!("is true, but the file has no {id_field}");
        TokenizerError::invalid(field, problem)
    };
    let prefix = match (vocab.add_bos, vocab.bos) {
        (Some(true), None) => {
            return Err(missing(
                "tokenizer.ggml.add_bos_token",
                "tokenizer.ggml.bos_token_id",
            ));
        }
        (add, Some(bos)) if add.unwrap_or(bos_default) => vec![bos],
        _ => Vec::new(),
    };
    let suffix = match (vocab.add_eos, vocab.eos) {
        (Some(true), None) => {
            return Err(missing(
                "tokenizer.ggml.add_eos_token",
                "tokenizer.ggml.eos_token_id",
            ));
        }
        (Some(true), Some(eos)) => vec![eos],
        _ => Vec::new(),
    };
    Ok((prefix, suffix))
}
