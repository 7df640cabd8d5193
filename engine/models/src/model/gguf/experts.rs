//! The keys about experts.

use ebb_kernels::model::{
    ExpertGroups, ExpertsSpec, LayerTensor, ModelSpec, RouterScores, Routing, SharedExpert,
    TensorName,
};

use super::config::GgufConfig;
use crate::model::error::Refusal;
use crate::model::experts::put_experts;

/// The keys of how many experts there are, and how many a token goes through.
pub(crate) const EXPERTS: &[&str] = &[COUNT, CHOSEN];
const COUNT: &str = "expert_count";
const CHOSEN: &str = "expert_used_count";

/// The key of how wide experts are. Files of an architecture that has it need not say how wide
/// dense MLPs would be.
pub(crate) const EXPERT_WIDTH: &str = "expert_feed_forward_length";

/// The key of how many experts every token goes through.
pub(crate) const SHARED_COUNT: &str = "expert_shared_count";

/// The key of how wide they are together.
pub(crate) const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

/// The key of what router scores become.
pub(crate) const GATING: &str = "expert_gating_func";

/// The key of how many layers, the first ones, have no experts.
pub(crate) const DENSE_LAYERS: &str = "leading_dense_block_count";

/// The keys of [`GgufConfig::sigmoid_routing`].
pub(crate) const SIGMOID_ROUTING: &[&str] = &[GATING, GROUPS, GROUPS_CHOSEN, RENORMALISED, SCALE];
const GROUPS: &str = "expert_group_count";
const GROUPS_CHOSEN: &str = "expert_group_used_count";
const RENORMALISED: &str = "expert_weights_norm";
const SCALE: &str = "expert_weights_scale";

/// What [`GATING`] calls the sigmoid.
const SIGMOID: usize = 2;

impl GgufConfig<'_> {
    /// Plain experts by the keys that most architectures share: as wide as the file says, or as the
    /// gates of `layer` are.
    pub(crate) fn experts(&self, layer: usize, routing: Routing) -> Result<ExpertsSpec, Refusal> {
        let gate = TensorName::Layer(layer, LayerTensor::ExpertGate);
        let gate = (self.names.tensor)(gate).name;
        let width = match self.size(EXPERT_WIDTH)? {
            Some(width) => width,
            None => match self.file.tensor(&gate).map(|tensor| &tensor.shape[..]) {
                Some([_, width, _]) => *width,
                _ => return Err(Refusal::MissingTensor(gate)),
            },
        };
        let experts = self.keys.size(COUNT)?;
        let per_token = self.keys.size(CHOSEN)?;
        Ok(ExpertsSpec::plain(experts, per_token, width, routing))
    }

    /// Puts experts into all layers but the first `dense`: chosen by sigmoids
    /// ([`Self::sigmoid_routing`]), beside `shared` ones unless the file says otherwise.
    pub(crate) fn put_sigmoid_experts(
        &self,
        spec: &mut ModelSpec,
        dense: usize,
        shared: usize,
    ) -> Result<(), Refusal> {
        let mut experts = self.experts(dense, self.sigmoid_routing(dense)?)?;
        experts.shared = self.shared_experts(shared, experts.intermediate)?;
        put_experts(spec, &experts, |layer| layer >= dense);
        Ok(())
    }

    /// Weights that are sigmoids, with groups where there are several, and a correction for the
    /// choice where `layer`, the first with experts, has one (DeepSeek-V3).
    pub(crate) fn sigmoid_routing(&self, layer: usize) -> Result<Routing, Refusal> {
        self.refuse_other(GATING, SIGMOID)?;
        let groups = ExpertGroups {
            groups: self.size(GROUPS)?.unwrap_or(1),
            chosen: self.size(GROUPS_CHOSEN)?.unwrap_or(1),
        };
        // 0 stands for none.
        let scale = self.number(SCALE)?;
        let scale = scale.filter(|scale| *scale != 0.0);
        Ok(Routing {
            scores: RouterScores::Sigmoid,
            correction: self.has_correction(layer),
            groups: (groups.groups > 1).then_some(groups),
            renormalised: self.bool(RENORMALISED)?.unwrap_or(true),
            scale: scale.unwrap_or(1.0),
        })
    }

    /// Whether the router of a layer has a correction for the choice.
    pub(crate) fn has_correction(&self, layer: usize) -> bool {
        let correction = TensorName::Layer(layer, LayerTensor::RouterCorrection);
        let stored = (self.names.tensor)(correction);
        let mut places = std::iter::successors(Some(&stored), |place| place.other.as_deref());
        places.any(|place| self.has_tensor(&place.name))
    }

    /// Experts that every token goes through, `by_default` of them unless the file says otherwise:
    /// together they are one, as wide as the file says, or each as wide as others.
    pub(crate) fn shared_experts(
        &self,
        by_default: usize,
        intermediate: usize,
    ) -> Result<Option<SharedExpert>, Refusal> {
        let count = self.size(SHARED_COUNT)?;
        let width = match self.size(SHARED_WIDTH)? {
            Some(width) if count != Some(0) => width,
            _ => count.unwrap_or(by_default).saturating_mul(intermediate),
        };
        Ok((width > 0).then_some(SharedExpert {
            intermediate: width,
            gated: false,
        }))
    }

    /// How many layers, the first ones, have no experts.
    pub(crate) fn dense_layers(&self, by_default: usize) -> Result<usize, Refusal> {
        Ok(self.size(DENSE_LAYERS)?.unwrap_or(by_default))
    }
}
