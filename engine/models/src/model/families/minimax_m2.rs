//! MiniMax-M2: norms of whole Q and K projections, half of each head rotates, and many experts,
//! chosen by sigmoids with a correction.

use ebb_kernels::model::{LayerTensor, QkNorm, RouterScores, Routing, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, llama_gguf, mixtral};
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS, GATING};
use crate::model::hf::config::HfDefaults;

pub(super) static FAMILY: Family = Family {
    name: "minimax_m2",
    hf_class: "MiniMaxM2ForCausalLM",
    hf_text: &[TextType {
        model_types: &["minimax_m2"],
        sizes: r#"{
            "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
            "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 200064,
            "max_position_embeddings": 196608, "num_local_experts": 256, "num_experts_per_tok": 8
        }"#,
        constants: r#"{"head_dim": 128, "rope_theta": 5000000.0}"#,
    }],
    hf_spec: |config| {
        config.refuse_other_text("scoring_func", "sigmoid")?;
        config.refuse_other_text("qk_norm_type", "per_layer")?;
        config.refuse_other_size("shared_intermediate_size", 0)?;
        let defaults = HfDefaults {
            rotates_part_of_a_head: true,
            ..HfDefaults::default()
        };
        let mut model = config.uniform(&defaults)?;
        if config.bool("use_qk_norm")?.unwrap_or(true) {
            model.qk_norm = QkNorm::Whole;
        }
        let mut spec = model.spec();
        let routing = Routing {
            scores: RouterScores::Sigmoid,
            correction: config.bool("use_routing_bias")?.unwrap_or(true),
            ..Routing::SOFTMAX_OF_CHOSEN
        };
        let experts = config.experts("intermediate_size", routing)?;
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: |name| match name {
        TensorName::Layer(layer, LayerTensor::RouterCorrection) => {
            let module = format!("model.layers.{layer}.block_sparse_moe");
            StoredTensor::own(name, format!("{module}.e_score_correction_bias"))
        }
        _ => mixtral::hf_tensor(name),
    },
    gguf: Some(GgufFamily {
        architecture: "minimax-m2",
        keys: &[EXPERTS, &[EXPERT_WIDTH, GATING]],
        spec: |config| {
            let mut model = config.uniform_with_part(false)?;
            if config.has_tensor("blk.0.attn_q_norm.weight") {
                model.qk_norm = QkNorm::Whole;
            }
            let mut spec = model.spec();
            let experts = config.experts(0, config.sigmoid_routing(0)?)?;
            put_experts(&mut spec, &experts, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
