//! Models in the cache of Hugging Face's tools, as it lies on disk: `models--ORG--NAME` with
//! `refs/REVISION`, which holds a commit, and `snapshots/COMMIT`, which holds the files
//! (<https://huggingface.co/docs/huggingface_hub/guides/manage-cache>).

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::error::ModelError;
use super::locate::ModelFiles;
use super::look::{is_file, look};

/// The revision of a model whose name does not say one.
const MAIN: &str = "main";

/// The folder of the cache: `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else
/// `$XDG_CACHE_HOME/huggingface/hub`, else `$HOME/.cache/huggingface/hub`; `None` when no variable
/// helps. `variable` reads the environment.
pub(super) fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    path("HF_HUB_CACHE")
        .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(path("HF_HOME")?.join("hub")))
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface/hub")))
        .or_else(|| Some(path("HOME")?.join(".cache/huggingface/hub")))
}

/// A model's name on the hub: `ORG/NAME[@REVISION][:FILE]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HubName<'a> {
    repository: &'a str,
    revision: &'a str,
    /// What the name of the wanted GGUF file has in it, such as `Q4_K_M`.
    file: Option<&'a str>,
}

impl<'a> HubName<'a> {
    /// Reads a name; `None` for what cannot be one.
    pub(super) fn parse(given: &'a str) -> Option<Self> {
        let (rest, file) = match given.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (given, None),
        };
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        let (org, name) = repository.split_once('/')?;
        let is_part = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
        };
        // A revision is a path below refs.
        let is_below = |path: &str| {
            let mut parts = Path::new(path).components();
            !path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        let sound = is_part(org) && is_part(name) && is_below(revision) && file != Some("");
        sound.then_some(Self {
            repository,
            revision,
            file,
        })
    }

    /// The files in the cache at `folder`, or why there are none.
    ///
    /// # Errors
    /// [`ModelError::Io`] where something is there and cannot be looked at.
    pub(super) fn find(&self, folder: &Path) -> Result<Result<ModelFiles, String>, ModelError> {
        let Self {
            repository,
            revision,
            ..
        } = self;
        let here = folder.join(format!("models--{}", repository.replace('/', "--")));
        if look(&here)?.is_none() {
            return Ok(Err(format!(
                "the cache of Hugging Face's tools ({}) does not have it; `hf download \
                 {repository}` fetches it",
                folder.display()
            )));
        }
        let reference = here.join("refs").join(revision);
        let commit = if is_file(&reference)? {
            std::fs::read_to_string(&reference).map_err(|e| ModelError::io(&reference, e))?
        } else {
            (*revision).to_owned()
        };
        let commit = commit.trim();
        let snapshot = here.join("snapshots").join(commit);
        if commit.is_empty() || !look(&snapshot)?.is_some_and(|found| found.is_dir()) {
            return Ok(Err(format!(
                "the cache has no revision {revision} of it; `hf download {repository} --revision \
                 {revision}` fetches it"
            )));
        }
        self.choose(snapshot)
    }

    fn choose(&self, snapshot: PathBuf) -> Result<Result<ModelFiles, String>, ModelError> {
        let has_config = is_file(&snapshot.join("config.json"))?;
        if self.file.is_none() && has_config {
            return Ok(Ok(ModelFiles::Directory(snapshot)));
        }
        let entries = snapshot
            .read_dir()
            .map_err(|e| ModelError::io(&snapshot, e))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names
            .filter(|name| name.to_lowercase().ends_with(".gguf"))
            .collect();
        names.sort();
        let all = names.join(", ");
        if let Some(file) = self.file {
            names.retain(|name| has_word(name, file));
        }
        Ok(match (names.as_slice(), self.file) {
            ([name], _) => Ok(ModelFiles::Gguf(snapshot.join(name))),
            ([], _) if all.is_empty() => Err(
                "what the cache has of it is neither config.json nor a .gguf file; download it \
                 whole"
                    .to_owned(),
            ),
            ([], Some(file)) => Err(format!("none of its files is {file}; there are: {all}")),
            (_, None) => Err(format!(
                "it has several files; say which, as in {}:Q4_K_M. There are: {all}",
                self.repository
            )),
            (several, Some(file)) => Err(format!(
                "several of its files are {file}: {}",
                several.join(", ")
            )),
        })
    }
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

/// `ORG/NAME` of a path in the cache.
pub(super) fn name_of(path: &Path) -> Option<String> {
    let mut parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let below = parts.find_map(|part| part.strip_prefix("models--"))?;
    let (org, name) = below.split_once("--")?;
    let is_snapshot = path.components().any(|p| p.as_os_str() == "snapshots");
    is_snapshot.then(|| format!("{org}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        let name = |repository, revision, file| {
            Some(HubName {
                repository,
                revision,
                file,
            })
        };
        for (given, expected) in [
            ("Qwen/Qwen3-0.6B", name("Qwen/Qwen3-0.6B", "main", None)),
            ("a/b@v1.0", name("a/b", "v1.0", None)),
            ("a/b@refs/pr/3", name("a/b", "refs/pr/3", None)),
            ("a/b:Q4_K_M", name("a/b", "main", Some("Q4_K_M"))),
            ("a/b@x:q8_0", name("a/b", "x", Some("q8_0"))),
            ("name", None),
            ("./a", None),
            ("../a", None),
            ("/a/b", None),
            ("a/b/c", None),
            ("a/", None),
            ("a/b:", None),
            ("a/b@", None),
            ("a/b@../../c", None),
            ("a/b@/etc", None),
            ("a/.b", None),
            ("a b/c", None),
        ] {
            assert_eq!(HubName::parse(given), expected, "{given}");
        }
    }

    #[test]
    fn the_folder_is_where_the_tools_have_it() {
        let with = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> = set
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect();
            let value = move |name: &str| Some(set.iter().find(|(k, _)| k == name)?.1.clone());
            folder(value).map(|path| path.display().to_string())
        };
        let home = ("HOME", "/h");
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[home]).as_deref(), Some("/h/.cache/huggingface/hub"));
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(with(&[home, xdg]).as_deref(), Some("/x/huggingface/hub"));
        let hf = ("HF_HOME", "/hf");
        assert_eq!(with(&[home, xdg, hf]).as_deref(), Some("/hf/hub"));
        assert_eq!(with(&[hf, ("HF_HUB_CACHE", "/c")]).as_deref(), Some("/c"));
        assert_eq!(
            with(&[hf, ("HF_HUB_CACHE", "")]).as_deref(),
            Some("/hf/hub")
        );
    }

    #[test]
    fn a_file_is_chosen_by_a_whole_word() {
        assert!(has_word("Model-Q4_K_M.gguf", "q4_k_m"));
        assert!(has_word("model.Q8_0.gguf", "Q8_0"));
        assert!(!has_word("Model-Q4_K_M.gguf", "Q4_K"));
        assert!(!has_word("Model-IQ4_XS.gguf", "Q4_XS"));
    }

    #[test]
    fn a_path_in_the_cache_has_its_models_name() {
        let path = "/c/models--Qwen--Qwen3-0.6B/snapshots/0123abcd";
        let name = Some("Qwen/Qwen3-0.6B".to_owned());
        assert_eq!(name_of(Path::new(path)), name);
        assert_eq!(name_of(&Path::new(path).join("x-Q4_K_M.gguf")), name);
        assert_eq!(name_of(Path::new("/models/qwen")), None);
        assert_eq!(name_of(Path::new("/models--x--y/weights")), None);
    }
}
