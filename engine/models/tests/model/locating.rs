//! What `--model` may be.

use ebb_models::model::{DEFAULT_MODEL, ModelFiles, ModelRef};
use tempfile::TempDir;

#[test]
fn names_directories_and_files_are_told_apart() {
    assert_eq!(
        ModelRef::parse("SmolLM2-135M-Instruct").expect("known"),
        ModelRef::Known(DEFAULT_MODEL)
    );
    let keep = TempDir::new().expect("a temporary directory");
    let dir = keep.path().join("my-model");
    std::fs::create_dir(&dir).expect("create it");
    let text = dir.to_str().expect("UTF-8");
    let sentence = |given: &str| ModelRef::parse(given).expect_err(given).to_string();
    assert!(sentence(text).contains("that directory has no config.json. Give"));

    let file = dir.join("weights.v1.gguf");
    std::fs::write(&file, b"").expect("write it");
    assert!(sentence(text).contains(&format!("no config.json, but {}", file.display())));
    let found = ModelRef::parse(file.to_str().expect("UTF-8")).expect("a file");
    assert_eq!(found, ModelRef::Files(ModelFiles::Gguf(file.clone())));
    assert_eq!(ModelFiles::Gguf(file).name(), "weights.v1");
    let cached = keep.path().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert_eq!(ModelFiles::Gguf(cached).name(), "SmolLM2-135M-Instruct");

    std::fs::write(dir.join("config.json"), b"{}").expect("write it");
    let found = ModelRef::parse(text).expect("a directory");
    assert_eq!(found, ModelRef::Files(ModelFiles::Directory(dir.clone())));
    assert_eq!(ModelFiles::Directory(dir.join(".")).name(), "my-model");

    let shard = dir.join("model.safetensors");
    std::fs::write(&shard, b"").expect("write it");
    assert!(sentence(shard.to_str().expect("UTF-8")).contains("the directory that the file lies"));
    let other = dir.join("config.json");
    assert!(sentence(other.to_str().expect("UTF-8")).contains("does not end in .gguf"));
    assert_eq!(
        sentence("no-such-model"),
        "there is no model `no-such-model`: no file or directory of that name exists. Give a \
         known name (SmolLM2-135M-Instruct), a directory with config.json and safetensors, a .gguf \
         file, or ORG/NAME of a model that was downloaded from Hugging Face"
    );
}

#[test]
fn models_of_the_hub_are_found_in_its_cache() {
    let keep = TempDir::new().expect("a temporary directory");
    let (cache, commit) = (keep.path(), "8f3ac1");
    let find = |given: &str| ModelRef::parse_with(given, Some(cache.to_owned()));
    let sentence = |given: &str| find(given).expect_err(given).to_string();
    assert!(sentence("org/name").contains("`hf download org/name` fetches it"));

    let repository = cache.join("models--org--name");
    let snapshot = repository.join("snapshots").join(commit);
    std::fs::create_dir_all(repository.join("refs/pr")).expect("create it");
    assert!(sentence("org/name").contains("has no revision main"));
    std::fs::create_dir_all(&snapshot).expect("create it");
    std::fs::write(repository.join("refs/main"), commit).expect("write it");
    std::fs::write(repository.join("refs/pr/1"), format!("{commit}\n")).expect("write it");
    assert!(sentence("org/name").contains("neither config.json nor a .gguf file"));
    assert!(sentence("org/name@v2").contains("--revision v2` fetches it"));

    let file = |name: &str| {
        std::fs::write(snapshot.join(name), b"{}").expect("write it");
        ModelRef::Files(ModelFiles::Gguf(snapshot.join(name)))
    };
    let four = file("name-Q4_K_M.gguf");
    assert_eq!(find("org/name").expect("the only file"), four);
    let eight = file("name-Q8_0.gguf");
    assert!(sentence("org/name").contains("There are: name-Q4_K_M.gguf, name-Q8_0.gguf"));
    assert!(sentence("org/name:Q2_K").contains("none of its files is Q2_K"));
    assert_eq!(find("org/name:q8_0").expect("that file"), eight);

    file("config.json");
    let directory = ModelFiles::Directory(snapshot.clone());
    for given in [
        "org/name",
        "org/name@main",
        "org/name@pr/1",
        "org/name@8f3ac1",
    ] {
        assert_eq!(
            find(given).expect(given),
            ModelRef::Files(directory.clone())
        );
    }
    assert_eq!(directory.name(), "org/name");
    assert_eq!(find("org/name:Q4_K_M").expect("that file"), four);
}

#[test]
fn a_known_model_needs_somewhere_to_keep_it_and_files_do_not() {
    let error = ModelRef::Known(DEFAULT_MODEL)
        .files(None)
        .expect_err("nowhere to keep it");
    assert!(
        error.to_string().contains("set HOME or XDG_CACHE_HOME"),
        "{error}"
    );
    let files = ModelFiles::Gguf("x.gguf".into());
    assert_eq!(
        ModelRef::Files(files.clone()).files(None).expect("files"),
        files
    );
}

/// A link to itself stands for all that is there and cannot be looked at: no right helps here.
#[cfg(unix)]
#[test]
fn what_cannot_be_looked_at_is_not_called_absent() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    let keep = TempDir::new().expect("a temporary directory");
    let dir = keep.path().join("my-model");
    std::fs::create_dir(&dir).expect("create it");
    let refused = |path: &std::path::Path| {
        let text = path.to_str().expect("UTF-8");
        ModelRef::parse(text).expect_err(text).to_string()
    };
    let config = dir.join("config.json");
    symlink(&config, &config).expect("a link");
    let sentence = refused(&dir);
    assert!(
        sentence.contains(config.to_str().expect("UTF-8")),
        "{sentence}"
    );
    assert!(
        sentence.contains("symbolic links") && !sentence.contains("has no"),
        "{sentence}"
    );
    let looped = keep.path().join("loop.gguf");
    symlink(&looped, &looped).expect("a link");
    let sentence = refused(&looped);
    assert!(
        sentence.contains("symbolic links") && !sentence.contains("exists"),
        "{sentence}"
    );

    // A directory that may not be read. Whoever may do everything sees that it is empty.
    std::fs::remove_file(&config).expect("remove it");
    let rights = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode));
    rights(0o000).expect("rights");
    let is_readable = dir.read_dir().is_ok();
    let sentence = refused(&dir);
    rights(0o700).expect("rights");
    let words = if is_readable {
        "has no config.json"
    } else {
        "ermission denied"
    };
    assert!(sentence.contains(words), "{sentence}");
}
