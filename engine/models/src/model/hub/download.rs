//! A model of the hub, from its name to its files.

use std::path::PathBuf;

use super::blob::{Event, fetch_blob};
use super::cache::{CachedRepository, Found};
use super::choose::{
    Choice, WEIGHTS, WEIGHTS_INDEX, choose, first_missing, gguf_names, is_small_file,
};
use super::client::{Client, RemoteFile};
use super::error::HubError;
use super::listing::Listing;
use super::name::HubName;
use super::settings::HubSettings;
use crate::model::error::ModelError;
use crate::model::fetch::FetchProgress;
use crate::model::hf;
use crate::model::loaded::LoadFormat;
use crate::model::locate::ModelFiles;

/// A model on the hub, and where to look for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    name: HubName,
    settings: HubSettings,
}

impl HubModel {
    /// The model of a name such as `ORG/NAME[@REVISION][:FILE]`; `None` for what is no such name.
    pub fn parse(given: &str, settings: HubSettings) -> Option<Self> {
        let name = HubName::parse(given)?;
        Some(Self { name, settings })
    }

    /// `ORG/NAME`.
    pub fn repository(&self) -> &str {
        &self.name.repository
    }

    /// Has it kept in `folder`, in the layout of the tools' cache; it is still found elsewhere.
    pub fn kept_in(mut self, folder: PathBuf) -> Self {
        self.settings.caches.insert(0, folder);
        self
    }

    /// Its files: those of a cache that has all that is needed, else downloaded. `progress` is told
    /// of the download. Blocks; may be called by several processes at once.
    ///
    /// # Errors
    /// [`ModelError::Hub`]; [`ModelError`] where the cache cannot be read.
    pub fn files(
        &self,
        format: LoadFormat,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<ModelFiles, ModelError> {
        let mut problem = None;
        for cache in &self.settings.caches {
            match CachedRepository::new(cache, &self.name).find(&self.name)? {
                Ok(found) => match found.missing(format)? {
                    None => return Ok(found.files),
                    Some(file) => {
                        let lacks = format!("the cache ({}) lacks {file} of it", cache.display());
                        problem = problem.or(Some(lacks));
                    }
                },
                Err(why) => problem = problem.or(Some(why)),
            }
        }
        let repository = self.name.repository.clone();
        let (Some(problem), Some(cache)) = (problem, self.settings.caches.first()) else {
            return Err(HubError::NoCache(repository).into());
        };
        if let Some(variable) = self.settings.offline {
            return Err(HubError::Offline {
                repository,
                problem,
                variable,
            }
            .into());
        }
        let client = Client::new(&self.settings, &self.name)?;
        let mut download = Download {
            client: &client,
            cache: CachedRepository::new(cache, &self.name),
            listing: client.listing()?,
            progress,
        };
        download.run(&self.name, format)
    }
}

struct Download<'a> {
    client: &'a Client<'a>,
    cache: CachedRepository,
    listing: Listing,
    progress: &'a mut dyn FnMut(FetchProgress),
}

impl Download<'_> {
    fn run(&mut self, name: &HubName, format: LoadFormat) -> Result<ModelFiles, ModelError> {
        let unusable = |problem: String| HubError::Choice {
            repository: name.repository.clone(),
            problem,
        };
        let choice = choose(name, &self.listing.files).map_err(unusable)?;
        let snapshot = self.cache.snapshot(&self.listing.commit);
        let wanted = match &choice {
            Choice::Gguf(parts) => parts.clone(),
            Choice::Directory => self.directory(format)?.map_err(unusable)?,
        };
        if let Some(missing) = first_missing(&wanted, &self.listing.files) {
            return Err(unusable(format!("it lacks {missing}")).into());
        }
        self.fetch(&wanted)?;
        // Last: a name whose files are not all here does not come to stand for them.
        let (revision, commit) = (&name.revision, &self.listing.commit);
        if revision != commit {
            self.cache.set_revision(revision, commit)?;
        }
        Ok(Found::new(snapshot, choice).files)
    }

    /// The files of a Hugging Face directory, the weights last; or why it cannot be served.
    fn directory(&mut self, format: LoadFormat) -> Result<Result<Vec<String>, String>, ModelError> {
        let files = self.listing.files.clone();
        let has = |wanted: &str| files.iter().any(|file| file == wanted);
        let small = files.iter().filter(|file| is_small_file(file));
        let mut wanted: Vec<String> = small.cloned().collect();
        if format == LoadFormat::Dummy {
            return Ok(Ok(wanted));
        }
        if has(WEIGHTS) {
            wanted.push(WEIGHTS.to_owned());
        } else if has(WEIGHTS_INDEX) {
            // It says which files the weights are.
            self.fetch(&[WEIGHTS_INDEX.to_owned()])?;
            let snapshot = self.cache.snapshot(&self.listing.commit);
            wanted.extend(hf::weight_files(&snapshot)?.unwrap_or_default());
        } else {
            return Ok(Err(match gguf_names(&files) {
                Some(names) => format!(
                    "it has several files; say which, as in {}:Q4_K_M. There are: {names}",
                    self.client.repository()
                ),
                None => "its weights are neither safetensors nor GGUF".to_owned(),
            }));
        }
        if !has("tokenizer.json") {
            return Ok(Err(
                "it has no tokenizer.json, without which its texts cannot be tokenised".to_owned(),
            ));
        }
        Ok(Ok(wanted))
    }

    /// Checks that the disk takes what is missing.
    fn check_room(&self, files: &[RemoteFile]) -> Result<(), HubError> {
        let missing = files.iter().map(|file| self.cache.missing_bytes(file));
        let needed = missing.fold(0, u64::saturating_add);
        match self.cache.room() {
            Some(available) if needed > available => Err(HubError::NoRoom {
                repository: self.client.repository().to_owned(),
                path: self.cache.folder().to_owned(),
                needed,
                available,
            }),
            _ => Ok(()),
        }
    }

    /// Has all of `paths` in the snapshot.
    fn fetch(&mut self, paths: &[String]) -> Result<(), HubError> {
        let commit = &self.listing.commit;
        let files: Result<Vec<RemoteFile>, HubError> = paths
            .iter()
            .map(|path| self.client.file(commit, path))
            .collect();
        let files = files?;
        self.check_room(&files)?;
        let sizes = files.iter().map(|file| file.size.unwrap_or(0));
        let total = sizes.fold(0, u64::saturating_add);
        let mut before = 0u64;
        for file in &files {
            let mut here = 0;
            let progress = &mut self.progress;
            let told = &mut |event| match event {
                Event::Waiting => progress(FetchProgress::Waiting),
                Event::Bytes(bytes) => {
                    here = bytes;
                    let done = before.saturating_add(bytes);
                    let total = total.max(done);
                    progress(FetchProgress::Downloading { done, total });
                }
            };
            fetch_blob(self.client, &self.cache, commit, file, told)?;
            self.cache.link(commit, &file.path, &file.etag)?;
            before = before.saturating_add(file.size.unwrap_or(here));
        }
        Ok(())
    }
}
