//! Families with experts, whose files each say it in a way of their own.

use serde_json::json;

use super::checkpoint::changed;
use super::{Checkpoint, assert_same, check, convert, of_type};
use crate::gguf_builder::{GgufBuilder, Value};
use crate::gguf_families::{open, refusal};
use crate::packed::assert_packed;
use ebb_kernels::model::{LayerTensor as L, RouterScores, Routing, TensorName};
use ebb_models::model::LoadedModel;
use ebb_models::model::gguf::GgmlType;

fn golden(name: &str) -> Checkpoint {
    Checkpoint::golden(name, json!({}), &[])
}

/// Projections whose heads are as wide as the model divided by them.
pub(super) const NARROW_HEADS: [(&str, &[usize]); 4] = [
    ("q_proj.weight", &[64, 64]),
    ("k_proj.weight", &[32, 64]),
    ("v_proj.weight", &[32, 64]),
    ("o_proj.weight", &[64, 64]),
];

fn routing(model: &LoadedModel) -> Routing {
    let mut experts = model.spec.layers.iter().filter_map(|layer| layer.experts());
    experts.next().expect("experts").routing
}

#[test]
fn olmoe_does_not_renormalise() {
    let checkpoint = Checkpoint::golden("olmoe", json!({ "rms_norm_eps": 1e-5 }), &[]);
    let mut gguf = check(&checkpoint, "olmoe");
    assert!(!routing(&open(&gguf).expect("a valid file")).renormalised);
    gguf.f32("olmoe.attention.clamp_kqv", 8.0);
    assert!(refusal(&gguf).starts_with("`olmoe.attention.clamp_kqv` is 8"));
}

#[test]
fn ernie_4_5_has_corrected_shares_and_shared_experts() {
    // So wide that files have the right width of shared experts.
    let config = json!({ "intermediate_size": 256 });
    let dense: [(&str, &[usize]); 3] = [
        ("layers.0.mlp.gate_proj.weight", &[256, 64]),
        ("layers.0.mlp.up_proj.weight", &[256, 64]),
        ("layers.0.mlp.down_proj.weight", &[64, 256]),
    ];
    let checkpoint = Checkpoint::golden("ernie4_5_moe", config, &dense);
    let mut gguf = check(&checkpoint, "ernie4_5-moe");
    gguf.u32("ernie4_5-moe.interleave_moe_layer_step", 0);
    assert_eq!(
        refusal(&gguf),
        "`ernie4_5-moe.interleave_moe_layer_step` is 0; expected a number of layers above 0"
    );
    // Every other layer has experts, and so has not what the file has for the third.
    gguf.u32("ernie4_5-moe.interleave_moe_layer_step", 2);
    assert!(refusal(&gguf).starts_with("tensor `blk.2.ffn_gate.weight` is missing"));
}

#[test]
fn lfm2_moe_has_convolutions_and_dense_layers_first() {
    // Files do not say how weights are scaled.
    let config = json!({ "routed_scaling_factor": 1.0 });
    let checkpoint = Checkpoint::golden("lfm2_moe", config, &[]);
    let mut gguf = check(&checkpoint, "lfm2moe");
    gguf.u32("lfm2moe.expert_gating_func", 1);
    assert_eq!(
        refusal(&gguf),
        "`lfm2moe.expert_gating_func` is 1, which is not supported; supported: 2"
    );
}

#[test]
fn dots1_has_shared_experts_behind_dense_layers() {
    let mut gguf = check(&golden("dots1"), "dots1");
    assert_eq!(routing(&open(&gguf).expect("a valid file")).scale, 1.5);
    gguf.u32("dots1.expert_shared_count", 0);
    assert!(refusal(&gguf).starts_with("tensor `blk.1.ffn_"));
    gguf.u32("dots1.expert_shared_count", 2)
        .f32("dots1.expert_weights_scale", 0.0)
        .set("dots1.expert_weights_norm", Value::Bool(false));
    let found = routing(&open(&gguf).expect("a valid file"));
    assert!(found.scale == 1.0 && !found.renormalised);
}

#[test]
fn minimax_m2_rotates_half_of_a_head() {
    let gguf = check(&golden("minimax_m2"), "minimax-m2");
    let model = open(&gguf).expect("a valid file");
    assert_eq!(model.spec.ropes[0].rotary_dim(), 32);
}

#[test]
fn afmoe_has_gates_and_windows_in_three_of_four_layers() {
    let kinds = [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ];
    let checkpoint = Checkpoint::golden("afmoe", json!({ "layer_types": kinds }), &[]);
    let mut gguf = check(&checkpoint, "afmoe");
    // Neutral values that converters write all the same.
    gguf.u32("afmoe.expert_group_count", 1)
        .u32("afmoe.expert_group_used_count", 1);
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf.remove("afmoe.attention.sliding_window");
    assert_eq!(
        refusal(&gguf),
        "`afmoe.attention.sliding_window` is missing"
    );
}

#[test]
fn exaone_moe_has_groups_and_windows() {
    let mut gguf = check(&golden("exaone_moe"), "exaone-moe");
    gguf.u32("exaone-moe.attention.sliding_window", 0);
    let spec = open(&gguf).expect("a valid file").spec;
    // It has a window of its own without one.
    let windows: Vec<_> = spec.attentions().map(|(_, a)| a.window).collect();
    assert_eq!(windows, [Some(128), None, Some(128), None]);
}

#[test]
fn hy_v3_has_experts_where_there_are_routers() {
    let checkpoint = golden("hy_v3");
    let mut gguf = check(&checkpoint, "hy_v3");
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    gguf.u32("hy_v3.block_count", 5)
        .u32("hy_v3.nextn_predict_layers", 1)
        .f32_tensor("blk.4.nextn.enorm.weight", &[64], &[1.0; 64]);
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    // Some converters write more, and call the correction a bias.
    gguf.u32("hy_v3.expert_shared_count", 1)
        .u32("hy_v3.leading_dense_block_count", 1);
    for tensor in &mut gguf.tensors {
        if tensor.name.ends_with(".exp_probs_b") {
            tensor.name += ".bias";
        }
    }
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf.u32("hy_v3.leading_dense_block_count", 2);
    assert_eq!(
        refusal(&gguf),
        "`hy_v3.leading_dense_block_count` is 2, which is not supported; supported: 1"
    );
}

#[test]
fn mellum_has_a_rope_for_layers_with_windows() {
    // Files do not have dense layers.
    let config = json!({ "mlp_layer_types": vec!["sparse"; 4] });
    let mut checkpoint = Checkpoint::golden("mellum", config, &[]).without("layers.0.mlp.");
    checkpoint.add("model.layers.0.mlp.gate.weight", &[8, 64]);
    for expert in 0..8 {
        let prefix = format!("model.layers.0.mlp.experts.{expert}");
        checkpoint.add(&format!("{prefix}.gate_proj.weight"), &[64, 64]);
        checkpoint.add(&format!("{prefix}.up_proj.weight"), &[64, 64]);
        checkpoint.add(&format!("{prefix}.down_proj.weight"), &[64, 64]);
    }
    check(&checkpoint, "mellum");
}

#[test]
fn solar_open_is_of_glm_4_moes_architecture() {
    let checkpoint = golden("solar_open");
    let mut gguf = convert(&checkpoint, "glm4moe");
    gguf.u32("glm4moe.rope.dimension_count", 64);
    let hf = checkpoint.hf().open().expect("a valid checkpoint");
    assert_same(&open(&gguf).expect("a valid file"), &hf);
    gguf.u32("glm4moe.leading_dense_block_count", 0);
    assert_same(&open(&gguf).expect("a valid file"), &hf);
}

#[test]
fn granite_moe_with_a_shared_expert_is_of_granite_moes_architecture() {
    let config = json!({ "head_dim": 16 });
    let checkpoint = Checkpoint::golden("granitemoeshared", config, &NARROW_HEADS);
    check(&checkpoint, "granitemoe");
}

#[test]
fn granite_with_windows_has_sinks_and_one_rope() {
    let bases = json!({ "head_dim": 16, "layer_rope_theta": [1e4, 1e4, 0, 1e4] });
    for name in ["granite_swa", "granitemoe_swa"] {
        let checkpoint = Checkpoint::golden(name, bases.clone(), &NARROW_HEADS);
        let mut gguf = check(&checkpoint, "granite_swa");
        // All layers have RoPE where the file does not say which.
        gguf.remove("granite_swa.attention.rope_pattern");
        let spec = open(&gguf).expect("a valid file").spec;
        assert!(spec.attentions().all(|(_, a)| a.rope.is_some() && a.sinks));
        gguf.remove("granite_swa.attention.sliding_window_pattern");
        assert_eq!(
            refusal(&gguf),
            "`granite_swa.attention.sliding_window_pattern` is missing"
        );
    }
}

/// Its dense layers are as wide as experts, since files have one width.
fn cohere2_moe(config: serde_json::Value) -> Checkpoint {
    let whole = json!({
        "num_shared_experts": 0, "prefix_dense_intermediate_size": 128, "first_k_dense_replace": 1
    });
    let whole = changed(whole, config);
    let dense: [(&str, &[usize]); 3] = [
        ("layers.0.mlp.gate_proj.weight", &[128, 64]),
        ("layers.0.mlp.up_proj.weight", &[128, 64]),
        ("layers.0.mlp.down_proj.weight", &[64, 128]),
    ];
    Checkpoint::golden("cohere2_moe", whole, &dense).without("shared_experts")
}

#[test]
fn cohere2_moe_has_either_norm_and_rope_in_dense_layers() {
    let mut gguf = check(&cohere2_moe(json!({})), "cohere2moe");
    let kinds = [
        "full_attention",
        "sliding_attention",
        "full_attention",
        "full_attention",
    ];
    let rms = json!({ "rms_norm_eps": 1e-6, "layer_types": kinds });
    check(&cohere2_moe(rms), "cohere2moe");
    gguf.u32("cohere2moe.expert_shared_count", 1)
        .u32("cohere2moe.expert_shared_feed_forward_length", 128);
    assert_eq!(
        refusal(&gguf),
        "`cohere2moe.expert_shared_count` is 1, which is not supported; supported: 0, since what \
         they put out is averaged with that of the others"
    );
    gguf.remove("cohere2moe.expert_shared_count")
        .remove("cohere2moe.logit_scale");
    assert_eq!(refusal(&gguf), "`cohere2moe.logit_scale` is missing");
}

/// Puts gate and up of each expert behind each other, as converters do on request.
fn together(gguf: &mut GgufBuilder) {
    let is_of = |name: &str, which: &str| name.ends_with(&format!("ffn_{which}_exps.weight"));
    let (ups, mut others): (Vec<_>, Vec<_>) = std::mem::take(&mut gguf.tensors)
        .into_iter()
        .partition(|tensor| is_of(&tensor.name, "up"));
    let mut ups = ups.into_iter();
    for gate in others
        .iter_mut()
        .filter(|tensor| is_of(&tensor.name, "gate"))
    {
        let up = ups.next().expect("as many");
        let each = gate.data.len() / gate.shape[0] as usize;
        let experts = gate.data.chunks(each).zip(up.data.chunks(each));
        gate.data = experts.flat_map(|(gate, up)| [gate, up].concat()).collect();
        gate.shape[1] *= 2;
        gate.name = gate.name.replace("gate_exps", "gate_up_exps");
    }
    gguf.tensors = others;
}

#[test]
fn gate_and_up_may_lie_together() {
    for (name, architecture) in [("dots1", "dots1"), ("minimax_m2", "minimax-m2")] {
        let checkpoint = golden(name);
        let mut gguf = convert(&checkpoint, architecture);
        let plain = of_type(&gguf, GgmlType::Q8_0);
        together(&mut gguf);
        let hf = checkpoint.hf().open().expect("a valid checkpoint");
        assert_same(&open(&gguf).expect("a valid file"), &hf);
        let mut gguf = plain.clone();
        together(&mut gguf);
        let (plain, together) = (open(&plain), open(&gguf));
        let (plain, together) = (
            plain.expect("a valid file"),
            together.expect("a valid file"),
        );
        assert_same(&together, &plain);
        let is_packed = |name: TensorName| {
            let is_other = matches!(name, TensorName::Layer(_, L::RouterCorrection));
            name.shape(&together.spec).len() > 1 && !is_other
        };
        assert_packed(&together.weights(), &together.spec, is_packed, 0);
        assert_eq!(routing(&together).scores, RouterScores::Sigmoid);
    }
}
