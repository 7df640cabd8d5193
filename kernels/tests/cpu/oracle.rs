//! The backend against the f64 oracle, over every option of the model family.

use ebb_kernels::model::{
    Activation, ExpertActivation, ExpertGroups, ExpertsSpec, LongRope, Mamba2Spec, Mixer, Mlp,
    ModelSpec, NormKind, NormPlace, OutputGate, PerLayerInputs, PlainMlp, QkNorm, QueryGrowth,
    RecurrentSpec, Rope, RouterNorm, RouterScores, Routing, SharedExpert, ShortConvSpec,
};

use crate::common::oracle::Oracle;
use crate::common::paged::{Chunk, Paged};
use crate::common::{EXPERTS, Family, Random, RandomWeights, hybrid, with_experts};

fn check(family: Family) {
    let weights = RandomWeights {
        spec: family.spec(),
        seed: 7,
    };
    let mut random = Random::new(11);
    let tokens: Vec<u32> = (0..150).map(|_| random.below(101) as u32).collect();
    let mut paged = Paged::new(&weights, 400, 3, 5);
    let seq = paged.add();
    // A prompt in two chunks and single tokens over a block boundary.
    let mut got = vec![];
    for range in [0..100, 100..125] {
        let tokens = &tokens[range];
        got.extend(paged.run(&[Chunk { seq, tokens }]));
    }
    for i in 125..150 {
        let tokens = &tokens[i..=i];
        got.extend(paged.run(&[Chunk { seq, tokens }]));
    }
    let mut oracle = Oracle::new(&weights.spec, weights.clone());
    let (mut worst, mut total, mut scale) = (0.0f64, 0.0, 0.0);
    for (i, (token, got)) in tokens.iter().zip(&got).enumerate() {
        let want = oracle.push(*token);
        for (x, want) in got.iter().zip(&want) {
            let error = (f64::from(*x) - want).abs();
            assert!(error < 0.05, "{family:?} row {i}: {x}, expected {want}");
            worst = worst.max(error);
            total += error * error;
            scale += want * want;
        }
    }
    // Where a key rounds to another bf16 than in f64, logits move by about 1e-3.
    let relative = (total / scale).sqrt();
    assert!(relative < 1e-3, "{family:?}: {relative:e}, worst {worst:e}");
}

#[test]
fn grouped_queries_and_head_dims() {
    for (q_heads, kv_heads, head_dim) in [
        (4, 4, 8),
        (3, 1, 64),
        (8, 2, 72),
        (8, 1, 128),
        (9, 3, 40),
        (1, 1, 16),
    ] {
        check(Family {
            q_heads,
            kv_heads,
            head_dim,
            ..Family::LLAMA
        });
    }
}

#[test]
fn biases_head_norms_and_untied_embeddings() {
    for options in 1..8 {
        check(Family {
            qkv_bias: options & 1 > 0,
            qk_norm: [QkNorm::None, QkNorm::PerHead][options >> 1 & 1],
            tied: options & 4 == 0,
            ..Family::LLAMA
        });
    }
}

#[test]
fn recurrences_between_gated_attention() {
    let family = Family {
        layers: hybrid,
        ..Family::LLAMA
    };
    check(family);
    check(Family {
        layers: |spec| {
            hybrid(spec);
            // One state for each query, two tokens seen, no biases.
            let Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) = &mut spec.layers[0].mixer
            else {
                unreachable!("the first layer follows the delta rule");
            };
            (delta.v_heads, delta.taps) = (delta.k_heads, 2);
            // As in OLMo Hybrid.
            (delta.norm_eps, delta.doubled) = (1e-3, true);
            let conv = ShortConvSpec {
                taps: 8,
                bias: false,
            };
            spec.layers[2].mixer = Mixer::Recurrent(RecurrentSpec::ShortConv(conv));
            spec.norms.from_one = true;
        },
        ..Family::LLAMA
    });
}

#[test]
fn mamba_2_beside_attention() {
    check(Family {
        layers: |spec| put_mamba_2(spec, MAMBA_2),
        ..Family::LLAMA
    });
    check(Family {
        layers: |spec| {
            let mamba = Mamba2Spec {
                heads: 4,
                groups: 1,
                taps: 2,
                conv_bias: false,
                norm_parts: Some(1),
                time_steps: [0.6, 0.75],
                ..MAMBA_2
            };
            put_mamba_2(spec, mamba);
            spec.norms.from_one = true;
        },
        ..Family::LLAMA
    });
    check(Family {
        layers: |spec| {
            let mamba = Mamba2Spec {
                norm_parts: None,
                ..MAMBA_2
            };
            put_mamba_2(spec, mamba);
        },
        ..Family::LLAMA
    });
}

/// Two groups of three heads.
const MAMBA_2: Mamba2Spec = Mamba2Spec {
    heads: 6,
    head_dim: 20,
    groups: 2,
    state_dim: 12,
    taps: 4,
    conv_bias: true,
    norm_parts: Some(2),
    norm_eps: 1e-3,
    time_steps: [0.0, f32::INFINITY],
};

/// In the first layer and the last.
fn put_mamba_2(spec: &mut ModelSpec, mamba: Mamba2Spec) {
    for layer in [0, 2] {
        spec.layers[layer].mixer = Mixer::Recurrent(RecurrentSpec::Mamba2(mamba));
    }
}

/// Gemma 4's: heads of two widths, of which the wider are in parts, layers that share keys and
/// values, an input for each layer, and a multiplier behind it.
fn of_gemma4(spec: &mut ModelSpec) {
    let last = spec.layers[0].clone();
    spec.layers.resize(5, last);
    spec.ropes.push(Rope::new(vec![1.0; 48], 1.0));
    let pairs = spec.ropes[1].inv_freq.iter_mut().enumerate();
    // Only some of the wide heads' pairs rotate.
    pairs.for_each(|(i, freq)| *freq = if i < 12 { 0.3f32.powi(i as i32) } else { 0.0 });
    spec.per_layer_inputs = Some(PerLayerInputs {
        width: 24,
        embedding_multiplier: 2.5,
    });
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.output_scale = index != 1;
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        let attention = layer.attention_mut();
        attention.v_norm = true;
        attention.qk_norm = QkNorm::PerHead;
        attention.scale = 0.2;
        match index % 2 {
            0 => attention.window = Some(70),
            _ => (attention.head_dim, attention.rope) = (96, Some(1)),
        }
        attention.kv_from = index.checked_sub(3).map(|shared| shared + 1);
    }
    // The fourth and the fifth read what the second and the third have.
    spec.layers[4].mlp = Mlp::Dense {
        intermediate: 2 * spec.layers[4].intermediate(),
        activation: Activation::GeluTanh,
    };
}

#[test]
fn wide_heads_shared_keys_and_inputs_of_layers() {
    for kv_heads in [1, 2] {
        check(Family {
            q_heads: 4,
            kv_heads,
            head_dim: 32,
            layers: of_gemma4,
            ..Family::LLAMA
        });
    }
    // Wide heads fewer than narrow ones: narrow ones lie in several layers of the cache.
    check(Family {
        q_heads: 8,
        kv_heads: 4,
        head_dim: 32,
        layers: |spec| {
            of_gemma4(spec);
            for layer in [1, 3] {
                spec.layers[layer].attention_mut().kv_heads = 2;
            }
        },
        ..Family::LLAMA
    });
}

/// Routers decide by small distances, which rounding of the cache may turn around, so that rows are
/// few: then a decision that differs would show.
fn check_experts(experts: &ExpertsSpec) {
    let weights = RandomWeights {
        spec: with_experts(experts),
        seed: 7,
    };
    let mut random = Random::new(11);
    let tokens: Vec<u32> = (0..40).map(|_| random.below(101) as u32).collect();
    let mut paged = Paged::new(&weights, 400, 3, 5);
    let seq = paged.add();
    let mut got = vec![];
    for range in [0..30, 30..31, 31..34, 34..40] {
        let tokens = &tokens[range];
        got.extend(paged.run(&[Chunk { seq, tokens }]));
    }
    let mut oracle = Oracle::new(&weights.spec, weights.clone());
    for (i, (token, got)) in tokens.iter().zip(&got).enumerate() {
        let want = oracle.push(*token);
        for (x, want) in got.iter().zip(&want) {
            let error = (f64::from(*x) - want).abs();
            assert!(error < 0.05, "{experts:?} row {i}: {x}, expected {want}");
        }
    }
}

#[test]
fn experts_of_every_routing() {
    let softmax = Routing::SOFTMAX_OF_CHOSEN;
    let routings = [
        softmax,
        Routing {
            renormalised: false,
            scale: 1.5,
            ..softmax
        },
        Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            groups: Some(ExpertGroups {
                groups: 4,
                chosen: 2,
            }),
            scale: 2.5,
            ..softmax
        },
        Routing {
            scores: RouterScores::SparseMixer { jitter: 0.1 },
            ..softmax
        },
    ];
    for routing in routings {
        check_experts(&ExpertsSpec { routing, ..EXPERTS });
    }
}

#[test]
fn experts_with_biases_shared_ones_and_a_clamped_gate() {
    let shared = |gated| {
        Some(SharedExpert {
            intermediate: 36,
            gated,
        })
    };
    check_experts(&ExpertsSpec {
        per_token: 3,
        router_bias: true,
        biases: true,
        activation: ExpertActivation::Clamped {
            limit: 0.7,
            alpha: 1.702,
        },
        ..EXPERTS
    });
    for gated in [false, true] {
        check_experts(&ExpertsSpec {
            router_cap: gated.then_some(0.7),
            shared: shared(gated),
            ..EXPERTS
        });
    }
    for biases in [false, true] {
        check_experts(&ExpertsSpec {
            shared: shared(false),
            weighted_input: true,
            biases,
            ..EXPERTS
        });
    }
    check_experts(&ExpertsSpec {
        per_token: 8,
        biases: true,
        shared: shared(true),
        ..EXPERTS
    });
    for biases in [false, true] {
        check_experts(&ExpertsSpec {
            biases,
            activation: ExpertActivation::Relu2,
            shared: shared(biases),
            ..EXPERTS
        });
    }
}

/// Gemma 4: branches, and a router with norms of their own.
#[test]
fn experts_with_norms_of_their_own() {
    let shared = Some(SharedExpert {
        intermediate: 36,
        gated: false,
    });
    let branches = ExpertsSpec {
        activation: ExpertActivation::GeGlu,
        shared,
        branch_norms: true,
        ..EXPERTS
    };
    let router_norm = Some(RouterNorm { multiplier: 0.4 });
    for spec in [
        branches.clone(),
        ExpertsSpec {
            router_norm,
            weight_scales: true,
            ..branches.clone()
        },
        ExpertsSpec {
            router_norm,
            branch_norms: false,
            ..branches
        },
        ExpertsSpec {
            activation: ExpertActivation::GeGlu,
            weight_scales: true,
            biases: true,
            ..EXPERTS
        },
    ] {
        check_experts(&spec);
    }
}

#[test]
fn every_feature_of_a_layer() {
    let changes: [fn(&mut ModelSpec); 22] = [
        // OLMo 2: norms after, of whole projections.
        |spec| {
            for layer in &mut spec.layers {
                (layer.mixer_norm, layer.mlp_norm) = (NormPlace::After, NormPlace::After);
                layer.attention_mut().qk_norm = QkNorm::Whole;
            }
        },
        |spec| {
            for layer in &mut spec.layers {
                (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
            }
        },
        // SmolLM3: some layers know no positions.
        |spec| spec.layers[1].attention_mut().rope = None,
        // Phi-4: a part of a head rotates.
        |spec| spec.ropes[0].inv_freq.truncate(5),
        |spec| {
            for layer in &mut spec.layers {
                layer.attention_mut().scale = 0.11;
                layer.attention_mut().o_bias = true;
            }
        },
        // Two rotary embeddings, one of them for contexts longer than the model was made for.
        |spec| {
            spec.ropes.push(Rope::new(vec![0.5; 8], 1.1));
            spec.layers[2].attention_mut().rope = Some(1);
            spec.ropes[1].scale = 1.0;
            spec.ropes[0].long = Some(LongRope {
                original_positions: 100,
                inv_freq: vec![0.01; 8],
            });
        },
        // gpt-oss and Gemma 2: windows in some layers, sinks, capped scores.
        |spec| {
            spec.layers[0].attention_mut().window = Some(5);
            spec.layers[0].attention_mut().sinks = true;
            spec.layers[1].attention_mut().window = Some(130);
            spec.layers[1].attention_mut().soft_cap = Some(2.0);
            spec.layers[2].attention_mut().sinks = true;
        },
        // Llama 4: chunks, within a block and across blocks.
        |spec| {
            for (layer, chunk) in spec.layers.iter_mut().zip([5, 130]) {
                let attention = layer.attention_mut();
                (attention.window, attention.chunked) = (Some(chunk), true);
            }
        },
        |spec| {
            spec.layers[2].mixer_norm = NormPlace::After;
            spec.layers[2].mlp_norm = NormPlace::Both;
            spec.layers[0].attention_mut().o_bias = true;
        },
        // Granite: multipliers of what is looked up, added and put out.
        |spec| {
            spec.embedding_multiplier = 3.0;
            spec.residual_multiplier = 0.3;
            spec.logit_multiplier = 0.5;
        },
        // Gemma 2 and 3: norms around every part, whose weights count from 1; GELU; capped logits.
        |spec| {
            spec.norms.from_one = true;
            spec.logit_soft_cap = Some(2.0);
            for layer in &mut spec.layers {
                (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
                layer.attention_mut().qk_norm = QkNorm::PerHead;
                layer.mlp = Mlp::Dense {
                    intermediate: 76,
                    activation: Activation::GeluTanh,
                };
            }
        },
        // Cohere 2: LayerNorm without biases, of attention and the MLP beside it.
        |spec| {
            spec.norms.kind = NormKind::Layer;
            spec.logit_multiplier = 0.25;
            for layer in &mut spec.layers {
                layer.mlp_norm = NormPlace::Shared;
            }
        },
        // Phi-MoE: LayerNorm with biases; also behind a part.
        |spec| {
            spec.norms.kind = NormKind::Layer;
            spec.norms.bias = true;
            spec.layers[1].mlp_norm = NormPlace::Both;
        },
        // Nemotron-H: layers of one part, the last of either kind.
        |spec| {
            spec.layers[0].mlp = Mlp::None;
            spec.layers[1].mixer = Mixer::None;
            spec.layers[2].mlp = Mlp::None;
        },
        |spec| {
            spec.layers[0].mixer = Mixer::None;
            spec.layers[1].mlp = Mlp::None;
            (spec.layers[0].mixer_norm, spec.layers[0].mlp_norm) =
                (NormPlace::Both, NormPlace::Both);
            (spec.layers[1].mixer_norm, spec.layers[1].mlp_norm) =
                (NormPlace::Both, NormPlace::Both);
            spec.layers[2].mixer = Mixer::None;
        },
        // Nemotron: no gates; also with biases, and with another activation.
        |spec| {
            spec.norms.from_one = true;
            for (index, layer) in spec.layers.iter_mut().enumerate() {
                let activations = [Activation::Relu2, Activation::GeluTanh, Activation::Silu];
                layer.mlp = Mlp::Plain(PlainMlp {
                    intermediate: 76,
                    activation: activations[index],
                    bias: index > 0,
                });
            }
        },
        // Apertus: xIELU, whose numbers differ between layers.
        |spec| {
            for (index, layer) in spec.layers.iter_mut().enumerate() {
                layer.mlp = Mlp::Plain(PlainMlp {
                    intermediate: 76,
                    activation: Activation::Xielu,
                    bias: index == 1,
                });
            }
        },
        // Phi: everything has a bias, and the MLP is beside attention.
        |spec| {
            spec.norms.kind = NormKind::Layer;
            spec.norms.bias = true;
            spec.tied_embeddings = false;
            spec.lm_head_bias = true;
            for layer in &mut spec.layers {
                layer.mlp_norm = NormPlace::Shared;
                layer.attention_mut().qkv_bias = true;
                layer.attention_mut().o_bias = true;
                layer.mlp = Mlp::Plain(PlainMlp {
                    intermediate: 40,
                    activation: Activation::GeluTanh,
                    bias: true,
                });
            }
        },
        // HunYuan: queries and keys are normed behind RoPE.
        |spec| {
            for layer in &mut spec.layers {
                layer.attention_mut().qk_norm = QkNorm::PerHeadBehindRope;
            }
            spec.layers[1].attention_mut().rope = None;
        },
        // nanochat: embeddings are normed, and pairs of channels turn the other way.
        |spec| {
            spec.embedding_multiplier = 0.01;
            spec.embedding_norm = true;
            spec.ropes[0].inv_freq.iter_mut().for_each(|f| *f = -*f);
        },
        // Laguna: query heads differ between layers, and attention is gated in every way.
        |spec| {
            let gate = |softplus, per_head| OutputGate { softplus, per_head };
            let gates = [gate(true, true), gate(false, true), gate(true, false)];
            for (index, layer) in spec.layers.iter_mut().enumerate() {
                let attention = layer.attention_mut();
                attention.output_gate = Some(gates[index]);
                attention.q_heads += 2 * index;
            }
        },
        // Ministral 3: queries grow.
        |spec| {
            for (index, layer) in spec.layers.iter_mut().enumerate() {
                layer.attention_mut().query_growth = Some(QueryGrowth {
                    beta: 0.3,
                    interval: 16 << index,
                    from_one: index == 1,
                });
            }
        },
    ];
    for layers in changes {
        check(Family {
            layers,
            ..Family::LLAMA
        });
    }
}
