//! The fields of config.json about experts.

use ebb_kernels::model::{Activation, ExpertsSpec, ModelSpec, Routing, SharedExpert};

use super::config::{HfConfig, HfDefaults};
use crate::model::error::Refusal;
use crate::model::experts::{plain_experts, put_experts};

/// What the number of experts is called, which differs between families and their versions.
const EXPERTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

impl HfConfig {
    /// Plain experts whose width is the field `intermediate`.
    pub(crate) fn experts(
        &self,
        intermediate: &str,
        routing: Routing,
    ) -> Result<ExpertsSpec, Refusal> {
        if self.activation(&HfDefaults::default())? != Activation::Silu {
            let found = r#""gelu_pytorch_tanh""#;
            return Err(Refusal::unsupported(
                "hidden_act",
                found,
                "silu with experts",
            ));
        }
        let mut experts = None;
        for key in EXPERTS {
            experts = experts.or(self.size(key)?);
        }
        let [first, ..] = EXPERTS;
        Ok(plain_experts(
            experts.ok_or_else(|| Refusal::Missing(first.to_owned()))?,
            self.required_size("num_experts_per_tok")?,
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

    /// A whole number that has to be there.
    pub(crate) fn required_size(&self, key: &str) -> Result<usize, Refusal> {
        self.size(key)?
            .ok_or_else(|| Refusal::Missing(key.to_owned()))
    }
}
