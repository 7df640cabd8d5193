//! Safetensors beside a sound configuration: the first byte says of which family, the rest is
//! model.safetensors.

use ebb_models::model::{LoadedModel, ModelFiles};

use super::model;
use crate::scratch::Scratch;
use crate::seeds::tiny_configs;
use crate::sentence::assert_sentence;

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static FOLDERS: Vec<Scratch> = folders());
    let Some((&first, file)) = bytes.split_first() else {
        return;
    };
    FOLDERS.with(|folders| {
        let folder = &folders[usize::from(first) % folders.len()];
        folder.write("model.safetensors", file);
        match LoadedModel::open(&ModelFiles::Directory(folder.path().to_owned())) {
            Ok(opened) => model::read_weights(&opened),
            Err(error) => assert_sentence(&error),
        }
    });
}

fn folders() -> Vec<Scratch> {
    let folder = |(_, config): (&str, serde_json::Value)| {
        let folder = Scratch::new();
        folder.write("config.json", config.to_string().as_bytes());
        folder.write("tokenizer.json", b"{}");
        folder
    };
    tiny_configs().into_iter().map(folder).collect()
}
