//! Hunyuan 3: norms of each head, and experts chosen by sigmoids with a correction, one beside
//! them.

use ebb_kernels::model::{LayerTensor, QkNorm, RouterScores, Routing, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, llama_hf};
use crate::model::experts::put_experts;
use crate::model::gguf::config::PREDICTING;
use crate::model::gguf::experts::{
    DENSE_LAYERS, EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SHARED_WIDTH, SIGMOID_ROUTING,
};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "hy_v3",
    hf_class: "HYV3ForCausalLM",
    hf_text: &[TextType {
        model_types: &["hy_v3"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 120832,
            "max_position_embeddings": 131072, "num_experts": 192, "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536
        }"#,
        constants: r#"{
            "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 11158840.0,
            "num_shared_experts": 1, "first_k_dense_replace": 1, "router_scaling_factor": 2.826
        }"#,
    }],
    hf_spec: |config| {
        let mut model = config.uniform(&HfDefaults::default())?;
        model.qk_norm = QkNorm::PerHead;
        let mut spec = model.spec();
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            scale: config.number("router_scaling_factor")?.unwrap_or(1.0) as f32,
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let mut experts = config.experts("moe_intermediate_size", routing)?;
        experts.shared = config.shared_experts("num_shared_experts", experts.intermediate)?;
        let sparse = config.sparse_kinds(spec.layers.len())?;
        put_experts(&mut spec, &experts, |layer| sparse[layer]);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return llama_hf(name);
        };
        let part = match part {
            L::Router => "router.gate.weight",
            L::RouterCorrection => "expert_bias",
            L::SharedGate => "shared_mlp.gate_proj.weight",
            L::SharedUp => "shared_mlp.up_proj.weight",
            L::SharedDown => "shared_mlp.down_proj.weight",
            _ => return llama_hf(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.mlp.{part}"))
    },
    gguf: Some(GgufFamily {
        architecture: "hy_v3",
        keys: &[
            EXPERTS,
            SIGMOID_ROUTING,
            &[
                EXPERT_WIDTH,
                SHARED_COUNT,
                SHARED_WIDTH,
                DENSE_LAYERS,
                PREDICTING,
            ],
        ],
        spec: |config| {
            let mut model = config.uniform()?;
            config.leave_out_predicting(&mut model)?;
            model.qk_norm = QkNorm::PerHead;
            let mut spec = model.spec();
            // Not all files say which layers are dense, but for their tensors.
            let layers = 0..spec.layers.len();
            let router = |layer| format!("blk.{layer}.ffn_gate_inp.weight");
            let sparse: Vec<_> = layers
                .map(|layer| config.has_tensor(&router(layer)))
                .collect();
            let first = sparse.iter().position(|has_experts| *has_experts);
            let first = first.unwrap_or(0);
            config.refuse_other(DENSE_LAYERS, first)?;
            let mut experts = config.experts(first, config.sigmoid_routing(first)?)?;
            experts.shared = config.shared_experts(1, experts.intermediate)?;
            put_experts(&mut spec, &experts, |layer| sparse[layer]);
            Ok(spec)
        },
        tensor: |name| match name {
            TensorName::Layer(layer, LayerTensor::RouterCorrection) => {
                // Some converters take the parameter for no bias.
                let bare = StoredTensor::own(name, format!("blk.{layer}.exp_probs_b"));
                llama_gguf(name).or(Some(bare))
            }
            _ => llama_gguf(name),
        },
        permutes_qk: false,
    }),
};
