//! GGUF files damaged at random: whatever still opens can be read, and nothing panics.

use ebb_kernels::bf16;
use ebb_kernels::model::{TensorName, WeightSource};
use ebb_models::model::gguf::{GgufFile, GgufTokenizer, dequantize};
use ebb_models::model::{FileBytes, LoadedModel, ModelFiles};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::gguf_families::tiny_gguf;
use crate::gguf_hostile::small;
use crate::tiny;

/// One way to damage a file.
#[derive(Clone, Debug)]
enum Damage {
    Byte(prop::sample::Index, u8),
    Number(prop::sample::Index, u64),
    Cut(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<prop::sample::Index>;
    let interesting = prop_oneof![
        any::<u64>(),
        0..1000u64,
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 32),
        Just(u64::from(u32::MAX)),
        Just(1_000_000_000),
    ];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        (place(), interesting).prop_map(|(at, number)| Damage::Number(at, number)),
        (place(), 1..40usize).prop_map(|(at, len)| Damage::Cut(at, len)),
        (place(), 1..40usize).prop_map(|(at, len)| Damage::Repeat(at, len)),
    ]
}

fn apply(bytes: &mut Vec<u8>, within: usize, damage: &Damage) {
    let within = within.min(bytes.len());
    if within == 0 {
        return;
    }
    match damage {
        Damage::Byte(at, byte) => bytes[at.index(within)] = *byte,
        Damage::Number(at, number) => {
            let at = at.index(within);
            let len = 8.min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
        }
        Damage::Cut(at, len) => {
            let at = at.index(within);
            bytes.drain(at..(at + len).min(bytes.len()));
        }
        Damage::Repeat(at, len) => {
            let at = at.index(within);
            let part = bytes[at..(at + len).min(bytes.len())].to_vec();
            bytes.splice(at..at, part);
        }
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(20_000))]

    /// Whatever still parses can be read to the end.
    #[test]
    fn a_damaged_file_never_panics(damages in vec(damage(), 1..4)) {
        let mut bytes = small().build();
        let len = bytes.len();
        damages.iter().for_each(|damage| apply(&mut bytes, len, damage));
        if let Ok(file) = GgufFile::parse(FileBytes::from(bytes)) {
            let _ = GgufTokenizer::from_metadata(file.metadata());
            for tensor in file.tensors() {
                let mut out = vec![bf16::ZERO; tensor.elements()];
                dequantize(tensor.kind, file.data(tensor), &mut out);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(600))]

    /// A whole model, damaged in its table of contents, opens and loads or is refused.
    #[test]
    fn a_damaged_model_never_panics(damages in vec(damage(), 1..3)) {
        let mut bytes = tiny_gguf("llama", &tiny::spec(tiny::family("llama"), true)).build();
        // Where the table of contents ends, about.
        damages.iter().for_each(|damage| apply(&mut bytes, 3_000, damage));
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let path = dir.path().join("damaged.gguf");
        std::fs::write(&path, bytes).expect("write the model");
        if let Ok(model) = LoadedModel::open(&ModelFiles::Gguf(path)) {
            for name in TensorName::all(&model.spec) {
                let _ = model.weights().load(name);
            }
        }
    }
}
