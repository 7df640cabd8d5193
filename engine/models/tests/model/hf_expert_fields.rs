//! Fields of families with experts, windows and convolutions that one or two of them have.

use ebb_kernels::model::{
    ExpertActivation, Mixer, Mlp, ModelSpec, RecurrentSpec, RouterNorm, RouterScores, Seen,
};
use serde_json::{Value, json};

use crate::hf_fields::{config, experts, open, refusal};

/// The layers of a family's tiny model that have RoPE, and those that have experts.
fn ropes_and_experts(spec: &ModelSpec) -> (Vec<bool>, Vec<bool>) {
    let layers = spec.layers.iter();
    let both = layers.map(|layer| {
        let rope = layer.attention().is_some_and(|a| a.rope.is_some());
        (rope, matches!(layer.mlp, Mlp::Experts(_)))
    });
    both.unzip()
}

fn tiny(family: &str, fields: Value) -> ModelSpec {
    let fields = experts(fields);
    open(&config(family, fields)).unwrap_or_else(|e| panic!("{family}: {e}"))
}

#[test]
fn layers_that_see_everything_have_no_rope_where_others_have_windows() {
    let kinds = json!(["sliding_attention", "full_attention"]);
    for family in ["exaone4", "exaone_moe", "afmoe"] {
        let spec = tiny(
            family,
            json!({ "layer_types": kinds, "sliding_window": 64 }),
        );
        assert_eq!(ropes_and_experts(&spec).0, [true, false], "{family}");
    }
    // Without a window all of EXAONE's have it.
    for family in ["exaone4", "exaone_moe"] {
        let kinds = json!(["full_attention", "full_attention"]);
        let spec = tiny(
            family,
            json!({ "layer_types": kinds, "sliding_window": null }),
        );
        assert_eq!(ropes_and_experts(&spec).0, [true, true], "{family}");
    }
    let sparse = json!(["dense", "sparse"]);
    let fields = |pattern: usize| {
        json!({
            "layer_types": ["full_attention", "full_attention"], "sliding_window": 64,
            "mlp_layer_types": sparse, "prefix_dense_sliding_window_pattern": pattern,
        })
    };
    // Dense layers of Cohere 2 have it where none of them has a window.
    let found = |pattern| ropes_and_experts(&tiny("cohere2_moe", fields(pattern)));
    assert_eq!(found(1), (vec![true, false], vec![false, true]));
    assert_eq!(found(2), (vec![false, false], vec![false, true]));
}

#[test]
fn exaone_4_5_is_its_language_model_by_either_name() {
    for model_type in ["exaone4", "exaone4_5_text"] {
        let mut text = config("exaone4", json!({ "model_type": model_type }));
        text["layer_types"] = json!(["sliding_attention", "full_attention"]);
        text["sliding_window"] = json!(64);
        let whole = json!({
            "architectures": ["Exaone4_5_ForConditionalGeneration"], "model_type": "exaone4_5",
            "text_config": text, "vision_config": {}
        });
        let spec = open(&whole).expect("a valid model");
        assert_eq!(ropes_and_experts(&spec).0, [true, false], "{model_type}");
    }
}

#[test]
fn dense_layers_are_the_first_ones_or_those_that_are_named() {
    for (family, field) in [
        ("afmoe", "num_dense_layers"),
        ("cohere2_moe", "first_k_dense_replace"),
        ("dots1", "first_k_dense_replace"),
        ("ernie4_5_moe", "moe_layer_start_index"),
        ("exaone_moe", "first_k_dense_replace"),
        ("glm4_moe", "first_k_dense_replace"),
    ] {
        for dense in 0..=2 {
            let spec = tiny(family, json!({ field: dense }));
            let wanted = [dense < 1, dense < 2];
            assert_eq!(ropes_and_experts(&spec).1, wanted, "{family}");
        }
    }
    for family in ["dots1", "exaone_moe", "hy_v3", "mellum"] {
        let spec = tiny(family, json!({ "mlp_layer_types": ["sparse", "dense"] }));
        assert_eq!(ropes_and_experts(&spec).1, [true, false], "{family}");
        let wrong = json!({ "mlp_layer_types": ["sparse", "moe"] });
        assert_eq!(
            refusal(&config(family, experts(wrong))),
            "`mlp_layer_types` is \"moe\", which is not supported; supported: dense, sparse"
        );
    }
    let ernie = |fields| ropes_and_experts(&tiny("ernie4_5_moe", fields)).1;
    assert_eq!(ernie(json!({ "moe_layer_end_index": -1 })), [false, true]);
    let first = json!({ "moe_layer_start_index": 0, "moe_layer_end_index": 0 });
    assert_eq!(ernie(first), [true, false]);
    let every_other = json!({ "moe_layer_start_index": 0, "moe_layer_interval": 2 });
    assert_eq!(ernie(every_other), [false, true]);
}

#[test]
fn a_configuration_may_say_how_many_channels_rotate() {
    let spec = tiny("minimax_m2", json!({ "rotary_dim": 8, "head_dim": 16 }));
    assert_eq!(spec.ropes[0].rotary_dim(), 8);
    let wrong = config("minimax_m2", experts(json!({ "rotary_dim": 20 })));
    assert_eq!(
        refusal(&wrong),
        "`rotary_dim` is 20; expected at most a head's channels, 16, and above 0"
    );
}

#[test]
fn what_experts_are_weighted_by_is_told() {
    let routing = |family: &str, fields| {
        let spec = tiny(family, fields);
        let last = spec
            .layers
            .last()
            .and_then(|layer| layer.experts())
            .cloned();
        last.expect("experts").routing
    };
    for (family, corrected, renormalised, scale) in [
        ("afmoe", true, true, 1.0),
        ("dots1", true, false, 1.0),
        ("exaone_moe", true, true, 2.5),
        ("hy_v3", true, true, 2.826),
        ("minimax_m2", true, true, 1.0),
        ("solar_open", true, true, 1.0),
    ] {
        let found = routing(family, json!({}));
        assert_eq!(found.scores, RouterScores::Sigmoid, "{family}");
        let found = (found.correction, found.renormalised, found.scale);
        assert_eq!(found, (corrected, renormalised, scale), "{family}");
    }
    let ernie = routing("ernie4_5_moe", json!({ "moe_layer_start_index": 0 }));
    assert!(ernie.scores == RouterScores::Softmax && ernie.correction && ernie.renormalised);
    for family in ["olmoe", "flex_olmo"] {
        assert!(!routing(family, json!({})).renormalised);
        assert!(routing(family, json!({ "norm_topk_prob": true })).renormalised);
    }
    let cohere = |how: &str| routing("cohere2_moe", json!({ "expert_selection_fn": how }));
    assert_eq!(cohere("softmax").scores, RouterScores::Softmax);
    assert_eq!(cohere("sigmoid").scores, RouterScores::Sigmoid);
}

#[test]
fn granite_has_a_rope_for_each_base_and_none_for_0() {
    let spec = tiny("granitemoe_swa", json!({ "layer_rope_theta": [0, 5e5] }));
    assert_eq!(spec.ropes.len(), 1);
    assert_eq!(ropes_and_experts(&spec).0, [false, true]);
    let wrong = config(
        "granitemoe_swa",
        experts(json!({ "layer_rope_theta": [1e4] })),
    );
    assert_eq!(
        refusal(&wrong),
        "`layer_rope_theta` is 1; expected one base for each of 2 layers"
    );
}

#[test]
fn what_these_families_do_not_compute_is_refused_by_name() {
    for (family, fields, sentence) in [
        (
            "olmoe",
            json!({ "clip_qkv": 8.0 }),
            "`clip_qkv` is 8.0, which is not supported; supported: its absence",
        ),
        (
            "ernie4_5_moe",
            json!({ "use_bias": true }),
            "`use_bias` is true, which is not supported; supported: its absence",
        ),
        (
            "minimax_m2",
            json!({ "scoring_func": "softmax" }),
            "`scoring_func` is \"softmax\", which is not supported; supported: sigmoid",
        ),
        (
            "minimax_m2",
            json!({ "shared_intermediate_size": 64 }),
            "`shared_intermediate_size` is 64, which is not supported; supported: 0",
        ),
        (
            "afmoe",
            json!({ "num_expert_groups": 2 }),
            "`num_expert_groups` is 2, which is not supported; supported: 1",
        ),
        (
            "cohere2_moe",
            json!({ "num_shared_experts": 1 }),
            "`shared_expert_combination_strategy` is \"average\", which is not supported; \
             supported: sum",
        ),
        ("lfm2_moe", json!({}), "`layer_types` is missing"),
    ] {
        assert_eq!(
            refusal(&config(family, experts(fields))),
            sentence,
            "{family}"
        );
    }
}

#[test]
fn the_published_lfm2_leaves_out_what_its_class_has() {
    let mut config = config(
        "lfm2",
        json!({ "block_ff_dim": 96, "block_multiple_of": 16, "full_attn_idxs": [1] }),
    );
    let fields = config.as_object_mut().expect("an object");
    fields.retain(|field, _| !["tie_word_embeddings", "intermediate_size"].contains(&&field[..]));
    let spec = open(&config).expect("a valid model");
    assert!(spec.tied_embeddings);
    assert_eq!(spec.layers[0].intermediate(), 64);
}

#[test]
fn experts_of_gemma_4_are_beside_a_dense_mlp_as_wide_as_without_them() {
    let fields = |has_experts: bool, activation: &str| {
        json!({
            "enable_moe_block": has_experts, "num_experts": 8, "top_k_experts": 3,
            "hidden_activation": activation, "hidden_size_per_layer_input": 0,
            "layer_types": ["full_attention", "full_attention"], "sliding_window": 64,
            "num_kv_shared_layers": 1, "use_double_wide_mlp": true,
        })
    };
    let gelu = "gelu_pytorch_tanh";
    let dense = tiny("gemma4_text", fields(false, gelu));
    let spec = tiny("gemma4_text", fields(true, gelu));
    assert_eq!(ropes_and_experts(&dense).1, [false, false]);
    let widths = [&dense, &spec].map(|spec| {
        let layers = spec.layers.iter();
        layers.map(|l| l.intermediate()).collect::<Vec<_>>()
    });
    assert_eq!((&widths[0], widths[0][1]), (&widths[1], 2 * widths[0][0]));
    let multiplier = (spec.hidden as f64).powf(-0.5) as f32;
    for layer in &spec.layers {
        let of_layer = layer.experts().expect("a layer of experts");
        let sizes = (of_layer.experts, of_layer.per_token, of_layer.intermediate);
        assert_eq!(sizes, (8, 3, 64));
        assert_eq!(of_layer.router_norm, Some(RouterNorm { multiplier }));
        assert!(of_layer.branch_norms && of_layer.weight_scales);
        assert_eq!(of_layer.activation, ExpertActivation::GeGlu);
    }
    let silu = tiny("gemma4_text", fields(true, "silu"));
    let of_layer = silu.layers[0].experts().expect("a layer of experts");
    assert_eq!(of_layer.activation, ExpertActivation::SwiGlu);
    let mut without = fields(true, gelu);
    without["num_experts"] = Value::Null;
    let sentence = refusal(&config("gemma4_text", experts(without)));
    assert!(sentence.contains("num_experts"), "{sentence}");
}

#[test]
fn llama_4_attends_in_chunks_where_it_has_rope() {
    let spec = tiny("llama4_text", json!({ "attention_chunk_size": 32 }));
    assert_eq!(
        ropes_and_experts(&spec),
        (vec![true, true], vec![true, true])
    );
    let of_layer = spec.layers[0].experts().expect("a layer of experts");
    assert!(of_layer.weighted_input && of_layer.shared.is_some());
    let seen = |spec: &ModelSpec| [0, 1].map(|layer| spec.attention(layer).seen());
    assert_eq!(seen(&spec), [Seen::chunk(32); 2]);
    assert!(spec.attention(0).query_growth.is_none());
    let older = json!({
        "attention_chunk_size": 32, "no_rope_layers": [0, 1], "moe_layers": [1],
        "attn_temperature_tuning": 4, "floor_scale": 16, "attn_scale": 0.5,
    });
    let spec = tiny("llama4_text", older);
    assert_eq!(
        ropes_and_experts(&spec),
        (vec![false, true], vec![false, true])
    );
    assert_eq!(seen(&spec), [Seen::default(), Seen::chunk(32)]);
    assert_eq!(spec.layers[0].intermediate(), 16384);
    let growth = spec.attention(0).query_growth.expect("queries that grow");
    assert_eq!((growth.beta, growth.interval), (0.5, 16));
    assert_eq!(
        [14, 15, 31].map(|position| growth.steps(position)),
        [0, 1, 2]
    );
    assert!(spec.attention(1).query_growth.is_none());
    for (fields, begin) in [
        (json!({ "no_rope_layers": [1] }), "`no_rope_layers` is 1"),
        (json!({ "floor_scale": 0 }), "`floor_scale` is 0"),
        (
            json!({ "interleave_moe_layer_step": 0 }),
            "`interleave_moe_layer_step` is 0",
        ),
    ] {
        let sentence = refusal(&config("llama4_text", experts(fields)));
        assert!(sentence.contains(begin), "{sentence}");
    }
}

#[test]
fn llama_4_may_be_dense_and_see_everything() {
    // As Llama Guard 4, and Scout's RoPE: a step from scaled frequencies to others.
    let spec = tiny(
        "llama4_text",
        json!({
            "moe_layers": [], "interleave_moe_layer_step": 0, "attention_chunk_size": null,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
                "high_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            },
            "rope_theta": 500000.0,
        }),
    );
    assert_eq!(ropes_and_experts(&spec).1, [false, false]);
    assert_eq!(spec.attention(0).seen(), Seen::default());
    let freq = &spec.ropes[0].inv_freq;
    let half = freq.len() as f64;
    for (pair, freq) in freq.iter().enumerate() {
        let plain = 500000f64.powf(-(pair as f64) / half);
        let rotations = 8192.0 * plain / std::f64::consts::TAU;
        let want = if rotations > 1.0 { plain } else { plain / 16.0 };
        assert!((f64::from(*freq) / want - 1.0).abs() < 1e-5, "pair {pair}");
    }
    assert!(freq.iter().any(|freq| f64::from(*freq) < 1e-5 / 4.0));
}

#[test]
fn hybrids_of_mamba_2_say_what_their_layers_are() {
    let kinds = |spec: &ModelSpec| -> Vec<(bool, bool, bool)> {
        let layers = spec.layers.iter();
        let kinds = layers.map(|layer| {
            let has_attention = layer.attention().is_some();
            (
                has_attention,
                layer.recurrent().is_some(),
                layer.experts().is_some(),
            )
        });
        kinds.collect()
    };
    let mamba = |spec: &ModelSpec, layer: usize| match &spec.layers[layer].mixer {
        Mixer::Recurrent(RecurrentSpec::Mamba2(mamba)) => *mamba,
        other => panic!("{other:?}"),
    };
    // Nemotron-H's older files: a text, and other names.
    let mut older = config(
        "nemotron_h",
        experts(json!({
            "hybrid_override_pattern": "M*E-", "num_hidden_layers": 4,
            "mamba_n_groups": 2, "n_groups": 8, "mamba_d_conv": 2, "mamba_conv_bias": false,
            "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16,
            "mamba_dt_limit": [0.001, 0.1], "n_routed_experts": 4, "moe_intermediate_size": 8,
            "moe_shared_expert_intermediate_size": 16, "mlp_hidden_act": "relu2",
        })),
    );
    older.as_object_mut().expect("an object").remove("head_dim");
    let spec = open(&older).expect("a valid model");
    assert_eq!(
        kinds(&spec),
        [
            (false, true, false),
            (true, false, false),
            (false, false, true),
            (false, false, false),
        ]
    );
    assert_eq!(spec.attention(1).head_dim, 128);
    assert!(spec.attention(1).rope.is_none());
    let of_layer = mamba(&spec, 0);
    assert_eq!((of_layer.groups, of_layer.norm_parts), (2, Some(2)));
    assert_eq!((of_layer.taps, of_layer.conv_bias), (2, false));
    assert_eq!(of_layer.time_steps, [0.001, 0.1]);
    // Granite 4's.
    let spec = tiny(
        "granitemoehybrid",
        json!({
            "layer_types": ["mamba", "attention"], "mamba_d_head": "auto", "mamba_n_heads": 4,
            "time_step_limit": [0.0, "Infinity"],
        }),
    );
    assert_eq!(
        kinds(&spec)[..2].iter().map(|k| k.1).collect::<Vec<_>>(),
        [true, false]
    );
    let of_layer = mamba(&spec, 0);
    assert_eq!(of_layer.heads * of_layer.head_dim, 2 * spec.hidden);
    assert_eq!(of_layer.time_steps, [0.0, f32::INFINITY]);
}

#[test]
fn laguna_lists_heads_and_says_how_they_are_gated() {
    let gate = |gating: Value| {
        let spec = tiny("laguna", json!({ "gating": gating }));
        let gate = spec.attention(1).output_gate.expect("gates");
        (gate.softplus, gate.per_head)
    };
    assert_eq!(gate(Value::Null), (true, true));
    assert_eq!(gate(json!(true)), (true, true));
    assert_eq!(gate(json!("per-head")), (true, true));
    assert_eq!(gate(json!("per-element")), (true, false));
    let spec = tiny(
        "laguna",
        json!({
            "num_attention_heads_per_layer": [4, 8], "sliding_window": 64,
            "layer_types": ["full_attention", "sliding_attention"],
            "moe_router_logit_softcapping": 1.5,
        }),
    );
    let layers = [0, 1].map(|layer| spec.attention(layer));
    assert_eq!(
        layers.map(|a| (a.q_heads, a.window)),
        [(4, None), (8, Some(64))]
    );
    // As the class has them where the file does not say so.
    let rotated = layers.map(|a| spec.ropes[a.rope.expect("RoPE")].rotary_dim());
    assert_eq!(rotated, [layers[0].head_dim / 2, layers[0].head_dim]);
    assert_eq!(ropes_and_experts(&spec).1, [false, true]);
    let experts_of = spec.layers[1].experts().expect("a layer of experts");
    assert_eq!(experts_of.router_cap, Some(1.5));
    assert!(experts_of.routing.correction && experts_of.shared.is_some());
    let uncapped = tiny("laguna", json!({ "moe_router_logit_softcapping": 0.0 }));
    assert_eq!(
        uncapped.layers[1].experts().expect("experts").router_cap,
        None
    );
    for (fields, sentence) in [
        (json!({ "gating": false }), "`gating` is false"),
        (
            json!({ "gating": "per-token" }),
            "`gating` is \"per-token\"",
        ),
        (
            json!({ "num_attention_heads_per_layer": [4] }),
            "`num_attention_heads_per_layer` is 1",
        ),
        (
            json!({ "moe_apply_router_weight_on_input": true }),
            "`moe_apply_router_weight_on_input` is true",
        ),
    ] {
        let refused = refusal(&config("laguna", experts(fields)));
        assert!(refused.starts_with(sentence), "{refused}");
    }
}
