//! From text to ids: added tokens out, normalise, cut, merge.

use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::{
    AddedToken, AddedVocabulary, Model, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
};

use super::TokenizerError;
use super::spm::SpmModel;

/// The steps of one vocabulary. Added tokens are cut out of the text first; with `parse_special`
/// off, the special ones among them are left in the text and tokenised like any other.
#[derive(Debug)]
pub(super) struct Pipeline {
    parsing: AddedVocabulary,
    literal: AddedVocabulary,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: Subwords,
}

/// How a piece becomes tokens.
#[derive(Debug)]
pub(super) enum Subwords {
    /// Ranked merges.
    Bpe(Box<BPE>),
    /// Scored pieces, merged by score.
    Spm(SpmModel),
    /// The likeliest pieces (SentencePiece's unigram model).
    Unigram(Box<Unigram>),
}

impl Subwords {
    fn tokenize(&self, piece: &str) -> tokenizers::Result<Vec<tokenizers::Token>> {
        match self {
            Self::Bpe(model) => model.tokenize(piece),
            Self::Spm(model) => model.tokenize(piece),
            Self::Unigram(model) => model.tokenize(piece),
        }
    }

    /// The id of a token that the model itself knows.
    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Bpe(model) => model.token_to_id(token),
            Self::Spm(model) => model.token_to_id(token),
            Self::Unigram(model) => model.token_to_id(token),
        }
    }

    /// Every token that the model itself knows, with its id.
    pub(super) fn vocab(&self) -> Vec<(String, u32)> {
        match self {
            Self::Bpe(model) => model.get_vocab().into_iter().collect(),
            Self::Spm(model) => model.get_vocab().into_iter().collect(),
            // A text that stands there twice has two ids.
            Self::Unigram(model) => model
                .iter()
                .zip(0..)
                .map(|(t, id)| (t.0.clone(), id))
                .collect(),
        }
    }

    fn register(
        &self,
        vocabulary: &mut AddedVocabulary,
        added: &[AddedToken],
        normalizer: Option<&NormalizerWrapper>,
    ) -> tokenizers::Result<()> {
        let added = added.iter().cloned();
        match self {
            Self::Bpe(model) => vocabulary.add_tokens(added, model.as_ref(), normalizer)?,
            Self::Spm(model) => vocabulary.add_tokens(added, model, normalizer)?,
            Self::Unigram(model) => vocabulary.add_tokens(added, model.as_ref(), normalizer)?,
        };
        Ok(())
    }
}

impl Pipeline {
    /// Fails when two added tokens have one text after normalisation, or none.
    pub(super) fn new(
        model: Subwords,
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        added: &[AddedToken],
    ) -> tokenizers::Result<Self> {
        let mut parsing = AddedVocabulary::new();
        model.register(&mut parsing, added, normalizer.as_ref())?;
        let mut literal = AddedVocabulary::new();
        model.register(&mut literal, added, normalizer.as_ref())?;
        literal.set_encode_special_tokens(true);
        Ok(Self {
            parsing,
            literal,
            normalizer,
            pre_tokenizer,
            model,
        })
    }

    /// The id of a token by its text, added tokens before the model's own.
    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.parsing.get_vocab().get(token).copied();
        added.or_else(|| self.model.token_to_id(token))
    }

    /// Added tokens of `text`, and between them what is normalised.
    pub(super) fn normalize(&self, text: &str, parse_special: bool) -> PreTokenizedString {
        let added = if parse_special {
            &self.parsing
        } else {
            &self.literal
        };
        added.extract_and_normalize(self.normalizer.as_ref(), text)
    }

    /// Appends the ids of a normalised text to `ids`, as long as that is `wanted`, which every
    /// piece asks.
    pub(super) fn encode(
        &self,
        pieces: &mut PreTokenizedString,
        wanted: &dyn Fn() -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let failed = |e: tokenizers::Error| match e.downcast::<TokenizerError>() {
            Ok(ours) => *ours,
            Err(e) => TokenizerError::Encode(e.to_string()),
        };
        if let Some(cut) = &self.pre_tokenizer {
            cut.pre_tokenize(pieces).map_err(failed)?;
        }
        pieces
            .tokenize(|piece| match wanted() {
                true => self.model.tokenize(piece.get()),
                false => Err(TokenizerError::CalledOff.into()),
            })
            .map_err(failed)?;
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }
}
