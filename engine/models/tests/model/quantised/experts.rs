//! Quantised experts: a module each, or stacked as gpt-oss has them.

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor as L, ModelSpec, TensorName, WeightSource};
use ebb_models::model::LoadedModel;
use safetensors::Dtype;
use serde_json::{Value, json};

use super::{Layer, Packed, bf16s, fp4, fp8};
use crate::hf_builder::{HfBuilder, Stored};
use crate::packed::assert_packed;
use crate::tiny;

const EXPERTS: usize = 3;
const HIDDEN: usize = 32;
const INNER: usize = 64;

/// The plain tensors of a model of one layer of experts, and its configuration.
fn plain(family: &str, more: Value, tensors: &[(&str, Vec<usize>)]) -> HfBuilder {
    let mut spec = tiny::spec(tiny::family("llama"), false);
    spec.layers.truncate(1);
    let mut files = HfBuilder::new(tiny::family(family), &spec, Dtype::BF16);
    let Value::Object(more) = more else {
        panic!("fields of a configuration");
    };
    for (key, value) in more {
        files.config[key] = value;
    }
    files.tensors.retain(|stored| !stored.0.contains(".mlp."));
    for (name, shape) in tensors {
        let len: usize = shape.iter().product();
        let values = (0..len).map(|at| (at % 97) as f32 / 64.0 - 0.5);
        files.tensors.push(Stored(
            (*name).to_owned(),
            Dtype::BF16,
            shape.clone(),
            bf16s(values),
        ));
    }
    files
}

/// Asserts that rows of a tensor are those that `row` gives, read whole, and some of them.
fn assert_rows(model: &LoadedModel, tensor: L, row: impl Fn(usize) -> Vec<f32>) {
    let (name, weights) = (TensorName::Layer(0, tensor), model.weights());
    let shape = name.shape(&model.spec);
    let rows = shape[0] * shape[1];
    let expected: Vec<Vec<bf16>> = (0..rows)
        .map(|at| row(at).into_iter().map(bf16::from_f32).collect())
        .collect();
    assert!(
        weights.load(name).expect("it reads") == expected.concat(),
        "{name}"
    );
    let (first, count) = (shape[1] - 3, shape[1] + 5);
    let mut part = vec![bf16::ZERO; count * shape[2]];
    weights.read_rows(name, first, &mut part).expect("it reads");
    assert!(
        part == expected[first..][..count].concat(),
        "{name} in part"
    );
}

fn is_expert(name: TensorName) -> bool {
    matches!(
        name,
        TensorName::Layer(_, L::ExpertGate | L::ExpertUp | L::ExpertDown)
    )
}

fn assert_all_packed(model: &LoadedModel, spec: &ModelSpec) {
    assert_packed(&model.weights(), spec, is_expert, 0);
}

#[test]
fn experts_of_a_module_each() {
    let more = json!({
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INNER,
        "norm_topk_prob": true, "quantization_config": { "quant_method": "fp8" },
    });
    let norm = |which: &str| format!("model.layers.0.self_attn.{which}_norm.weight");
    let (q_norm, k_norm) = (norm("q"), norm("k"));
    let router = "model.layers.0.mlp.gate.weight";
    let mut files = plain(
        "qwen3_moe",
        more,
        &[
            (router, vec![EXPERTS, HIDDEN]),
            (&q_norm, vec![16]),
            (&k_norm, vec![16]),
        ],
    );
    let modules = [
        ("gate_proj", L::ExpertGate, [INNER, HIDDEN]),
        ("up_proj", L::ExpertUp, [INNER, HIDDEN]),
        ("down_proj", L::ExpertDown, [HIDDEN, INNER]),
    ];
    let layer = |which: &str, expert: usize, [rows, columns]: [usize; 2]| Layer {
        module: format!("model.layers.0.mlp.experts.{expert}.{which}"),
        rows,
        columns,
    };
    for (which, _, shape) in modules {
        for expert in 0..EXPERTS {
            let layer = layer(which, expert, shape);
            let Packed { parts, .. } = fp8::per_channel(&layer);
            for Stored(part, dtype, shape, bytes) in parts {
                let name = format!("{}.{part}", layer.module);
                files.tensors.push(Stored(name, dtype, shape, bytes));
            }
        }
    }
    let model = files.open().expect("a valid model");
    for (which, tensor, shape) in modules {
        let experts: Vec<_> = (0..EXPERTS)
            .map(|expert| fp8::per_channel(&layer(which, expert, shape)).weights)
            .collect();
        assert_rows(&model, tensor, |row| {
            let (expert, row) = (row / shape[0], row % shape[0]);
            experts[expert][row * shape[1]..][..shape[1]].to_vec()
        });
    }
    assert_all_packed(&model, &model.spec);
    let lost = "model.layers.0.mlp.experts.1.up_proj.weight";
    files.tensors.retain(|stored| stored.0 != lost);
    assert!(files.refusal().1.contains(lost));
}

#[test]
fn experts_of_gpt_oss_as_mxfp4() {
    let more = json!({
        "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": INNER,
        "sliding_window": 16,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        },
    });
    let attention = |which: &str| format!("model.layers.0.self_attn.{which}");
    let mlp = |which: &str| format!("model.layers.0.mlp.{which}");
    let plain_tensors = [
        (attention("q_proj.bias"), vec![64]),
        (attention("k_proj.bias"), vec![32]),
        (attention("v_proj.bias"), vec![32]),
        (attention("o_proj.bias"), vec![HIDDEN]),
        (attention("sinks"), vec![4]),
        (mlp("router.weight"), vec![EXPERTS, HIDDEN]),
        (mlp("router.bias"), vec![EXPERTS]),
        (mlp("experts.gate_up_proj_bias"), vec![EXPERTS, 2 * INNER]),
        (mlp("experts.down_proj_bias"), vec![EXPERTS, HIDDEN]),
    ];
    let borrowed = plain_tensors
        .each_ref()
        .map(|(n, shape)| (n.as_str(), shape.clone()));
    let mut files = plain("gpt_oss", more, &borrowed);
    let stacked = |which: &str, rows: usize, columns: usize| Layer {
        module: mlp(which),
        rows: EXPERTS * rows,
        columns,
    };
    let gate_up = stacked("experts.gate_up_proj", 2 * INNER, HIDDEN);
    let down = stacked("experts.down_proj", HIDDEN, INNER);
    for layer in [&gate_up, &down] {
        for Stored(part, dtype, shape, bytes) in fp4::mx_blocks(layer).parts {
            let name = part.replace("weight", &layer.module);
            let shape = [&[EXPERTS, shape[0] / EXPERTS], &shape[1..]].concat();
            files.tensors.push(Stored(name, dtype, shape, bytes));
        }
    }
    let model = files.open().expect("a valid model");
    let both = fp4::mx_blocks(&gate_up).weights;
    for (part, tensor) in [L::ExpertGate, L::ExpertUp].into_iter().enumerate() {
        assert_rows(&model, tensor, |row| {
            both[(2 * row + part) * HIDDEN..][..HIDDEN].to_vec()
        });
    }
    let down = fp4::mx_blocks(&down).weights;
    assert_rows(&model, L::ExpertDown, |row| {
        down[row * INNER..][..INNER].to_vec()
    });
    assert_all_packed(&model, &model.spec);
    // Biases take turns as well.
    let up = model.weights().load(TensorName::Layer(0, L::ExpertUpBias));
    let bias = |at: usize| bf16::from_f32((at % 97) as f32 / 64.0 - 0.5);
    let expected: Vec<_> = (0..EXPERTS * INNER).map(|at| bias(2 * at + 1)).collect();
    assert_eq!(up.expect("it reads"), expected);
}
