//! Which files of a repository make the model that was asked for.

use std::collections::{BTreeMap, BTreeSet};

use super::super::gguf::SplitName;
use super::super::hf::TEMPLATES_MAX;
use super::name::HubName;
use crate::model::loaded::LoadFormat;

/// The most names that a sentence has.
const NAMES_MAX: usize = 24;

/// A model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// config.json, safetensors, and what stands beside them.
    Directory,
    /// All parts of a GGUF model, in their order; one for a whole file.
    Gguf(Vec<String>),
}

/// Files whose names say that they hold weights of a Hugging Face directory.
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// What a Hugging Face directory is opened by, beside the weights.
pub(super) fn is_small_file(name: &str) -> bool {
    matches!(
        name,
        "config.json"
            | "generation_config.json"
            | "hf_quant_config.json"
            | "tokenizer.json"
            | "tokenizer_config.json"
            | "special_tokens_map.json"
            | "added_tokens.json"
            | "chat_template.jinja"
            | "chat_template.json"
            | "vocab.json"
            | "vocab.txt"
            | "merges.txt"
            | "tokenizer.model"
    )
}

/// A chat template beside the default one.
fn is_more_template(name: &str) -> bool {
    let template = name.strip_prefix("additional_chat_templates/");
    template.is_some_and(|template| template.ends_with(".jinja") && !template.contains('/'))
}

/// Chooses among files, by the name of the model. A folder with config.json is a Hugging Face
/// directory, unless its only weights are those of one GGUF model, or the name asks for a file.
///
/// # Errors
/// Why there is no choice, or more than one, as the end of a sentence.
pub(super) fn choose(name: &HubName, files: &[String]) -> Result<Choice, String> {
    let has = |wanted: &str| files.iter().any(|file| file == wanted);
    let models = gguf_models(files);
    if name.file.is_none() && has("config.json") {
        let has_weights = has(WEIGHTS) || has(WEIGHTS_INDEX);
        return Ok(match models.as_slice() {
            [only] if !has_weights => Choice::Gguf(only.parts.clone()),
            _ => Choice::Directory,
        });
    }
    choose_gguf(name, &models).map(|model| Choice::Gguf(model.parts.clone()))
}

/// What to download.
pub(super) struct Plan {
    pub(super) choice: Choice,
    /// Paths, those of weights last.
    pub(super) files: Vec<String>,
    /// Whether the weights are in files that the index names.
    pub(super) indexed: bool,
}

/// Chooses what to download among the `files` of a repository.
///
/// # Errors
/// Why there is nothing to, as the end of a sentence.
pub(super) fn plan(name: &HubName, files: &[String], format: LoadFormat) -> Result<Plan, String> {
    let choice = choose(name, files)?;
    if let Choice::Gguf(parts) = &choice {
        return Ok(Plan {
            files: parts.clone(),
            choice,
            indexed: false,
        });
    }
    let has = |wanted: &str| files.iter().any(|file| file == wanted);
    let small = files.iter().filter(|file| is_small_file(file));
    let mut templates: Vec<&String> = files.iter().filter(|f| is_more_template(f)).collect();
    templates.sort();
    // As many as are read.
    let templates = templates.into_iter().take(TEMPLATES_MAX);
    let mut wanted: Vec<String> = small.chain(templates).cloned().collect();
    let with_weights = format != LoadFormat::Dummy;
    if with_weights && !has(WEIGHTS) && !has(WEIGHTS_INDEX) {
        let models = gguf_models(files);
        return Err(match models.is_empty() {
            true => "its weights are neither safetensors nor GGUF".to_owned(),
            false => say_which(name, &models),
        });
    }
    if with_weights && !has("tokenizer.json") {
        return Err(
            "it has no tokenizer.json, without which its texts cannot be tokenised".to_owned(),
        );
    }
    if with_weights && has(WEIGHTS) {
        wanted.push(WEIGHTS.to_owned());
    }
    Ok(Plan {
        choice,
        files: wanted,
        indexed: with_weights && !has(WEIGHTS),
    })
}

fn say_which(name: &HubName, models: &[GgufModel]) -> String {
    let (repository, names) = (&name.repository, joined(models.iter()));
    format!("it has several files; say which, as in {repository}:Q4_K_M. There are: {names}")
}

fn choose_gguf<'a>(name: &HubName, models: &'a [GgufModel]) -> Result<&'a GgufModel, String> {
    let Some(file) = &name.file else {
        return match models {
            [only] => Ok(only),
            [] => Err("it holds neither config.json nor a .gguf file".to_owned()),
            several => Err(say_which(name, several)),
        };
    };
    let is_named = |model: &&GgufModel| {
        let mut names = model.parts.iter();
        names.any(|name| name == file) || model.stem.eq_ignore_ascii_case(file)
    };
    if let Some(exact) = models.iter().find(is_named) {
        return Ok(exact);
    }
    let found = models.iter().filter(|model| has_word(model.name(), file));
    let found: Vec<&GgufModel> = found.collect();
    match (found.as_slice(), models) {
        ([only], _) => Ok(*only),
        ([], []) => Err("it holds no .gguf file".to_owned()),
        ([], all) => Err(format!(
            "none of its files is {file}; there are: {}",
            joined(all.iter())
        )),
        (several, _) => Err(format!(
            "several of its files are {file}: {}",
            joined(several.iter().copied())
        )),
    }
}

struct GgufModel {
    parts: Vec<String>,
    /// Of the file without its number and `.gguf`.
    stem: String,
}

impl GgufModel {
    /// That of its first part.
    fn name(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }
}

fn joined<'a>(models: impl ExactSizeIterator<Item = &'a GgufModel>) -> String {
    let more = models.len().saturating_sub(NAMES_MAX);
    let names: Vec<&str> = models.take(NAMES_MAX).map(GgufModel::name).collect();
    let names = names.join(", ");
    match more {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// Groups the parts of split models. Files that go with a model and are none are left out.
fn gguf_models(files: &[String]) -> Vec<GgufModel> {
    let is_gguf = |file: &&String| file.to_lowercase().ends_with(".gguf") && !is_companion(file);
    let mut models: BTreeMap<String, GgufModel> = BTreeMap::new();
    for file in files.iter().filter(is_gguf) {
        let (parts, stem) = match SplitName::parse(file) {
            Some(split) => (split.all(), split.stem().to_owned()),
            None => (
                vec![file.clone()],
                file[..file.len() - ".gguf".len()].to_owned(),
            ),
        };
        let first = parts.first().cloned().unwrap_or_default();
        models.insert(first, GgufModel { parts, stem });
    }
    models.into_values().collect()
}

/// Projectors of images (`mmproj`) and importance matrices lie beside models, in GGUF.
fn is_companion(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    name.contains("mmproj") || name.starts_with("imatrix")
}

/// The first of `wanted` that `files` does not have.
pub(super) fn first_missing(wanted: &[String], files: &[String]) -> Option<String> {
    let files: BTreeSet<&String> = files.iter().collect();
    wanted.iter().find(|name| !files.contains(name)).cloned()
}

/// Whether `name` has `word` in it, in any case, and not as a part of a longer one: `Q4_K` is not
/// in `x-Q4_K_M.gguf`.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_lowercase(), word.to_lowercase());
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    name.match_indices(&word).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + word.len()..].chars().next();
        !before.is_some_and(inside) && !after.is_some_and(inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_chosen_by_a_whole_word() {
        assert!(has_word("Model-Q4_K_M.gguf", "q4_k_m"));
        assert!(has_word("model.Q8_0.gguf", "Q8_0"));
        assert!(!has_word("Model-Q4_K_M.gguf", "Q4_K"));
        assert!(!has_word("Model-IQ4_XS.gguf", "Q4_XS"));
    }

    fn chosen(name: &str, files: &[&str]) -> Result<Choice, String> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        choose(&HubName::parse(name).expect("a name"), &files)
    }

    fn gguf(parts: &[&str]) -> Result<Choice, String> {
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        Ok(Choice::Gguf(parts))
    }

    #[test]
    fn a_split_model_is_one_choice_and_companions_are_none() {
        let files = [
            "README.md",
            "mmproj-model-f16.gguf",
            "x.mmproj-Q8_0.gguf",
            "imatrix_unsloth.gguf",
            "x-Q8_0.gguf",
            "Q4_K_M/x-Q4_K_M-00001-of-00002.gguf",
            "Q4_K_M/x-Q4_K_M-00002-of-00002.gguf",
        ];
        let four = [files[5], files[6]];
        assert_eq!(chosen("a/x:Q4_K_M", &files), gguf(&four));
        assert_eq!(chosen("a/x:q8_0", &files), gguf(&["x-Q8_0.gguf"]));
        for exact in [files[5], files[6], "Q4_K_M/x-Q4_K_M"] {
            assert_eq!(chosen(&format!("a/x:{exact}"), &files), gguf(&four));
        }
        let problem = chosen("a/x", &files).expect_err("two");
        assert!(
            problem.ends_with(&format!("There are: {}, x-Q8_0.gguf", files[5])),
            "{problem}"
        );
        // Of a model whose first part is not listed, all parts are wanted.
        assert_eq!(chosen("a/x", &files[6..]), gguf(&four));
        let wanted: Vec<String> = four.map(str::to_owned).to_vec();
        let missing = first_missing(&wanted, &[files[6].to_owned()]);
        assert_eq!(missing.as_deref(), Some(files[5]));
    }

    #[test]
    fn no_more_templates_are_wanted_than_are_read() {
        let many = (0..500_000).map(|i| format!("additional_chat_templates/{i:06}.jinja"));
        let base = ["config.json", "tokenizer.json", WEIGHTS].map(str::to_owned);
        let files: Vec<String> = base.into_iter().chain(many).collect();
        let name = HubName::parse("a/x").expect("a name");
        let plan = plan(&name, &files, LoadFormat::Auto).expect("a plan");
        assert_eq!(plan.files.len(), 3 + TEMPLATES_MAX);
        let last = format!("additional_chat_templates/{:06}.jinja", TEMPLATES_MAX - 1);
        assert_eq!(plan.files[plan.files.len() - 2], last);
    }

    #[test]
    fn a_folder_with_config_json_is_a_directory_unless_its_weights_are_one_gguf() {
        let directory = Ok(Choice::Directory);
        assert_eq!(chosen("a/x", &["config.json"]), directory);
        let with_gguf = ["config.json", "x-Q8_0.gguf"];
        assert_eq!(chosen("a/x", &with_gguf), gguf(&with_gguf[1..]));
        assert_eq!(
            chosen("a/x", &["config.json", WEIGHTS, "x-Q8_0.gguf"]),
            directory
        );
        assert_eq!(
            chosen("a/x:Q8_0", &["config.json", WEIGHTS, "x-Q8_0.gguf"]),
            gguf(&["x-Q8_0.gguf"])
        );
        assert_eq!(
            chosen("a/x", &["config.json", "x-Q8_0.gguf", "x-Q4_0.gguf"]),
            directory
        );
        let none = chosen("a/x", &["README.md"]).expect_err("no model");
        assert!(
            none.contains("neither config.json nor a .gguf file"),
            "{none}"
        );
        let none = chosen("a/x:Q2_K", &["README.md"]).expect_err("no model");
        assert_eq!(none, "it holds no .gguf file");
    }

    #[test]
    fn a_name_in_full_wins_over_one_that_has_it() {
        let files = ["x-UD-Q4_K_XL.gguf", "x-Q4_K_XL.gguf"];
        let problem = chosen("a/x:Q4_K_XL", &files).expect_err("two");
        assert!(problem.starts_with("several of its files are Q4_K_XL"));
        assert_eq!(chosen("a/x:UD-Q4_K_XL", &files), gguf(&files[..1]));
        assert_eq!(chosen("a/x:x-Q4_K_XL", &files), gguf(&files[1..]));
    }
}
