//! Queries that grow with their position.

use super::spec::is_sound;
use super::spec_error::SpecError;

/// Queries are multiplied by `1 + beta ln(1 + floor(position / interval))`, so that attention stays
/// sharp over long contexts (Llama 4, Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// How strongly they grow.
    pub beta: f32,
    /// Positions between two steps; the first so many are left as they are.
    pub interval: u32,
}

impl QueryGrowth {
    /// The multiplier of a query at this position.
    pub fn factor(&self, position: u32) -> f32 {
        let steps = f64::from(position / self.interval);
        (1.0 + f64::from(self.beta) * steps.ln_1p()) as f32
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
