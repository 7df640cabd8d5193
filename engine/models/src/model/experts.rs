//! Layers of experts.

use ebb_kernels::model::{ExpertActivation, ExpertsSpec, Mlp, ModelSpec, Routing};

/// Plain experts: SwiGLU, no biases, none that is shared.
pub(crate) fn plain_experts(
    experts: usize,
    per_token: usize,
    intermediate: usize,
    routing: Routing,
) -> ExpertsSpec {
    ExpertsSpec {
        experts,
        per_token,
        intermediate,
        routing,
        router_bias: false,
        biases: false,
        activation: ExpertActivation::SwiGlu,
        shared: None,
        router_norm: None,
        weight_scales: false,
        branch_norms: false,
    }
}

/// Puts experts in place of the MLP of some layers.
pub(crate) fn put_experts(
    spec: &mut ModelSpec,
    experts: &ExpertsSpec,
    has_experts: impl Fn(usize) -> bool,
) {
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if has_experts(index) {
            layer.mlp = Mlp::Experts(experts.clone());
        }
    }
}
