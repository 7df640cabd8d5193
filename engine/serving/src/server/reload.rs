//! Files that may change while the server runs: looked at every second, taken over once they have
//! stayed the same for two looks.
//!
//! Contents are compared, not times: Kubernetes swaps links to folders, and a copied file may be as
//! old as the one before it.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::tls::Tls;
use crate::access::Access;
use crate::small_file;

/// How often files are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// Contents of files, in the order of their paths; a sentence for one that cannot be read.
type Contents = Vec<Result<Vec<u8>, String>>;
/// Takes contents over; says what was taken over, or why they are refused.
type Load = Box<dyn Fn(&Contents) -> Result<String, String> + Send>;
/// What tells contents apart.
type Mark = [u8; 32];

/// Files that belong together, and what is done with them when they change.
struct Watched {
    paths: Vec<PathBuf>,
    /// Of the contents taken over last, or refused.
    known: Mark,
    /// Of those seen last.
    seen: Mark,
    load: Load,
}

fn contents(paths: &[PathBuf]) -> Contents {
    paths.iter().map(|path| small_file::read(path)).collect()
}

fn mark(contents: &Contents) -> Mark {
    let mut hash = Sha256::new();
    for one in contents {
        let (kind, bytes) = match one {
            Ok(bytes) => (0_u8, bytes.as_slice()),
            Err(why) => (1, why.as_bytes()),
        };
        hash.update([kind]);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

impl Watched {
    /// Takes over the contents of this moment: the files may have changed since they were read to
    /// start with.
    fn new(
        paths: Vec<PathBuf>,
        load: impl Fn(&Contents) -> Result<String, String> + Send + 'static,
    ) -> Self {
        let contents = contents(&paths);
        let mark = mark(&contents);
        let watched = Self {
            paths,
            known: mark,
            seen: mark,
            load: Box::new(load),
        };
        if let Err(why) = (watched.load)(&contents) {
            complain(&why);
        }
        watched
    }

    fn look(&mut self) {
        let contents = contents(&self.paths);
        let mark = mark(&contents);
        let settled = std::mem::replace(&mut self.seen, mark) == mark;
        if !settled || mark == self.known {
            return;
        }
        self.known = mark;
        match (self.load)(&contents) {
            Ok(what) => tracing::info!("{what}"),
            Err(why) => complain(&why),
        }
    }
}

fn complain(why: &str) {
    tracing::error!("{why}; the old one stays in use until this is mended");
}

/// Looks at the files of both until the result is dropped.
pub(super) fn follow(access: &Access, tls: Option<&Tls>) -> Sender<()> {
    let mut watched = Vec::new();
    if let Some(path) = access.file() {
        let access = access.clone();
        watched.push(Watched::new(vec![path.to_owned()], move |contents| {
            let loaded = match &contents[0] {
                Ok(text) => access.load(Some(text)),
                Err(why) => Err(access.unread(why.clone())),
            };
            let keys = || format!("--api-key-file has changed: {} keys now", access.count());
            loaded.map(|()| keys()).map_err(|error| error.to_string())
        }));
    }
    if let Some(tls) = tls {
        let paths = tls.files().paths().map(ToOwned::to_owned).collect();
        let tls = tls.clone();
        watched.push(Watched::new(paths, move |contents| {
            let loaded = tls.load(contents);
            let changed = || "TLS certificates have changed; new connections get them".to_owned();
            loaded
                .map(|()| changed())
                .map_err(|error| error.to_string())
        }));
    }
    let (stop, stopped) = channel();
    if !watched.is_empty() {
        // A thread of its own: a file on a network may take long to answer.
        let thread = std::thread::Builder::new().name("ebb-reload".into());
        if let Err(error) = thread.spawn(move || run(&mut watched, &stopped)) {
            tracing::error!(%error, "keys and certificates are not read again when they change");
        }
    }
    stop
}

fn run(watched: &mut [Watched], stopped: &Receiver<()>) {
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        watched.iter_mut().for_each(Watched::look);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn contents_are_taken_over_once_they_rest_and_refused_ones_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "first").unwrap();
        let loads = Arc::new(Mutex::new(Vec::new()));
        let noted = loads.clone();
        let mut watched = Watched::new(vec![path.clone()], move |contents| {
            let text = contents[0]
                .clone()
                .map(|text| String::from_utf8(text).unwrap());
            noted.lock().push(text.clone().unwrap_or("none".into()));
            text
        });
        let mut looks = |times, expected: &[&str]| {
            for _ in 0..times {
                watched.look();
            }
            assert_eq!(*loads.lock(), expected);
        };
        looks(3, &["first"]);
        std::fs::write(&path, "half").unwrap();
        looks(1, &["first"]);
        std::fs::write(&path, "second").unwrap();
        looks(1, &["first"]);
        looks(3, &["first", "second"]);
        std::fs::remove_file(&path).unwrap();
        looks(4, &["first", "second", "none"]);
        // The old one is back: it is in use, and is said to be.
        std::fs::write(&path, "second").unwrap();
        looks(4, &["first", "second", "none", "second"]);
    }

    #[test]
    fn a_link_that_is_swapped_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("file"), name).unwrap();
        }
        let link = folder.path().join("data");
        std::os::unix::fs::symlink("a", &link).unwrap();
        let path = vec![link.join("file")];
        let before = mark(&contents(&path));
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("b", &link).unwrap();
        assert_ne!(before, mark(&contents(&path)));
    }
}
