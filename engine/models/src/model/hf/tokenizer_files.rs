//! The files that describe the tokenizer of a Hugging Face directory.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json::{Object, read_small};
use crate::model::error::{ModelError, Refusal};
use crate::model::look::is_file;

/// The most templates that additional_chat_templates may have.
const TEMPLATES_MAX: usize = 64;

/// What a directory says about its tokenizer; the tokenizer itself is built from `tokenizer_json`.
///
/// Tokens are those of tokenizer_config.json. Where that is of before 2023 (it has no
/// `added_tokens_decoder`), those of special_tokens_map.json come before them, as in transformers.
#[derive(Clone, Debug, PartialEq)]
pub struct HfTokenizer {
    /// The path of tokenizer.json, which exists.
    pub tokenizer_json: PathBuf,
    /// `bos_token`
    pub bos_token: Option<String>,
    /// `eos_token`
    pub eos_token: Option<String>,
    /// `unk_token`
    pub unk_token: Option<String>,
    /// `sep_token`
    pub sep_token: Option<String>,
    /// `pad_token`
    pub pad_token: Option<String>,
    /// `cls_token`
    pub cls_token: Option<String>,
    /// `mask_token`
    pub mask_token: Option<String>,
    /// `additional_special_tokens`
    pub additional_special_tokens: Vec<String>,
    /// `add_bos_token`; tokenizer.json's own post-processor decides where this is absent.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// The chat template: chat_template.jinja if there is one, else `chat_template` of
    /// tokenizer_config.json (of several, the one named `default`).
    pub chat_template: Option<String>,
    /// The one that takes its place for conversations with tools: `tool_use` of
    /// additional_chat_templates or of tokenizer_config.json.
    pub tool_template: Option<String>,
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
    let files = template_files(dir)?;
    let config = Object::parse(&config).map_err(|refusal| refusal.at(&path))?;
    let map_path = dir.join("special_tokens_map.json");
    let map = match read_small(&map_path)? {
        Some(map) if !config.has("added_tokens_decoder") => {
            Some(Object::parse(&map).map_err(|refusal| refusal.at(&map_path))?)
        }
        _ => None,
    };
    let templates = match files.is_empty() {
        true => named_templates(&config).map_err(|refusal| refusal.at(&path))?,
        false => files,
    };
    let token = |key| {
        let text = |object: &Object| {
            object.typed(
                key,
                "a token's text, or an object with `content`",
                token_text,
            )
        };
        let of_map = map.as_ref().map(text).transpose();
        match of_map.map_err(|refusal| refusal.at(&map_path))?.flatten() {
            Some(token) => Ok(Some(token)),
            None => text(&config).map_err(|refusal| refusal.at(&path)),
        }
    };
    let flag = |key| config.bool(key).map_err(|refusal| refusal.at(&path));
    // Templates alone read these, so what is no token is left out.
    let additional = map.iter().chain([&config]).find_map(|object| {
        let list = object
            .typed("additional_special_tokens", "a list", Value::as_array)
            .ok()?;
        Some(list?.iter().filter_map(token_text).collect())
    });
    let named = |name: &str| {
        templates
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, t)| t.clone())
    };
    let only = templates
        .first()
        .filter(|_| templates.len() == 1)
        .map(|(_, t)| t.clone());
    Ok(HfTokenizer {
        bos_token: token("bos_token")?,
        eos_token: token("eos_token")?,
        unk_token: token("unk_token")?,
        sep_token: token("sep_token")?,
        pad_token: token("pad_token")?,
        cls_token: token("cls_token")?,
        mask_token: token("mask_token")?,
        additional_special_tokens: additional.unwrap_or_default(),
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        chat_template: named("default").or(only),
        tool_template: named("tool_use"),
        tokenizer_json,
    })
}

/// A token is a text, or an object with its text in `content`.
fn token_text(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    Some(text.to_owned())
}

/// The templates in files of their own, by name.
fn template_files(dir: &Path) -> Result<Vec<(String, String)>, ModelError> {
    let mut templates = Vec::new();
    let mut read = |name: &str, path: &Path| {
        if let Some(bytes) = read_small(path)? {
            let text = String::from_utf8(bytes).map_err(|_| {
                Refusal::invalid("the template", "not UTF-8", "UTF-8 text").at(path)
            })?;
            templates.push((name.to_owned(), text));
        }
        Ok::<_, ModelError>(())
    };
    read("default", &dir.join("chat_template.jinja"))?;
    let more = dir.join("additional_chat_templates");
    if let Ok(entries) = std::fs::read_dir(&more) {
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_template = |path: &PathBuf| path.extension().is_some_and(|e| e == "jinja");
        let mut paths: Vec<PathBuf> = paths.filter(is_template).take(TEMPLATES_MAX).collect();
        paths.sort();
        for path in paths {
            if let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) {
                read(name, &path)?;
            }
        }
    }
    Ok(templates)
}

/// The templates of tokenizer_config.json, by name.
fn named_templates(config: &Object) -> Result<Vec<(String, String)>, Refusal> {
    let expected = "a text, or a list of objects with `name` and `template`";
    let templates = config.typed("chat_template", expected, |value| match value {
        Value::String(text) => Some(vec![("default".to_owned(), text.clone())]),
        Value::Array(named) => {
            let one = |entry: &Value| {
                let text = |key| entry.get(key)?.as_str().map(str::to_owned);
                Some((text("name")?, text("template")?))
            };
            named.iter().map(one).collect()
        }
        _ => None,
    })?;
    Ok(templates.unwrap_or_default())
}
