//! Fields of a family's config.json, read without weights: what they mean where they are left out,
//! and which are refused.

use ebb_kernels::model::{Mlp, ModelSpec};
use ebb_models::model::{LoadFormat, LoadedModel, ModelError, ModelFiles};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::hf_builder::HfBuilder;
use crate::tiny;

/// The config.json of a tiny model of a family, with fields of its own.
pub(crate) fn config(family: &str, fields: Value) -> Value {
    let family = tiny::family(family);
    let mut config = HfBuilder::new(family, &tiny::spec(family, true), Dtype::BF16).config;
    for field in ["rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act"] {
        config.as_object_mut().expect("an object").remove(field);
    }
    for (field, value) in fields.as_object().expect("an object") {
        config[field] = value.clone();
    }
    config
}

/// Opens a config.json alone, as random weights.
pub(crate) fn open(config: &Value) -> Result<ModelSpec, ModelError> {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
    let files = ModelFiles::Directory(dir.path().to_owned());
    Ok(LoadedModel::open_as(&files, LoadFormat::Dummy)?.spec)
}

pub(crate) fn refusal(config: &Value) -> String {
    match open(config).expect_err("should be refused") {
        ModelError::Refused { reason, .. } => reason.to_string(),
        other => panic!("{other}"),
    }
}

/// Fields that models of experts need.
pub(crate) fn experts(fields: Value) -> Value {
    let mut all = json!({
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64
    });
    let fields = fields.as_object().expect("an object").clone();
    all.as_object_mut().expect("an object").extend(fields);
    all
}

#[test]
fn the_published_phi_moe_is_refused_for_what_it_computes() {
    let phimoe = |fields| config("phimoe", experts(fields));
    open(&phimoe(json!({}))).expect("a plain one is served");
    // Its class is not spelled as in transformers.
    let classes = json!(["PhiMoEForCausalLM"]);
    open(&phimoe(json!({ "architectures": classes }))).expect("the same class");
    let published = phimoe(json!({ "architectures": classes, "lm_head_bias": true }));
    assert!(refusal(&published).starts_with("`lm_head_bias` is true"));
    for scaling in ["longrope", "linear", "dynamic", "llama3", "yarn", "mrope"] {
        let scaling = json!({
            "type": scaling, "factor": 2.0, "short_mscale": 1.25, "long_mscale": 1.25,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        });
        let sentence = refusal(&phimoe(json!({ "rope_scaling": scaling })));
        assert!(
            sentence.starts_with("`rope_scaling.type` is "),
            "{sentence}"
        );
        assert!(sentence.ends_with("supported: default"), "{sentence}");
    }
}

#[test]
fn what_any_configuration_leaves_out_is_the_class_default() {
    // The base of RoPE shows in the second frequency, of 8 for a head of 16.
    let base = |spec: &ModelSpec, rope: usize| {
        let freq = &spec.ropes[rope].inv_freq;
        f64::from(freq[1]).powi(-(freq.len() as i32))
    };
    for (family, eps, theta) in [
        ("mixtral", 1e-5, 1e6),
        ("phimoe", 1e-5, 1e6),
        ("glm4_moe", 1e-5, 1e4),
        ("granitemoe", 1e-6, 1e4),
        ("qwen2_moe", 1e-6, 1e4),
        ("qwen3_moe", 1e-6, 1e4),
        ("llama", 1e-6, 1e4),
        ("granite", 1e-6, 1e4),
        ("mistral", 1e-6, 1e4),
        ("olmo2", 1e-5, 1e4),
        ("olmo3", 1e-5, 5e5),
        ("phi3", 1e-5, 1e4),
        ("glm4", 1.5625e-7, 1e4),
        ("cohere2", 1e-5, 1e4),
        ("gemma2", 1e-6, 1e4),
        ("gemma3_text", 1e-6, 1e6),
        ("qwen2", 1e-6, 1e4),
        ("qwen3", 1e-6, 1e4),
        ("smollm3", 1e-6, 2e6),
        ("afmoe", 1e-5, 1e4),
        ("cohere2_moe", 1e-5, 1e4),
        ("cwm", 1e-5, 1e6),
        ("dots1", 1e-6, 1e4),
        ("ernie4_5_moe", 1e-5, 5e5),
        ("exaone4", 1e-5, 1e4),
        ("exaone_moe", 1e-5, 1e4),
        ("flex_olmo", 1e-6, 5e5),
        ("granitemoe_swa", 1e-6, 1e4),
        ("granitemoeshared", 1e-6, 1e4),
        ("apertus", 1e-5, 1.2e7),
        ("hunyuan_v1_moe", 1e-5, 1e4),
        ("hyperclovax", 1e-6, 1e4),
        ("jais2", 1e-5, 1e4),
        ("hy_v3", 1e-5, 11_158_840.0),
        ("mellum", 1e-6, 5e5),
        ("minimax_m2", 1e-6, 5e6),
        ("olmoe", 1e-5, 1e4),
        ("solar_open", 1e-5, 1e6),
    ] {
        let fields = json!({ "shared_expert_intermediate_size": 64 });
        let spec =
            open(&config(family, experts(fields))).unwrap_or_else(|e| panic!("{family}: {e}"));
        assert_eq!(spec.norm_eps, eps, "{family}");
        let found = base(&spec, 0);
        assert!((found / theta - 1.0).abs() < 1e-4, "{family}: {found}");
    }
    // Half of a head rotates.
    let rotary = ["glm4", "glm4_moe"].map(|family| {
        let spec = open(&config(family, experts(json!({})))).expect("a valid model");
        spec.ropes[0].rotary_dim()
    });
    assert_eq!(rotary, [8, 8]);
    // Tied embeddings, and the width of a head.
    for (family, tied, head_dim) in [
        ("cohere2", true, 8),
        ("gemma2", true, 256),
        ("gemma3_text", true, 256),
        ("smollm3", true, 8),
        ("lfm2", true, 8),
        ("glm4", false, 128),
        ("qwen3", false, 128),
        ("llama", false, 8),
    ] {
        let mut config = config(family, json!({}));
        let fields = config.as_object_mut().expect("an object");
        fields.retain(|field, _| !["tie_word_embeddings", "head_dim"].contains(&field.as_str()));
        let spec = open(&config).unwrap_or_else(|e| panic!("{family}: {e}"));
        assert_eq!(
            (spec.tied_embeddings, spec.heads().head_dim),
            (tied, head_dim),
            "{family}"
        );
    }
}

#[test]
fn windows_that_a_configuration_leaves_out_are_the_class_default() {
    let long = |fields: Value| {
        let mut all = experts(fields);
        all["max_position_embeddings"] = json!(32_768);
        all["num_hidden_layers"] = json!(6);
        all
    };
    let windows = |family: &str, fields: Value| -> Vec<Option<usize>> {
        let spec = open(&config(family, long(fields)));
        let spec = spec.unwrap_or_else(|e| panic!("{family}: {e}"));
        spec.layers
            .iter()
            .map(|layer| layer.attention().unwrap().window)
            .collect()
    };
    let (has, none) = (Some(4096), None);
    for (family, want) in [
        ("mistral", [has; 6]),
        ("ministral", [has; 6]),
        ("mixtral", [none; 6]),
        ("cohere2", [has, has, has, none, has, has]),
        ("olmo3", [has, has, has, none, has, has]),
        ("gemma2", [has, none, has, none, has, none]),
        ("gemma3_text", [has, has, has, has, has, none]),
        (
            "gpt_oss",
            [Some(128), none, Some(128), none, Some(128), none],
        ),
        ("phi3", [none; 6]),
        ("qwen2", [none; 6]),
        ("exaone4", [has, has, has, none, has, has]),
        ("exaone_moe", [has, has, has, none, has, has]),
        (
            "afmoe",
            [
                Some(1024),
                Some(1024),
                Some(1024),
                none,
                Some(1024),
                Some(1024),
            ],
        ),
        (
            "granitemoe_swa",
            [none, Some(128), Some(128), Some(128), none, Some(128)],
        ),
        (
            "cwm",
            [none, Some(8192), Some(8192), Some(8192), none, Some(8192)],
        ),
        ("dots1", [none; 6]),
        ("mellum", [none; 6]),
    ] {
        assert_eq!(windows(family, json!({})), want, "{family}");
        if family != "cohere2" {
            // `null` is no default.
            assert_eq!(
                windows(family, json!({ "sliding_window": null })),
                [none; 6],
                "{family}"
            );
        }
    }
    let flagged = json!({ "use_sliding_window": true, "max_window_layers": 4 });
    assert_eq!(
        windows("qwen2", flagged),
        [none, none, none, none, has, has]
    );
    // Its layers with windows alone have RoPE.
    let without = config("cohere2", long(json!({ "sliding_window": null })));
    assert_eq!(refusal(&without), "`sliding_window` is missing");
}

#[test]
fn a_gpt_oss_without_rope_is_scaled_as_the_published_ones_are() {
    let gpt_oss = |fields: Value| open(&config("gpt_oss", experts(fields))).expect("a valid model");
    let spec = gpt_oss(json!({}));
    assert_eq!(spec.norm_eps, 1e-5);
    assert!((spec.ropes[0].scale - (0.1 * 32f32.ln() + 1.0)).abs() < 1e-6);
    assert_eq!(spec.max_positions, 131_072);
    let last = spec.ropes[0].inv_freq[7] * 32.0;
    assert!((last / 150_000f32.powf(-7.0 / 8.0) - 1.0).abs() < 1e-5);
    // Not where the file says what its RoPE is.
    let plain = json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 20000.0 } });
    let spec = gpt_oss(plain);
    assert_eq!((spec.ropes[0].scale, spec.max_positions), (1.0, 512));
    assert!((spec.ropes[0].inv_freq[7] / 20_000f32.powf(-7.0 / 8.0) - 1.0).abs() < 1e-5);
}

#[test]
fn sizes_that_a_model_by_itself_leaves_out_are_missing() {
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "max_position_embeddings",
        "num_experts_per_tok",
    ] {
        let mut config = config("mixtral", experts(json!({})));
        config.as_object_mut().expect("an object").remove(field);
        assert_eq!(refusal(&config), format!("`{field}` is missing"));
    }
    // As many as query heads, where the class says so, or the file.
    let mut llama = config("llama", json!({}));
    llama
        .as_object_mut()
        .expect("an object")
        .remove("num_key_value_heads");
    assert_eq!(open(&llama).expect("a valid model").heads().kv_heads, 4);
    let qwen3 = config("qwen3", json!({ "num_key_value_heads": null }));
    assert_eq!(open(&qwen3).expect("a valid model").heads().kv_heads, 4);
}

#[test]
fn an_interval_of_no_layers_is_refused() {
    for (family, field) in [
        ("cohere2", "sliding_window_pattern"),
        ("gemma2", "sliding_window_pattern"),
        ("gemma3_text", "sliding_window_pattern"),
        ("smollm3", "no_rope_layer_interval"),
        ("qwen3_moe", "decoder_sparse_step"),
    ] {
        let sentence = refusal(&config(family, experts(json!({ field: 0 }))));
        let expected = format!("`{field}` is 0; expected a number of layers above 0");
        assert_eq!(sentence, expected, "{family}");
    }
}

#[test]
fn gemmas_multiplier_has_the_type_of_the_weights_wherever_the_file_says_it() {
    // The root of 32 in three types.
    let types = [
        ("bfloat16", 5.65625),
        ("float16", 5.65625),
        ("float32", 32f32.sqrt()),
    ];
    // In f16, the root of 48 is another number than in bf16.
    let wide = [
        ("bfloat16", 6.9375),
        ("float16", 6.929_687_5),
        ("float32", 48f32.sqrt()),
    ];
    for (hidden, types) in [(32, types), (48, wide)] {
        for (dtype, want) in types {
            for field in ["dtype", "torch_dtype"] {
                let fields = json!({ "hidden_size": hidden, "torch_dtype": null, field: dtype });
                let spec = open(&config("gemma2", fields)).expect("a valid model");
                assert_eq!(spec.embedding_multiplier, want, "{hidden} {dtype}");
                // Of a checkpoint that also reads images, beside its text part.
                let text = config("gemma3_text", json!({ "hidden_size": hidden }));
                let mut whole = json!({
                    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                    "text_config": text, "vision_config": {}, field: dtype
                });
                whole["text_config"]["torch_dtype"] = Value::Null;
                let spec = open(&whole).expect("a valid model");
                assert_eq!(spec.embedding_multiplier, want, "{hidden} {dtype} beside");
            }
        }
    }
}

#[test]
fn windows_of_a_family_that_has_none_are_refused() {
    let kinds = json!(["sliding_attention", "full_attention"]);
    for family in [
        "llama",
        "granite",
        "granitemoe",
        "glm4",
        "glm4_moe",
        "olmo2",
    ] {
        let fields = |kinds: &Value| experts(json!({ "layer_types": kinds, "sliding_window": 64 }));
        let sentence = refusal(&config(family, fields(&kinds)));
        let expected = "`layer_types` is \"sliding_attention\", which is not supported; supported: \
                        full_attention";
        assert_eq!(sentence, expected, "{family}");
        open(&config(
            family,
            fields(&json!(["full_attention", "full_attention"])),
        ))
        .expect(family);
    }
}

#[test]
fn a_text_part_has_as_many_experts_as_it_says_by_either_name() {
    let of = |fields: Value| {
        let mut text = config("qwen3_moe", experts(json!({})));
        let all = text.as_object_mut().expect("an object");
        all.remove("num_local_experts");
        all.extend(fields.as_object().expect("an object").clone());
        let whole = json!({
            "architectures": ["AnyForConditionalGeneration"], "model_type": "any",
            "text_config": text, "vision_config": {}
        });
        let spec = open(&whole).expect("a valid model");
        let Mlp::Experts(experts) = &spec.layers[0].mlp else {
            panic!("layers of experts");
        };
        experts.experts
    };
    assert_eq!(of(json!({ "num_experts": 64 })), 64);
    assert_eq!(of(json!({ "num_local_experts": 64 })), 64);
    assert_eq!(of(json!({})), 128);
}

#[test]
fn experts_with_another_activation_are_refused_by_what_the_file_says() {
    let other = json!({ "hidden_act": "gelu_pytorch_tanh" });
    assert_eq!(
        refusal(&config("mixtral", experts(other))),
        "`hidden_act` is \"gelu_pytorch_tanh\", which is not supported; supported: silu with \
         experts"
    );
}

#[test]
fn experts_without_number_are_refused_before_their_tensors_are_named() {
    let fields = |layers: usize| {
        let of_layers = json!({ "num_hidden_layers": layers, "num_local_experts": 1024 });
        config("mixtral", experts(of_layers))
    };
    open(&fields(64)).expect("as many as are accepted");
    assert_eq!(
        refusal(&fields(4096)),
        "`the number of experts of all layers` is 4194304; expected at most 65536"
    );
}
