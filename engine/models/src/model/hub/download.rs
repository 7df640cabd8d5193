//! A model of the hub, from its name to its files.

use std::path::PathBuf;

use super::blob::{Event, fetch_blob};
use super::cache::{CachedRepository, Found};
use super::choose::{WEIGHTS_INDEX, first_missing, plan};
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

    /// Which files of a repository would be downloaded, but for weights that an index names.
    ///
    /// # Errors
    /// Why none would be, as the end of a sentence.
    pub fn wanted(&self, listing: &Listing) -> Result<Vec<String>, String> {
        plan(&self.name, &listing.files, LoadFormat::Auto).map(|plan| plan.files)
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
        let plan = plan(name, &self.listing.files, format).map_err(unusable)?;
        let snapshot = self.cache.snapshot(&self.listing.commit);
        let mut wanted = plan.files;
        if plan.indexed {
            // It says which files the weights are.
            self.fetch(&[WEIGHTS_INDEX.to_owned()])?;
            wanted.extend(hf::weight_files(&snapshot)?.unwrap_or_default());
        }
        if let Some(missing) = first_missing(&wanted, &self.listing.files) {
            return Err(unusable(format!("it lacks {missing}")).into());
        }
        self.fetch(&wanted)?;
        // Last: a name whose files are not all here does not come to stand for them.
        let (revision, commit) = (&name.revision, &self.listing.commit);
        if revision != commit
            && let Err(error) = self.cache.set_revision(revision, commit)
        {
            // A branch `a` leaves no room for `a/b`. The files can be served all the same.
            tracing::warn!("the next start will ask the hub again: {error}");
        }
        Ok(Found::new(snapshot, plan.choice).files)
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
