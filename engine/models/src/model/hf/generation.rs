//! generation_config.json: tokens that end a generation, and recommended sampling.

use std::path::Path;

use ebb_kernels::backend::REPETITION_PENALTIES;

use super::json::{Object, read_small};
use crate::model::error::{ModelError, Refusal};
use crate::model::generation_defaults::GenerationDefaults;

/// What generation_config.json says.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    pub(crate) end_ids: Vec<u32>,
    pub(crate) defaults: GenerationDefaults,
}

/// Reads generation_config.json, if there is one.
pub(crate) fn read_generation(path: &Path) -> Result<Generation, ModelError> {
    match read_small(path)? {
        Some(bytes) => parse(&bytes).map_err(|refusal| refusal.at(path)),
        None => Ok(Generation::default()),
    }
}

/// Fields beyond these are about other engines' options.
fn parse(bytes: &[u8]) -> Result<Generation, Refusal> {
    let config = Object::parse(bytes)?;
    let within = |key: &str, low: f64, high: f64, expected: &str| match config.number(key)? {
        Some(value) if !(low..=high).contains(&value) => {
            Err(Refusal::invalid(key, value, expected))
        }
        value => Ok(value.map(|value| value as f32)),
    };
    let most = f64::from(f32::MAX);
    let least = f64::from(f32::MIN_POSITIVE);
    let mut temperature = within("temperature", 0.0, most, "a number from 0")?;
    if config.bool("do_sample")? == Some(false) {
        temperature = Some(0.0);
    }
    // 0 and -1 both mean all.
    let top_k = config.typed(
        "top_k",
        "a whole number from -1 to 2^32 - 1",
        |top_k| match top_k.as_i64()? {
            -1 => Some(0),
            top_k => u32::try_from(top_k).ok(),
        },
    )?;
    Ok(Generation {
        end_ids: config.ids("eos_token_id")?,
        defaults: GenerationDefaults {
            temperature,
            top_k,
            top_p: within("top_p", least, 1.0, "a number above 0, at most 1")?,
            min_p: within("min_p", 0.0, 1.0, "a number from 0 to 1")?,
            repetition_penalty: within(
                "repetition_penalty",
                f64::from(*REPETITION_PENALTIES.start()),
                f64::from(*REPETITION_PENALTIES.end()),
                "a number from 0.01 to 100",
            )?,
        },
    })
}
