//! The fields of config.json about experts.

use ebb_kernels::model::{
    ExpertGroups, ExpertsSpec, ModelSpec, RouterScores, Routing, SharedExpert,
};

use super::config::HfConfig;
use crate::model::error::Refusal;
use crate::model::experts::put_experts;

/// What the number of experts is called, which differs between families and their versions.
const EXPERTS: [&str; 4] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// What the number of those that a token goes through is called.
const PER_TOKEN: [&str; 3] = ["num_experts_per_tok", "moe_k", "moe_topk"];

impl HfConfig {
    /// Plain experts whose width is the field `intermediate`.
    pub(crate) fn experts(
        &self,
        intermediate: &str,
        routing: Routing,
    ) -> Result<ExpertsSpec, Refusal> {
        self.refuse_all_but_silu("silu with experts")?;
        Ok(ExpertsSpec::plain(
            self.first_size(&EXPERTS)?,
            self.first_size(&PER_TOKEN)?,
            self.required_size(intermediate)?,
            routing,
        ))
    }

    /// Weights that are a softmax over all experts, renormalised if `norm_topk_prob` says so.
    pub(crate) fn softmax_routing(&self) -> Result<Routing, Refusal> {
        Ok(Routing {
            renormalised: self.bool("norm_topk_prob")?.unwrap_or(false),
            ..Routing::SOFTMAX_OF_CHOSEN
        })
    }

    /// Puts experts into the layers that have them, and beside them one that every token goes
    /// through, as far as its gate lets it.
    pub(crate) fn put_gated_experts(&self, spec: &mut ModelSpec) -> Result<(), Refusal> {
        let mut experts = self.experts("moe_intermediate_size", self.softmax_routing()?)?;
        experts.shared = Some(SharedExpert {
            intermediate: self.required_size("shared_expert_intermediate_size")?,
            gated: true,
        });
        put_experts(spec, &experts, self.sparse_layers()?);
        Ok(())
    }

    /// Which layers have experts where `mlp_only_layers` and `decoder_sparse_step` say so.
    pub(crate) fn sparse_layers(&self) -> Result<impl Fn(usize) -> bool, Refusal> {
        let dense = self.sizes("mlp_only_layers")?.unwrap_or_default();
        let step = self.interval("decoder_sparse_step", 1)?;
        Ok(move |layer| !dense.contains(&layer) && (layer + 1) % step == 0)
    }

    /// Weights that are sigmoids, with a correction for the choice, and groups where there are
    /// several (DeepSeek-V3).
    pub(crate) fn sigmoid_routing(&self) -> Result<Routing, Refusal> {
        let groups = ExpertGroups {
            groups: self.size("n_group")?.unwrap_or(1),
            chosen: self.size("topk_group")?.unwrap_or(1),
        };
        Ok(Routing {
            scores: RouterScores::Sigmoid,
            correction: true,
            groups: (groups.groups > 1).then_some(groups),
            renormalised: self.bool("norm_topk_prob")?.unwrap_or(true),
            scale: self.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        })
    }

    /// As many shared experts as the field `key` says, each as wide as others: together they are
    /// one.
    pub(crate) fn shared_experts(
        &self,
        key: &str,
        intermediate: usize,
    ) -> Result<Option<SharedExpert>, Refusal> {
        let shared = self.size(key)?.unwrap_or(0);
        Ok((shared > 0).then_some(SharedExpert {
            intermediate: shared.saturating_mul(intermediate),
            gated: false,
        }))
    }

    /// Which layers have experts: those that `mlp_layer_types` says, else all behind the first
    /// `first_k_dense_replace`.
    pub(crate) fn sparse_kinds(&self, layers: usize) -> Result<Vec<bool>, Refusal> {
        const SPARSE: &str = "sparse";
        let kinds = self.kinds_of_layers("mlp_layer_types", &["dense", SPARSE], layers)?;
        if let Some(kinds) = kinds {
            return Ok(kinds.iter().map(|kind| *kind == SPARSE).collect());
        }
        let dense = self.size("first_k_dense_replace")?.unwrap_or(0);
        Ok((0..layers).map(|layer| layer >= dense).collect())
    }

    /// The first of several fields that is there; the name of the first is what is missing.
    fn first_size(&self, keys: &[&str]) -> Result<usize, Refusal> {
        for key in keys {
            if let Some(size) = self.size_of_all(key)? {
                return Ok(size);
            }
        }
        Err(Refusal::Missing(keys[0].to_owned()))
    }

    /// A whole number that has to be there.
    pub(crate) fn required_size(&self, key: &str) -> Result<usize, Refusal> {
        self.size(key)?
            .ok_or_else(|| Refusal::Missing(key.to_owned()))
    }
}
