//! The files that describe the tokenizer of a Hugging Face directory.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json::{Object, read_small};
use crate::model::error::{ModelError, Refusal};
use crate::model::families::Family;
use crate::model::look::is_file;

/// The most templates of additional_chat_templates that are read, in the order of their names.
pub(crate) const TEMPLATES_MAX: usize = 64;

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
    /// `add_bos_token`, as tokenizer_config.json has it.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// Whether encoding puts `bos_token` before a text and `eos_token` after it. Where this is
    /// absent, tokenizer.json's own post-processor decides.
    pub affixes: Option<TokenAffixes>,
    /// Names of tokens that no file names. Templates do not see them.
    pub class_tokens: ClassTokens,
    /// Tokens that stand beside tokenizer.json, in order of their ids.
    pub added_tokens: Vec<DeclaredToken>,
    /// The chat template: chat_template.jinja if there is one, else `chat_template` of
    /// tokenizer_config.json (of several, the one named `default`), else that of
    /// chat_template.json, which models that also read images may have alone.
    pub chat_template: Option<String>,
    /// The one that takes its place for conversations with tools: `tool_use` of
    /// additional_chat_templates or of tokenizer_config.json.
    pub tool_template: Option<String>,
}

/// What a tokenizer class of transformers calls its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTokens {
    /// Begins a text.
    pub bos: Option<&'static str>,
    /// Ends a text.
    pub eos: Option<&'static str>,
    /// Stands for what the vocabulary cannot spell.
    pub unk: Option<&'static str>,
}

/// What a tokenizer class of transformers puts around a text, whatever tokenizer.json says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenAffixes {
    /// `bos_token` before the text.
    pub bos: bool,
    /// `eos_token` after it.
    pub eos: bool,
}

/// A token of `added_tokens_decoder` in tokenizer_config.json, or of added_tokens.json.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredToken {
    /// Its text.
    pub content: String,
    /// Left out of decoded texts.
    pub special: bool,
    /// Takes the spaces before it along.
    pub lstrip: bool,
    /// Takes the spaces after it along.
    pub rstrip: bool,
    /// Is no part of a longer word.
    pub single_word: bool,
    /// Is looked for in the normalised text.
    pub normalized: bool,
}

/// Reads what stands beside tokenizer.json in `dir`, and checks that it is there itself.
pub(crate) fn read_tokenizer_files(dir: &Path, family: &Family) -> Result<HfTokenizer, ModelError> {
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
        Some(map) if !config.has(DECODER) => {
            Some(Object::parse(&map).map_err(|refusal| refusal.at(&map_path))?)
        }
        _ => None,
    };
    let added_path = dir.join("added_tokens.json");
    let added = match read_small(&added_path)? {
        Some(added) if !config.has(DECODER) => {
            Object::parse(&added).map_err(|refusal| refusal.at(&added_path))?
        }
        _ => Object::default(),
    };
    let class = config.text("tokenizer_class");
    let class = class.map_err(|refusal| refusal.at(&path))?;
    let class = Class::named(class.unwrap_or_else(|| Class::name_of(family)));
    let mut templates = files;
    if templates.is_empty() {
        templates = named_templates(&config).map_err(|refusal| refusal.at(&path))?;
    }
    if templates.is_empty() {
        let path = dir.join("chat_template.json");
        if let Some(file) = read_small(&path)? {
            let read = |file: Object| named_templates(&file);
            templates = Object::parse(&file)
                .and_then(read)
                .map_err(|refusal| refusal.at(&path))?;
        }
    }
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
    // `null` means none.
    let unnamed = |key| {
        let named = config.has(key) || map.as_ref().is_some_and(|map| map.has(key));
        !named
    };
    let class_tokens = ClassTokens {
        bos: class.bos.filter(|_| unnamed("bos_token")),
        eos: class.eos.filter(|_| unnamed("eos_token")),
        unk: class.unk.filter(|_| unnamed("unk_token")),
    };
    let [bos_token, eos_token, unk_token] = [
        token("bos_token")?,
        token("eos_token")?,
        token("unk_token")?,
    ];
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
    let (add_bos, add_eos) = (flag("add_bos_token")?, flag("add_eos_token")?);
    let added_tokens = added_tokens(&config, &added, [&bos_token, &eos_token, &unk_token])
        .map_err(|refusal| refusal.at(&path))?;
    Ok(HfTokenizer {
        bos_token,
        eos_token,
        unk_token,
        sep_token: token("sep_token")?,
        pad_token: token("pad_token")?,
        cls_token: token("cls_token")?,
        mask_token: token("mask_token")?,
        additional_special_tokens: additional.unwrap_or_default(),
        add_bos,
        add_eos,
        affixes: class.adds_bos.map(|adds_bos| TokenAffixes {
            bos: add_bos.unwrap_or(adds_bos),
            eos: add_eos.unwrap_or(false),
        }),
        class_tokens,
        added_tokens,
        chat_template: named("default").or(only),
        tool_template: named("tool_use"),
        tokenizer_json,
    })
}

const DECODER: &str = "added_tokens_decoder";

/// The tokens of tokenizer_config.json, or of added_tokens.json.
fn added_tokens(
    config: &Object,
    added: &Object,
    named: [&Option<String>; 3],
) -> Result<Vec<DeclaredToken>, Refusal> {
    let expected = "an object of tokens by their ids";
    let described = |(id, token): (&String, &Value)| {
        let flag = |key, default| match token.get(key) {
            None | Some(Value::Null) => Some(default),
            Some(value) => value.as_bool(),
        };
        let special = flag("special", false)?;
        let token = DeclaredToken {
            content: token.get("content")?.as_str()?.to_owned(),
            special,
            lstrip: flag("lstrip", false)?,
            rstrip: flag("rstrip", false)?,
            single_word: flag("single_word", false)?,
            normalized: flag("normalized", !special)?,
        };
        Some((id.parse().ok()?, token))
    };
    let mut tokens: Vec<(u32, DeclaredToken)> = config
        .typed(DECODER, expected, |value| {
            value.as_object()?.iter().map(described).collect()
        })?
        .unwrap_or_default();
    for content in added.keys() {
        let special = named.iter().any(|token| token.as_deref() == Some(content));
        let id = added.size(content)?.unwrap_or_default();
        let token = DeclaredToken {
            content: content.to_owned(),
            special,
            normalized: !special,
            ..DeclaredToken::default()
        };
        tokens.push((u32::try_from(id).unwrap_or(u32::MAX), token));
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

/// What a tokenizer class of transformers 4.57 does beyond reading tokenizer.json.
#[derive(Default)]
struct Class {
    /// Named tokens where no file names them.
    bos: Option<&'static str>,
    eos: Option<&'static str>,
    unk: Option<&'static str>,
    /// It makes its own post-processor, whatever tokenizer.json has, and by default one that adds
    /// `bos_token` or none. The other classes ignore `add_bos_token`.
    adds_bos: Option<bool>,
}

impl Class {
    fn named(name: &str) -> Self {
        let class = |bos, eos, unk, adds_bos| Self {
            bos: Some(bos),
            eos: Some(eos),
            unk: Some(unk),
            adds_bos: Some(adds_bos),
        };
        const TEXT_END: &str = "<|endoftext|>";
        match name.strip_suffix("Fast").unwrap_or(name) {
            "LlamaTokenizer" | "CodeLlamaTokenizer" => class("<s>", "</s>", "<unk>", true),
            "GemmaTokenizer" => class("<bos>", "<eos>", "<unk>", true),
            "CohereTokenizer" => class("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", true),
            "GPTNeoXTokenizer" => class(TEXT_END, TEXT_END, TEXT_END, false),
            "GPT2Tokenizer" => Self {
                adds_bos: None,
                ..class(TEXT_END, TEXT_END, TEXT_END, false)
            },
            "Qwen2Tokenizer" => Self {
                eos: Some(TEXT_END),
                unk: Some(TEXT_END),
                ..Self::default()
            },
            _ => Self::default(),
        }
    }

    /// The class that reads a model of this family where tokenizer_config.json names none.
    fn name_of(family: &Family) -> &'static str {
        match family.name {
            "llama" | "mistral" | "phi3" => "LlamaTokenizer",
            "olmo2" => "GPTNeoXTokenizer",
            "qwen2" | "qwen3" => "Qwen2Tokenizer",
            _ => "PreTrainedTokenizer",
        }
    }
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
        let mut paths: Vec<PathBuf> = paths.filter(is_template).collect();
        paths.sort();
        for path in paths.into_iter().take(TEMPLATES_MAX) {
            if let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) {
                read(name, &path)?;
            }
        }
    }
    Ok(templates)
}

/// The templates in `chat_template` of an object, by name.
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
