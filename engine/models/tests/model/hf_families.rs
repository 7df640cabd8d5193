//! Tiny Hugging Face directories of every family: shapes, weights, shards, and the files around.

use ebb_kernels::model::{Activation, AttentionSpec};
use ebb_models::model::{GenerationDefaults, TokenizerSource};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::{HfBuilder, Stored};
use crate::tiny;

const FAMILIES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

fn llama() -> HfBuilder {
    HfBuilder::new(
        tiny::family("llama"),
        &tiny::spec(tiny::family("llama"), true),
        Dtype::BF16,
    )
}

#[test]
fn every_family_gives_its_shapes_and_weights() {
    for family in FAMILIES.map(tiny::family) {
        for tied in [false, true] {
            let spec = tiny::spec(family, tied);
            let model = HfBuilder::new(family, &spec, Dtype::BF16)
                .open()
                .expect("a valid model");
            assert_eq!((model.family, model.name.as_str()), (family, "tiny"));
            tiny::assert_weights(&model, &spec);
            assert_eq!(model.end_ids, [2]);
            assert!((model.spec.ropes[0].inv_freq[4] - 0.01).abs() < 1e-9);
        }
    }
}

#[test]
fn every_type_and_any_number_of_shards_gives_the_same_weights() {
    let spec = tiny::spec(tiny::family("qwen2"), false);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for shards in [1, 3] {
            let mut files = HfBuilder::new(tiny::family("qwen2"), &spec, dtype);
            files.shards = shards;
            tiny::assert_weights(&files.open().expect("a valid model"), &spec);
        }
    }
}

#[test]
fn the_head_dimension_follows_from_the_width_unless_given() {
    let mut spec = tiny::spec(tiny::family("llama"), true);
    for layer in &mut spec.layers {
        *layer.attention_mut() = AttentionSpec::new(4, 2, 8);
    }
    let mut files = HfBuilder::new(tiny::family("llama"), &spec, Dtype::BF16);
    files.config["head_dim"] = Value::Null;
    tiny::assert_weights(&files.open().expect("a valid model"), &spec);
}

#[test]
fn a_stored_output_projection_is_superfluous_when_tied_and_so_are_rope_frequencies() {
    let mut files = llama();
    let embedding = files.tensors[0].clone();
    files.tensors.push(Stored(
        "lm_head.weight".into(),
        embedding.1,
        embedding.2,
        embedding.3,
    ));
    let inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq".into();
    files
        .tensors
        .push(Stored(inv_freq, Dtype::F32, vec![8], vec![0; 32]));
    tiny::assert_weights(
        &files.open().expect("a valid model"),
        &tiny::spec(tiny::family("llama"), true),
    );
}

#[test]
fn generation_config_gives_ends_and_defaults() {
    let mut files = llama();
    files.file(
        "generation_config.json",
        &json!({
            "eos_token_id": [5, 2, 7], "do_sample": true, "temperature": 0.7, "top_p": 0.8,
            "top_k": 20, "repetition_penalty": 1.05, "transformers_version": "4.37.0",
        })
        .to_string(),
    );
    let model = files.open().expect("a valid model");
    assert_eq!(model.end_ids, [2, 5, 7]);
    let expected = GenerationDefaults {
        temperature: Some(0.7),
        top_k: Some(20),
        top_p: Some(0.8),
        min_p: None,
        repetition_penalty: Some(1.05),
    };
    assert_eq!(model.generation, expected);

    files.file(
        "generation_config.json",
        r#"{"do_sample": false, "temperature": 0.7}"#,
    );
    let greedy = files.open().expect("a valid model").generation;
    assert_eq!(greedy.temperature, Some(0.0));

    for (field, wrong) in [
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("top_k", json!(2.5)),
        ("min_p", json!("0.1")),
        ("eos_token_id", json!("</s>")),
        ("eos_token_id", json!([1, -2])),
    ] {
        files.file(
            "generation_config.json",
            &json!({ field: wrong }).to_string(),
        );
        let (file, sentence) = files.refusal();
        assert_eq!(file, "generation_config.json");
        assert!(
            sentence.starts_with(&format!("`{field}` is ")),
            "{sentence}"
        );
    }
}

#[test]
fn tokenizer_files_are_found_and_the_template_in_each_of_its_places() {
    let tokenizer = |files: &HfBuilder| match files.open().expect("a valid model").tokenizer {
        TokenizerSource::Hf(tokenizer) => tokenizer,
        other => panic!("{other:?} in a directory"),
    };
    let mut files = llama();
    assert_eq!(tokenizer(&files).chat_template, None);
    files.file(
        "tokenizer_config.json",
        &json!({
            "bos_token": "<s>", "eos_token": { "content": "</s>", "lstrip": false },
            "unk_token": null, "add_bos_token": true, "chat_template": "one",
        })
        .to_string(),
    );
    let found = tokenizer(&files);
    assert_eq!(found.bos_token.as_deref(), Some("<s>"));
    assert_eq!(found.eos_token.as_deref(), Some("</s>"));
    assert_eq!(
        (found.unk_token, found.add_bos, found.add_eos),
        (None, Some(true), None)
    );
    assert_eq!(found.chat_template.as_deref(), Some("one"));

    let named = json!([
        { "name": "tool_use", "template": "tools" },
        { "name": "default", "template": "plain" },
    ]);
    files.file(
        "tokenizer_config.json",
        &json!({ "chat_template": named }).to_string(),
    );
    assert_eq!(tokenizer(&files).chat_template.as_deref(), Some("plain"));
    files.file("chat_template.jinja", "own file");
    assert_eq!(tokenizer(&files).chat_template.as_deref(), Some("own file"));
    assert_eq!(
        files
            .open()
            .expect("a valid model")
            .chat_template
            .as_deref(),
        Some("own file")
    );

    let mut without = llama();
    without.files.clear();
    without.file("tokenizer.model", "");
    let (file, sentence) = without.refusal();
    assert_eq!(file, "tiny");
    assert!(
        sentence.starts_with("tokenizer.json is missing (tokenizer.model alone"),
        "{sentence}"
    );
}

#[test]
fn layers_have_the_windows_that_the_configuration_says() {
    let windows = |family, fields: Value| -> Vec<Option<usize>> {
        let mut files = HfBuilder::new(family, &tiny::spec(family, true), Dtype::BF16);
        let fields = fields.as_object().expect("an object").clone();
        files
            .config
            .as_object_mut()
            .expect("an object")
            .extend(fields);
        let model = files.open().expect("a valid model");
        assert_eq!((model.max_context(), model.notes.len()), (512, 0));
        let layers = model.spec.layers.iter();
        layers.map(|layer| layer.attention()?.window).collect()
    };
    let [mistral, qwen2, qwen3] = ["mistral", "qwen2", "qwen3"].map(tiny::family);
    let [smollm3, llama, olmo3] = ["smollm3", "llama", "olmo3"].map(tiny::family);
    let (all, none) = (vec![Some(128); 2], vec![None; 2]);
    for (family, fields, want) in [
        (mistral, json!({ "sliding_window": 128 }), &all),
        (mistral, json!({ "sliding_window": null }), &none),
        (mistral, json!({ "sliding_window": 4096 }), &none),
        (qwen2, json!({ "sliding_window": 128 }), &none),
        (
            qwen2,
            json!({ "sliding_window": 128, "use_sliding_window": false }),
            &none,
        ),
        // The first 28 layers have none, unless told.
        (
            qwen3,
            json!({ "sliding_window": 128, "use_sliding_window": true }),
            &none,
        ),
        (
            qwen3,
            json!({
                "sliding_window": 128, "use_sliding_window": true, "max_window_layers": 0
            }),
            &all,
        ),
        (
            qwen3,
            json!({
                "sliding_window": 128, "use_sliding_window": true, "max_window_layers": 1
            }),
            &vec![None, Some(128)],
        ),
        (
            qwen2,
            json!({
                "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]
            }),
            &vec![Some(128), None],
        ),
        (
            qwen2,
            json!({
                "sliding_window": 128, "use_sliding_window": false,
                "layer_types": ["sliding_attention", "full_attention"]
            }),
            &none,
        ),
        // Layers without RoPE, where they are switched on.
        (
            smollm3,
            json!({ "sliding_window": 128, "no_rope_layers": [1, 0] }),
            &none,
        ),
        (
            smollm3,
            json!({
                "sliding_window": 128, "use_sliding_window": true, "no_rope_layers": [1, 0]
            }),
            &vec![None, Some(128)],
        ),
        // Nothing that transformers reads in these.
        (llama, json!({ "sliding_window": 128 }), &none),
        // Three of four layers, unless told.
        (olmo3, json!({ "sliding_window": 128 }), &all),
    ] {
        assert_eq!(
            &windows(family, fields.clone()),
            want,
            "{} {fields}",
            family.name
        );
    }
}

#[test]
fn layers_with_windows_of_olmo_3_have_a_rope_of_their_own() {
    let kinds = json!(["sliding_attention", "full_attention"]);
    let yarn = json!({
        "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0,
        "original_max_position_embeddings": 64
    });
    let plain = json!({ "rope_type": "default", "rope_theta": 10000.0 });
    let by_kind = json!({ "full_attention": yarn, "sliding_attention": plain });
    for (fields, bases) in [
        // As transformers writes it, and as older files have it.
        (
            json!({ "rope_parameters": by_kind }),
            [500_000f64, 10_000.0],
        ),
        (
            json!({ "rope_theta": 500000.0, "rope_scaling": yarn }),
            [500_000.0; 2],
        ),
        (
            json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 20000.0 } }),
            [20_000.0; 2],
        ),
    ] {
        let family = tiny::family("olmo3");
        let mut files = HfBuilder::new(family, &tiny::spec(family, true), Dtype::BF16);
        let config = files.config.as_object_mut().expect("an object");
        for field in ["rope_theta", "rope_scaling", "rope_parameters"] {
            config.remove(field);
        }
        config.extend(fields.as_object().expect("an object").clone());
        config.extend([
            ("layer_types".to_owned(), kinds.clone()),
            ("sliding_window".to_owned(), json!(96)),
        ]);
        let model = files.open().expect("a valid model");
        let layers = model.spec.layers.iter();
        let ropes: Vec<_> = layers
            .map(|layer| layer.attention().unwrap().rope)
            .collect();
        assert_eq!(ropes, [Some(1), Some(0)]);
        let [full, sliding] = &model.spec.ropes[..] else {
            panic!("two ropes");
        };
        // The second frequency of a plain RoPE is the base to the power of -2 / head size.
        let half = sliding.inv_freq.len();
        let second = bases[1].powf(-1.0 / half as f64) as f32;
        assert!(
            (sliding.inv_freq[1] / second - 1.0).abs() < 1e-6,
            "{fields}"
        );
        let is_scaled = fields.to_string().contains("yarn");
        let last = bases[0].powf(1.0 / half as f64 - 1.0) as f32;
        let factor = if is_scaled { 8.0 } else { 1.0 };
        assert!(
            (full.inv_freq[half - 1] * factor / last - 1.0).abs() < 1e-5,
            "{fields}"
        );
    }
    // Ropes by kind mean nothing to other families.
    let mut files = llama();
    files.config["rope_parameters"] = by_kind;
    assert!(files.refusal().1.contains("rope_type"));
}

/// A tiny model of a family with fields of its own, as transformers writes it.
fn with_fields(name: &str, fields: Value) -> HfBuilder {
    let family = tiny::family(name);
    let mut files = HfBuilder::new(family, &tiny::spec(family, true), Dtype::BF16);
    let config = files.config.as_object_mut().expect("an object");
    config.extend(fields.as_object().expect("an object").clone());
    files
}

#[test]
fn what_a_gemma_leaves_out_is_the_class_default() {
    let mut files = with_fields("gemma2", json!({ "query_pre_attn_scalar": 144 }));
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}_layernorm.weight");
        let norm = files.tensors[1].clone();
        for part in ["pre_feedforward", "post_feedforward"] {
            let mut norm = norm.clone();
            norm.0 = name(part);
            files.tensors.push(norm);
        }
    }
    let config = files.config.as_object_mut().expect("an object");
    config.remove("hidden_act");
    config.remove("tie_word_embeddings");
    let spec = files.open().expect("a valid model").spec;
    assert!(spec.norms.from_one && spec.tied_embeddings);
    // The root of 32 in bf16.
    assert_eq!(spec.embedding_multiplier, 5.65625);
    assert_eq!(spec.logit_soft_cap, Some(30.0));
    let [first, second] = [0, 1].map(|layer| spec.attention(layer));
    assert_eq!((first.scale, first.soft_cap), (1.0 / 12.0, Some(50.0)));
    // A window as long as the context, or longer, is none.
    assert_eq!((first.window, second.window), (None, None));
    assert_eq!(spec.layers[0].activation(), Activation::GeluTanh);
    // Off, where the file says so.
    files.config["attn_logit_softcapping"] = json!(null);
    files.config["final_logit_softcapping"] = json!(null);
    files.config["sliding_window"] = json!(96);
    let spec = files.open().expect("a valid model").spec;
    let caps = (spec.logit_soft_cap, spec.attention(0).soft_cap);
    assert_eq!(caps, (None, None));
    let windows = [0, 1].map(|layer| spec.attention(layer).window);
    assert_eq!(windows, [Some(96), None]);
    // The multiplier of a model of 32 bits is not rounded.
    files.config["torch_dtype"] = json!("float32");
    let spec = files.open().expect("a valid model").spec;
    assert_eq!(spec.embedding_multiplier, 32f32.sqrt());
    files.config["use_bidirectional_attention"] = json!(true);
    assert!(
        files
            .refusal()
            .1
            .starts_with("`use_bidirectional_attention`")
    );
}

#[test]
fn queries_of_ministral_3_grow_beyond_the_original_context() {
    let growth = |fields: Value, context: usize| {
        let mut files = with_fields("ministral3", fields);
        let config = files.config.as_object_mut().expect("an object");
        for field in ["rope_theta", "rope_scaling"] {
            config.remove(field);
        }
        let mut model = files.open().expect("a valid model");
        assert!(model.notes.is_empty(), "{:?}", model.notes);
        model.limit_context(context);
        let growth = model.spec.attention(1).query_growth;
        growth.map(|growth| (growth.beta, growth.interval))
    };
    // As the class has it where the file does not say so.
    assert_eq!(growth(json!({}), 16385), Some((0.1, 16384)));
    assert_eq!(growth(json!({}), 16384), None);
    let yarn = |beta: Value| {
        json!({ "rope_parameters": {
            "rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
            "original_max_position_embeddings": 64, "llama_4_scaling_beta": beta,
            "max_position_embeddings": 1024
        } })
    };
    assert_eq!(growth(yarn(json!(0.5)), 65), Some((0.5, 64)));
    assert_eq!(growth(yarn(json!(null)), 65), None);
    let mut files = with_fields("ministral3", yarn(json!(-1.0)));
    assert!(files.refusal().1.contains("what queries grow by"));
    files.config["rope_parameters"]["original_max_position_embeddings"] = json!(2.5);
    assert!(
        files
            .refusal()
            .1
            .starts_with("`original_max_position_embeddings` is 2.5")
    );
}

#[test]
fn fields_that_ask_for_another_computation_are_refused() {
    for (family, field, value) in [
        ("cohere", "use_qk_norm", json!(true)),
        ("cohere2", "use_qk_norm", json!(true)),
        ("ernie4_5", "use_bias", json!(true)),
        ("ernie4_5", "compression_ratio", json!(2.0)),
        ("gemma", "hidden_act", json!("silu")),
        ("gemma", "use_bidirectional_attention", json!(true)),
        ("apertus", "post_norm", json!(true)),
        ("apertus", "qk_norm", json!(false)),
        ("apertus", "mlp_bias", json!(true)),
        (
            "granitemoehybrid",
            "layer_types",
            json!(["mamba", "sliding_attention"]),
        ),
        ("bamba", "mamba_proj_bias", json!(true)),
        ("bamba", "mamba_d_head", json!(7)),
        ("bamba", "time_step_limit", json!([1.0, 0.5])),
        ("bamba", "time_step_limit", json!([0.1])),
        ("nemotron_h", "moe_latent_size", json!(32)),
        ("nemotron_h", "mlp_hidden_act", json!("silu")),
        ("nemotron_h", "mamba_hidden_act", json!("gelu")),
        ("nemotron_h", "use_bias", json!(true)),
        ("nemotron_h", "mlp_bias", json!(true)),
        ("nemotron_h", "layers_block_type", json!(["moe", "mamba2"])),
        ("nemotron_h", "layers_block_type", Value::Null),
        ("nemotron_h", "hybrid_override_pattern", json!("M*X-")),
        (
            "granitemoehybrid",
            "position_embedding_type",
            json!("alibi"),
        ),
        ("hunyuan_v1_moe", "moe_intermediate_size", json!([64, 32])),
        ("hunyuan_v1_moe", "moe_intermediate_size", json!(32)),
        ("hunyuan_v1_moe", "num_shared_expert", json!([2, 2])),
        ("hunyuan_v1_moe", "moe_layer_num_skipped", json!(1)),
        ("hunyuan_v1_moe", "norm_topk_prob", json!(false)),
        ("hunyuan_v1_moe", "use_mixed_mlp_moe", json!(false)),
        ("hunyuan_v1_moe", "group_limited_greedy", json!(true)),
        ("hunyuan_v1_dense", "use_cla", json!(true)),
        ("hunyuan_v1_dense", "use_qk_norm", json!(false)),
        ("olmo", "clip_qkv", json!(8.0)),
        ("phi", "qk_layernorm", json!(true)),
        ("seed_oss", "mlp_bias", json!(true)),
        ("stablelm", "qk_layernorm", json!(true)),
        ("gemma3_text", "attn_logit_softcapping", json!(50.0)),
        ("gemma3_text", "hidden_activation", json!("relu")),
        ("granite", "mlp_bias", json!(true)),
        ("granite", "logits_scaling", json!(0.0)),
        ("granite", "residual_multiplier", json!(-1.0)),
        ("granite_swa", "layer_rope_theta", json!([10000.0])),
    ] {
        // Mamba-2's heads have to fit the tiny model; Nemotron-H has to say what its layers are.
        let mut fields = json!({ "mamba_n_heads": 8 });
        fields["layers_block_type"] = json!(["full_attention", "moe"]);
        fields[field] = value;
        let (file, sentence) = with_fields(family, fields).refusal();
        assert_eq!(file, "config.json");
        let names = [field, "logit multiplier", "residual multiplier"];
        assert!(
            names.iter().any(|name| sentence.contains(name)),
            "{sentence}"
        );
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let sentence = |field: &str, value: Value| {
        let mut files = llama();
        files.config[field] = value;
        let (file, sentence) = files.refusal();
        assert_eq!(file, "config.json");
        sentence
    };
    assert_eq!(
        sentence("model_type", json!("gpt2")),
        "`model_type` is \"gpt2\", which is not supported; supported: \
         afmoe, apertus, arcee, aria_text, bamba, cohere, cohere2, cohere2_moe, cwm, dots1, \
         ernie4_5, ernie4_5_moe, exaone4, exaone_moe, flex_olmo, gemma, gemma2, gemma3_text, \
         gemma4_text, glm, glm4, glm4_moe, gpt_oss, granite, granite_swa, granitemoe, \
         granitemoe_swa, granitemoehybrid, granitemoeshared, helium, hunyuan_v1_dense, \
         hunyuan_v1_moe, hy_v3, hyperclovax, jais2, laguna, lfm2, lfm2_moe, llama, llama4_text, \
         mellum, minimax_m2, ministral, ministral3, mistral, mixtral, nanochat, nemotron, \
         nemotron_h, olmo, olmo2, olmo3, olmo_hybrid, olmoe, phi, phi3, phimoe, qwen2, qwen2_moe, \
         qwen3, qwen3_5_moe_text, qwen3_5_text, qwen3_moe, qwen3_next, qwen3_vl_moe_text, \
         qwen3_vl_text, seed_oss, smollm3, solar_open, stablelm, starcoder2, vaultgemma"
    );
    assert_eq!(
        sentence("architectures", json!(["LlamaForSequenceClassification"])),
        "`architectures` is [\"LlamaForSequenceClassification\"], which is not supported; \
         supported: LlamaForCausalLM"
    );
    assert_eq!(
        sentence(
            "quantization_config",
            json!({ "quant_method": "quip", "bits": 4 })
        ),
        "`quantization_config.quant_method` is \"quip\", which is not supported; supported: awq, \
         compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, modelopt_fp4, mxfp4"
    );
    assert!(sentence("hidden_act", json!("gelu")).ends_with("silu, gelu_pytorch_tanh, relu2"));
    assert!(sentence("attention_bias", json!(true)).ends_with("supported: false"));
    assert!(sentence("mlp_bias", json!(true)).ends_with("supported: false"));
    assert!(sentence("partial_rotary_factor", json!(0.5)).ends_with("supported: 1"));
    assert!(sentence("rope_scaling", json!({ "type": "su" })).contains("`rope_scaling.type`"));
    assert!(sentence("layer_types", json!(["linear_attention"])).contains("linear_attention"));
}
