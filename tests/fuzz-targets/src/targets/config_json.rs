//! The JSON files of a model directory: the first byte says which, the rest is its content.

use ebb_models::model::{LoadFormat, LoadedModel, ModelFiles};

use super::model;
use crate::scratch::Scratch;
use crate::seeds::tiny_configs;
use crate::sentence::assert_sentence;

/// In the order of the first byte.
pub(crate) const FILES: [&str; 4] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
];

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static FOLDERS: [Scratch; FILES.len()] = FILES.map(folder));
    let Some((&first, file)) = bytes.split_first() else {
        return;
    };
    FOLDERS.with(|folders| {
        let which = usize::from(first) % FILES.len();
        folders[which].write(FILES[which], file);
        let directory = ModelFiles::Directory(folders[which].path().to_owned());
        // Only an index needs weights, and there are none.
        let format = match FILES[which] {
            "model.safetensors.index.json" => LoadFormat::Auto,
            _ => LoadFormat::Dummy,
        };
        match LoadedModel::open_as(&directory, format) {
            Ok(opened) => model::check(&opened),
            Err(error) => assert_sentence(&error),
        }
    });
}

fn folder(_: &str) -> Scratch {
    let folder = Scratch::new();
    let (_, config) = tiny_configs().swap_remove(0);
    folder.write("config.json", config.to_string().as_bytes());
    folder.write("tokenizer.json", b"{}");
    folder
}
