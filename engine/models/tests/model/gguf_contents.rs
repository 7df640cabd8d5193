//! The table of contents of right files: metadata getters, tokenizer data, tensor table.

use ebb_models::model::gguf::{GgmlType, GgufError, GgufTokenizer, TokenType};

use crate::gguf_builder::{GgufBuilder, Value, texts};

fn with_tokenizer() -> GgufBuilder {
    let mut gguf = GgufBuilder::default();
    gguf.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .set(
            "tokenizer.ggml.tokens",
            texts(&["<|endoftext|>", "<|im_end|>", "a", "b", "ab"]),
        )
        .set(
            "tokenizer.ggml.token_type",
            Value::I32s(vec![3, 3, 1, 1, 4]),
        )
        .set("tokenizer.ggml.merges", texts(&["a b"]))
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1)
        .set("tokenizer.ggml.add_bos_token", Value::Bool(false))
        .text("tokenizer.chat_template", "{{ messages }}");
    gguf
}

#[test]
fn getters_give_values_and_name_the_key_that_has_another_type() {
    let mut gguf = GgufBuilder::default();
    gguf.u32("count", 7)
        .set("negative", Value::I32(-1))
        .f32("ratio", 0.5)
        .f32("nan", f32::NAN)
        .set("flag", Value::Bool(true))
        .text("name", "x")
        .set("scores", Value::F32s(vec![1.0, -2.5]))
        .set("mixed", Value::I32s(vec![1, 2]));
    let file = gguf.parse().expect("a valid file");
    let metadata = file.metadata();
    assert_eq!(metadata.u32("count"), Ok(Some(7)));
    assert_eq!(metadata.f32("count"), Ok(Some(7.0)));
    assert_eq!(metadata.f32("ratio"), Ok(Some(0.5)));
    assert_eq!(metadata.bool("flag"), Ok(Some(true)));
    assert_eq!(metadata.text("name"), Ok(Some("x")));
    assert_eq!(metadata.f32s("scores"), Ok(Some(vec![1.0, -2.5])));
    assert_eq!(metadata.i32s("mixed"), Ok(Some(vec![1, 2])));
    assert_eq!(metadata.text("absent"), Ok(None));

    let message = |error: GgufError| error.to_string();
    assert_eq!(
        metadata.u32("negative").map_err(message),
        Err("metadata `negative` is -1; expected an integer from 0 to 4294967295".to_owned())
    );
    assert!(metadata.f32("nan").is_err());
    assert_eq!(
        metadata.texts("mixed").map_err(message),
        Err(
            "metadata `mixed` is an array whose element 0 is 1; expected an array of texts"
                .to_owned()
        )
    );
    assert_eq!(
        metadata.bool("name").map_err(message),
        Err("metadata `name` is \"x\"; expected true or false".to_owned())
    );
}

#[test]
fn the_tokenizer_keys_come_out_as_data() {
    let file = with_tokenizer().parse().expect("a valid file");
    let tokenizer = GgufTokenizer::from_metadata(file.metadata()).expect("a valid tokenizer");
    let owned = |list: &[&str]| {
        list.iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        tokenizer,
        GgufTokenizer {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            tokens: owned(&["<|endoftext|>", "<|im_end|>", "a", "b", "ab"]),
            scores: None,
            token_types: Some(vec![
                TokenType::Control,
                TokenType::Control,
                TokenType::Normal,
                TokenType::Normal,
                TokenType::UserDefined,
            ]),
            merges: Some(owned(&["a b"])),
            bos: Some(0),
            eos: Some(1),
            eot: None,
            eom: None,
            unknown: None,
            add_bos: Some(false),
            add_eos: None,
            add_space_prefix: None,
            chat_template: Some("{{ messages }}".to_owned()),
        }
    );
    assert_eq!(
        tokenizer.end_ids(),
        [0, 1],
        "`<|endoftext|>` ends a turn although eos is 1"
    );
}

#[test]
fn a_message_of_gpt_oss_ends_no_turn() {
    let end_ids = |tokens: &[&str]| {
        let mut gguf = with_tokenizer();
        gguf.set("tokenizer.ggml.tokens", texts(tokens))
            .set(
                "tokenizer.ggml.token_type",
                Value::I32s(vec![3; tokens.len()]),
            )
            .u32("tokenizer.ggml.eos_token_id", 0);
        let file = gguf.parse().expect("a valid file");
        let tokenizer = GgufTokenizer::from_metadata(file.metadata());
        tokenizer.expect("a valid tokenizer").end_ids()
    };
    assert_eq!(end_ids(&["</s>", "<|end|>", "<|assistant|>"]), [0, 1]);
    let harmony = ["<|return|>", "<|end|>", "<|call|>", "<|channel|>"];
    assert_eq!(end_ids(&harmony), [0, 2]);
}

#[test]
fn a_tokenizer_that_contradicts_itself_is_refused_by_key() {
    let refused = |key: &str, value: Value| {
        let file = with_tokenizer()
            .set(key, value)
            .parse()
            .expect("a valid file");
        let error = GgufTokenizer::from_metadata(file.metadata())
            .expect_err(key)
            .to_string();
        assert!(error.contains(&format!("`{key}`")), "{error}");
    };
    refused("tokenizer.ggml.eos_token_id", Value::U32(5));
    refused("tokenizer.ggml.token_type", Value::I32s(vec![1; 4]));
    refused(
        "tokenizer.ggml.token_type",
        Value::I32s(vec![1, 1, 1, 1, 9]),
    );
    refused("tokenizer.ggml.scores", Value::F32s(vec![0.0; 6]));
    refused("tokenizer.ggml.tokens", texts(&[]));
    refused("tokenizer.ggml.model", Value::U32(1));

    let file = with_tokenizer()
        .remove("tokenizer.ggml.tokens")
        .parse()
        .expect("a valid file");
    assert_eq!(
        GgufTokenizer::from_metadata(file.metadata())
            .unwrap_err()
            .to_string(),
        "metadata `tokenizer.ggml.tokens` is missing; the tokenizer needs it"
    );
}

#[test]
fn tensors_have_row_major_shapes_and_their_own_bytes() {
    let mut gguf = GgufBuilder::default();
    gguf.f32_tensor("matrix", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .tensor("codes", &[1, 32], GgmlType::Q8_0, (0..34).collect());
    let file = gguf.parse().expect("a valid file");
    let matrix = file.tensor("matrix").expect("it is there");
    assert_eq!(
        (matrix.shape.as_slice(), matrix.kind),
        (&[2, 3][..], GgmlType::F32)
    );
    assert_eq!(file.data(matrix)[..8], [0, 0, 128, 63, 0, 0, 0, 64]);
    let codes = file.tensor("codes").expect("it is there");
    assert_eq!(file.data(codes), (0..34).collect::<Vec<u8>>());
    assert_eq!(file.tensor("absent"), None);
}

#[test]
fn another_alignment_is_respected() {
    let mut gguf = GgufBuilder {
        alignment: 128,
        ..GgufBuilder::default()
    };
    gguf.u32("general.alignment", 128)
        .f32_tensor("a", &[1], &[1.5])
        .f32_tensor("b", &[1], &[2.5]);
    let file = gguf.parse().expect("a valid file");
    let data = |name| file.data(file.tensor(name).expect("it is there")).to_vec();
    assert_eq!(data("a"), 1.5f32.to_le_bytes());
    assert_eq!(data("b"), 2.5f32.to_le_bytes());
}
