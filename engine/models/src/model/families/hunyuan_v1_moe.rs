//! HunYuan with experts (A13B), one beside them that every token goes through.

use ebb_kernels::model::{LayerTensor, QkNorm, Routing, SharedExpert, TensorName};

use super::{Family, GgufFamily, StoredTensor, TextType, hunyuan_v1_dense, llama_gguf};
use crate::model::error::Refusal;
use crate::model::experts::put_experts;
use crate::model::gguf::experts::{EXPERT_WIDTH, EXPERTS, SHARED_COUNT, SHARED_WIDTH};

pub(super) static FAMILY: Family = Family {
    name: "hunyuan_v1_moe",
    hf_class: "HunYuanMoEV1ForCausalLM",
    hf_text: &[TextType {
        model_types: &["hunyuan_v1_moe"],
        sizes: r#"{
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 290943, "max_position_embeddings": 2048,
            "num_local_experts": 1, "moe_topk": 1
        }"#,
        constants: r#"{"num_key_value_heads": null, "rms_norm_eps": 1e-5}"#,
    }],
    hf_spec: |config| {
        let model = hunyuan_v1_dense::model(config)?;
        let width = model.intermediate;
        // Lists of layers whose numbers differ are refused, and what transformers leaves out of
        // account only where it is what that computes.
        for (key, computed) in [
            ("moe_intermediate_size", width),
            ("num_shared_expert", 1),
            ("moe_layer_num_skipped", 0),
        ] {
            match config.size_of_all(key)? {
                Some(found) if found != computed => {
                    return Err(Refusal::unsupported(key, found, &computed.to_string()));
                }
                _ => {}
            }
        }
        for key in ["use_mixed_mlp_moe", "norm_topk_prob"] {
            if config.bool(key)? == Some(false) {
                return Err(Refusal::unsupported(key, false, "true"));
            }
        }
        config.refuse("group_limited_greedy")?;
        let mut experts = config.experts("intermediate_size", Routing::SOFTMAX_OF_CHOSEN)?;
        experts.shared = Some(SharedExpert {
            intermediate: width,
            gated: false,
        });
        let mut spec = model.spec();
        put_experts(&mut spec, &experts, |_| true);
        Ok(spec)
    },
    hf_tensor: |name| {
        use LayerTensor as L;
        let TensorName::Layer(layer, part) = name else {
            return hunyuan_v1_dense::hf_tensor(name);
        };
        let part = match part {
            L::Router => "gate.wg",
            L::SharedGate => "shared_mlp.gate_proj",
            L::SharedUp => "shared_mlp.up_proj",
            L::SharedDown => "shared_mlp.down_proj",
            _ => return hunyuan_v1_dense::hf_tensor(name),
        };
        StoredTensor::own(name, format!("model.layers.{layer}.mlp.{part}.weight"))
    },
    gguf: Some(GgufFamily {
        architecture: "hunyuan-moe",
        keys: &[EXPERTS, &[EXPERT_WIDTH, SHARED_WIDTH, SHARED_COUNT]],
        spec: |config| {
            config.refuse_other(SHARED_COUNT, 1)?;
            // What `alpha` makes of the base, converters write.
            let mut model = config.uniform()?;
            model.qk_norm = QkNorm::PerHeadBehindRope;
            let mut experts = config.experts(0, Routing::SOFTMAX_OF_CHOSEN)?;
            experts.shared = Some(SharedExpert {
                intermediate: config.required_size(SHARED_WIDTH)?,
                gated: false,
            });
            let mut spec = model.spec();
            put_experts(&mut spec, &experts, |_| true);
            Ok(spec)
        },
        tensor: llama_gguf,
        permutes_qk: false,
    }),
};
