//! Downloads from a hub, and what may go wrong with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ebb_models::model::fetch::FetchProgress;
use ebb_models::model::hub::{HubModel, HubSettings, Token};
use ebb_models::model::{LoadFormat, LoadedModel, ModelError, ModelFiles, ModelRef};
use safetensors::Dtype;
use tempfile::TempDir;

use crate::hf_builder::HfBuilder;
use crate::hub_server::{
    COMMIT, Hub, REPOSITORY, Reply, Request, git_hash, is_large, listing, sha256,
};
use crate::tiny;

type Files = Vec<(&'static str, Vec<u8>)>;

const SHARD: &str = "model-00001-of-00002.safetensors";

/// A repository with a model that opens, and much that no model is opened by.
fn repository() -> Files {
    let spec = tiny::spec(tiny::family("llama"), true);
    let mut builder = HfBuilder::new(tiny::family("llama"), &spec, Dtype::BF16);
    builder.shards = 2;
    let (keep, dir) = builder.directory();
    let read = |name| (name, std::fs::read(dir.join(name)).expect("a file"));
    let mut files: Files = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
        SHARD,
        "model-00002-of-00002.safetensors",
    ]
    .map(read)
    .to_vec();
    drop(keep);
    for other in [
        "README.md",
        "pytorch_model.bin",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
        "consolidated.safetensors",
    ] {
        files.push((other, b"not for us".to_vec()));
    }
    files
}

fn fetch(given: &str, settings: HubSettings) -> Result<ModelFiles, ModelError> {
    let model = HubModel::parse(given, settings).expect("a name");
    model.files(LoadFormat::Auto, &mut |_| {})
}

fn sentence(given: &str, settings: HubSettings) -> String {
    fetch(given, settings).expect_err(given).to_string()
}

fn assert_has(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
    }
}

fn cache() -> (TempDir, PathBuf) {
    let keep = TempDir::new().expect("a temporary directory");
    let cache = keep.path().join("hub");
    (keep, cache)
}

/// Paths of all that is in a folder and is no folder itself, ascending.
fn all_files(root: &Path) -> Vec<String> {
    fn visit(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type().expect("a type").is_dir() {
                true => visit(&path, root, found),
                false => {
                    let below = path.strip_prefix(root).expect("below");
                    found.push(below.to_str().expect("UTF-8").to_owned());
                }
            }
        }
    }
    let mut found = Vec::new();
    visit(root, root, &mut found);
    found.sort();
    found
}

fn leftovers(cache: &Path) -> Vec<String> {
    let files = all_files(cache).into_iter();
    files
        .filter(|file| file.contains(".incomplete") || file.ends_with(".tmp"))
        .collect()
}

#[test]
fn a_model_is_laid_as_the_tools_lay_it_and_asked_for_once() {
    let files = repository();
    let hub = Hub::new(&files);
    let (_keep, cache) = cache();
    let mut seen = Vec::new();
    let model = HubModel::parse(REPOSITORY, hub.settings(&cache)).expect("a name");
    let found = model.files(LoadFormat::Auto, &mut |progress| seen.push(progress));
    let found = found.expect("downloaded");

    let here = cache.join("models--org--tiny");
    let snapshot = here.join("snapshots").join(COMMIT);
    assert_eq!(found, ModelFiles::Directory(snapshot.clone()));
    assert_eq!(found.name(), "org/tiny");
    let reference = std::fs::read_to_string(here.join("refs/main")).expect("a reference");
    assert_eq!(reference, COMMIT);
    let wanted: Files = files[..6].to_vec();
    let mut names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(all_files(&snapshot), names);
    for (name, bytes) in &wanted {
        let etag = match is_large(name) {
            true => sha256(bytes),
            false => git_hash(bytes),
        };
        let link = std::fs::read_link(snapshot.join(name)).expect("a link");
        assert_eq!(link, Path::new("../../blobs").join(&etag));
        let blob = std::fs::read(here.join("blobs").join(&etag)).expect("a blob");
        assert!(blob == *bytes, "{name}");
        assert!(
            cache
                .join(format!(".locks/models--org--tiny/{etag}.lock"))
                .exists()
        );
    }
    assert_eq!(leftovers(&cache), [""; 0]);
    let total: u64 = wanted.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let index = wanted[3].1.len() as u64;
    let last = seen.last().expect("progress");
    assert_eq!(
        *last,
        FetchProgress::Downloading {
            done: total - index,
            total: total - index,
        }
    );
    LoadedModel::open(&found).expect("it opens");

    // Nothing is asked any more: neither by name nor by commit, nor where that is forbidden.
    let asked = hub.requests().len();
    for given in [REPOSITORY.to_owned(), format!("{REPOSITORY}@{COMMIT}")] {
        let offline = HubSettings {
            offline: Some("HF_HUB_OFFLINE"),
            ..hub.settings(&cache)
        };
        assert_eq!(fetch(&given, hub.settings(&cache)).expect("here"), found);
        assert_eq!(fetch(&given, offline).expect("here"), found);
        let by_path = ModelRef::parse_with(&given, Some(cache.clone())).expect("here");
        assert_eq!(by_path, ModelRef::Files(found.clone()));
    }
    assert_eq!(hub.requests().len(), asked);
}

#[test]
fn revisions_are_asked_for_in_full_and_kept_by_name() {
    let hub = Hub::new(&repository());
    let (_keep, cache) = cache();
    let given = format!("{REPOSITORY}@refs/pr/1");
    fetch(&given, hub.settings(&cache)).expect("downloaded");
    let reference = cache.join("models--org--tiny/refs/refs/pr/1");
    assert_eq!(std::fs::read_to_string(reference).expect("it"), COMMIT);
    assert_has(
        &sentence("org/tiny@v9", hub.settings(&cache)),
        &["org/tiny has no revision v9"],
    );
    // Where `main` is a folder there is no place for its commit; the model is there all the same.
    std::fs::create_dir_all(cache.join("models--org--tiny/refs/main/x")).expect("create it");
    fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
}

#[test]
fn without_weights_a_directory_is_fetched_without_weights() {
    let hub = Hub::new(&repository());
    let (_keep, cache) = cache();
    let model = HubModel::parse(REPOSITORY, hub.settings(&cache)).expect("a name");
    for _ in 0..2 {
        let files = model.files(LoadFormat::Dummy, &mut |_| {});
        LoadedModel::open_as(&files.expect("downloaded"), LoadFormat::Dummy).expect("it opens");
    }
    assert_eq!(hub.gets(".safetensors"), 0);
    assert_eq!(hub.gets("/revision/main"), 1);
    // What is missing is fetched when it is needed.
    let files = fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    LoadedModel::open(&files).expect("it opens");
}

#[test]
fn a_partial_snapshot_is_completed_and_nothing_comes_twice() {
    let files = repository();
    let hub = Hub::new(&files);
    let (_keep, cache) = cache();
    fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    let snapshot = cache.join("models--org--tiny/snapshots").join(COMMIT);
    // The link is gone, and the blob of another.
    std::fs::remove_file(snapshot.join(SHARD)).expect("remove it");
    let tokenizer = &files[1].1;
    let blob = cache
        .join("models--org--tiny/blobs")
        .join(git_hash(tokenizer));
    std::fs::remove_file(&blob).expect("remove it");
    let offline = HubSettings {
        offline: Some("HF_HUB_OFFLINE"),
        ..hub.settings(&cache)
    };
    assert_has(
        &sentence(REPOSITORY, offline),
        &[
            "org/tiny is not here",
            "lacks tokenizer.json",
            "HF_HUB_OFFLINE forbids",
        ],
    );
    let shards = hub.gets("signature=s3cret");
    fetch(REPOSITORY, hub.settings(&cache)).expect("completed");
    assert_eq!(hub.gets("signature=s3cret"), shards);
    assert_eq!(hub.gets("/tokenizer.json"), 2);
    assert_eq!(hub.gets("/config.json"), 1);
    let files = fetch(REPOSITORY, hub.settings(&cache)).expect("here");
    LoadedModel::open(&files).expect("it opens");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let hub = Hub::new(&repository());
    let (_keep, cache) = cache();
    let settings = HubSettings {
        token: Token::new("hf_s3cret"),
        ..hub.settings(&cache)
    };
    fetch(REPOSITORY, settings).expect("downloaded");
    let mut stored = 0;
    for request in hub.requests() {
        let token = request.header("authorization");
        let expected = request.at_hub.then_some("Bearer hf_s3cret");
        assert_eq!(token, expected, "{request:?}");
        stored += usize::from(!request.at_hub);
    }
    assert_eq!(stored, 2);
    let settings = HubSettings {
        token: Token::new("hf\u{e9}"),
        ..hub.settings(Path::new("/nowhere"))
    };
    assert_has(
        &sentence(REPOSITORY, settings),
        &["HF_TOKEN cannot be used"],
    );
}

#[test]
fn a_renamed_repository_is_followed_with_the_token() {
    let files = repository();
    let hub = Hub::with_fault(&files, |request| {
        let renamed = request.path.replace("/org/old/", "/org/tiny/");
        let renamed = renamed.replace("/models/org/old/", "/models/org/tiny/");
        let moved = || Reply::status(307).with("Location", renamed.clone());
        (renamed != request.path).then(moved)
    });
    let (_keep, cache) = cache();
    let settings = HubSettings {
        token: Token::new("hf_s3cret"),
        ..hub.settings(&cache)
    };
    let found = fetch("org/old", settings).expect("downloaded");
    assert_eq!(found.name(), "org/old");
    let at_hub = hub.requests().into_iter().filter(|r| r.at_hub);
    assert!(
        at_hub
            .into_iter()
            .all(|r| r.header("authorization").is_some())
    );
}

/// A fault that strikes the first so many GETs of files of weights' bytes.
fn at_store(
    times: usize,
    fault: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
) -> (Hub, Files) {
    let files = repository();
    let kept = files.clone();
    let struck = AtomicUsize::new(0);
    let hub = Hub::with_fault(&files, move |request| {
        let name = request.path.trim_start_matches('/').split('?').next()?;
        let bytes = &kept.iter().find(|(file, _)| *file == name)?.1;
        let strikes = !request.at_hub && struck.fetch_add(1, Ordering::SeqCst) < times;
        strikes.then(|| fault(request, Reply::ok(bytes.clone()).ranged(request)))
    });
    (hub, files)
}

fn ranges(hub: &Hub) -> Vec<Option<String>> {
    let requests = hub.requests();
    let stored = requests.iter().filter(|request| !request.at_hub);
    stored
        .map(|r| r.header("range").map(str::to_owned))
        .collect()
}

#[test]
fn a_cut_download_goes_on_where_it_was_cut() {
    let (hub, _) = at_store(3, |_, reply| Reply {
        cut: Some(1000),
        ..reply
    });
    let (_keep, cache) = cache();
    let files = fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    LoadedModel::open(&files).expect("it opens");
    let from = |offset: usize| Some(format!("bytes={offset}-"));
    let expected = [None, from(1000), from(2000), from(3000), None];
    assert_eq!(ranges(&hub), expected);

    // Also by the next process, when this one gave up.
    let (hub, _) = at_store(5, |_, reply| Reply {
        cut: Some(if reply.status == 206 { 0 } else { 700 }),
        ..reply
    });
    let keep = TempDir::new().expect("a temporary directory");
    let problem = sentence(REPOSITORY, hub.settings(keep.path()));
    assert_has(&problem, &[SHARD, "127.0.0.1", "is kept"]);
    assert!(!problem.contains("s3cret"), "{problem}");
    assert_eq!(leftovers(keep.path()).len(), 1);
    fetch(REPOSITORY, hub.settings(keep.path())).expect("downloaded");
    assert_eq!(ranges(&hub).last(), Some(&None));
    assert_eq!(ranges(&hub)[5], from(700));
    assert_eq!(leftovers(keep.path()), [""; 0]);
}

#[test]
fn a_server_that_sends_all_of_it_again_is_understood() {
    let (hub, files) = at_store(2, |_, reply| Reply {
        status: 200,
        cut: Some(1000),
        ..reply
    });
    // The second attempt gets the whole file in place of a part.
    drop(hub);
    let whole = files.clone();
    let hub = Hub::with_fault(&files, move |request| {
        let name = request.path.trim_start_matches('/').split('?').next()?;
        let bytes = &whole.iter().find(|(file, _)| *file == name)?.1;
        let reply = Reply::ok(bytes.clone());
        let cut = request.header("range").is_none().then_some(1000);
        (!request.at_hub).then_some(Reply { cut, ..reply })
    });
    let (_keep, cache) = cache();
    let files = fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    LoadedModel::open(&files).expect("it opens");
}

#[test]
fn what_is_sent_over_and_over_is_given_up() {
    // Sound HTTP, and never the whole file.
    let (hub, _) = at_store(usize::MAX, |_, mut reply| {
        reply.status = 200;
        reply.body.truncate(3000);
        reply
    });
    let (_keep, cache) = cache();
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &[SHARD, "closed early"]);
    assert_eq!(ranges(&hub).len(), 5);
}

#[test]
fn refusals_of_the_other_server_are_not_the_hubs() {
    // A signature that has expired: the hub gives another.
    let (hub, _) = at_store(2, |_, _| Reply::status(403));
    let (_keep, cache) = cache();
    fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    let (hub, _) = at_store(usize::MAX, |_, _| Reply::status(403));
    let keep = TempDir::new().expect("a temporary directory");
    let problem = sentence(REPOSITORY, hub.settings(keep.path()));
    assert_has(&problem, &["it answered 403", "check the network"]);
    assert_eq!(ranges(&hub).len(), 5);
}

#[test]
fn a_commit_is_not_answered_by_another() {
    let hub = Hub::with_fault(&repository(), |request| {
        let is_listing = request.path.contains("/revision/");
        is_listing.then(|| Reply::ok(listing(["config.json"])))
    });
    let (_keep, cache) = cache();
    let other = format!("{REPOSITORY}@{}", COMMIT.replace('0', "f"));
    assert_has(&sentence(&other, hub.settings(&cache)), &["another commit"]);
}

#[test]
fn a_user_in_the_endpoint_is_not_shown() {
    let hub = Hub::with_fault(&[], |_| Some(Reply::status(404)));
    let (_keep, cache) = cache();
    let settings = hub.settings(&cache);
    let settings = HubSettings {
        endpoint: settings.endpoint.replace("http://", "http://user:s3cret@"),
        ..settings
    };
    let problem = sentence(REPOSITORY, settings);
    assert_has(&problem, &["has no repository", "http://127.0.0.1:"]);
    assert!(!problem.contains("s3cret"), "{problem}");
}

#[test]
fn another_part_than_was_asked_for_is_refused() {
    let (hub, _) = at_store(9, |request, reply| match request.header("range") {
        None => Reply {
            cut: Some(1000),
            ..reply
        },
        Some(_) => Reply {
            headers: vec![("Content-Range", "bytes 5-6/7".to_owned())],
            ..reply
        },
    });
    let (_keep, cache) = cache();
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["another part of the file"]);
}

#[test]
fn wrong_bytes_are_removed_and_said() {
    let flip = |_: &Request, mut reply: Reply| {
        if let Some(byte) = reply.body.last_mut() {
            *byte ^= 1;
        }
        reply
    };
    let (hub, files) = at_store(9, flip);
    let (_keep, cache) = cache();
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    let expected = sha256(&files[4].1);
    assert_has(&problem, &[SHARD, "SHA-256", &expected, "has been removed"]);
    assert_eq!(leftovers(&cache), [""; 0]);
    let blob = cache.join("models--org--tiny/blobs").join(&expected);
    assert!(!blob.exists());
    assert!(!cache.join("models--org--tiny/refs").exists());

    // What an earlier run left may be wrong: then it is fetched anew.
    let hub = Hub::new(&files);
    let partial = blob.with_file_name(format!("{expected}.incomplete"));
    std::fs::write(&partial, b"garbage").expect("write it");
    fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    assert_eq!(ranges(&hub)[..2], [Some("bytes=7-".to_owned()), None]);
    // So may be what is longer than the file.
    std::fs::remove_file(&blob).expect("remove it");
    std::fs::write(&partial, vec![0; 1 << 20]).expect("write it");
    fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    assert_eq!(leftovers(&cache), [""; 0]);

    // A small file has Git's hash.
    let mut files = repository();
    let config = git_hash(&files[0].1);
    files[0].1.push(b' ');
    let changed = files[0].1.clone();
    let hub = Hub::with_fault(&files, move |request| {
        let is_it = request.path.ends_with("/config.json") && request.method == "HEAD";
        is_it.then(|| Reply::ok(changed.clone()).with("ETag", format!("W/\"{config}\"")))
    });
    let keep = TempDir::new().expect("a temporary directory");
    let problem = sentence(REPOSITORY, hub.settings(keep.path()));
    assert_has(
        &problem,
        &["config.json of org/tiny", "Git hash", "has been removed"],
    );
}

#[test]
fn more_bytes_than_announced_are_not_taken() {
    let (hub, _) = at_store(9, |_, mut reply| {
        reply.body.extend([7; 5000]);
        reply
    });
    let (_keep, cache) = cache();
    assert_has(
        &sentence(REPOSITORY, hub.settings(&cache)),
        &[SHARD, "its length is more than"],
    );
    assert_eq!(leftovers(&cache), [""; 0]);
}

#[test]
fn files_whose_size_nobody_announces_are_checked_by_their_hash() {
    let files = repository();
    let kept = files.clone();
    let hub = Hub::with_fault(&files, move |request| {
        let name = request.path.rsplit('/').next()?.split('?').next()?;
        let bytes = &kept.iter().find(|(file, _)| *file == name)?.1;
        let etag = match is_large(name) {
            true => sha256(bytes),
            false => git_hash(bytes),
        };
        Some(Reply {
            length: Some(None),
            ..Reply::ok(bytes.clone()).with("ETag", format!("\"{etag}\""))
        })
    });
    let (_keep, cache) = cache();
    let files = fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    LoadedModel::open(&files).expect("it opens");
}

#[test]
fn refusals_of_the_hub_say_what_to_do() {
    let (_keep, cache) = cache();
    let answer = |reply: Reply, token: Option<&str>| {
        let hub = Hub::with_fault(&[], move |_| Some(reply.clone()));
        let settings = HubSettings {
            token: token.and_then(Token::new),
            ..hub.settings(&cache)
        };
        let said = sentence(REPOSITORY, settings);
        assert!(!said.contains("hf_s3cret"), "{said}");
        (said, hub.requests().len())
    };
    let coded = |status, code: &str| Reply::status(status).with("X-Error-Code", code);
    let (said, asked) = answer(coded(401, "GatedRepo"), None);
    assert_has(&said, &["org/tiny is gated", "/org/tiny,", "HF_TOKEN"]);
    assert_eq!(asked, 1);
    let (said, _) = answer(coded(403, "GatedRepo"), Some("hf_s3cret"));
    assert_has(&said, &["is gated", "has not been let in"]);
    let (said, _) = answer(coded(401, "RepoNotFound"), None);
    assert_has(&said, &["401", "does not exist, or is private or gated"]);
    let (said, _) = answer(Reply::status(401), Some("hf_s3cret"));
    assert_has(&said, &["the token in use is not valid"]);
    let (said, asked) = answer(coded(404, "RepoNotFound"), None);
    assert_has(&said, &["has no repository org/tiny,", "check the name"]);
    assert_eq!(asked, 1);
    let (said, _) = answer(coded(404, "RevisionNotFound"), None);
    assert_has(&said, &["org/tiny has no revision main"]);
    let hub = Hub::with_fault(&[], |_| Some(Reply::status(404)));
    let said = sentence("org/tiny@v9", hub.settings(&cache));
    assert_has(&said, &["has no repository org/tiny with a revision v9,"]);
    let (said, asked) = answer(Reply::status(500), None);
    assert_has(&said, &["answered 500 for the list of files"]);
    assert_eq!(asked, 5);
    let (said, asked) = answer(Reply::status(418), None);
    assert_has(&said, &["answered 418"]);
    assert_eq!(asked, 1);
    for nonsense in [
        &b"<html>"[..],
        b"{}",
        br#"{"sha": "../../x", "siblings": []}"#,
    ] {
        let (said, asked) = answer(Reply::ok(nonsense), None);
        assert_has(&said, &["cannot be used", "Is HF_ENDPOINT a hub?"]);
        assert_eq!(asked, 1);
    }
    for endpoint in ["huggingface.co", "ftp://x", "", "http://"] {
        let settings = HubSettings {
            endpoint: endpoint.to_owned(),
            ..HubSettings::read(|_| None)
        };
        let settings = HubSettings {
            caches: vec![cache.clone()],
            ..settings
        };
        assert_has(
            &sentence(REPOSITORY, settings),
            &["HF_ENDPOINT cannot be used"],
        );
    }
    let nowhere = HubSettings::read(|_| None);
    assert_has(
        &sentence(REPOSITORY, nowhere),
        &["nowhere to keep org/tiny"],
    );
    // A file that is listed and is not there.
    let hub = Hub::with_fault(&repository(), |request| {
        let is_it = request.path.ends_with("/resolve/") || request.path.contains("00002-of");
        is_it.then(|| Reply::status(404))
    });
    let said = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&said, &["the hub lists model-00002-of-00002.safetensors"]);
}

#[test]
fn too_many_requests_are_waited_for_as_long_as_asked_and_not_for_ever() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let hub = Hub::with_fault(&repository(), move |request| {
        let first = request.path.ends_with("/main") && counted.fetch_add(1, Ordering::SeqCst) < 1;
        first.then(|| Reply::status(429).with("Retry-After", "1"))
    });
    let (_keep, cache) = cache();
    let began = Instant::now();
    fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(hub.gets("/main"), 2);

    let keep = TempDir::new().expect("a temporary directory");
    for (after, attempts, said) in [
        ("0", 5, "and asks to wait 0 s"),
        ("3600", 1, "and asks to wait 3600 s"),
        ("99999999999999999999", 5, "(429);"),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 5, "(429);"),
    ] {
        let hub = Hub::with_fault(&[], move |_| {
            Some(Reply::status(429).with("Retry-After", after))
        });
        let problem = sentence(REPOSITORY, hub.settings(keep.path()));
        assert_has(&problem, &["too many requests", said]);
        assert_eq!(hub.requests().len(), attempts, "{after}");
    }
}

#[test]
fn a_server_that_hangs_or_dribbles_is_left() {
    // Nothing comes between two bytes of the body: the next attempt gets the rest.
    let (hub, _) = at_store(1, |_, reply| Reply {
        pause: Duration::from_secs(20),
        ..reply
    });
    let (_keep, cache) = cache();
    let began = Instant::now();
    let files = fetch(REPOSITORY, hub.settings(&cache)).expect("downloaded");
    LoadedModel::open(&files).expect("it opens");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(ranges(&hub)[1].as_deref(), Some("bytes=1-"));

    // Nobody answers at all.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let settings = HubSettings {
        endpoint: format!("http://{address}"),
        ..hub.settings(&cache.join("other"))
    };
    let problem = sentence(REPOSITORY, settings);
    assert_has(&problem, &["no answer came in time", &address.to_string()]);
    drop(silent);
    let settings = HubSettings {
        endpoint: format!("http://{address}"),
        ..hub.settings(&cache.join("other"))
    };
    assert_has(&sentence(REPOSITORY, settings), &["refused", "HF_ENDPOINT"]);
    let settings = HubSettings {
        endpoint: "http://no-such-host.invalid".to_owned(),
        ..hub.settings(&cache.join("other"))
    };
    assert_has(&sentence(REPOSITORY, settings), &["no-such-host.invalid"]);
}

#[test]
fn redirects_end() {
    let hub = Hub::with_fault(&[], |request| {
        Some(Reply::status(302).with("Location", request.path.clone()))
    });
    let (_keep, cache) = cache();
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["more than 10 redirects"]);
    for location in ["", "file:///etc/passwd", "gopher://x"] {
        let hub = Hub::with_fault(&[], move |request| {
            let first = request.path.ends_with("/main");
            first.then(|| Reply::status(302).with("Location", location))
        });
        sentence(REPOSITORY, hub.settings(&cache));
    }
}

#[test]
fn a_listing_that_lies_writes_nothing_elsewhere() {
    let evil = [
        "../../../../evil.gguf",
        "/tmp/ebb-evil.gguf",
        "a/../../../../../evil.gguf",
        "nul\0.gguf",
        "..\\..\\evil.gguf",
        "additional_chat_templates/../../../../evil.jinja",
        "x/..",
    ];
    let (keep, cache) = cache();
    let with = |names: Vec<&'static str>| {
        Hub::with_fault(&repository(), move |request| {
            let is_listing = request.path.ends_with("/main");
            is_listing.then(|| Reply::ok(listing(names.iter())))
        })
    };
    let hub = with(evil.to_vec());
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["neither config.json nor a .gguf file"]);
    assert_eq!(all_files(keep.path()), [""; 0]);
    let mut names: Vec<&str> = repository().iter().map(|(name, _)| *name).collect();
    names.extend(evil);
    fetch(REPOSITORY, with(names).settings(&cache)).expect("downloaded");
    let tops: BTreeSet<String> = all_files(keep.path())
        .iter()
        .map(|path| path.split('/').take(3).collect::<Vec<_>>().join("/"))
        .collect();
    let expected = ["blobs", "refs", "snapshots"].map(|top| format!("hub/models--org--tiny/{top}"));
    let (mine, locks): (Vec<_>, Vec<_>) = tops.into_iter().partition(|top| !top.contains("locks"));
    assert_eq!(mine, expected);
    assert!(
        locks
            .iter()
            .all(|lock| lock.starts_with("hub/.locks/models--org--tiny"))
    );

    // Names of blobs are the hub's word, too; so is the index.
    for etag in [
        "../../../evil",
        "",
        "..",
        "a/b",
        ".hidden",
        &"x".repeat(500),
    ] {
        let header = format!("\"{etag}\"");
        let hub = Hub::with_fault(&repository(), move |request| {
            let is_file = request.path.contains("/resolve/");
            is_file.then(|| Reply::ok(*b"x").with("ETag", header.clone()))
        });
        let keep = TempDir::new().expect("a temporary directory");
        let problem = sentence(REPOSITORY, hub.settings(keep.path()));
        assert_has(&problem, &["no ETag that a file can be kept by"]);
        assert_eq!(all_files(keep.path()), [""; 0]);
    }
    let mut files = repository();
    files[3].1 = br#"{"weight_map": {"a": "../../../evil.safetensors"}}"#.to_vec();
    let keep = TempDir::new().expect("a temporary directory");
    let problem = sentence(REPOSITORY, Hub::new(&files).settings(keep.path()));
    assert_has(&problem, &["weight_map", "in the same directory"]);
}

#[test]
fn answers_are_bounded() {
    let (_keep, cache) = cache();
    // A listing without an end, and one that says how long it is.
    let hub = Hub::with_fault(&[], |_| Some(Reply::ok(vec![b' '; 40 << 20])));
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["it has more than 33554432 bytes"]);
    let hub = Hub::with_fault(&[], |_| {
        Some(Reply::ok(*b"{}").with("X-Long", "x".repeat(1 << 20)))
    });
    sentence(REPOSITORY, hub.settings(&cache));
    // Sizes that no file has.
    for size in ["9000000000000000000", "1099511627777"] {
        let hub = Hub::with_fault(&repository(), move |request| {
            let is_it = request.path.ends_with(SHARD) && request.method == "HEAD";
            let etag = format!("\"{}\"", "a".repeat(64));
            let reply = Reply::status(302).with("Location", "http://127.0.0.1:9/x");
            let reply = reply.with("X-Linked-Etag", etag);
            is_it.then(|| reply.with("X-Linked-Size", size))
        });
        let problem = sentence(REPOSITORY, hub.settings(&cache));
        assert_has(
            &problem,
            &[SHARD, size, "at most 1099511627776 are supported"],
        );
    }
    // One that the disk does not take.
    let hub = Hub::with_fault(&repository(), |request| {
        let is_it = request.path.ends_with(SHARD) && request.method == "HEAD";
        let reply = Reply::ok(*b"").with("X-Linked-Etag", "a".repeat(64));
        is_it.then(|| reply.with("X-Linked-Size", "1099511627776"))
    });
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["bytes of org/tiny are to come; make room"]);
    let hub = Hub::with_fault(&repository(), |request| {
        let is_it = request.path.ends_with("/tokenizer.json") && request.method == "HEAD";
        let reply = Reply::ok(*b"").with("ETag", "\"abc\"");
        is_it.then(|| reply.with("X-Linked-Size", "999999999"))
    });
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(
        &problem,
        &["tokenizer.json", "at most 268435456 are supported"],
    );
}

#[test]
fn two_processes_at_once_fetch_each_blob_once() {
    let files = repository();
    let hub = Hub::with_fault(&files, |request| {
        // So that the others arrive meanwhile.
        if !request.at_hub {
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    });
    let (_keep, cache) = cache();
    let waited = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let model = HubModel::parse(REPOSITORY, hub.settings(&cache)).expect("a name");
                let files = model.files(LoadFormat::Auto, &mut |progress| {
                    let waits = progress == FetchProgress::Waiting;
                    waited.fetch_add(usize::from(waits), Ordering::SeqCst);
                });
                LoadedModel::open(&files.expect("downloaded")).expect("it opens");
            });
        }
    });
    assert_eq!(ranges(&hub), [None, None]);
    assert!(waited.load(Ordering::SeqCst) > 0);
    assert_eq!(leftovers(&cache), [""; 0]);
}

#[test]
fn a_gguf_file_of_a_repository_is_fetched_alone_and_a_split_one_whole() {
    let parts = [
        "Q4_K_M/x-Q4_K_M-00001-of-00002.gguf",
        "Q4_K_M/x-Q4_K_M-00002-of-00002.gguf",
    ];
    let file = |name: &'static str| (name, name.as_bytes().to_vec());
    let files = [
        "README.md",
        "config.json",
        "x-Q8_0.gguf",
        parts[0],
        parts[1],
    ];
    let mut files: Files = files.into_iter().map(file).collect();
    files.push(file("mmproj-x-f16.gguf"));
    let hub = Hub::new(&files);
    let (_keep, cache) = cache();
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(
        &problem,
        &[
            "say which, as in org/tiny:Q4_K_M",
            &format!("{}, x-Q8_0.gguf", parts[0]),
        ],
    );
    assert!(!problem.contains("mmproj"), "{problem}");
    assert_has(
        &sentence("org/tiny:Q2_K", hub.settings(&cache)),
        &["none of its files is Q2_K", "x-Q8_0.gguf"],
    );
    let snapshot = cache.join("models--org--tiny/snapshots").join(COMMIT);
    for _ in 0..2 {
        let found = fetch("org/tiny:q4_k_m", hub.settings(&cache)).expect("downloaded");
        assert_eq!(found, ModelFiles::Gguf(snapshot.join(parts[0])));
        assert_eq!(found.name(), "org/tiny");
        assert_eq!(all_files(&snapshot), parts);
        let link = std::fs::read_link(snapshot.join(parts[1])).expect("a link");
        let blob = format!("../../../blobs/{}", sha256(parts[1].as_bytes()));
        assert_eq!(link, Path::new(&blob));
    }
    assert_eq!(ranges(&hub).len(), 2);
    // A part that is gone is fetched again; one that is not listed is named.
    std::fs::remove_file(snapshot.join(parts[1])).expect("remove it");
    fetch("org/tiny:q4_k_m", hub.settings(&cache)).expect("completed");
    assert_eq!(all_files(&snapshot), parts);
    let hub = Hub::new(&files[..4]);
    let keep = TempDir::new().expect("a temporary directory");
    assert_has(
        &sentence("org/tiny:Q4_K_M", hub.settings(keep.path())),
        &["it lacks", parts[1]],
    );
}

#[test]
fn weights_in_other_formats_are_said_before_anything_is_fetched() {
    let file = |name: &'static str| (name, b"{}".to_vec());
    let hub = Hub::new(&["config.json", "pytorch_model.bin", "tokenizer.json"].map(file));
    let (keep, cache) = cache();
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["neither safetensors nor GGUF"]);
    let hub = Hub::new(&["config.json", "model.safetensors", "tokenizer.model"].map(file));
    let problem = sentence(REPOSITORY, hub.settings(&cache));
    assert_has(&problem, &["has no tokenizer.json"]);
    assert_eq!(all_files(keep.path()), [""; 0]);
}

#[test]
fn a_folder_of_ones_own_is_filled_in_the_same_layout() {
    let hub = Hub::new(&repository());
    let (keep, cache) = cache();
    let own = keep.path().join("own");
    let model = ModelRef::parse_on(REPOSITORY, || hub.settings(&cache)).expect("a name");
    let files = model.clone().kept_in(&own).files(None).expect("downloaded");
    let snapshot = own.join("models--org--tiny/snapshots").join(COMMIT);
    assert_eq!(files, ModelFiles::Directory(snapshot.clone()));
    assert!(!cache.exists());
    // What the tools have fetched is found where they have it.
    std::fs::rename(&own, &cache).expect("move it");
    let files = model.kept_in(&own).files(None).expect("found");
    let (ModelFiles::Directory(found) | ModelFiles::Gguf(found)) = files;
    assert!(found.starts_with(&cache));
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let hub = Hub::new(&repository());
    let keep = TempDir::new().expect("a temporary directory");
    let file = keep.path().join("file");
    std::fs::write(&file, b"").expect("write it");
    let problem = sentence(REPOSITORY, hub.settings(&file));
    assert_has(&problem, &["cannot create", file.to_str().expect("UTF-8")]);
}
