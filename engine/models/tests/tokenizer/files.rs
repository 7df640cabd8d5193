//! Where the tests find models and recorded answers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ebb_models::model::gguf::{GgufFile, GgufTokenizer};
use ebb_models::tokenizer::Tokenizer;
use serde::Deserialize;

/// A text, its tokens, and the text those stand for.
#[derive(Deserialize)]
pub(crate) struct Example {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) decoded: String,
}

/// A file of the repository's recorded answers.
pub(crate) fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The default model's file: `EBB_TEST_MODEL`, or where `ebb` itself caches it.
fn smollm2_path() -> PathBuf {
    const NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
    if let Some(path) = std::env::var_os("EBB_TEST_MODEL") {
        return path.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let path = cache.or(home).unwrap_or_default().join("ebb").join(NAME);
    assert!(
        path.exists(),
        "{} is missing: run `ebb generate --prompt hello` once to fetch it, or set EBB_TEST_MODEL \
         to a copy",
        path.display()
    );
    path
}

pub(crate) fn metadata(path: &Path) -> GgufTokenizer {
    let file = GgufFile::open(path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    GgufTokenizer::from_metadata(file.metadata()).expect("the file describes its tokenizer")
}

/// The default model's tokenizer data, read once.
pub(crate) fn smollm2_metadata() -> &'static GgufTokenizer {
    static METADATA: OnceLock<GgufTokenizer> = OnceLock::new();
    METADATA.get_or_init(|| metadata(&smollm2_path()))
}

/// The default model's tokenizer, built once.
pub(crate) fn smollm2() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let build = || {
        let tokenizer = Tokenizer::from_gguf(smollm2_metadata().clone());
        Arc::new(tokenizer.expect("the default model's vocabulary"))
    };
    Arc::clone(TOKENIZER.get_or_init(build))
}

/// Qwen2.5-Coder's tokenizer data, for the checks that need a file too large for every run.
pub(crate) fn qwen_metadata() -> GgufTokenizer {
    let path = std::env::var_os("EBB_TEST_QWEN_MODEL")
        .expect("EBB_TEST_QWEN_MODEL must be the path of qwen2.5-coder-1.5b-instruct-q4_k_m.gguf");
    metadata(Path::new(&path))
}

/// A byte-level vocabulary without tokens, for tests to fill in.
pub(crate) fn no_tokenizer() -> GgufTokenizer {
    GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: None,
        tokens: Vec::new(),
        scores: None,
        token_types: None,
        merges: None,
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        unknown: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
        chat_template: None,
    }
}
