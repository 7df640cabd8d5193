//! RoPE scaling in GGUF: `rope.scaling.*` keys, or Llama 3's factors as a tensor.

use super::file::GgufFile;
use super::ggml_type::GgmlType;
use super::keys::Keys;
use crate::model::error::Refusal;
use crate::model::rope::{LongFactors, Scaling, Yarn};

/// The frequency factors of Llama 3's RoPE scaling, `[head_dim / 2]`.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Those of LongRoPE, for short contexts and for long ones, `[rotary_dim / 2]` each.
const LONG_ROPE_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

// YaRN's keys.
const ATTN_FACTOR: &str = "rope.scaling.yarn_attn_factor";
const BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
const BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// Architectures whose YaRN goes from keeping frequencies to dividing them between channels that
/// are not rounded (`truncate` in Hugging Face's form): files do not say so.
const NOT_TRUNCATED: [&str; 1] = ["gpt-oss"];

/// Whether a tensor holds frequency factors and no weights.
pub(super) fn is_rope_factors(name: &str) -> bool {
    name == ROPE_FACTORS || LONG_ROPE_FACTORS.contains(&name)
}

/// A tensor of LongRoPE's factors that a file has.
pub(super) fn has_long_factors(file: &GgufFile) -> Option<&'static str> {
    let mut names = LONG_ROPE_FACTORS.into_iter();
    names.find(|name| file.tensor(name).is_some())
}

/// LongRoPE's factors of a file that has them.
pub(super) fn long_factors(
    keys: &Keys<'_>,
    file: &GgufFile,
    rotary_dim: usize,
) -> Result<Option<LongFactors>, Refusal> {
    let [short, long] = LONG_ROPE_FACTORS;
    let factors = |name| rope_factors(name, file, rotary_dim);
    let (Some(short), Some(long)) = (factors(short)?, factors(long)?) else {
        return Ok(None);
    };
    let wide = |factors: Vec<f32>| factors.into_iter().map(f64::from).collect();
    let original = keys.size("rope.scaling.original_context_length")?.max(2) as f64;
    let attention_factor = keys.name("rope.scaling.attn_factor");
    Ok(Some(LongFactors {
        short: wide(short),
        long: wide(long),
        original_positions: original,
        attention_factor: match keys.metadata.f32(&attention_factor)? {
            Some(factor) => factor.into(),
            None => {
                let extension = keys.size("context_length")? as f64 / original;
                LongFactors::attention_factor(extension, original)
            }
        },
    }))
}

/// How RoPE is scaled, and the context that the scaling was made for if it says so.
pub(super) fn scaling(
    keys: &Keys<'_>,
    file: &GgufFile,
    head_dim: usize,
) -> Result<(Scaling, Option<f64>), Refusal> {
    let kind_name = keys.name("rope.scaling.type");
    let kind = keys.metadata.text(&kind_name)?;
    let factor_name = keys.name("rope.scaling.factor");
    let factor = match keys.metadata.f32(&factor_name)? {
        // Written by converters for models without scaling.
        Some(0.0) => None,
        Some(factor) if factor >= 1.0 => Some(f64::from(factor)),
        Some(factor) => return Err(Refusal::invalid(factor_name, factor, "at least 1")),
        None => None,
    };
    let old_name = keys.name("rope.scale_linear");
    let old_factor = keys
        .metadata
        .f32(&old_name)?
        .filter(|factor| *factor != 1.0);
    if let Some(factor) = old_factor
        && (factor < 1.0 || kind.is_some())
    {
        let expected = "at least 1, and no rope.scaling.type beside it";
        return Err(Refusal::invalid(old_name, factor, expected));
    }
    let needed = |factor: Option<f64>| factor.ok_or(Refusal::Missing(factor_name.clone()));
    let scaling = match (kind, old_factor) {
        (None, Some(factor)) => Scaling::Linear {
            factor: factor.into(),
        },
        (None, None) if factor.is_some_and(|factor| factor != 1.0) => {
            return Err(Refusal::Missing(kind_name));
        }
        (None | Some("none"), _) => Scaling::None,
        (Some("linear"), _) => Scaling::Linear {
            factor: needed(factor)?,
        },
        (Some("yarn"), _) => {
            let original = match keys
                .metadata
                .u32(&keys.name("rope.scaling.original_context_length"))?
            {
                Some(positions) => positions as usize,
                None => keys.size("context_length")?,
            };
            Scaling::Yarn(yarn(keys, needed(factor)?, original.max(1) as f64)?)
        }
        (Some(other), _) => {
            let supported = "none, linear, yarn, and Llama 3's factors in rope_freqs.weight";
            return Err(Refusal::unsupported(
                kind_name,
                format!("{other:?}"),
                supported,
            ));
        }
    };
    let positions = if let Scaling::Yarn(yarn) = &scaling {
        Some(yarn.positions())
    } else {
        refuse_yarn(keys)?;
        None
    };
    match (scaling, rope_factors(ROPE_FACTORS, file, head_dim)?) {
        (scaling, None) => Ok((scaling, positions)),
        (Scaling::None, Some(factors)) => Ok((Scaling::Factors(factors), None)),
        (_, Some(_)) => {
            let supported = "none beside rope_freqs.weight";
            Err(Refusal::unsupported(
                kind_name,
                format!("{:?}", kind.unwrap_or("linear")),
                supported,
            ))
        }
    }
}

/// YaRN by its keys. Its multiplier is one by itself (`yarn_attn_factor`; 1 stands for none), or
/// what is left of it where scores are multiplied by another (`yarn_log_multiplier`).
fn yarn(keys: &Keys<'_>, factor: f64, original_positions: f64) -> Result<Yarn, Refusal> {
    let above_0 = |key: &str| {
        let name = keys.name(key);
        match keys.metadata.f32(&name)? {
            Some(found) if found <= 0.0 => Err(Refusal::invalid(name, found, "a number above 0")),
            found => Ok(found.map(f64::from)),
        }
    };
    let mut yarn = Yarn::new(factor, original_positions);
    yarn.truncate = !NOT_TRUNCATED.contains(&keys.family.architecture);
    if let Some(fast) = above_0(BETA_FAST)? {
        yarn.beta_fast = fast;
    }
    if let Some(slow) = above_0(BETA_SLOW)? {
        yarn.beta_slow = slow;
    }
    if yarn.beta_fast <= yarn.beta_slow {
        let field = keys.name(BETA_FAST);
        let expected = format!("more than yarn_beta_slow, {}", yarn.beta_slow);
        return Err(Refusal::invalid(field, yarn.beta_fast, expected));
    }
    let of_scores = keys.metadata.f32(&keys.name(LOG_MULTIPLIER))?;
    if let Some(mscale) = of_scores.filter(|mscale| *mscale != 0.0) {
        if mscale < 0.0 {
            let name = keys.name(LOG_MULTIPLIER);
            return Err(Refusal::invalid(name, mscale, "a number from 0"));
        }
        yarn.attention_factor /= Yarn::attention(factor, mscale.into());
    }
    let own = above_0(ATTN_FACTOR)?;
    if let Some(attention_factor) = own.filter(|own| *own != 1.0) {
        yarn.attention_factor = attention_factor;
    }
    Ok(yarn)
}

/// Refuses YaRN's keys beside another scaling, but for values at which they change nothing.
fn refuse_yarn(keys: &Keys<'_>) -> Result<(), Refusal> {
    for (key, neutral) in [
        (ATTN_FACTOR, 1.0),
        (BETA_FAST, 32.0),
        (BETA_SLOW, 1.0),
        (LOG_MULTIPLIER, 0.0),
    ] {
        let name = keys.name(key);
        if let Some(found) = keys.metadata.f32(&name)?
            && found != neutral
        {
            let supported = format!("{neutral}, but for the scaling yarn");
            return Err(Refusal::unsupported(name, found, &supported));
        }
    }
    Ok(())
}

/// The contents of a tensor of factors.
fn rope_factors(name: &str, file: &GgufFile, head_dim: usize) -> Result<Option<Vec<f32>>, Refusal> {
    let Some(tensor) = file.tensor(name) else {
        return Ok(None);
    };
    if tensor.kind != GgmlType::F32 {
        return Err(Refusal::unsupported(
            name,
            format!("{:?}", tensor.kind),
            "F32",
        ));
    }
    if tensor.shape != [head_dim / 2] {
        return Err(Refusal::Shape {
            tensor: name.to_owned(),
            found: tensor.shape.clone(),
            expected: vec![head_dim / 2],
        });
    }
    let (words, _) = file.data(tensor).as_chunks();
    let factors: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    match factors
        .iter()
        .find(|factor| !(factor.is_finite() && **factor > 0.0))
    {
        Some(wrong) => Err(Refusal::invalid(name, wrong, "finite factors above 0")),
        None => Ok(Some(factors)),
    }
}
