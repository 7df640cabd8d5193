//! Names of models on the hub.

use std::path::{Component, Path};

/// The revision of a model whose name does not say one.
pub(super) const MAIN: &str = "main";
/// The hub's own bound, in bytes.
const REPOSITORY_BYTES_MAX: usize = 96;
const REVISION_BYTES_MAX: usize = 200;

/// A model's name on the hub: `ORG/NAME[@REVISION][:FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::model) struct HubName {
    /// `ORG/NAME`.
    pub(super) repository: String,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
    /// What the name of the wanted GGUF file has in it, such as `Q4_K_M`.
    pub(super) file: Option<String>,
}

impl HubName {
    /// Reads a name; `None` for what cannot be one.
    pub(in crate::model) fn parse(given: &str) -> Option<Self> {
        let (rest, file) = match given.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (given, None),
        };
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        let (org, name) = repository.split_once('/')?;
        let is_part = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            // `--` stands for `/` in the cache.
            let sound = !part.starts_with('.') && !part.contains("--") && !part.contains("..");
            !part.is_empty() && sound && part.chars().all(known)
        };
        let sound = is_part(org)
            && is_part(name)
            && repository.len() <= REPOSITORY_BYTES_MAX
            && is_revision(revision)
            && file != Some("");
        sound.then(|| Self {
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            file: file.map(str::to_owned),
        })
    }

    /// The folder of its repository in a cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.repository.replace('/', "--"))
    }
}

/// Whether it can be a path below refs.
fn is_revision(revision: &str) -> bool {
    let mut parts = Path::new(revision).components();
    !revision.is_empty()
        && revision.len() <= REVISION_BYTES_MAX
        && !revision.ends_with('/')
        && !revision.contains(|c: char| c.is_control() || c == '\\')
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        let name = |repository: &str, revision: &str, file: Option<&str>| {
            Some(HubName {
                repository: repository.to_owned(),
                revision: revision.to_owned(),
                file: file.map(str::to_owned),
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
            ("a--b/c", None),
            ("a/b..c", None),
            ("a/b@x/", None),
            ("a/b@x\0", None),
        ] {
            assert_eq!(HubName::parse(given), expected, "{given}");
        }
        assert_eq!(HubName::parse(&format!("a/{}", "b".repeat(95))), None);
    }
}
