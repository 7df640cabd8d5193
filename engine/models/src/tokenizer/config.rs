//! tokenizer_config.json: special tokens by name, and the chat template.

use serde::Deserialize;
use serde_json::Value;

use super::TokenizerError;
use crate::model::{DeclaredToken, TokenAffixes};
use crate::python_json;

/// What the engine reads of a Hugging Face tokenizer_config.json.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// The token that begins a text.
    pub bos_token: Option<String>,
    /// The token that ends a text.
    pub eos_token: Option<String>,
    /// The token for what the vocabulary cannot spell.
    pub unk_token: Option<String>,
    /// The Jinja template that lays out a conversation. A chat_template.jinja beside this file,
    /// where there is one, takes its place.
    pub chat_template: Option<String>,
    /// Whether encoding puts `bos_token` and `eos_token` around a text, whatever tokenizer.json's
    /// post-processor does; absent where that decides.
    pub affixes: Option<TokenAffixes>,
    /// Tokens beside those of tokenizer.json, in order of their ids. What they say of a token that
    /// is there too counts.
    pub added_tokens: Vec<DeclaredToken>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    bos_token: Option<Named>,
    #[serde(default)]
    eos_token: Option<Named>,
    #[serde(default)]
    unk_token: Option<Named>,
    #[serde(default)]
    chat_template: Value,
}

/// A token's text, plain or inside a description of the token.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Token { content: String },
}

impl Named {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Token { content: text } => text,
        }
    }
}

impl TokenizerConfig {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// [`TokenizerError`] when it is no JSON object, or one of the fields read has another type.
    pub fn parse(json: &[u8]) -> Result<Self, TokenizerError> {
        let file: File = python_json::from_slice(json).map_err(|source| TokenizerError::Json {
            file: "tokenizer_config.json",
            source,
        })?;
        Ok(Self {
            bos_token: file.bos_token.map(Named::into_text),
            eos_token: file.eos_token.map(Named::into_text),
            unk_token: file.unk_token.map(Named::into_text),
            chat_template: chat_template(file.chat_template)?,
            ..Self::default()
        })
    }
}

/// One template, or a list of named ones of which `default` is for conversations.
fn chat_template(value: Value) -> Result<Option<String>, TokenizerError> {
    match value {
        Value::Null => Ok(None),
        Value::String(template) => Ok(Some(template)),
        Value::Array(named) => Ok(named
            .into_iter()
            .find(|t| t["name"] == "default")
            .and_then(|t| t["template"].as_str().map(str::to_owned))),
        _ => Err(TokenizerError::invalid(
            "chat_template in tokenizer_config.json",
            "is neither a text nor a list of named templates",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_token_are_read() {
        let config = TokenizerConfig::parse(
            br#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
                 "unk_token": null, "model_max_length": 1e30,
                 "chat_template": [{"name": "tool_use", "template": "t"},
                                   {"name": "default", "template": "d"}]}"#,
        )
        .expect("a config");
        assert_eq!(config.bos_token.as_deref(), Some("<s>"));
        assert_eq!(config.eos_token.as_deref(), Some("</s>"));
        assert_eq!(config.unk_token, None);
        assert_eq!(config.chat_template.as_deref(), Some("d"));
    }

    #[test]
    fn wrong_types_are_refused_by_name() {
        let error = TokenizerConfig::parse(br#"{"chat_template": 3}"#).expect_err("a number");
        assert!(error.to_string().contains("chat_template"), "{error}");
        let error = TokenizerConfig::parse(b"[").expect_err("no JSON");
        assert!(
            error.to_string().contains("tokenizer_config.json"),
            "{error}"
        );
    }
}
