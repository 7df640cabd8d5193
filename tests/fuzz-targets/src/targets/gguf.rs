//! A GGUF file: its table of contents, configuration, weights, tokenizer and chat template.

use std::cell::Cell;
use std::path::Path;

use ebb_models::model::gguf::GgufTokenizer;
use ebb_models::model::{LoadedModel, ModelFiles, TokenizerSource};
use ebb_models::tokenizer::Tokenizer;

use super::{model, template, tokenizer_json};
use crate::known_stack::on_known_stack;
use crate::panics;
use crate::scratch::Scratch;
use crate::sentence::assert_sentence;

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static FOLDER: Scratch = Scratch::new());
    let path = FOLDER.with(|folder| folder.write("model.gguf", bytes));
    on_known_stack(move || panics::that_are_caught(|| check(&path)));
}

fn check(path: &Path) {
    let opened = match LoadedModel::open(&ModelFiles::Gguf(path.to_owned())) {
        Ok(model) => model,
        Err(error) => return assert_sentence(&error),
    };
    model::read_weights(&opened);
    let TokenizerSource::Gguf(vocab) = &opened.tokenizer else {
        panic!("a GGUF file has its tokenizer in itself");
    };
    // Most changes concern something else, and building a tokenizer takes long.
    thread_local!(static LAST: Cell<Option<GgufTokenizer>> = const { Cell::new(None) });
    if LAST.replace(Some(vocab.clone())).as_ref() == Some(vocab) {
        return;
    }
    if let Some(source) = &vocab.chat_template {
        template::check(source);
    }
    match Tokenizer::from_gguf(vocab.clone()) {
        Ok(tokenizer) => {
            assert!(tokenizer.vocab_size() <= opened.spec.vocab);
            tokenizer_json::use_it(&tokenizer);
        }
        Err(error) => assert_sentence(&error),
    }
}
