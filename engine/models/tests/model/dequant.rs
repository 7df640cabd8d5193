//! Every tensor type against an independent implementation (`data/gguf_vectors.py`).

use std::collections::BTreeMap;

use ebb_kernels::bf16;
use ebb_models::model::gguf::{GgmlType, dequantize};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    encoded: String,
    bf16: String,
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    let digits = digits.map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    digits
        .map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal"))
        .collect()
}

pub(crate) fn vectors() -> Vec<(GgmlType, Vec<u8>, Vec<bf16>)> {
    let text = include_str!("../data/gguf_vectors.json");
    let vectors: Vectors = serde_json::from_str(text).expect("valid vectors");
    let case = |kind: GgmlType| {
        let case = &vectors.cases[&format!("{kind:?}")];
        let decoded = bytes(&case.bf16);
        let decoded = decoded
            .as_chunks()
            .0
            .iter()
            .map(|word| bf16::from_le_bytes(*word));
        (kind, bytes(&case.encoded), decoded.collect())
    };
    GgmlType::ALL.into_iter().map(case).collect()
}

#[test]
fn every_type_decodes_to_the_reference_bit_by_bit() {
    for (kind, encoded, expected) in vectors() {
        assert!(expected.len() >= 4 * kind.block_elements());
        let mut decoded = vec![bf16::ZERO; expected.len()];
        dequantize(kind, &encoded, &mut decoded);
        let bits = |values: &[bf16]| {
            values
                .iter()
                .map(|value| value.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(&decoded), bits(&expected), "{kind:?}");
    }
}

#[test]
fn many_threads_decode_what_one_does() {
    for (kind, encoded, expected) in vectors() {
        // Enough for every thread, and not a round number of blocks for any.
        let times = (3 << 20) / expected.len() + 1;
        let mut decoded = vec![bf16::ZERO; expected.len() * times];
        dequantize(kind, &encoded.repeat(times), &mut decoded);
        let same = decoded.chunks_exact(expected.len()).all(|chunk| {
            chunk
                .iter()
                .zip(&expected)
                .all(|(ours, theirs)| ours.to_bits() == theirs.to_bits())
        });
        assert!(same, "{kind:?}");
    }
}
