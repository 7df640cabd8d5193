//! What families have beyond plain layers, as changes of a plain model.

use crate::model::{
    Activation, AttentionSpec, ExpertActivation, ExpertsSpec, LayerSpec, Mamba2Spec, Mixer, Mlp,
    ModelSpec, NormKind, NormPlace, OutputGate, PerLayerInputs, PlainMlp, QkNorm, QueryGrowth,
    RecurrentSpec, Rope, RouterNorm, Routing, SharedExpert, ShortConvSpec,
};

/// Mamba-2 of so many groups and heads, channels of each, and parts that are normed.
pub(super) fn mamba_2(
    groups: usize,
    heads: usize,
    state_dim: usize,
    head_dim: usize,
    norm_parts: Option<usize>,
) -> RecurrentSpec {
    RecurrentSpec::Mamba2(Mamba2Spec {
        heads,
        head_dim,
        groups,
        state_dim,
        taps: 4,
        conv_bias: true,
        norm_parts,
        norm_eps: 1e-5,
        time_steps: [0.0, f32::INFINITY],
    })
}

/// Layers of one part each, and experts without gates, as in Nemotron-H. All experts are chosen: so
/// no decision depends on rounding.
pub(super) fn nemotron_h(spec: &mut ModelSpec) {
    let mut rest = spec.layers[0].clone();
    rest.attention_mut().rope = None;
    let alone = |mixer, mlp| LayerSpec {
        mixer,
        mlp,
        ..rest.clone()
    };
    let experts = ExpertsSpec {
        activation: ExpertActivation::Relu2,
        shared: Some(SharedExpert {
            intermediate: 48,
            gated: false,
        }),
        ..ExpertsSpec::plain(4, 4, 72, Routing::SOFTMAX_OF_CHOSEN)
    };
    let mlp = Mlp::Plain(PlainMlp {
        intermediate: 320,
        activation: Activation::Relu2,
        bias: false,
    });
    let recurrence = Mixer::Recurrent(mamba_2(8, 16, 48, 40, Some(2)));
    spec.layers = vec![
        alone(rest.mixer.clone(), Mlp::None),
        alone(recurrence, Mlp::None),
        alone(Mixer::None, Mlp::Experts(experts)),
        alone(Mixer::None, mlp),
    ];
}

type Change = fn(&mut ModelSpec);

/// What families have beyond plain layers: name, head_dim, changes.
pub(super) const FAMILIES: [(&str, usize, Change); 19] = [
    // Each with one of the parts that round most.
    ("Nemotron-H, with Mamba-2", 128, |spec| {
        nemotron_h(spec);
        spec.layers.truncate(2);
    }),
    ("Nemotron-H, with experts", 128, |spec| {
        nemotron_h(spec);
        spec.layers.remove(1);
    }),
    // Of its four layers three at a time, which the limit is for, and the roundings of inputs of
    // layers in one of the two.
    ("Gemma 4, narrow heads shared", 64, |spec| {
        gemma4(spec);
        spec.layers.truncate(3);
    }),
    // Chunks of heads in parts, which no family has.
    ("Gemma 4 in chunks", 64, |spec| {
        gemma4(spec);
        spec.layers.truncate(3);
        for layer in &mut spec.layers {
            let attention = layer.attention_mut();
            (attention.window, attention.chunked) = (Some(64), true);
        }
    }),
    ("Gemma 4, wide heads shared", 64, |spec| {
        gemma4(spec);
        spec.layers.remove(2);
        spec.per_layer_inputs = None;
    }),
    // More taps than LFM2 has: they average what rounding does to products of three.
    ("LFM2", 64, |spec| {
        let conv = ShortConvSpec {
            taps: 8,
            bias: false,
        };
        spec.layers[1].mixer = Mixer::Recurrent(RecurrentSpec::ShortConv(conv));
    }),
    ("Granite", 64, |spec| {
        spec.embedding_multiplier = 3.0;
        spec.residual_multiplier = 0.3;
        spec.logit_multiplier = 0.5;
    }),
    ("Gemma", 256, |spec| {
        spec.norms.from_one = true;
        spec.logit_soft_cap = Some(2.0);
        for layer in &mut spec.layers {
            (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
            layer.attention_mut().qk_norm = QkNorm::PerHead;
            layer.mlp = Mlp::Dense {
                intermediate: layer.intermediate(),
                activation: Activation::GeluTanh,
            };
        }
    }),
    ("Cohere 2", 128, |spec| {
        spec.norms.kind = NormKind::Layer;
        for layer in &mut spec.layers {
            layer.mlp_norm = NormPlace::Shared;
            layer.attention_mut().o_bias = true;
        }
    }),
    // One layer has gates, as no family's.
    ("Arcee", 128, |spec| {
        let gated = spec.layers[1].clone();
        without_gates(spec, Activation::Relu2, false);
        spec.layers[1] = gated;
    }),
    ("Nemotron", 64, |spec| {
        spec.norms.kind = NormKind::Layer;
        spec.norms.bias = true;
        spec.norms.from_one = true;
        spec.ropes[0].inv_freq.truncate(16);
        without_gates(spec, Activation::Relu2, true);
    }),
    // Its angles are scaled, which the norms behind them undo.
    ("HunYuan", 128, |spec| {
        spec.ropes[0].scale = 1.4;
        for layer in &mut spec.layers {
            layer.attention_mut().qk_norm = QkNorm::PerHeadBehindRope;
        }
    }),
    ("nanochat", 128, |spec| {
        spec.embedding_multiplier = 0.01;
        spec.embedding_norm = true;
        spec.ropes[0].inv_freq.iter_mut().for_each(|f| *f = -*f);
    }),
    ("Llama 4", 128, |spec| {
        let last = spec.layers.len() - 1;
        for (index, layer) in spec.layers.iter_mut().enumerate() {
            let attention = layer.attention_mut();
            if index < last {
                (attention.window, attention.chunked) = (Some(64), true);
                attention.qk_norm = QkNorm::PerHeadBehindRope;
                continue;
            }
            attention.rope = None;
            attention.query_growth = Some(QueryGrowth {
                beta: 0.3,
                interval: 16,
                from_one: true,
            });
        }
    }),
    // A gate for each channel; not in all layers, as gates are rounded, too.
    ("Laguna", 64, |spec| {
        for layer in [0, 2] {
            spec.layers[layer].attention_mut().output_gate = Some(OutputGate {
                softplus: true,
                per_head: false,
            });
        }
    }),
    ("Laguna, layers of more query heads", 64, |spec| {
        for (layer, times) in spec.layers.iter_mut().zip([2, 1, 1]) {
            let attention = layer.attention_mut();
            attention.q_heads *= times;
            attention.output_gate = Some(OutputGate {
                softplus: true,
                per_head: true,
            });
        }
        spec.layers[2].attention_mut().window = Some(50);
    }),
    ("Ministral 3", 128, |spec| {
        for layer in &mut spec.layers {
            layer.attention_mut().query_growth = Some(QueryGrowth {
                beta: 0.3,
                interval: 16,
                from_one: false,
            });
        }
    }),
    ("Phi", 80, |spec| {
        spec.norms.kind = NormKind::Layer;
        spec.norms.bias = true;
        spec.ropes[0].inv_freq.truncate(16);
        spec.lm_head_bias = true;
        without_gates(spec, Activation::GeluTanh, true);
        for layer in &mut spec.layers {
            layer.mlp_norm = NormPlace::Shared;
        }
    }),
    ("Phi-MoE", 64, |spec| {
        spec.norms.kind = NormKind::Layer;
        spec.norms.bias = true;
        spec.norms.from_one = true;
        spec.layers[1].mlp_norm = NormPlace::Both;
        spec.layers[2].mixer_norm = NormPlace::After;
        for layer in &mut spec.layers {
            layer.attention_mut().o_bias = true;
            layer.attention_mut().qk_norm = QkNorm::Whole;
        }
    }),
];

/// MLPs without gates, as wide as products that take part in norms want them.
pub(super) fn without_gates(spec: &mut ModelSpec, activation: Activation, bias: bool) {
    for layer in &mut spec.layers {
        layer.attention_mut().o_bias = bias;
        layer.mlp = Mlp::Plain(PlainMlp {
            intermediate: 320,
            activation,
            bias,
        });
    }
}

/// Heads of two widths, the wider in parts, with norms of values, windows over the narrow ones, two
/// layers that read what others have, inputs of layers and multipliers behind them.
pub(in crate::cuda::selftest) fn gemma4(spec: &mut ModelSpec) {
    let last = spec.layers[0].clone();
    spec.layers.resize(4, last);
    let narrow = spec.heads().head_dim;
    let pairs = 0..2 * narrow;
    let freq = |i: usize| {
        if i < narrow / 2 {
            0.7f32.powi(i as i32)
        } else {
            0.0
        }
    };
    spec.ropes.push(Rope::new(pairs.map(freq).collect(), 1.0));
    spec.per_layer_inputs = Some(PerLayerInputs {
        width: 24,
        embedding_multiplier: 2.0,
    });
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.output_scale = true;
        (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
        let attention = layer.attention_mut();
        (attention.v_norm, attention.qk_norm) = (true, QkNorm::PerHead);
        // Of either width.
        attention.scale = AttentionSpec::default_scale(2 * narrow);
        match index % 2 {
            0 => attention.window = Some(50),
            _ => (attention.head_dim, attention.rope) = (4 * narrow, Some(1)),
        }
        attention.kv_from = index.checked_sub(2);
    }
}

/// Puts experts beside the dense MLP of a layer, with norms of their own, as in Gemma 4.
pub(super) fn put_branches(layer: &mut LayerSpec, hidden: usize, experts: &ExpertsSpec) {
    (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Both, NormPlace::Both);
    layer.mlp = Mlp::Experts(ExpertsSpec {
        activation: ExpertActivation::GeGlu,
        shared: Some(SharedExpert {
            intermediate: layer.intermediate(),
            gated: false,
        }),
        router_norm: Some(RouterNorm {
            multiplier: (hidden as f32).powf(-0.5),
        }),
        weight_scales: true,
        branch_norms: true,
        ..experts.clone()
    });
}
