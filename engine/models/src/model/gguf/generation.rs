//! The sampling parameters that newer GGUF files recommend: the `general.sampling.*` keys.

use ebb_kernels::backend::REPETITION_PENALTIES;

use super::error::GgufError;
use super::metadata::GgufMetadata;
use super::value::GgufValue;
use crate::model::generation_defaults::GenerationDefaults;

/// 0 and -1 both mean all.
const TOP_K: &str = "general.sampling.top_k";

impl GgufMetadata {
    /// Reads the `general.sampling.*` keys.
    ///
    /// # Errors
    /// [`GgufError::Value`] when one has the wrong type or an impossible value.
    pub fn generation_defaults(&self) -> Result<GenerationDefaults, GgufError> {
        let within = |name: &str, range: std::ops::RangeInclusive<f32>, expected| {
            let key = format!("general.sampling.{name}");
            match self.f32(&key)? {
                Some(value) if !range.contains(&value) => Err(GgufError::Value {
                    key,
                    found: value.to_string(),
                    expected,
                }),
                value => Ok(value),
            }
        };
        let least = f32::MIN_POSITIVE;
        Ok(GenerationDefaults {
            temperature: within("temp", 0.0..=f32::MAX, "a number from 0")?,
            top_k: match self.get(TOP_K) {
                Some(GgufValue::Int(-1)) => Some(0),
                _ => self.u32(TOP_K)?,
            },
            top_p: within("top_p", least..=1.0, "a number above 0, at most 1")?,
            min_p: within("min_p", 0.0..=1.0, "a number from 0 to 1")?,
            repetition_penalty: within(
                "penalty_repeat",
                REPETITION_PENALTIES,
                "a number from 0.01 to 100",
            )?,
        })
    }
}
