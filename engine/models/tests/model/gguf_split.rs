//! GGUF models in several files, as llama.cpp's `gguf-split` writes them.

use std::path::{Path, PathBuf};

use ebb_models::model::{LoadedModel, ModelFiles};
use tempfile::TempDir;

use crate::gguf_builder::{GgufBuilder, Value};
use crate::gguf_families::tiny_gguf;
use crate::tiny;

/// A model in three parts, the first of which holds metadata alone.
fn parts() -> Vec<GgufBuilder> {
    let whole = tiny_gguf("llama", &tiny::spec(tiny::family("llama"), true));
    let total = whole.tensors.len();
    let mut parts = vec![GgufBuilder::default(); 3];
    parts[0].entries.clone_from(&whole.entries);
    let half = whole.tensors.len() / 2;
    parts[1].tensors = whole.tensors[..half].to_vec();
    parts[2].tensors = whole.tensors[half..].to_vec();
    for (i, part) in parts.iter_mut().enumerate() {
        let short = |value: usize| Value::Raw(2, (value as u16).to_le_bytes().to_vec());
        part.set("split.no", short(i));
        part.set("split.count", short(3));
        part.set("split.tensors.count", Value::I32(total as i32));
    }
    parts
}

fn name(part: usize) -> String {
    format!("tiny-Q8_0-{:05}-of-00003.gguf", part + 1)
}

fn write(dir: &Path, parts: &[GgufBuilder]) -> Vec<PathBuf> {
    let write = |(i, part): (usize, &GgufBuilder)| {
        let path = dir.join(name(i));
        std::fs::write(&path, part.build()).expect("write it");
        path
    };
    parts.iter().enumerate().map(write).collect()
}

fn refusal(change: impl FnOnce(&mut Vec<GgufBuilder>)) -> String {
    let dir = TempDir::new().expect("a temporary directory");
    let mut parts = parts();
    change(&mut parts);
    let paths = write(dir.path(), &parts);
    let opened = LoadedModel::open(&ModelFiles::Gguf(paths[0].clone()));
    opened.expect_err("should be refused").to_string()
}

#[test]
fn any_part_opens_all_of_them() {
    let dir = TempDir::new().expect("a temporary directory");
    let paths = write(dir.path(), &parts());
    let spec = tiny::spec(tiny::family("llama"), true);
    let open = |path: &PathBuf| {
        let files = ModelFiles::Gguf(path.clone());
        assert_eq!(files.name(), "tiny-Q8_0");
        LoadedModel::open(&files).expect("it opens")
    };
    let models: Vec<LoadedModel> = paths.iter().map(open).collect();
    for model in &models {
        tiny::assert_weights(model, &spec);
        assert_eq!(model.identity(), models[0].identity());
        assert_eq!(model.weights_sha256(), models[0].weights_sha256());
    }
    // Every byte of every part counts.
    let before = models[0].identity();
    let mut bytes = std::fs::read(&paths[2]).expect("read it");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::remove_file(&paths[2]).expect("remove it");
    std::fs::write(&paths[2], bytes).expect("write it");
    let after = open(&paths[0]).identity();
    assert_eq!(after.config, before.config);
    assert_ne!(after.weights, before.weights);
}

#[test]
fn parts_that_do_not_make_one_file_are_named() {
    let dir = TempDir::new().expect("a temporary directory");
    let paths = write(dir.path(), &parts());
    std::fs::remove_file(&paths[1]).expect("remove it");
    for path in [&paths[0], &paths[2]] {
        let opened = LoadedModel::open(&ModelFiles::Gguf(path.clone()));
        let sentence = opened.expect_err("incomplete").to_string();
        let expected = format!("its part {} is missing; download all 3", name(1));
        assert!(sentence.contains(&expected), "{sentence}");
    }
    // Under a name of its own a part cannot find the others.
    let alone = dir.path().join("tiny.gguf");
    std::fs::rename(&paths[0], &alone).expect("rename it");
    let opened = LoadedModel::open(&ModelFiles::Gguf(alone));
    let sentence = opened.expect_err("alone").to_string();
    assert!(
        sentence.contains("does not end in -00001-of-00003.gguf"),
        "{sentence}"
    );

    let is = |sentence: String, part: &str| assert!(sentence.contains(part), "{sentence}");
    let of_second = |change: &dyn Fn(&mut GgufBuilder)| refusal(|parts| change(&mut parts[1]));
    is(
        refusal(|parts| parts.swap(1, 2)),
        "`split.no` of its part 2 is 2 instead of 1",
    );
    is(
        of_second(&|part| {
            part.u32("split.count", 4);
        }),
        "`split.count` of its part 2 is 4 instead of 3",
    );
    is(
        of_second(&|part| {
            part.remove("split.count");
        }),
        "`split.count` of its part 2 is 1 instead of 3",
    );
    is(
        of_second(&|part| {
            part.u32("split.tensors.count", 7);
        }),
        "`split.tensors.count` of its part 2 is 7 instead of",
    );
    is(
        of_second(&|part| drop(part.tensors.pop())),
        "`split.tensors.count` of its part 1 is",
    );
    is(
        of_second(&|part| part.version = 1),
        "its part tiny-Q8_0-00002-of-00003.gguf: GGUF version 1 is not supported",
    );
    is(
        refusal(|parts| {
            let twice = parts[1].tensors[0].clone();
            parts[2].tensors[0] = twice;
        }),
        "occurs twice",
    );
    is(
        refusal(|parts| {
            parts[0].u32("split.count", u32::MAX);
        }),
        "it is one of 4294967295 parts",
    );
    is(
        refusal(|parts| {
            parts[0].u32("split.count", 2);
        }),
        "it is one of 2 parts, and its name does not end in",
    );
}

#[test]
fn one_part_of_one_is_a_file() {
    let dir = TempDir::new().expect("a temporary directory");
    let spec = tiny::spec(tiny::family("llama"), true);
    let mut whole = tiny_gguf("llama", &spec);
    let path = dir.path().join("x-00001-of-00001.gguf");
    for count in [None, Some(0), Some(1)] {
        if let Some(count) = count {
            whole.u32("split.count", count);
        }
        std::fs::write(&path, whole.build()).expect("write it");
        let model = LoadedModel::open(&ModelFiles::Gguf(path.clone())).expect("it opens");
        tiny::assert_weights(&model, &spec);
        std::fs::remove_file(&path).expect("remove it");
    }
}
