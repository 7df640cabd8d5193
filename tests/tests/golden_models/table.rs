//! The table of families in the docs, made from what is tested.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ebb_kernels::model::Feature;
use ebb_models::model::{FAMILIES, LoadedModel, ModelFiles};

use super::{golden, write};

const HEAD: &str = "\
# Model families

`tests/tests/golden_models/table.rs` makes this table; `EBB_WRITE_TABLE=1 cargo test -p ebb-tests
--test golden_models table` writes it. A golden model is a tiny one of random weights with
log-probabilities and greedy tokens of Hugging Face transformers: fed to a device by itself, and
behind the engine in a full batch, with its prompt in chunks, from the prefix cache, and after
preemption. A file that asks for anything that a device does not compute is refused by name.

GGUF files of an architecture that several families have do not tell them apart. Those of `llama` do
not say which layers have windows, so that Mistral and Ministral see everything in them. Of
Ministral 3 (`mistral3`) only the context is served behind which its queries grow. Those of
`granite_swa` have one RoPE base. Those of `lfm2moe`, `olmoe` and `afmoe` do not say how routing
weights or embeddings are scaled: they are, as in the models which were published. Those with
Mamba-2 do not bound time steps, and name a context of 2^20 tokens where there is no RoPE. Bamba's
are of `granitehybrid`, and refused where a part of each head rotates: converters permute rows of
whole heads. Those of `llama4` do not say what all published models have in common: chunks and steps
of growth of 8192 tokens, three layers of four with chunks, and no norms of heads beside 128
experts.

GGUF files of models with recurrent layers or experts, but for Qwen2-MoE and Qwen3-MoE, and of
EXAONE 4, Gemma 4, GLM, Mistral, OLMo 3 and Granite with windows are compared with the Hugging Face
form of the same model, tensor by tensor (`engine/models/tests/model/converted`). Those of Gemma 4
with experts and of Cohere 2 with shared ones are refused.

| Family | Hugging Face class | GGUF | Golden models | Devices |
|---|---|---|---|---|
";

fn golden_names(family: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/models");
    let files = std::fs::read_dir(folder).expect("golden models");
    let names = files.filter_map(|file| {
        let name = file.expect("a file").file_name().into_string().ok()?;
        let name = name.strip_suffix(".json")?.to_owned();
        let is_of_family = name == family || name.starts_with(&format!("{family}__"));
        is_of_family.then_some(name)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The devices that compute a golden model.
fn devices(name: &str) -> &'static str {
    let dir = tempfile::tempdir().expect("a directory");
    write(&golden(name), dir.path());
    let files = ModelFiles::Directory(dir.path().to_owned());
    let spec = LoadedModel::open(&files).expect("a valid checkpoint").spec;
    match spec.refuse_beyond("a GPU", &Feature::ON_GPU) {
        Ok(()) => "CPU, GPU",
        Err(_) => "CPU",
    }
}

#[test]
fn table_of_families() {
    let mut table = HEAD.to_owned();
    for family in FAMILIES {
        let names = golden_names(family.name);
        let of_all: Vec<_> = names.iter().map(|name| devices(name)).collect();
        let first = *of_all.first().expect("every family has a golden model");
        let on = match of_all.iter().all(|devices| *devices == first) {
            true => first,
            false => "CPU, some on a GPU",
        };
        writeln!(
            table,
            "| `{}` | {} | {} | {} | {} |",
            family.name,
            family.hf_class,
            match family.gguf_architectures().join(", ") {
                none if none.is_empty() => "\u{2013}".to_owned(),
                architectures => architectures,
            },
            names.join(", "),
            on
        )
        .expect("a text takes more");
    }
    let path: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "..",
        "engine",
        "models",
        "FAMILIES.md",
    ]
    .iter()
    .collect();
    if std::env::var_os("EBB_WRITE_TABLE").is_some() {
        std::fs::write(&path, &table).expect("it is written");
    }
    let written = std::fs::read_to_string(&path).expect("the table");
    assert_eq!(
        written, table,
        "write it anew: EBB_WRITE_TABLE=1 cargo test ..."
    );
}
