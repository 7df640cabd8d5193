//! What `--model` means: a known name, a directory, a .gguf file, or a name on the hub.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use super::error::ModelError;
use super::fetch::{FetchDisplay, FetchError, fetch};
use super::hub_cache::{self, HubName};
use super::known::{KNOWN_MODELS, KnownModel};
use super::look::{is_file, look};

/// The files of a model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// A Hugging Face directory with config.json.
    Directory(PathBuf),
    /// One GGUF file.
    Gguf(PathBuf),
}

/// What the text after `--model` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A model that can be downloaded.
    Known(&'static KnownModel),
    /// Files that are here.
    Files(ModelFiles),
}

impl ModelRef {
    /// Finds out what `given` stands for. A known name wins over a file of that name in the
    /// current directory, which can be written as `./NAME`. What is here wins over
    /// `ORG/NAME[@REVISION][:FILE]`, which is looked for in the cache of Hugging Face's tools,
    /// whose place the environment says.
    ///
    /// # Errors
    /// [`ModelError::NotFound`], which says what was looked for; [`ModelError::Io`] where something
    /// is there and cannot be looked at.
    pub fn parse(given: &str) -> Result<Self, ModelError> {
        Self::parse_with(given, hub_cache::folder(|name| std::env::var_os(name)))
    }

    /// The same, with the cache at `hub_cache`.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_with(given: &str, hub_cache: Option<PathBuf>) -> Result<Self, ModelError> {
        if let Some(known) = KNOWN_MODELS.iter().find(|known| known.name == given) {
            return Ok(Self::Known(known));
        }
        let path = PathBuf::from(given);
        let not_found = |problem: String| ModelError::NotFound {
            given: given.to_owned(),
            problem,
            known: KNOWN_MODELS.map(|known| known.name).join(", "),
        };
        let found = look(&path)?;
        if found.as_ref().is_some_and(Metadata::is_dir) {
            if is_file(&path.join("config.json"))? {
                return Ok(Self::Files(ModelFiles::Directory(path)));
            }
            if let Err(error) = path.read_dir() {
                return Err(ModelError::io(&path, error));
            }
            return Err(not_found(match gguf_inside(&path) {
                Some(file) => format!("that directory has no config.json, but {}", file.display()),
                None => "that directory has no config.json".to_owned(),
            }));
        }
        if found.is_none() {
            if let (Some(name), Some(folder)) = (HubName::parse(given), hub_cache) {
                return name.find(&folder)?.map(Self::Files).map_err(not_found);
            }
            return Err(not_found(
                "no file or directory of that name exists".to_owned(),
            ));
        }
        if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
        {
            return Ok(Self::Files(ModelFiles::Gguf(path)));
        }
        Err(not_found(
            if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                "give the directory that the file lies in".to_owned()
            } else {
                "that file's name does not end in .gguf".to_owned()
            },
        ))
    }

    /// The files, downloaded into `cache_dir` first if they are not there, with the progress
    /// shown on standard error. `cache_dir` is only needed for a known model.
    ///
    /// # Errors
    /// [`ModelError::Fetch`].
    pub fn files(self, cache_dir: Option<&Path>) -> Result<ModelFiles, ModelError> {
        let known = match self {
            Self::Files(files) => return Ok(files),
            Self::Known(known) => known,
        };
        let cache_dir = cache_dir.ok_or(FetchError::NoCacheDir(known.name))?;
        let mut display = FetchDisplay::new(known.name);
        let python = Path::new("python3");
        let path = fetch(known, cache_dir, python, &mut |progress| {
            display.show(progress)
        })?;
        Ok(ModelFiles::Gguf(path))
    }
}

impl ModelFiles {
    /// What the model is called: the known name if it has one, `ORG/NAME` in the cache of Hugging
    /// Face's tools, else the name of its directory, or of its file without `.gguf`.
    pub fn name(&self) -> String {
        let (Self::Directory(path) | Self::Gguf(path)) = self;
        if let Some(name) = hub_cache::name_of(path) {
            return name;
        }
        let name = match self {
            Self::Directory(path) => {
                // `.` and `..` have no name until they are resolved.
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
            }
            Self::Gguf(path) => {
                let known = KNOWN_MODELS
                    .iter()
                    .find(|known| path.ends_with(known.file_name));
                known.map(|known| known.name.to_owned()).or_else(|| {
                    path.file_stem()
                        .map(|stem| stem.to_string_lossy().into_owned())
                })
            }
        };
        name.unwrap_or_else(|| "model".to_owned())
    }
}

fn gguf_inside(dir: &Path) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = dir
        .read_dir()
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    files.into_iter().find(|path| {
        path.extension()
            .is_some_and(|extension| extension == "gguf")
    })
}
