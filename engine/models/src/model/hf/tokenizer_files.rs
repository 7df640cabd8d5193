//! The files that describe the tokenizer of a Hugging Face directory.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json::{Object, read_small};
use crate::model::error::{ModelError, Refusal};
use crate::model::look::is_file;

/// What a directory says about its tokenizer; the tokenizer itself is built from `tokenizer_json`.
#[derive(Clone, Debug, PartialEq)]
pub struct HfTokenizer {
    /// The path of tokenizer.json, which exists.
    pub tokenizer_json: PathBuf,
    /// `bos_token` of tokenizer_config.json.
    pub bos_token: Option<String>,
    /// `eos_token` of tokenizer_config.json.
    pub eos_token: Option<String>,
    /// `unk_token` of tokenizer_config.json.
    pub unk_token: Option<String>,
    /// `pad_token` of tokenizer_config.json.
    pub pad_token: Option<String>,
    /// `add_bos_token`; tokenizer.json's own post-processor decides where this is absent.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// The chat template: chat_template.jinja if there is one, else `chat_template` of
    /// tokenizer_config.json (of several, the one named `default`).
    pub chat_template: Option<String>,
}

/// Reads what stands beside tokenizer.json in `dir`, and checks that it is there itself.
pub(crate) fn read_tokenizer_files(dir: &Path) -> Result<HfTokenizer, ModelError> {
    let tokenizer_json = dir.join("tokenizer.json");
    if !is_file(&tokenizer_json)? {
        let hint = if dir.join("tokenizer.model").is_file() {
            " (tokenizer.model alone is not supported: save the tokenizer with transformers' \
             AutoTokenizer, or use the model's GGUF file)"
        } else {
            ""
        };
        return Err(Refusal::MissingFile(format!("tokenizer.json is missing{hint}")).at(dir));
    }
    let path = dir.join("tokenizer_config.json");
    let config = read_small(&path)?.unwrap_or_else(|| b"{}".to_vec());
    let template_path = dir.join("chat_template.jinja");
    let template_file = match read_small(&template_path)? {
        Some(bytes) => Some(String::from_utf8(bytes).map_err(|_| {
            Refusal::invalid("the template", "not UTF-8", "UTF-8 text").at(&template_path)
        })?),
        None => None,
    };
    read_tokenizer_config(&config, tokenizer_json, template_file)
        .map_err(|refusal| refusal.at(&path))
}

fn read_tokenizer_config(
    bytes: &[u8],
    tokenizer_json: PathBuf,
    template_file: Option<String>,
) -> Result<HfTokenizer, Refusal> {
    let config = Object::parse(bytes)?;
    // A token is a text, or an object with its text in `content`.
    let token = |key| {
        config.typed(
            key,
            "a token's text, or an object with `content`",
            |value| {
                Some(
                    value
                        .as_str()
                        .or_else(|| value.get("content")?.as_str())?
                        .to_owned(),
                )
            },
        )
    };
    Ok(HfTokenizer {
        tokenizer_json,
        bos_token: token("bos_token")?,
        eos_token: token("eos_token")?,
        unk_token: token("unk_token")?,
        pad_token: token("pad_token")?,
        add_bos: config.bool("add_bos_token")?,
        add_eos: config.bool("add_eos_token")?,
        chat_template: match template_file {
            Some(text) => Some(text),
            None => template(&config)?,
        },
    })
}

fn template(config: &Object) -> Result<Option<String>, Refusal> {
    let expected = "a text, or a list of objects with `name` and `template`";
    let template = config.typed("chat_template", expected, |value| match value {
        Value::String(text) => Some(Some(text.clone())),
        Value::Array(named) => {
            let named: Vec<(&str, &str)> = named
                .iter()
                .map(|entry| {
                    Some((
                        entry.get("name")?.as_str()?,
                        entry.get("template")?.as_str()?,
                    ))
                })
                .collect::<Option<_>>()?;
            let default = named.iter().find(|(name, _)| *name == "default");
            let only = named.first().filter(|_| named.len() == 1);
            Some(default.or(only).map(|(_, text)| (*text).to_owned()))
        }
        _ => None,
    })?;
    Ok(template.flatten())
}
