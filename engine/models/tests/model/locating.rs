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
         known name (SmolLM2-135M-Instruct), a directory with config.json and safetensors, or a \
         .gguf file"
    );
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
