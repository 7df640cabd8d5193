//! What `--model` means: a known name, a directory, a .gguf file, or a name on the hub.

use std::path::{Path, PathBuf};

use super::error::ModelError;
use super::fetch::{FetchDisplay, FetchError, fetch};
use super::gguf::SplitName;
use super::hub::{self, CachedRepository, HubModel, HubName, HubSettings};
use super::known::{KNOWN_MODELS, KnownModel};
use super::loaded::LoadFormat;
use super::look::{is_file, look};

/// The files of a model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// A Hugging Face directory with config.json.
    Directory(PathBuf),
    /// A GGUF file; the other parts of a split one lie beside it.
    Gguf(PathBuf),
}

/// What the text after `--model` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A model that can be downloaded.
    Known(&'static KnownModel),
    /// Files that are here.
    Files(ModelFiles),
    /// A name on the hub, whose files may be in a cache or have to be downloaded.
    Hub(Box<HubModel>),
}

impl ModelRef {
    /// Finds out what `given` stands for. A known name wins over a file of that name in the
    /// current directory, which can be written as `./NAME`. What is here wins over
    /// `ORG/NAME[@REVISION][:FILE]`, a name on the hub, whose settings the environment has.
    ///
    /// # Errors
    /// [`ModelError::NotFound`], which says what was looked for; [`ModelError::Io`] where something
    /// is there and cannot be looked at.
    pub fn parse(given: &str) -> Result<Self, ModelError> {
        Self::parse_on(given, HubSettings::from_env)
    }

    /// The same, with the settings of the hub that `settings` gives.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_on(
        given: &str,
        settings: impl FnOnce() -> HubSettings,
    ) -> Result<Self, ModelError> {
        if let Some(found) = Self::here(given)? {
            return Ok(found);
        }
        match HubName::parse(given).and_then(|_| HubModel::parse(given, settings())) {
            Some(model) => Ok(Self::Hub(Box::new(model))),
            None => Err(absent(given)),
        }
    }

    /// The same of what is on this machine alone: a name on the hub is looked for in the cache at
    /// `hub_cache`.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_with(given: &str, hub_cache: Option<PathBuf>) -> Result<Self, ModelError> {
        if let Some(found) = Self::here(given)? {
            return Ok(found);
        }
        let (Some(name), Some(folder)) = (HubName::parse(given), hub_cache) else {
            return Err(absent(given));
        };
        let found = CachedRepository::new(&folder, &name).find(&name)?;
        match found {
            Ok(found) => Ok(Self::Files(found.files)),
            Err(problem) => Err(not_found(given, problem)),
        }
    }

    /// A known model, or files; `None` where nothing of that name is.
    fn here(given: &str) -> Result<Option<Self>, ModelError> {
        if let Some(known) = KNOWN_MODELS.iter().find(|known| known.name == given) {
            return Ok(Some(Self::Known(known)));
        }
        let path = PathBuf::from(given);
        let Some(found) = look(&path)? else {
            return Ok(None);
        };
        if found.is_dir() {
            if is_file(&path.join("config.json"))? {
                return Ok(Some(Self::Files(ModelFiles::Directory(path))));
            }
            if let Err(error) = path.read_dir() {
                return Err(ModelError::io(&path, error));
            }
            let problem = match gguf_inside(&path) {
                Some(file) => format!("that directory has no config.json, but {}", file.display()),
                None => "that directory has no config.json".to_owned(),
            };
            return Err(not_found(given, problem));
        }
        let ends_in = |wanted: &str| {
            let extension = path.extension();
            extension.is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
        };
        if ends_in("gguf") {
            return Ok(Some(Self::Files(ModelFiles::Gguf(path))));
        }
        let problem = match ends_in("safetensors") {
            true => "give the directory that the file lies in",
            false => "that file's name does not end in .gguf",
        };
        Err(not_found(given, problem.to_owned()))
    }

    /// Has a model of the hub kept in `folder`, in the layout of the cache of Hugging Face's tools.
    pub fn kept_in(self, folder: &Path) -> Self {
        match self {
            Self::Hub(model) => Self::Hub(Box::new(model.kept_in(folder.to_owned()))),
            other => other,
        }
    }

    /// The files, downloaded first if they are not there, with the progress shown on standard
    /// error. A known model is kept in `cache_dir`.
    ///
    /// # Errors
    /// [`ModelError::Fetch`], [`ModelError::Hub`].
    pub fn files(self, cache_dir: Option<&Path>) -> Result<ModelFiles, ModelError> {
        self.files_for(LoadFormat::Auto, cache_dir)
    }

    /// The same, without the weights of a directory where `format` needs none.
    ///
    /// # Errors
    /// Those of [`files`](Self::files).
    pub fn files_for(
        self,
        format: LoadFormat,
        cache_dir: Option<&Path>,
    ) -> Result<ModelFiles, ModelError> {
        let known = match self {
            Self::Files(files) => return Ok(files),
            Self::Hub(model) => {
                let mut display = FetchDisplay::new(model.repository());
                return model.files(format, &mut |progress| display.show(progress));
            }
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

fn absent(given: &str) -> ModelError {
    not_found(given, "no file or directory of that name exists".to_owned())
}

fn not_found(given: &str, problem: String) -> ModelError {
    ModelError::NotFound {
        given: given.to_owned(),
        problem,
        known: KNOWN_MODELS.map(|known| known.name).join(", "),
    }
}

impl ModelFiles {
    /// What the model is called: the known name if it has one, `ORG/NAME` in the cache of Hugging
    /// Face's tools, else the name of its directory, or of its file without `.gguf` and the number
    /// of a part.
    pub fn name(&self) -> String {
        let (Self::Directory(path) | Self::Gguf(path)) = self;
        if let Some(name) = hub::name_of(path) {
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
                    let name = path.file_name()?.to_string_lossy().into_owned();
                    match SplitName::parse(&name) {
                        Some(split) => Some(split.stem().to_owned()),
                        None => Some(path.file_stem()?.to_string_lossy().into_owned()),
                    }
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
