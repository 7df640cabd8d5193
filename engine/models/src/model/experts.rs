//! Layers of experts.

use ebb_kernels::model::{ExpertsSpec, Mlp, ModelSpec};

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
