//! Text to token ids and back, and chat messages to text.
//!
//! A [`Tokenizer`] comes from a Hugging Face tokenizer.json or from the metadata of a GGUF file
//! ([`GgufTokenizer`]). Encoding runs on the `tokenizers` crate; decoding is a table of each
//! token's bytes, so that text can be streamed byte by byte ([`IncrementalDetokenizer`]).

mod byte_level;
mod charsmap;
mod chat;
mod config;
mod cuts;
mod detokenize;
mod encoding_size;
mod error;
mod gguf;
mod growth;
mod hf;
mod limits;
mod pipeline;
mod pre_tokenizer;
mod spelling;
mod spm;
mod stand_in;
mod stretch;
mod table;

pub use chat::{ChatError, ChatMessage, ChatTemplate, Conversation, RenderHost, TemplateTokens};
pub use config::TokenizerConfig;
pub use detokenize::IncrementalDetokenizer;
pub use encoding_size::EncodingSize;
pub use error::TokenizerError;

use std::fmt;

use tokenizers::{OffsetReferential, OffsetType};

use crate::model::gguf::GgufTokenizer;
use crate::stack::with_known_stack;
use encoding_size::Sizes;
use pipeline::Pipeline;
use table::TokenTable;

/// The most tokens a vocabulary may have. The largest public ones have about 262,000.
const VOCAB_MAX: usize = 1 << 22;

/// The ids that mean something to the engine, as far as the model's files name them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unk: Option<u32>,
}

impl SpecialIds {
    fn of(vocab: &GgufTokenizer) -> Self {
        Self {
            bos: vocab.bos,
            eos: vocab.eos,
            unk: vocab.unknown,
        }
    }
}

/// A vocabulary and the rules that cut a text into its tokens. Immutable; share it by `Arc`.
pub struct Tokenizer {
    pipeline: Pipeline,
    table: TokenTable,
    special: SpecialIds,
    /// Ids before and after a text that is encoded with its special tokens.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Bytes of text for one byte of a token at most; `None` where text may vanish.
    stretch: Option<usize>,
    /// What rules make of a text before it is cut into tokens.
    sizes: Sizes,
    /// Encoding puts a space before the text, so decoding takes one away.
    strips_space: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("special", &self.special)
            .field("prefix", &self.prefix)
            .field("suffix", &self.suffix)
            .field("strips_space", &self.strips_space)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a Hugging Face tokenizer.json, with the special tokens that tokenizer_config.json
    /// names.
    ///
    /// # Errors
    /// A [`TokenizerError`] names the part at fault and what is supported.
    pub fn from_tokenizer_json(
        json: &[u8],
        config: &TokenizerConfig,
    ) -> Result<Self, TokenizerError> {
        let damaged = || TokenizerError::invalid("tokenizer.json", "contradicts itself");
        let build = || {
            with_known_stack(|| hf::build(json, config)).map_err(|e| {
                TokenizerError::invalid("tokenizer.json", format!("cannot be read: {e}"))
            })?
        };
        TokenizerError::catch(build, damaged)
    }

    /// Rebuilds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// A [`TokenizerError`] names the key at fault and what is supported.
    pub fn from_gguf(vocab: GgufTokenizer) -> Result<Self, TokenizerError> {
        gguf::build(vocab)
    }

    /// A tokenizer of `vocab` ids for a model that has none: ids below 256 are bytes, the others
    /// are never encoded to and decode to their numbers.
    ///
    /// # Errors
    /// When the vocabulary is larger than any.
    pub fn stand_in(vocab: usize) -> Result<Self, TokenizerError> {
        Self::from_gguf(stand_in::vocabulary(vocab))
    }

    /// The token ids of a text.
    ///
    /// `add_special` puts the model's BOS (and EOS) around it where the model wants them.
    /// `parse_special` reads special tokens written in the text (`<|im_end|>`) as those tokens;
    /// without it they are ordinary characters, which is what text from strangers needs.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when the vocabulary cannot spell the text.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_while(text, add_special, parse_special, &|| true, |_| true)
    }

    /// The same, as long as that is `wanted`, which is asked often. Once the text is normalised,
    /// `may_take` is asked whether it may become so large.
    ///
    /// # Errors
    /// Those of [`Self::encode`]; [`TokenizerError::CalledOff`].
    pub fn encode_while(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        wanted: &dyn Fn() -> bool,
        mut may_take: impl FnMut(EncodingSize) -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special {
            ids.extend_from_slice(&self.prefix);
        }
        let failed = || TokenizerError::Encode("the tokenizer library failed on it".to_owned());
        let mut encode = || {
            let mut pieces = self.pipeline.normalize(text, parse_special);
            let texts = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
            let texts = texts.into_iter();
            let texts = texts.map(|(text, _, tokens)| (text, tokens.is_some()));
            if !may_take(self.sizes.of(texts)) {
                return Err(TokenizerError::CalledOff);
            }
            self.pipeline.encode(&mut pieces, wanted, &mut ids)
        };
        TokenizerError::catch(&mut encode, failed)?;
        if add_special {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The text of token ids. Bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary
    /// nothing. `skip_special` leaves special tokens out of the text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let text = self.decode_while(ids, skip_special, &|| true);
        text.unwrap_or_default()
    }

    /// The same, as long as that is `wanted`, which every thousand ids ask; `None` afterwards.
    pub fn decode_while(
        &self,
        ids: &[u32],
        skip_special: bool,
        wanted: &dyn Fn() -> bool,
    ) -> Option<String> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for part in ids.chunks(1000) {
            if !wanted() {
                return None;
            }
            for &id in part {
                bytes.extend_from_slice(self.text_bytes(id, skip_special));
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = match text.strip_prefix(' ') {
            Some(rest) if self.strips_space => rest,
            _ => &text,
        };
        Some(text.to_owned())
    }

    /// Bytes that [`Self::decode`] makes of these ids, or a few more.
    pub fn decoded_bytes(&self, ids: &[u32], skip_special: bool) -> usize {
        let bytes = |&id| self.text_bytes(id, skip_special).len();
        ids.iter().map(bytes).sum()
    }

    /// Bytes of the longest token. Goes through the vocabulary.
    pub fn longest_token_bytes(&self) -> usize {
        self.table.longest()
    }

    /// Bytes of text that a token may stand for at most; `None` where there is no bound, because
    /// characters or spaces may vanish. Goes through the vocabulary.
    pub fn text_bytes_per_token(&self) -> Option<usize> {
        let longest = self.longest_token_bytes();
        self.stretch.map(|stretch| stretch.saturating_mul(longest))
    }

    /// Bytes that a byte of text may become at most before it is cut into tokens: each is kept with
    /// where it came from.
    pub fn growth(&self) -> usize {
        self.sizes.growth()
    }

    /// Bytes of a text once it is normalised, at most: each is kept with where it came from. Goes
    /// through its bytes.
    pub fn normalized_bytes(&self, text: &str) -> usize {
        self.sizes.normalized(text)
    }

    /// What a text becomes while it is encoded, if normalising replaces its spaces alone. Goes
    /// through its bytes.
    pub fn encoding_size(&self, text: &str) -> EncodingSize {
        self.sizes.before(text)
    }

    /// The bytes that a token adds to a text, `None` outside the vocabulary. They need not be
    /// whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.bytes(id)
    }

    /// What `id` adds to a decoded text.
    fn text_bytes(&self, id: u32, skip_special: bool) -> &[u8] {
        if skip_special && self.table.is_special(id) {
            return b"";
        }
        self.table.bytes(id).unwrap_or(b"")
    }

    /// The id of a token by its exact spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }

    /// Number of ids, holes and unused ones included. A model may have more logits than this.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// BOS, EOS and the like.
    pub fn special(&self) -> SpecialIds {
        self.special
    }

    /// Whether a text is, or holds, the text of a special token.
    pub fn names_special(&self, text: &str) -> bool {
        let ids = self.encode(text, false, true).unwrap_or_default();
        ids.into_iter().any(|id| self.is_special(id))
    }

    /// Whether decoding with `skip_special` leaves this id out.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }
}
