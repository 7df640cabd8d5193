//! Queries that grow with their position.

use super::spec::is_sound;
use super::spec_error::SpecError;

/// Queries are multiplied by `1 + beta ln(1 + floor(position / interval))`, so that attention stays
/// sharp over long contexts (Ministral 3). Positions may count from 1 for that (Llama 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// How strongly they grow.
    pub beta: f32,
    /// Positions between two steps; the first so many are left as they are.
    pub interval: u32,
    /// Positions count from 1.
    pub from_one: bool,
}

impl QueryGrowth {
    /// The multiplier of a query at this position.
    pub fn factor(&self, position: u32) -> f32 {
        let steps = f64::from(self.steps(position));
        (1.0 + f64::from(self.beta) * steps.ln_1p()) as f32
    }

    /// How often a query at this position has grown.
    pub fn steps(&self, position: u32) -> u32 {
        position.saturating_add(self.from_one.into()) / self.interval
    }

    pub(super) fn validate(&self) -> Result<(), SpecError> {
        if self.interval == 0 {
            return Err(SpecError::Zero("the interval in which queries grow"));
        }
        if !is_sound(self.beta) {
            return Err(SpecError::NotFinite("what queries grow by"));
        }
        Ok(())
    }
}
