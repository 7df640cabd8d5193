//! Checkpoints that also read images: their language model is served, wherever it lies.

use ebb_kernels::model::ModelSpec;
use ebb_models::model::Family;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::{HfBuilder, Stored};
use crate::tiny;

/// A checkpoint of class `outer` whose text part is a tiny model of `family`: its configuration is
/// nested, its tensors lie below `model` and `head`, and others lie beside them.
fn with_images(family: &Family, spec: &ModelSpec, outer: &str, place: [&str; 2]) -> HfBuilder {
    let [model, head] = place;
    let mut files = HfBuilder::new(family, spec, Dtype::BF16);
    let mut text = files.config.take();
    let (tied, ends) = (
        text["tie_word_embeddings"].take(),
        text["eos_token_id"].take(),
    );
    let fields = text.as_object_mut().expect("an object");
    fields.retain(|_, value| !value.is_null());
    fields.remove("architectures");
    files.config = json!({
        "architectures": [format!("{outer}ForConditionalGeneration")],
        "model_type": outer.to_lowercase(),
        "text_config": text,
        "vision_config": {"hidden_size": 32, "model_type": "vision"},
        "image_token_id": 5,
        "tie_word_embeddings": tied,
        "eos_token_id": ends,
    });
    for Stored(name, ..) in &mut files.tensors {
        let below = |from: &str, to: &str| Some(format!("{to}{}", name.strip_prefix(from)?));
        *name = below("model.", model)
            .or_else(|| below("lm_head.", head))
            .expect("a prefix");
    }
    for other in ["visual.norm.weight", "multi_modal_projector.linear_1.bias"] {
        let bytes = vec![0; 8];
        files
            .tensors
            .push(Stored(other.to_owned(), Dtype::F32, vec![2], bytes));
    }
    files
}

/// Where transformers has put language models, with a class that did.
const PLACES: [(&str, [&str; 2]); 4] = [
    ("Qwen3VL", ["model.language_model.", "lm_head."]),
    (
        "Llava",
        ["language_model.model.", "language_model.lm_head."],
    ),
    ("SmolVLM", ["model.text_model.", "lm_head."]),
    ("Qwen2VL", ["model.", "lm_head."]),
];

#[test]
fn the_language_model_is_found_wherever_it_lies() {
    for name in ["llama", "mistral", "qwen2", "qwen3"] {
        let family = tiny::family(name);
        for (outer, place) in PLACES {
            for tied in [false, true] {
                let spec = tiny::spec(family, tied);
                let model = with_images(family, &spec, outer, place).open();
                let model = model.unwrap_or_else(|e| panic!("{outer} of {name}: {e}"));
                assert_eq!(model.family, family, "{outer}");
                tiny::assert_weights(&model, &spec);
                assert_eq!(model.end_ids, [2], "{outer}");
                let told = model.notes.iter().any(|note| note.contains("images"));
                assert!(told, "{:?}", model.notes);
            }
        }
    }
}

#[test]
fn text_types_of_their_own_are_the_family_whose_layers_they_have() {
    for (name, types) in [
        (
            "qwen2",
            &["qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl"][..],
        ),
        ("qwen3_vl_text", &["qwen3_vl_text"]),
    ] {
        let family = tiny::family(name);
        let spec = tiny::spec(family, true);
        for text_type in types {
            let (outer, place) = PLACES[0];
            let mut files = with_images(family, &spec, outer, place);
            let text = &mut files.config["text_config"];
            text["model_type"] = json!(text_type);
            // Three positions of each token, all the same in a text.
            text["rope_scaling"] = json!({"rope_type": "default", "mrope_section": [2, 1, 1]});
            let model = files.open().expect("a valid model");
            assert_eq!(model.family, family, "{text_type}");
            tiny::assert_weights(&model, &spec);
            assert_eq!(model.notes.len(), 1, "{:?}", model.notes);
        }
    }
}

#[test]
fn a_configuration_that_is_not_nested_needs_its_other_part() {
    let family = tiny::family("qwen2");
    let spec = tiny::spec(family, false);
    let mut files = HfBuilder::new(family, &spec, Dtype::BF16);
    files.config["architectures"] = json!(["Qwen2VLForConditionalGeneration"]);
    files.config["model_type"] = json!("qwen2_vl");
    files.config["rope_scaling"] = json!({"type": "mrope", "mrope_section": [2, 1, 1]});
    let (_, refused) = files.refusal();
    assert!(
        refused.starts_with("`model_type` is \"qwen2_vl\""),
        "{refused}"
    );
    files.config["vision_config"] = json!({"depth": 2});
    tiny::assert_weights(&files.open().expect("a valid model"), &spec);
}

#[test]
fn what_a_nested_configuration_leaves_out_is_the_classes_default() {
    let family = tiny::family("llama");
    let spec = tiny::spec(family, false);
    let (outer, place) = PLACES[1];
    let mut files = with_images(family, &spec, outer, place);
    let text = files.config["text_config"].as_object_mut();
    // As in LLaVA 1.5, whose text part is a Llama of 7B.
    let text = text.expect("an object");
    text.retain(|key, _| ["model_type", "rms_norm_eps"].contains(&key.as_str()));
    text.insert("vocab_size".to_owned(), json!(32064));
    // The tiny tensors are not of that size, which shows which size was read.
    let (_, refused) = files.refusal();
    assert!(refused.contains("[32064, 4096]"), "{refused}");
    // `null` is no default.
    files.config["text_config"]["hidden_size"] = Value::Null;
    let (_, refused) = files.refusal();
    assert!(refused.contains("text_config.hidden_size"), "{refused}");
}

#[test]
fn a_checkpoint_without_a_projection_is_tied_where_either_place_says_so() {
    let family = tiny::family("qwen2");
    let spec = tiny::spec(family, true);
    let (outer, place) = PLACES[1];
    let mut files = with_images(family, &spec, outer, place);
    // As in LLaVA-OneVision.
    files.config["tie_word_embeddings"] = json!(false);
    files.config["text_config"]["tie_word_embeddings"] = json!(true);
    tiny::assert_weights(&files.open().expect("a valid model"), &spec);
    // Where neither does, it is missing.
    files.config["text_config"]["tie_word_embeddings"] = json!(false);
    let (_, refused) = files.refusal();
    assert!(
        refused.contains("language_model.lm_head.weight"),
        "{refused}"
    );
    // Where there is one, the whole decides.
    let untied = tiny::spec(family, false);
    let mut files = with_images(family, &untied, outer, place);
    files.config["text_config"]["tie_word_embeddings"] = json!(true);
    tiny::assert_weights(&files.open().expect("a valid model"), &untied);
}

#[test]
fn rerankers_and_embedders_are_refused() {
    let family = tiny::family("qwen2");
    let spec = tiny::spec(family, true);
    for (outer, place) in PLACES {
        let mut files = with_images(family, &spec, outer, place);
        files.config["architectures"] = json!(["JinaVLForRanking"]);
        let (_, refused) = files.refusal();
        assert!(refused.contains("JinaVLForRanking"), "{refused}");
    }
}

#[test]
fn a_prompt_that_sees_what_follows_is_refused() {
    let family = tiny::family("gemma");
    let spec = tiny::spec(family, true);
    let files = with_images(family, &spec, "PaliGemma", PLACES[1].1);
    let (_, sentence) = files.refusal();
    assert!(
        sentence.starts_with("`model_type` is \"paligemma\""),
        "{sentence}"
    );
}

#[test]
fn an_unknown_text_part_is_refused_by_name() {
    let family = tiny::family("llama");
    let spec = tiny::spec(family, true);
    let (outer, place) = PLACES[1];
    let mut files = with_images(family, &spec, outer, place);
    files.config["text_config"]["model_type"] = json!("opt");
    let (file, refused) = files.refusal();
    assert_eq!(file, "config.json");
    let expected = "`text_config.model_type` is \"opt\"";
    assert!(refused.starts_with(expected), "{refused}");
    // Without one, nothing beside the layers is expected.
    let mut files = HfBuilder::new(family, &spec, Dtype::BF16);
    let other = "visual.norm.weight".to_owned();
    files
        .tensors
        .push(Stored(other, Dtype::F32, vec![2], vec![0; 8]));
    let (_, refused) = files.refusal();
    assert!(refused.contains("visual.norm.weight"), "{refused}");
}
