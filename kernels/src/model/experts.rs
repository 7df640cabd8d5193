//! Layers of experts: several MLPs, of which each token goes through a few.

use super::spec::{Activation, dimension, is_sound};
use super::spec_error::SpecError;

/// A router, and experts of which it chooses some for each token:
/// `Σ_chosen weight_e · (W_down,e act(W_gate,e x, W_up,e x))`, added up in order of choice; where
/// inputs are weighted, `Σ_chosen W_down,e act(W_gate,e weight_e x, W_up,e weight_e x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// How many experts there are.
    pub experts: usize,
    /// How many of them a token goes through.
    pub per_token: usize,
    /// Rows of an expert's `W_up`, and of its `W_gate`.
    pub intermediate: usize,
    /// How experts are chosen and weighted.
    pub routing: Routing,
    /// The router's scores have a bias.
    pub router_bias: bool,
    /// The router's scores become `cap * tanh(score / cap)` (Laguna).
    pub router_cap: Option<f32>,
    /// Each expert's three products have a bias.
    pub biases: bool,
    /// What is between an expert's products.
    pub activation: ExpertActivation,
    /// An expert that every token goes through, unweighted.
    pub shared: Option<SharedExpert>,
    /// The router reads the residual stream `x` through a norm of its own, not what the experts
    /// read.
    pub router_norm: Option<RouterNorm>,
    /// Each expert has a learned number that its weight is multiplied by at last.
    pub weight_scales: bool,
    /// Weights multiply what an expert reads, not what it puts out (Llama 4).
    pub weighted_input: bool,
    /// The shared expert and those chosen are branches with norms of their own beside the layer's,
    /// `norm_s(shared(norm(x))) + norm_c(chosen(norm_e(x)))`.
    pub branch_norms: bool,
}

/// A router's own norm: what it reads is `multiplier · norm(x)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterNorm {
    /// What the normalised stream is multiplied by, beside the norm's weights.
    pub multiplier: f32,
}

/// An MLP beside the experts that are chosen, with gates if they have any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Rows of its `W_up`, and of its `W_gate`.
    pub intermediate: usize,
    /// Its output is multiplied by the sigmoid of a product with one row (Qwen2-MoE).
    pub gated: bool,
}

/// What is between the products of an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `silu(gate) ⊙ up`.
    SwiGlu,
    /// `gelu(gate) ⊙ up`, with [`Activation::GeluTanh`].
    GeGlu,
    /// `max(up, 0)²` of experts without gates, as the shared one is then, too (Nemotron-H).
    Relu2,
    /// `(up + 1) ⊙ gate · sigmoid(alpha · gate)`, with `gate` at most `limit` and `up` within
    /// `±limit` (gpt-oss).
    Clamped {
        /// The bound, which is positive.
        limit: f32,
        /// What the gate is multiplied with in the sigmoid.
        alpha: f32,
    },
}

/// How a router's scores become a choice of experts and their weights. Of equal scores the one of
/// the lower index comes first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// What experts are chosen by.
    pub scores: RouterScores,
    /// A bias of each expert is added to sigmoids, or to shares of a softmax over all experts, for
    /// the choice alone, not for the weights.
    pub correction: bool,
    /// Only experts of the best groups are chosen from.
    pub groups: Option<ExpertGroups>,
    /// Weights are divided by the sum of those chosen; those of a sparse mixer are shares anyway.
    pub renormalised: bool,
    /// What weights are multiplied by, at last.
    pub scale: f32,
}

/// What a router's products become.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RouterScores {
    /// Their softmax over all experts. Renormalised, it is the softmax over those chosen.
    Softmax,
    /// The sigmoid of each (GLM-4-MoE).
    Sigmoid,
    /// Phi-MoE's sparse mixer, for two experts: the weight of each is its share of the softmax over
    /// those whose score is within `2 · jitter` of the best that is left, relative to the greater
    /// of that and its own magnitude.
    SparseMixer {
        /// The bound of the relative distance, halved.
        jitter: f32,
    },
}

/// Groups of neighbouring experts, of the same size. A group is as good as the sum of its best two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many there are.
    pub groups: usize,
    /// How many of them are chosen from.
    pub chosen: usize,
}

impl Routing {
    /// The softmax over the experts chosen (Mixtral, gpt-oss).
    pub const SOFTMAX_OF_CHOSEN: Self = Self {
        scores: RouterScores::Softmax,
        correction: false,
        groups: None,
        renormalised: true,
        scale: 1.0,
    };
}

impl ExpertActivation {
    /// What opens gates of other products in a layer of such experts: those of the shared one, and
    /// of inputs of layers.
    pub fn of_gates(self) -> Activation {
        match self {
            Self::GeGlu => Activation::GeluTanh,
            Self::SwiGlu | Self::Clamped { .. } => Activation::Silu,
            Self::Relu2 => Activation::Relu2,
        }
    }

    /// Whether experts have gates.
    pub fn is_gated(self) -> bool {
        !matches!(self, Self::Relu2)
    }
}

impl ExpertsSpec {
    /// SwiGLU without biases or norms of their own, and no expert that is shared.
    pub const fn plain(
        experts: usize,
        per_token: usize,
        intermediate: usize,
        routing: Routing,
    ) -> Self {
        Self {
            experts,
            per_token,
            intermediate,
            routing,
            router_bias: false,
            router_cap: None,
            biases: false,
            activation: ExpertActivation::SwiGlu,
            shared: None,
            router_norm: None,
            weight_scales: false,
            weighted_input: false,
            branch_norms: false,
        }
    }

    /// Whether they, or their router, have norms beside those of the layer.
    pub(crate) fn has_norms(&self) -> bool {
        self.router_norm.is_some() || self.branch_norms
    }

    /// Whether what is chosen is added to what the shared expert has put out as it is.
    pub(crate) fn adds_to_shared(&self) -> bool {
        self.shared.is_some() && !self.branch_norms
    }

    /// Checks dimensions and constants.
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        dimension("experts", self.experts)?;
        dimension("experts per token", self.per_token)?;
        dimension("intermediate of an expert", self.intermediate)?;
        if let Some(shared) = &self.shared {
            dimension("intermediate of the shared expert", shared.intermediate)?;
        }
        let refuse = |problem| Err(SpecError::Experts(problem));
        let Routing { scores, scale, .. } = self.routing;
        if self.experts > EXPERTS_MAX || self.per_token > PER_TOKEN_MAX {
            return refuse("more experts than 1024, or more than 32 of them for a token");
        }
        if self.per_token > self.experts {
            return refuse("fewer experts than each token goes through");
        }
        if let Some(ExpertGroups { groups, chosen }) = self.routing.groups {
            if groups == 0 || !self.experts.is_multiple_of(groups) || self.experts / groups < 2 {
                return refuse("groups of experts that are not of one size, two or more");
            }
            if chosen == 0 || chosen > groups {
                return refuse("a choice of none, or of more groups of experts than there are");
            }
            if chosen * (self.experts / groups) < self.per_token {
                return refuse("groups with fewer experts than each token goes through");
            }
        }
        if let RouterScores::SparseMixer { jitter } = scores {
            if self.routing.correction {
                return refuse("a correction of a sparse mixer");
            }
            if self.per_token != 2 || self.routing.groups.is_some() {
                return refuse("a sparse mixer of other than two experts, or with groups");
            }
            if !self.routing.renormalised {
                return refuse("a sparse mixer whose weights are not shares of close scores");
            }
            if !is_sound(jitter) {
                return Err(SpecError::NotFinite("the sparse mixer's jitter"));
            }
        }
        if self.branch_norms && self.shared.is_none_or(|shared| shared.gated) {
            return refuse("norms of branches without a shared expert, or with one that is scored");
        }
        if let Some(RouterNorm { multiplier }) = self.router_norm
            && !is_sound(multiplier)
        {
            return Err(SpecError::NotFinite("the multiplier of a router's norm"));
        }
        if !self.router_cap.is_none_or(|cap| cap > 0.0 && is_sound(cap)) {
            return Err(SpecError::NotFinite("the soft cap of a router's scores"));
        }
        if let ExpertActivation::Clamped { limit, alpha } = self.activation {
            if !(is_sound(limit) && limit > 0.0) {
                return refuse(
                    "a clamp limit that is out of range: it must be positive and finite",
                );
            }
            if !is_sound(alpha) {
                return Err(SpecError::NotFinite("alpha of the experts' activation"));
            }
        }
        match is_sound(scale) {
            true => Ok(()),
            false => Err(SpecError::NotFinite("the scale of experts' weights")),
        }
    }
}

/// Beyond any published model, and what a GPU's router has room for.
const EXPERTS_MAX: usize = 1024;
const PER_TOKEN_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clamp_limit_must_be_positive_and_finite() {
        let checked = |limit, alpha| {
            let spec = ExpertsSpec {
                activation: ExpertActivation::Clamped { limit, alpha },
                ..ExpertsSpec::plain(4, 2, 8, Routing::SOFTMAX_OF_CHOSEN)
            };
            spec.validate().map_err(|error| error.to_string())
        };
        assert_eq!(checked(7.0, 1.702), Ok(()));
        for limit in [0.0, -0.0, -7.0, f32::INFINITY, f32::NAN] {
            let error = checked(limit, 1.702).expect_err("no limit");
            assert!(error.contains("must be positive and finite"), "{error}");
        }
        let error = checked(7.0, -1.0).expect_err("a negative factor");
        assert!(error.contains("alpha"), "{error}");
    }
}
