//! What a model needs beyond a plain Llama layer, by name.

use std::fmt;

use super::attention::{AttentionSpec, QkNorm};
use super::experts::ExpertsSpec;
use super::recurrent::RecurrentSpec;
use super::spec::{Activation, LayerSpec, Mixer, Mlp, ModelSpec, NormKind, NormPlace, Norms};
use super::spec_error::SpecError;

/// Something that not every backend computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// [`AttentionSpec::rope`] is absent.
    NoRope,
    /// RoPE rotates some channels of a head only.
    PartialRope,
    /// [`AttentionSpec::scale`] is not `1 / sqrt(head_dim)`.
    Scale,
    /// [`AttentionSpec::window`], unless it is a chunk.
    Window,
    /// [`AttentionSpec::chunked`].
    Chunks,
    /// [`AttentionSpec::sinks`].
    Sinks,
    /// [`AttentionSpec::soft_cap`].
    SoftCap,
    /// [`AttentionSpec::o_bias`].
    OutputBias,
    /// [`QkNorm::Whole`].
    WholeQkNorm,
    /// [`NormPlace::After`].
    NormAfter,
    /// [`NormPlace::Both`].
    NormBoth,
    /// [`NormPlace::Shared`].
    ParallelMlp,
    /// [`Activation::GeluTanh`].
    GeluTanh,
    /// [`Activation::Relu2`].
    Relu2,
    /// [`Activation::Xielu`].
    Xielu,
    /// [`Mlp::Plain`].
    PlainMlp,
    /// [`PlainMlp::bias`](super::PlainMlp::bias).
    MlpBias,
    /// [`NormKind::Layer`].
    LayerNorm,
    /// [`Norms::bias`].
    NormBias,
    /// [`Norms::from_one`].
    NormFromOne,
    /// [`QkNorm::PerHeadBehindRope`].
    QkNormBehindRope,
    /// [`AttentionSpec::query_growth`].
    QueryGrowth,
    /// [`ModelSpec::lm_head_bias`].
    LmHeadBias,
    /// [`ModelSpec::embedding_multiplier`] is not 1.
    EmbeddingMultiplier,
    /// [`ModelSpec::embedding_norm`].
    EmbeddingNorm,
    /// [`ModelSpec::residual_multiplier`] is not 1.
    ResidualMultiplier,
    /// [`ModelSpec::logit_multiplier`] is not 1.
    LogitMultiplier,
    /// [`ModelSpec::logit_soft_cap`].
    LogitSoftCap,
    /// [`Mlp::Experts`].
    Experts,
    /// [`ExpertActivation::Relu2`](super::ExpertActivation::Relu2).
    PlainExperts,
    /// [`ExpertsSpec::router_norm`](super::ExpertsSpec::router_norm), or
    /// [`ExpertsSpec::branch_norms`](super::ExpertsSpec::branch_norms).
    ExpertNorms,
    /// [`Mixer::None`], [`Mlp::None`].
    LoneParts,
    /// [`ExpertsSpec::router_cap`](super::ExpertsSpec::router_cap).
    RouterCap,
    /// [`ExpertsSpec::weighted_input`](super::ExpertsSpec::weighted_input).
    WeightedInput,
    /// Heads of different shapes in different layers.
    UnevenHeads,
    /// Layers that differ in their query heads alone.
    UnevenQueries,
    /// [`AttentionSpec::kv_from`].
    SharedKv,
    /// [`AttentionSpec::v_norm`].
    ValueNorm,
    /// [`LayerSpec::output_scale`].
    OutputScale,
    /// [`ModelSpec::per_layer_inputs`].
    PerLayerInputs,
    /// [`AttentionSpec::output_gate`].
    OutputGate,
    /// [`OutputGate::softplus`](super::OutputGate::softplus).
    SoftplusGate,
    /// [`OutputGate::per_head`](super::OutputGate::per_head).
    HeadGate,
    /// [`RecurrentSpec::GatedDelta`].
    GatedDelta,
    /// [`GatedDeltaSpec::doubled`](super::GatedDeltaSpec::doubled).
    DoubledDelta,
    /// [`RecurrentSpec::Mamba2`].
    Mamba2,
    /// [`RecurrentSpec::ShortConv`].
    ShortConv,
}

impl Feature {
    /// What the CUDA backend computes.
    pub const ON_GPU: [Self; 45] = [
        Self::NoRope,
        Self::PartialRope,
        Self::Scale,
        Self::Window,
        Self::Chunks,
        Self::Sinks,
        Self::SoftCap,
        Self::OutputBias,
        Self::WholeQkNorm,
        Self::NormAfter,
        Self::NormBoth,
        Self::Experts,
        Self::PlainExperts,
        Self::WeightedInput,
        Self::RouterCap,
        Self::ExpertNorms,
        Self::ParallelMlp,
        Self::GeluTanh,
        Self::Relu2,
        Self::PlainMlp,
        Self::MlpBias,
        Self::LayerNorm,
        Self::NormBias,
        Self::NormFromOne,
        Self::QkNormBehindRope,
        Self::QueryGrowth,
        Self::LmHeadBias,
        Self::EmbeddingMultiplier,
        Self::EmbeddingNorm,
        Self::ResidualMultiplier,
        Self::LogitMultiplier,
        Self::LogitSoftCap,
        Self::UnevenHeads,
        Self::UnevenQueries,
        Self::SharedKv,
        Self::ValueNorm,
        Self::OutputScale,
        Self::PerLayerInputs,
        Self::OutputGate,
        Self::LoneParts,
        Self::SoftplusGate,
        Self::HeadGate,
        Self::GatedDelta,
        Self::Mamba2,
        Self::ShortConv,
    ];
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRope => "attention without RoPE",
            Self::PartialRope => "RoPE over a part of a head (partial_rotary_factor)",
            Self::Scale => "an attention scale other than 1 / sqrt(head_dim)",
            Self::Window => "a sliding window (sliding_window)",
            Self::Chunks => "attention in chunks (attention_chunk_size)",
            Self::Sinks => "attention sinks",
            Self::SoftCap => "capped attention scores (attn_logit_softcapping)",
            Self::OutputBias => "a bias of attention's output projection",
            Self::WholeQkNorm => "a norm of whole query and key projections",
            Self::NormAfter => "a norm after attention or MLP",
            Self::NormBoth => "norms before and after attention or MLP",
            Self::ParallelMlp => "an MLP beside attention",
            Self::GeluTanh => "gates opened by GELU (gelu_pytorch_tanh)",
            Self::Relu2 => "the square of ReLU (relu2)",
            Self::Xielu => "xIELU (xielu)",
            Self::PlainMlp => "an MLP without gates",
            Self::MlpBias => "a bias of an MLP",
            Self::LayerNorm => "LayerNorm",
            Self::NormBias => "a bias of norms",
            Self::NormFromOne => "norms whose weights count from 1",
            Self::QkNormBehindRope => "a norm of queries and keys behind RoPE",
            Self::QueryGrowth => {
                "queries that grow with their position (llama_4_scaling_beta, attn_scale; they do \
                 not with a --max-context below which none has grown yet)"
            }
            Self::LmHeadBias => "a bias of the output projection",
            Self::EmbeddingMultiplier => "a multiplier of embeddings",
            Self::EmbeddingNorm => "a norm of embeddings",
            Self::ResidualMultiplier => "a multiplier of what layers add (residual_multiplier)",
            Self::LogitMultiplier => "a multiplier of logits (logit_scale, logits_scaling)",
            Self::LogitSoftCap => "capped logits (final_logit_softcapping)",
            Self::Experts => "a mixture of experts",
            Self::PlainExperts => "experts without gates",
            Self::ExpertNorms => "experts or a router with norms of their own",
            Self::LoneParts => "layers of one part only",
            Self::RouterCap => "capped scores of a router (moe_router_logit_softcapping)",
            Self::WeightedInput => "experts whose inputs are weighted",
            Self::UnevenHeads => "heads of different shapes in different layers",
            Self::UnevenQueries => {
                "layers that differ in their query heads alone (num_attention_heads_per_layer)"
            }
            Self::SharedKv => "layers that share keys and values (num_kv_shared_layers)",
            Self::ValueNorm => "a norm of values",
            Self::OutputScale => "a multiplier behind a layer (layer_scalar)",
            Self::PerLayerInputs => "inputs of tokens to each layer (hidden_size_per_layer_input)",
            Self::OutputGate => "gated attention",
            Self::SoftplusGate => "attention with gates of softplus",
            Self::HeadGate => "attention with a gate for each head",
            Self::GatedDelta => "linear attention (the gated delta rule)",
            Self::DoubledDelta => {
                "linear attention whose strengths are doubled (linear_allow_neg_eigval)"
            }
            Self::Mamba2 => "Mamba-2 layers",
            Self::ShortConv => "short convolutions",
        })
    }
}

impl ModelSpec {
    /// Refuses the first feature of the first layer that is not among `computed`.
    ///
    /// # Errors
    /// [`SpecError::NotComputed`], [`SpecError::ModelNotComputed`].
    pub fn refuse_beyond(
        &self,
        backend: &'static str,
        computed: &[Feature],
    ) -> Result<(), SpecError> {
        let mut needed = self.features().into_iter();
        if let Some(feature) = needed.find(|f| !computed.contains(f)) {
            return Err(SpecError::ModelNotComputed { backend, feature });
        }
        for (layer, spec) in self.layers.iter().enumerate() {
            let mut needed = self.layer_features(spec).into_iter();
            if let Some(feature) = needed.find(|f| !computed.contains(f)) {
                return Err(SpecError::NotComputed {
                    backend,
                    feature,
                    layer,
                });
            }
        }
        Ok(())
    }

    /// What the model needs outside of layers. Fields are named one by one, so that a new one
    /// cannot be forgotten.
    fn features(&self) -> Vec<Feature> {
        let Self {
            hidden: _,
            vocab: _,
            norm_eps: _,
            norms:
                Norms {
                    kind,
                    from_one,
                    bias,
                },
            embedding_multiplier,
            embedding_norm,
            residual_multiplier,
            logit_multiplier,
            logit_soft_cap,
            per_layer_inputs,
            tied_embeddings: _,
            lm_head_bias,
            max_positions: _,
            ropes: _,
            layers: _,
        } = self;
        let mut shapes = self.attentions().map(|(_, attention)| attention.heads());
        let first = shapes.next();
        let has_uneven_heads = shapes.any(|shape| Some(shape) != first);
        let has_uneven_queries = self.has_uneven_queries();
        needed(&[
            (Feature::LayerNorm, *kind == NormKind::Layer),
            (Feature::NormFromOne, *from_one),
            (Feature::NormBias, *bias),
            (Feature::EmbeddingMultiplier, *embedding_multiplier != 1.0),
            (Feature::EmbeddingNorm, *embedding_norm),
            (Feature::ResidualMultiplier, *residual_multiplier != 1.0),
            (Feature::LogitMultiplier, *logit_multiplier != 1.0),
            (Feature::LogitSoftCap, logit_soft_cap.is_some()),
            (Feature::PerLayerInputs, per_layer_inputs.is_some()),
            (
                Feature::UnevenHeads,
                has_uneven_heads && !has_uneven_queries,
            ),
            (Feature::UnevenQueries, has_uneven_queries),
            (Feature::LmHeadBias, *lm_head_bias),
        ])
    }

    /// What a layer needs.
    fn layer_features(&self, layer: &LayerSpec) -> Vec<Feature> {
        let LayerSpec {
            mixer,
            mixer_norm,
            mlp,
            mlp_norm,
            output_scale,
        } = layer;
        let mut features = match mixer {
            Mixer::Attention(attention) => self.attention_features(attention),
            Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) => needed(&[
                (Feature::GatedDelta, true),
                (Feature::DoubledDelta, delta.doubled),
            ]),
            Mixer::Recurrent(RecurrentSpec::Mamba2(_)) => vec![Feature::Mamba2],
            Mixer::Recurrent(RecurrentSpec::ShortConv(_)) => vec![Feature::ShortConv],
            Mixer::None => Vec::new(),
        };
        let norms = [*mixer_norm, *mlp_norm];
        let activation = layer.activation();
        let (plain, experts) = match mlp {
            Mlp::Dense {
                intermediate: _,
                activation: _,
            } => (None, None),
            Mlp::Plain(plain) => (Some(plain), None),
            Mlp::Experts(experts) => (None, Some(experts)),
            Mlp::None => (None, None),
        };
        let has_plain_experts = experts.is_some_and(|experts| !experts.activation.is_gated());
        features.extend(needed(&[
            (Feature::NormAfter, norms.contains(&NormPlace::After)),
            (Feature::NormBoth, norms.contains(&NormPlace::Both)),
            (Feature::ParallelMlp, *mlp_norm == NormPlace::Shared),
            (Feature::GeluTanh, activation == Activation::GeluTanh),
            (Feature::Relu2, activation == Activation::Relu2),
            (Feature::Xielu, activation == Activation::Xielu),
            (Feature::PlainMlp, plain.is_some()),
            (Feature::MlpBias, plain.is_some_and(|plain| plain.bias)),
            (Feature::Experts, experts.is_some()),
            (Feature::PlainExperts, has_plain_experts),
            (Feature::LoneParts, !layer.has_mixer() || !layer.has_mlp()),
            (
                Feature::ExpertNorms,
                experts.is_some_and(ExpertsSpec::has_norms),
            ),
            (
                Feature::WeightedInput,
                experts.is_some_and(|experts| experts.weighted_input),
            ),
            (
                Feature::RouterCap,
                experts.is_some_and(|experts| experts.router_cap.is_some()),
            ),
            (Feature::OutputScale, *output_scale),
        ]));
        features
    }

    fn attention_features(&self, attention: &AttentionSpec) -> Vec<Feature> {
        let AttentionSpec {
            q_heads: _,
            kv_heads: _,
            kv_from,
            head_dim,
            rope,
            scale,
            window,
            chunked,
            sinks,
            soft_cap,
            qkv_bias: _,
            o_bias,
            qk_norm,
            v_is_k: _,
            v_norm,
            output_gate,
            query_growth,
        } = attention;
        let rotary_dim = rope.map(|index| self.ropes[index].rotary_dim());
        needed(&[
            (Feature::NoRope, rope.is_none()),
            (
                Feature::PartialRope,
                rotary_dim.is_some_and(|dim| dim < *head_dim),
            ),
            (
                Feature::Scale,
                *scale != AttentionSpec::default_scale(*head_dim),
            ),
            (Feature::Window, window.is_some() && !chunked),
            (Feature::Chunks, *chunked),
            (Feature::Sinks, *sinks),
            (Feature::SoftCap, soft_cap.is_some()),
            (Feature::OutputBias, *o_bias),
            (Feature::WholeQkNorm, *qk_norm == QkNorm::Whole),
            (Feature::SharedKv, kv_from.is_some()),
            (Feature::ValueNorm, *v_norm),
            (
                Feature::QkNormBehindRope,
                *qk_norm == QkNorm::PerHeadBehindRope,
            ),
            (Feature::OutputGate, output_gate.is_some()),
            (
                Feature::SoftplusGate,
                output_gate.is_some_and(|gate| gate.softplus),
            ),
            (
                Feature::HeadGate,
                output_gate.is_some_and(|gate| gate.per_head),
            ),
            (Feature::QueryGrowth, query_growth.is_some()),
        ])
    }
}

/// Those that are needed.
fn needed(all: &[(Feature, bool)]) -> Vec<Feature> {
    let needed = all.iter().filter(|(_, needed)| *needed);
    needed.map(|(feature, _)| *feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        ExpertActivation, GatedDeltaSpec, Mamba2Spec, OutputGate, PerLayerInputs, PlainMlp,
        QueryGrowth, Rope, RouterNorm, Routing, ShortConvSpec, UniformModel,
    };

    fn plain() -> ModelSpec {
        UniformModel {
            hidden: 64,
            layers: 2,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 32,
            intermediate: 64,
            vocab: 100,
            rope: Rope::new(vec![1.0; 16], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec()
    }

    fn experts() -> ExpertsSpec {
        ExpertsSpec::plain(4, 2, 32, Routing::SOFTMAX_OF_CHOSEN)
    }

    /// Asserts that layer 1 needs these and no more: each is refused where only those before it are
    /// computed.
    fn refuses_in_turn(spec: &ModelSpec, features: &[Feature]) {
        let backend = "a backend";
        for (count, &feature) in features.iter().enumerate() {
            let refused = Err(SpecError::NotComputed {
                backend,
                feature,
                layer: 1,
            });
            assert_eq!(spec.refuse_beyond(backend, &features[..count]), refused);
        }
        assert_eq!(spec.refuse_beyond(backend, features), Ok(()));
    }

    #[test]
    fn every_feature_is_refused_by_name_and_layer() {
        assert_eq!(plain().refuse_beyond("a backend", &[]), Ok(()));
        type Change = fn(&mut LayerSpec);
        let changes: [(Feature, Change); 24] = [
            (Feature::NoRope, |l| l.attention_mut().rope = None),
            (Feature::Scale, |l| l.attention_mut().scale = 1.0),
            (Feature::Window, |l| l.attention_mut().window = Some(8)),
            (Feature::Chunks, |l| {
                (l.attention_mut().window, l.attention_mut().chunked) = (Some(8), true);
            }),
            (Feature::Sinks, |l| l.attention_mut().sinks = true),
            (Feature::SoftCap, |l| l.attention_mut().soft_cap = Some(5.0)),
            (Feature::OutputBias, |l| l.attention_mut().o_bias = true),
            (Feature::WholeQkNorm, |l| {
                l.attention_mut().qk_norm = QkNorm::Whole;
            }),
            (Feature::SharedKv, |l| l.attention_mut().kv_from = Some(0)),
            (Feature::ValueNorm, |l| l.attention_mut().v_norm = true),
            (Feature::OutputScale, |l| l.output_scale = true),
            (Feature::NormAfter, |l| l.mixer_norm = NormPlace::After),
            (Feature::NormBoth, |l| l.mlp_norm = NormPlace::Both),
            (Feature::ParallelMlp, |l| l.mlp_norm = NormPlace::Shared),
            (Feature::GeluTanh, |l| {
                l.mlp = Mlp::Dense {
                    intermediate: 64,
                    activation: Activation::GeluTanh,
                };
            }),
            (Feature::Experts, |l| l.mlp = Mlp::Experts(experts())),
            (Feature::QkNormBehindRope, |l| {
                l.attention_mut().qk_norm = QkNorm::PerHeadBehindRope;
            }),
            (Feature::QueryGrowth, |l| {
                l.attention_mut().query_growth = Some(QueryGrowth {
                    beta: 0.1,
                    interval: 16,
                    from_one: false,
                });
            }),
            (Feature::OutputGate, |l| {
                l.attention_mut().output_gate = Some(OutputGate::SIGMOIDS);
            }),
            (Feature::GatedDelta, |l| {
                l.mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(GatedDeltaSpec {
                    k_heads: 2,
                    v_heads: 4,
                    k_dim: 16,
                    v_dim: 16,
                    taps: 4,
                    norm_eps: 1e-6,
                    doubled: false,
                }));
            }),
            (Feature::Mamba2, |l| {
                l.mixer = Mixer::Recurrent(RecurrentSpec::Mamba2(Mamba2Spec {
                    heads: 4,
                    head_dim: 16,
                    groups: 2,
                    state_dim: 16,
                    taps: 4,
                    conv_bias: true,
                    norm_parts: Some(2),
                    norm_eps: 1e-6,
                    time_steps: [0.0, f32::INFINITY],
                }));
            }),
            (Feature::LoneParts, |l| l.mlp = Mlp::None),
            (Feature::LoneParts, |l| l.mixer = Mixer::None),
            (Feature::ShortConv, |l| {
                let conv = ShortConvSpec {
                    taps: 3,
                    bias: false,
                };
                l.mixer = Mixer::Recurrent(RecurrentSpec::ShortConv(conv));
            }),
        ];
        for (feature, change) in changes {
            let mut spec = plain();
            change(&mut spec.layers[1]);
            assert_eq!(spec.validate(), Ok(()));
            let refused = Err(SpecError::NotComputed {
                backend: "a backend",
                feature,
                layer: 1,
            });
            assert_eq!(spec.refuse_beyond("a backend", &[]), refused);
            assert_eq!(spec.refuse_beyond("a backend", &[feature]), Ok(()));
        }
        type ModelChange = fn(&mut ModelSpec);
        let changes: [(Feature, ModelChange); 12] = [
            (Feature::LayerNorm, |m| m.norms.kind = NormKind::Layer),
            (Feature::NormBias, |m| m.norms.bias = true),
            (Feature::NormFromOne, |m| m.norms.from_one = true),
            (Feature::EmbeddingMultiplier, |m| {
                m.embedding_multiplier = 2.0
            }),
            (Feature::EmbeddingNorm, |m| m.embedding_norm = true),
            (Feature::ResidualMultiplier, |m| m.residual_multiplier = 2.0),
            (Feature::LogitMultiplier, |m| m.logit_multiplier = 2.0),
            (Feature::LogitSoftCap, |m| m.logit_soft_cap = Some(30.0)),
            (Feature::PerLayerInputs, |m| {
                m.per_layer_inputs = Some(PerLayerInputs {
                    width: 8,
                    embedding_multiplier: 1.0,
                });
            }),
            (Feature::UnevenHeads, |m| {
                m.layers[1].attention_mut().kv_heads = 1
            }),
            (Feature::UnevenQueries, |m| {
                m.layers[1].attention_mut().q_heads = 2
            }),
            (Feature::LmHeadBias, |m| m.lm_head_bias = true),
        ];
        for (feature, change) in changes {
            let mut spec = plain();
            change(&mut spec);
            assert_eq!(spec.validate(), Ok(()));
            let backend = "a backend";
            let refused = Err(SpecError::ModelNotComputed { backend, feature });
            assert_eq!(spec.refuse_beyond(backend, &[]), refused);
            assert_eq!(spec.refuse_beyond(backend, &[feature]), Ok(()));
        }
        let mut spec = plain();
        spec.layers[1].mlp = Mlp::Plain(PlainMlp {
            intermediate: 64,
            activation: Activation::Relu2,
            bias: true,
        });
        refuses_in_turn(
            &spec,
            &[Feature::Relu2, Feature::PlainMlp, Feature::MlpBias],
        );
        let mut spec = plain();
        spec.layers[1].mlp = Mlp::Plain(PlainMlp {
            intermediate: 64,
            activation: Activation::Xielu,
            bias: false,
        });
        refuses_in_turn(&spec, &[Feature::Xielu, Feature::PlainMlp]);
        spec.layers[1].mlp = Mlp::Dense {
            intermediate: 64,
            activation: Activation::Xielu,
        };
        assert_eq!(spec.validate(), Err(SpecError::XieluOfGates { layer: 1 }));
        let mut spec = plain();
        spec.layers[1].mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(GatedDeltaSpec {
            k_heads: 2,
            v_heads: 4,
            k_dim: 16,
            v_dim: 16,
            taps: 4,
            norm_eps: 1e-6,
            doubled: true,
        }));
        refuses_in_turn(&spec, &[Feature::GatedDelta, Feature::DoubledDelta]);
        let mut spec = plain();
        spec.layers[1].mlp = Mlp::Experts(ExpertsSpec {
            activation: ExpertActivation::Relu2,
            ..experts()
        });
        refuses_in_turn(
            &spec,
            &[Feature::Relu2, Feature::Experts, Feature::PlainExperts],
        );
        let mut spec = plain();
        spec.layers[1].mlp = Mlp::Experts(ExpertsSpec {
            activation: ExpertActivation::GeGlu,
            router_norm: Some(RouterNorm { multiplier: 0.1 }),
            weighted_input: true,
            router_cap: Some(2.0),
            ..experts()
        });
        refuses_in_turn(
            &spec,
            &[
                Feature::GeluTanh,
                Feature::Experts,
                Feature::ExpertNorms,
                Feature::WeightedInput,
                Feature::RouterCap,
            ],
        );
        let mut spec = plain();
        spec.layers[1].attention_mut().output_gate = Some(OutputGate {
            softplus: true,
            per_head: true,
        });
        refuses_in_turn(
            &spec,
            &[
                Feature::OutputGate,
                Feature::SoftplusGate,
                Feature::HeadGate,
            ],
        );
        let mut spec = plain();
        spec.layers[1].attention_mut().chunked = true;
        assert_eq!(spec.validate(), Err(SpecError::NoChunkLength { layer: 1 }));
        let mut spec = plain();
        spec.ropes[0].inv_freq.truncate(8);
        let error = spec.refuse_beyond("the CPU backend", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the CPU backend does not compute RoPE over a part of a head \
             (partial_rotary_factor), which layer 0 of this model has"
        );
    }
}
