//! GGUF files that lie or are cut short: refused with a sentence, quickly, in little memory.

use std::time::{Duration, Instant};

use ebb_models::model::FileBytes;
use ebb_models::model::gguf::{GgmlType, GgufFile};

use crate::gguf_builder::{GgufBuilder, Value, texts};

/// A small valid file with every kind of content.
pub(crate) fn small() -> GgufBuilder {
    let mut gguf = GgufBuilder::default();
    gguf.text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", texts(&["a", "b", "ab"]))
        .set("tokenizer.ggml.token_type", Value::I32s(vec![1, 1, 3]))
        .set("tokenizer.ggml.scores", Value::F32s(vec![0.0, -1.0, -2.0]))
        .set("tokenizer.ggml.add_bos_token", Value::Bool(true))
        .u32("tokenizer.ggml.eos_token_id", 2)
        .f32("a.number", 0.5)
        .f32_tensor("f32", &[2, 3], &[1.0; 6])
        .tensor("q8", &[2, 32], GgmlType::Q8_0, vec![1; 68])
        .tensor("q4_k", &[256], GgmlType::Q4_K, vec![1; 144]);
    gguf
}

fn u64s(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// The first tensor, changed, and what the sentence must say.
fn tensor_lies() -> Vec<(&'static str, GgufBuilder, &'static str)> {
    let lie = |change: &dyn Fn(&mut crate::gguf_builder::Tensor)| {
        let mut gguf = small();
        change(&mut gguf.tensors[1]);
        gguf
    };
    vec![
        (
            "a shape whose product overflows",
            lie(&|t| t.shape = vec![1 << 40, 1 << 40]),
            "overflow",
        ),
        (
            "a shape of 2^63",
            lie(&|t| t.shape = vec![1 << 63]),
            "data section",
        ),
        (
            "bytes that overflow",
            lie(&|t| t.shape = vec![u64::MAX - 31]),
            "too many for any file",
        ),
        (
            "a dimension of 0",
            lie(&|t| t.shape = vec![0, 32]),
            "makes its size 0",
        ),
        (
            "no dimensions",
            lie(&|t| t.shape = vec![]),
            "has 0 dimensions",
        ),
        (
            "a billion dimensions",
            lie(&|t| t.shape = vec![1; 1000]),
            "has 1000 dimensions",
        ),
        (
            "half a block",
            lie(&|t| t.shape = vec![4, 16]),
            "not a multiple of 32",
        ),
        (
            "a terabyte",
            lie(&|t| t.shape = vec![1 << 35, 32]),
            "data section",
        ),
        (
            "an offset past the end",
            lie(&|t| t.offset = Some(1 << 40)),
            "data section",
        ),
        (
            "an offset that overflows",
            lie(&|t| t.offset = Some(u64::MAX - 31)),
            "data section",
        ),
        (
            "an unaligned offset",
            lie(&|t| t.offset = Some(33)),
            "not a multiple of 32",
        ),
        (
            "an overlap",
            lie(&|t| t.offset = Some(0)),
            "overlaps tensor",
        ),
        (
            "an unsupported type",
            lie(&|t| t.type_id = 16),
            "has type IQ2_XXS; supported are F32, F16",
        ),
        (
            "an unknown type",
            lie(&|t| t.type_id = 77),
            "number 77, which is unknown",
        ),
        (
            "a repeated name",
            lie(&|t| t.name = "f32".into()),
            "tensor `f32` occurs twice",
        ),
        (
            "an endless name",
            lie(&|t| t.name = "x".repeat(300)),
            "should have 300 bytes",
        ),
    ]
}

/// Everything else that a file can lie about.
fn header_lies() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let with = |key: &str, value: Value| small().set(key, value).build();
    let array = |element: u32, len: u64| {
        let mut bytes = element.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        Value::Raw(9, bytes)
    };
    let counts = |tensors, entries| {
        GgufBuilder {
            tensor_count: tensors,
            entry_count: entries,
            ..small()
        }
        .build()
    };
    let mut big_endian = small().build();
    big_endian[4..8].copy_from_slice(&3u32.to_be_bytes());
    let mut not_utf8 = small().build();
    let key = not_utf8
        .windows(8)
        .position(|w| w == b"a.number")
        .expect("the key is there");
    not_utf8[key] = 0xFF;
    let mut repeated = small();
    repeated.entries.push(("a.number".into(), Value::U32(1)));
    let nested = Value::Raw(9, [9u32.to_le_bytes().to_vec(), u64s(&[1])].concat());
    vec![
        ("an empty file", Vec::new(), "not a GGUF file"),
        (
            "another kind of file",
            b"PK\x03\x04 and so on".to_vec(),
            "not a GGUF file",
        ),
        (
            "version 1",
            GgufBuilder {
                version: 1,
                ..small()
            }
            .build(),
            "GGUF version 1 is not",
        ),
        ("big-endian", big_endian, "little-endian"),
        (
            "10^9 tensors",
            counts(Some(1_000_000_000), None),
            "1000000000 tensors; the most",
        ),
        (
            "2^64 tensors",
            counts(Some(u64::MAX), None),
            "the most accepted is 65536",
        ),
        ("60,000 tensors", counts(Some(60_000), None), "truncated"),
        (
            "10^9 entries",
            counts(None, Some(1_000_000_000)),
            "1000000000 metadata entries",
        ),
        ("60,000 entries", counts(None, Some(60_000)), "truncated"),
        (
            "one tensor too many",
            counts(Some(4), None),
            "has 0 dimensions",
        ),
        (
            "one entry too many",
            counts(None, Some(9)),
            "a tensor name at byte",
        ),
        (
            "an array of 10^9",
            with("k", array(8, 1_000_000_000)),
            "1000000000 array elements",
        ),
        (
            "an array of 2^64",
            with("k", array(0, u64::MAX)),
            "array elements; the most",
        ),
        (
            "an array past the end",
            with("k", array(4, 1_000_000)),
            "truncated",
        ),
        ("a nested array", with("k", nested), "no nested arrays"),
        (
            "an unknown value type",
            with("k", Value::Raw(13, vec![0; 8])),
            "has value type 13",
        ),
        (
            "a text of 2^63",
            with("k", Value::Raw(8, u64s(&[1 << 63]))),
            "the most accepted is",
        ),
        (
            "a text past the end",
            with("k", Value::Raw(8, u64s(&[9_999]))),
            "truncated",
        ),
        (
            "a boolean of 2",
            with("k", Value::Raw(7, vec![2])),
            "is 2, not 0 or 1",
        ),
        ("a key that is not text", not_utf8, "not UTF-8"),
        (
            "a repeated key",
            repeated.build(),
            "metadata key `a.number` occurs twice",
        ),
        (
            "alignment 0",
            with("general.alignment", Value::U32(0)),
            "a power of two",
        ),
        (
            "alignment 2^31",
            with("general.alignment", Value::U32(1 << 31)),
            "a power of two",
        ),
        (
            "alignment 24",
            with("general.alignment", Value::U32(24)),
            "a power of two",
        ),
        (
            "a file cut in the data",
            cut(small().build(), 100),
            "data section",
        ),
    ]
}

fn cut(mut bytes: Vec<u8>, by: usize) -> Vec<u8> {
    bytes.truncate(bytes.len() - by);
    bytes
}

#[test]
fn every_lie_is_refused_quickly_with_a_sentence() {
    small().parse().expect("the file is valid without a lie");
    let tensors = tensor_lies()
        .into_iter()
        .map(|(name, gguf, says)| (name, gguf.build(), says));
    for (name, bytes, says) in header_lies().into_iter().chain(tensors) {
        let start = Instant::now();
        let error = GgufFile::parse(FileBytes::from(bytes))
            .expect_err(name)
            .to_string();
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{name}: {:?}",
            start.elapsed()
        );
        assert!(error.contains(says), "{name}: {error}");
        assert!(error.len() < 250, "{name}: {error}");
    }
}

/// The test above once more, in a process that may not take 200 MB of address space.
#[test]
#[cfg(target_os = "linux")]
fn every_lie_is_refused_in_bounded_memory() {
    let test = std::env::current_exe().expect("the test's own path");
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 200000 && exec \"$0\" \"$@\""])
        .arg(test)
        .args([
            "--exact",
            "gguf_hostile::every_lie_is_refused_quickly_with_a_sentence",
        ])
        .args(["--test-threads", "1"])
        .output()
        .expect("start the test");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

/// Files that are as large as they say, without taking any disk.
#[test]
fn a_huge_sparse_file_is_refused_quickly() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let path = dir.path().join("huge.gguf");
    let refuse = |head: &[u8], says: &str| {
        std::fs::write(&path, head).expect("write the head");
        let file = std::fs::File::options()
            .write(true)
            .open(&path)
            .expect("open it");
        file.set_len(1 << 40).expect("make it a terabyte");
        let start = Instant::now();
        let error = GgufFile::open(&path)
            .expect("map it")
            .expect_err("refuse it")
            .to_string();
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        assert!(error.contains(says), "{error}");
    };
    let head = |tensors: u64, entries: u64| {
        [b"GGUF\x03\0\0\0".as_slice(), &u64s(&[tensors, entries])].concat()
    };
    refuse(&head(1_000_000_000, 0), "1000000000 tensors");
    refuse(&head(0, 1_000_000_000), "1000000000 metadata entries");
    // Zeros: empty keys with values 0, and tensors without dimensions.
    refuse(&head(0, 60_000), "metadata key `` occurs twice");
    refuse(&head(60_000, 0), "has 0 dimensions");
    // Arrays of 16 million empty texts, one after the other: 128 MiB each, as far as it goes.
    let mut arrays = head(0, 3);
    arrays.extend(u64s(&[1]));
    arrays.push(b'a');
    arrays.extend(9u32.to_le_bytes());
    arrays.extend(8u32.to_le_bytes());
    arrays.extend(u64s(&[1 << 24]));
    refuse(&arrays, "metadata key `` occurs twice");
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let whole = small().build();
    GgufFile::parse(FileBytes::from(whole.clone())).expect("the whole file is valid");
    for len in 0..whole.len() {
        let parsed = GgufFile::parse(FileBytes::from(whole[..len].to_vec()));
        assert!(parsed.is_err(), "cut at {len} of {}", whole.len());
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    /// Wherever three tensors lie: one inside another, on top of each other, or side by side.
    #[test]
    fn tensors_share_no_byte(offsets in proptest::collection::vec(0u64..40, 3)) {
        let mut gguf = small();
        let mut ranges = Vec::new();
        for (tensor, place) in gguf.tensors.iter_mut().zip(&offsets) {
            let offset = place * 32;
            ranges.push(offset..offset + tensor.data.len() as u64);
            tensor.offset = Some(offset);
        }
        let share = |i: usize, j: usize| {
            ranges[i].start < ranges[j].end && ranges[j].start < ranges[i].end
        };
        let shared = share(0, 1) || share(0, 2) || share(1, 2);
        // Those that do lie apart need a file that is long enough.
        let mut bytes = gguf.build();
        bytes.resize(bytes.len() + 40 * 32 + 144, 0);
        let parsed = GgufFile::parse(FileBytes::from(bytes));
        match parsed {
            Ok(_) => proptest::prop_assert!(!shared, "{ranges:?}"),
            Err(e) => {
                proptest::prop_assert!(shared, "{ranges:?}: {e}");
                proptest::prop_assert!(e.to_string().contains("overlaps tensor"), "{e}");
            }
        }
    }
}
