//! What a GGUF file says about its tokenizer, as plain data: the `tokenizer.*` keys.

use super::error::GgufError;
use super::metadata::{GgufMetadata, required};

/// What a token is, as `tokenizer.ggml.token_type` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text (1).
    Normal,
    /// Stands for text outside the vocabulary (2).
    Unknown,
    /// A special token such as `<|im_end|>`: matched whole in a template, not shown (3).
    Control,
    /// Added by the model's author: matched whole, and shown (4).
    UserDefined,
    /// Never produced (5).
    Unused,
    /// One byte, written `<0xAB>` (6).
    Byte,
}

/// Everything needed to rebuild the tokenizer that a GGUF file carries.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` is byte-level BPE, `llama` SentencePiece, `gemma4` BPE
    /// of SentencePiece's spelling.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of byte-level BPE, such as `smollm` or `qwen2`.
    pub pre: Option<String>,
    /// The vocabulary; a token's index is its id. Never empty.
    pub tokens: Vec<String>,
    /// SentencePiece scores; if present, as many as tokens.
    pub scores: Option<Vec<f32>>,
    /// Token types; if present, as many as tokens.
    pub token_types: Option<Vec<TokenType>>,
    /// BPE merges in order of rank, each two tokens separated by a space.
    pub merges: Option<Vec<String>>,
    /// Beginning of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn, where it differs from end of text.
    pub eot: Option<u32>,
    /// End of message (a turn that goes on after a tool's answer).
    pub eom: Option<u32>,
    /// The token for text outside the vocabulary.
    pub unknown: Option<u32>,
    /// Whether encoding puts `bos` in front.
    pub add_bos: Option<bool>,
    /// Whether encoding puts `eos` at the end.
    pub add_eos: Option<bool>,
    /// Whether SentencePiece puts a space in front of the text.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`, a Jinja template.
    pub chat_template: Option<String>,
}

/// Tokens that end a turn under any family; files often name only one of several as `eos`.
/// The same list, for the families served here, as llama.cpp's.
const END_OF_TURN: [&str; 10] = [
    "<|eot_id|>",
    "<|im_end|>",
    END_OF_MESSAGE,
    HARMONY_ENDS[0],
    HARMONY_ENDS[1],
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "<end_of_turn>",
];

/// Ends a turn of Phi's, and only a message of gpt-oss's.
const END_OF_MESSAGE: &str = "<|end|>";

/// What ends turns of gpt-oss: an answer, and a call of a tool.
const HARMONY_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];

impl GgufTokenizer {
    /// Reads the `tokenizer.*` keys.
    ///
    /// # Errors
    /// [`GgufError::Missing`] without a model name or tokens, [`GgufError::Value`] when a value
    /// has the wrong type, a list is not as long as the vocabulary, or an id lies outside it.
    pub fn from_metadata(metadata: &GgufMetadata) -> Result<Self, GgufError> {
        const MODEL: &str = "tokenizer.ggml.model";
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let model = required(metadata.text(MODEL)?, MODEL, "the tokenizer")?.to_owned();
        let tokens = required(metadata.texts(TOKENS)?, TOKENS, "the tokenizer")?;
        if tokens.is_empty() {
            return Err(wrong(TOKENS, "empty".to_owned(), "at least one token"));
        }
        let vocab = tokens.len();
        let id = |name: &str| token_id(metadata, &format!("tokenizer.ggml.{name}_token_id"), vocab);
        let flag = |name: &str| metadata.bool(&format!("tokenizer.ggml.{name}"));
        let text = |key| metadata.text(key).map(|text| text.map(str::to_owned));

        Ok(Self {
            pre: text("tokenizer.ggml.pre")?,
            scores: same_length(metadata, "tokenizer.ggml.scores", vocab, GgufMetadata::f32s)?,
            token_types: token_types(metadata, vocab)?,
            merges: metadata.texts("tokenizer.ggml.merges")?,
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unknown: id("unknown")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
            model,
            tokens,
        })
    }

    /// The ids that end a generation: `eos`, `eot`, `eom`, and every control token whose text is
    /// known to end a turn. Ascending, without repeats.
    pub fn end_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = [self.eos, self.eot, self.eom]
            .into_iter()
            .flatten()
            .collect();
        let has = |text: &str| self.tokens.iter().any(|token| token == text);
        let is_harmony = HARMONY_ENDS.into_iter().all(has);
        let goes_on = |token: &str| is_harmony && token == END_OF_MESSAGE;
        if let Some(types) = &self.token_types {
            // The vocabulary's length is bounded far below u32::MAX when the file is parsed.
            let known = self.tokens.iter().zip(types).zip(0u32..);
            ids.extend(known.filter_map(|((token, kind), id)| {
                let ends = *kind == TokenType::Control && END_OF_TURN.contains(&token.as_str());
                (ends && !goes_on(token)).then_some(id)
            }));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

fn wrong(key: &str, found: String, expected: &'static str) -> GgufError {
    GgufError::Value {
        key: key.to_owned(),
        found,
        expected,
    }
}

fn token_id(metadata: &GgufMetadata, key: &str, vocab: usize) -> Result<Option<u32>, GgufError> {
    match metadata.u32(key)? {
        Some(id) if id as usize >= vocab => {
            Err(wrong(key, id.to_string(), "an id inside the vocabulary"))
        }
        id => Ok(id),
    }
}

fn same_length<T>(
    metadata: &GgufMetadata,
    key: &str,
    vocab: usize,
    read: impl Fn(&GgufMetadata, &str) -> Result<Option<Vec<T>>, GgufError>,
) -> Result<Option<Vec<T>>, GgufError> {
    match read(metadata, key)? {
        Some(list) if list.len() != vocab => Err(wrong(
            key,
            format!("{} long", list.len()),
            "one element for each token",
        )),
        list => Ok(list),
    }
}

fn token_types(metadata: &GgufMetadata, vocab: usize) -> Result<Option<Vec<TokenType>>, GgufError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(numbers) = same_length(metadata, KEY, vocab, GgufMetadata::i32s)? else {
        return Ok(None);
    };
    let types = numbers.into_iter().map(|number| match number {
        1 => Ok(TokenType::Normal),
        2 => Ok(TokenType::Unknown),
        3 => Ok(TokenType::Control),
        4 => Ok(TokenType::UserDefined),
        5 => Ok(TokenType::Unused),
        6 => Ok(TokenType::Byte),
        other => Err(wrong(
            KEY,
            format!("an array with {other}"),
            "types from 1 to 6",
        )),
    });
    types.collect::<Result<_, _>>().map(Some)
}
